//! A call of a service: somebody inside names a method, the control plane checks, calls and answers.
//!
//! The answer is the result itself: its bytes as they come, under the media type that they have (JSON, mostly). What went
//! wrong is a [`ServiceError`] with the HTTP status of [`ServiceFailure::status`]. An answer that breaks off is a connection
//! that breaks off.

use std::collections::BTreeSet;

use domain::ToolCallId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Refusal, RefusalCode};

/// What a run may use beyond its tools. A sandbox is told so that it need not ask in vain; the control plane decides on
/// each call anew.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Grants {
    /// Services with a method that is allowed; none where the scope has no `exec`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceGrant>,
    /// Models that the user's programs may ask by themselves, by name; none where the scope has no `exec`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// Skills that may be loaded; all where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skills: Option<BTreeSet<String>>,
    /// How long a program that is started in the background may go on, in seconds; 0: none may be. Since protocol 3.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub background_seconds: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A service as a run may use it. What is denied does not stand here.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServiceGrant {
    /// Its name.
    pub name: String,
    /// What it is, in one line; the line of the prompt.
    pub summary: String,
    /// The methods that are allowed.
    pub methods: Vec<String>,
    /// Their TypeScript declarations.
    pub types: String,
    /// The same methods as programs are told of them that know tools and no TypeScript.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<MethodGrant>,
}

/// A method as a tool.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MethodGrant {
    /// Its name.
    pub name: String,
    /// What it does, in one line.
    pub summary: String,
    /// It changes nothing.
    pub read_only: bool,
    /// The JSON Schema of its arguments: an object.
    pub arguments: Value,
}

/// The longest [`ServiceRequest`], as JSON.
pub const SERVICE_REQUEST_BYTES: usize = 1 << 20;

/// The most parts of one ([`parse`](crate::parse)); what it says in a text counts once.
pub const SERVICE_REQUEST_PARTS: usize = 20_000;

/// Asks for a method of a service.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceRequest {
    /// The service.
    pub service: String,
    /// The method.
    pub method: String,
    /// Its arguments: an object; null where there are none.
    #[serde(default)]
    pub args: Value,
    /// The tool call that it is made for, as the process inside says: a claim of an untrusted party.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<ToolCallId>,
    /// The same for the same call of the same run, however often it is repeated; unique within the run, so whoever keeps it
    /// puts the run before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

/// Why a call of a service has no result.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ServiceFailure {
    /// The HTTP status: 401, 403, 404, 422, 429, 502…; not part of the JSON.
    #[serde(skip)]
    pub status: u16,
    /// For programs: a word such as `denied` or `rate_limited`.
    pub code: String,
    /// For people and models: what went wrong.
    pub message: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// Seconds after which the same call may go through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u32>,
}

impl ServiceFailure {
    /// A failure in words.
    #[must_use]
    pub fn new(status: u16, code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            status,
            code: code.into(),
            message: message.into(),
            remedy: None,
            retry_after: None,
        }
    }

    /// The same, and what to do about it.
    #[must_use]
    pub fn remedy(self, remedy: impl Into<String>) -> Self {
        Self {
            remedy: Some(remedy.into()),
            ..self
        }
    }
}

impl From<Refusal> for ServiceFailure {
    fn from(refusal: Refusal) -> Self {
        let (status, code) = match refusal.code {
            RefusalCode::Unauthorized => (401, "unauthorized"),
            RefusalCode::Stale => (409, "stale"),
            RefusalCode::Invalid => (400, "invalid"),
            RefusalCode::BudgetExhausted => (402, "budget_exhausted"),
            RefusalCode::ModelFailed => (502, "model_failed"),
            RefusalCode::Denied => (403, "denied"),
            RefusalCode::Unavailable => (503, "unavailable"),
        };
        let remedy = refusal.denial.and_then(|denial| denial.remedy);
        Self {
            remedy,
            ..Self::new(status, code, refusal.message)
        }
    }
}

/// The body of an answer that is none.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServiceError {
    /// Why.
    pub error: ServiceFailure,
}
