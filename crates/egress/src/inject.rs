//! What is put into requests that the sandbox does not know.
//!
//! Secrets are resolved for each request and forgotten after it, so a rotation or revocation counts at once. What a client
//! puts where a secret belongs is replaced, every instance of it.

pub(crate) mod aws;
pub(crate) mod chunked;
pub(crate) mod git;
pub(crate) mod placeholder;
pub(crate) mod query;
mod substitute;

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use protocol::PLACEHOLDER;
use secret::{Reference, Secret, Source};
use serde::Deserialize;

pub use aws::Aws;
pub use git::Git;
pub(crate) use substitute::{Escape, Substitute};

use crate::{Code, Denied};

/// When a secret is put in.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Into every request that the rule lets pass.
    #[default]
    Add,
    /// In place of `credential-brokered`, only where the client wrote it.
    Placeholder,
}

/// One secret and its place in a request.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Injection {
    /// `Authorization: Bearer …`.
    Bearer {
        /// The token.
        secret: Reference,
        /// When.
        #[serde(default)]
        mode: Mode,
    },
    /// `Authorization: Basic …`.
    Basic {
        /// The user's name.
        user: String,
        /// The password.
        secret: Reference,
        /// When.
        #[serde(default)]
        mode: Mode,
    },
    /// A header of any name.
    Header {
        /// Its name.
        name: String,
        /// What stands before the secret.
        #[serde(default)]
        prefix: String,
        /// The secret.
        secret: Reference,
        /// When.
        #[serde(default)]
        mode: Mode,
    },
    /// A parameter of the query.
    Query {
        /// Its name.
        name: String,
        /// The secret.
        secret: Reference,
        /// When.
        #[serde(default)]
        mode: Mode,
    },
    /// `credential-brokered` in the path.
    Path {
        /// The secret.
        secret: Reference,
    },
    /// `credential-brokered` in the body, escaped as JSON and forms need it, or in the text of a WebSocket.
    Body {
        /// The secret.
        secret: Reference,
    },
}

/// The place that an injection fills. Two of a rule may not fill the same.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Slot {
    Header(String),
    Query(String),
    Path,
    Body,
}

impl fmt::Display for Slot {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(formatter, "the header {name}"),
            Self::Query(name) => write!(formatter, "the query's parameter {name}"),
            Self::Path => formatter.write_str("the path"),
            Self::Body => formatter.write_str("the body"),
        }
    }
}

impl Injection {
    /// The place that it fills.
    pub(crate) fn slot(&self) -> Slot {
        match self {
            Self::Bearer { .. } | Self::Basic { .. } => Slot::Header("authorization".to_owned()),
            Self::Header { name, .. } => Slot::Header(name.to_ascii_lowercase()),
            Self::Query { name, .. } => Slot::Query(name.clone()),
            Self::Path { .. } => Slot::Path,
            Self::Body { .. } => Slot::Body,
        }
    }

    /// Its secret's place.
    pub(crate) const fn reference(&self) -> &Reference {
        match self {
            Self::Bearer { secret, .. }
            | Self::Basic { secret, .. }
            | Self::Header { secret, .. }
            | Self::Query { secret, .. }
            | Self::Path { secret }
            | Self::Body { secret } => secret,
        }
    }
}

/// The part of a request that is looked at and changed.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) method: http::Method,
    pub(crate) path: String,
    pub(crate) query: Option<String>,
    pub(crate) headers: HeaderMap,
}

/// What was put in: the secrets, to be scrubbed from the answer, and what is still to be done with the body.
#[derive(Default)]
pub(crate) struct Injected {
    pub(crate) secrets: Vec<Secret>,
    pub(crate) body: Option<Substitute>,
}

/// Resolves a secret for one request.
pub(crate) fn resolve(source: &dyn Source, reference: &Reference, rule: &str) -> Result<Secret, Denied> {
    let none = |reason: String, remedy: String| Denied::new(Code::NoSecret, reason, remedy).by(rule);
    let secret = source.secret(reference).map_err(|unresolved| {
        none(
            format!("the rule's secret is not there: {unresolved}"),
            unresolved.remedy,
        )
    })?;
    if secret.expose().is_empty() {
        return Err(none(
            format!("the rule's secret {reference} is empty"),
            format!("set {reference} to the credential that the rule {rule} is to use"),
        ));
    }
    Ok(secret)
}

/// Puts one secret in its place.
pub(crate) fn inject(
    injection: &Injection,
    head: &mut Head,
    source: &dyn Source,
    rule: &str,
    injected: &mut Injected,
) -> Result<(), Denied> {
    if !applies(injection, head) {
        return Ok(());
    }
    let secret = resolve(source, injection.reference(), rule)?;
    match injection {
        Injection::Bearer { .. } => {
            let value = Secret::new(format!("Bearer {}", secret.expose()));
            set_header(head, header::AUTHORIZATION, &value, rule)?;
        }
        Injection::Basic { user, .. } => {
            set_header(head, header::AUTHORIZATION, &basic(user, &secret), rule)?;
        }
        Injection::Header { name, prefix, .. } => {
            let name = HeaderName::try_from(name.as_str()).map_err(|_| broken_header(name, rule))?;
            let value = Secret::new(format!("{prefix}{}", secret.expose()));
            set_header(head, name, &value, rule)?;
        }
        Injection::Query { name, mode, .. } => {
            head.query = Some(match mode {
                Mode::Add => query::set(head.query.as_deref(), name, &secret),
                Mode::Placeholder => query::replace(head.query.as_deref(), name, &secret),
            });
        }
        Injection::Path { .. } => {
            head.path = head.path.replace(PLACEHOLDER, &query::encode(secret.expose()));
        }
        Injection::Body { .. } => {
            injected.body = Some(Substitute::new(&secret, Escape::of(&head.headers)));
        }
    }
    injected.secrets.push(secret);
    Ok(())
}

/// `Basic` with a user and a password.
pub(crate) fn basic(user: &str, password: &Secret) -> Secret {
    let pair = Secret::new(format!("{user}:{}", password.expose()));
    let encoded = Secret::new(STANDARD.encode(pair.expose()));
    Secret::new(format!("Basic {}", encoded.expose()))
}

/// Sets a header in place of every one of that name, however it is written.
pub(crate) fn set_header(head: &mut Head, name: HeaderName, value: &Secret, rule: &str) -> Result<(), Denied> {
    let mut value = HeaderValue::from_str(value.expose()).map_err(|_| broken_header(name.as_str(), rule))?;
    value.set_sensitive(true);
    remove_headers(&mut head.headers, |known| known == dashed(&name));
    head.headers.insert(name, value);
    Ok(())
}

/// A header's name as servers read it that make variables of names: they cannot tell `_` from `-`.
fn dashed(name: &HeaderName) -> String {
    name.as_str().replace('_', "-")
}

/// Removes the headers whose name is one of these, however it is written.
pub(crate) fn remove_headers(headers: &mut HeaderMap, is_one: impl Fn(&str) -> bool) {
    let names: Vec<HeaderName> = headers.keys().filter(|name| is_one(&dashed(name))).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

fn broken_header(name: &str, rule: &str) -> Denied {
    Denied::new(
        Code::NoSecret,
        format!("the secret of the rule {rule} has characters that the header {name} cannot carry"),
        "set the secret anew, without line breaks or control characters",
    )
    .by(rule)
}

/// Whether a request has the place that an injection fills.
fn applies(injection: &Injection, head: &Head) -> bool {
    let in_header = |name: &str| head.headers.get_all(name).iter().any(placeholder::in_header);
    match injection {
        Injection::Bearer { mode, .. } | Injection::Basic { mode, .. } => {
            *mode == Mode::Add || in_header("authorization")
        }
        Injection::Header { name, mode, .. } => *mode == Mode::Add || in_header(name),
        Injection::Query { name, mode, .. } => *mode == Mode::Add || query::has(head.query.as_deref(), name),
        Injection::Path { .. } => head.path.contains(PLACEHOLDER),
        Injection::Body { .. } => !head.headers.contains_key(header::CONTENT_ENCODING),
    }
}
