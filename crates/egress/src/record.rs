//! What the audit is told.

use std::time::Duration;

use domain::SessionId;

use crate::Denied;

/// One thing that was tried. Holds no secret, no query and no body.
#[derive(Clone, PartialEq, Debug)]
pub struct Record {
    /// Whose it is.
    pub session: SessionId,
    /// The name or address that was asked for, fit to be shown.
    pub host: String,
    /// The port; 53 for a name that was only asked for.
    pub port: u16,
    /// What was spoken: `dns`, `tcp`, `tls`, `http`, `https`.
    pub protocol: &'static str,
    /// The rule that decided.
    pub rule: Option<String>,
    /// The request's line, where requests are read: method, and path without its query.
    pub request: Option<Request>,
    /// How it ended.
    pub outcome: Outcome,
    /// Bytes that left.
    pub sent: u64,
    /// Bytes that came back.
    pub received: u64,
    /// From the beginning to the end.
    pub took: Duration,
}

/// One request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The method.
    pub method: String,
    /// The path, without its query.
    pub path: String,
    /// The status that the sandbox was shown.
    pub status: u16,
    /// Whether something was put in that the sandbox does not know.
    pub injected: bool,
}

/// How it ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It was allowed, and is over.
    Allowed,
    /// It was refused.
    Denied(Denied),
}
