//! Why a call has no result.

use std::fmt;
use std::time::Duration;

use serde::ser::{Serialize, SerializeStruct, Serializer};

/// Why a call has no result, in words that a person and a model can act on. Nothing in it is secret.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The reason, for programs.
    pub code: Code,
    /// What was tried, on what, and why it failed.
    pub message: String,
    /// What to do next.
    pub remedy: Option<String>,
    /// How long to wait before the next attempt.
    pub retry_after: Option<Duration>,
}

/// The reasons there are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Code {
    /// No such service.
    UnknownService,
    /// No such method.
    UnknownMethod,
    /// The arguments do not fit the method's schema, or their place in the request.
    InvalidArguments,
    /// The arguments have too many bytes.
    ArgumentsTooLarge,
    /// The service's or the session's rate is used up.
    RateLimited,
    /// Too many calls wait already.
    Busy,
    /// A secret that the service needs is not bound, or does not resolve.
    CredentialMissing,
    /// The upstream does not accept the credential, or it could not be renewed.
    CredentialRefused,
    /// The upstream's name or address is one that the service may not be at.
    AddressRefused,
    /// No connection, or it broke.
    Unreachable,
    /// The upstream's certificate is not good.
    BadCertificate,
    /// The upstream points elsewhere; that is not followed.
    Redirected,
    /// The upstream says that there is no such thing.
    NotFound,
    /// The upstream refuses the request as it is.
    Refused,
    /// The upstream's rate limit is reached.
    UpstreamRateLimited,
    /// The upstream has a fault.
    UpstreamFailed,
    /// The answer has too many bytes.
    AnswerTooLarge,
    /// The answer is not what was declared.
    AnswerMalformed,
    /// The answer holds a credential.
    AnswerWithheld,
    /// The answer ended early.
    AnswerCut,
    /// The upstream describes the method otherwise than when it was approved.
    SchemaChanged,
    /// It took too long.
    Timeout,
}

impl Code {
    /// Whether the upstream was not asked: the call ended before it left.
    #[must_use]
    pub const fn is_local(self) -> bool {
        matches!(
            self,
            Self::UnknownService
                | Self::UnknownMethod
                | Self::InvalidArguments
                | Self::ArgumentsTooLarge
                | Self::RateLimited
                | Self::Busy
                | Self::SchemaChanged
        )
    }

    /// Whether the upstream did nothing, as far as one request goes: it never arrived there whole, or was refused.
    #[must_use]
    pub const fn is_refusal(self) -> bool {
        matches!(
            self,
            Self::CredentialMissing
                | Self::CredentialRefused
                | Self::AddressRefused
                | Self::Unreachable
                | Self::BadCertificate
                | Self::NotFound
                | Self::Refused
                | Self::UpstreamRateLimited
        )
    }

    /// As it stands in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::UnknownService => "unknown_service",
            Self::UnknownMethod => "unknown_method",
            Self::InvalidArguments => "invalid_arguments",
            Self::ArgumentsTooLarge => "arguments_too_large",
            Self::RateLimited => "rate_limited",
            Self::Busy => "busy",
            Self::CredentialMissing => "credential_missing",
            Self::CredentialRefused => "credential_refused",
            Self::AddressRefused => "address_refused",
            Self::Unreachable => "upstream_unreachable",
            Self::BadCertificate => "bad_certificate",
            Self::Redirected => "upstream_redirected",
            Self::NotFound => "not_found",
            Self::Refused => "upstream_refused",
            Self::UpstreamRateLimited => "upstream_rate_limited",
            Self::UpstreamFailed => "upstream_failed",
            Self::AnswerTooLarge => "answer_too_large",
            Self::AnswerMalformed => "answer_malformed",
            Self::AnswerWithheld => "answer_withheld",
            Self::AnswerCut => "answer_cut",
            Self::SchemaChanged => "schema_changed",
            Self::Timeout => "timeout",
        }
    }

    /// The HTTP status that says the same.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::UnknownService | Self::UnknownMethod | Self::NotFound => 404,
            Self::AnswerWithheld | Self::SchemaChanged => 403,
            Self::InvalidArguments | Self::ArgumentsTooLarge | Self::Refused => 422,
            Self::RateLimited | Self::Busy | Self::UpstreamRateLimited => 429,
            Self::CredentialMissing
            | Self::CredentialRefused
            | Self::AddressRefused
            | Self::Unreachable
            | Self::BadCertificate
            | Self::Redirected
            | Self::UpstreamFailed
            | Self::AnswerTooLarge
            | Self::AnswerMalformed
            | Self::AnswerCut => 502,
            Self::Timeout => 504,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            remedy: None,
            retry_after: None,
        }
    }

    pub(crate) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    pub(crate) fn after(mut self, delay: Option<Duration>) -> Self {
        self.retry_after = delay;
        self
    }

    /// The HTTP status that says the same.
    #[must_use]
    pub const fn status(&self) -> u16 {
        self.code.status()
    }
}

/// `{"code", "message", "remedy"?, "retry_after"?}`; the time in seconds.
impl Serialize for Failure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = 2 + usize::from(self.remedy.is_some()) + usize::from(self.retry_after.is_some());
        let mut error = serializer.serialize_struct("error", fields)?;
        error.serialize_field("code", self.code.as_str())?;
        error.serialize_field("message", &self.message)?;
        if let Some(remedy) = &self.remedy {
            error.serialize_field("remedy", remedy)?;
        }
        if let Some(delay) = self.retry_after {
            error.serialize_field("retry_after", &delay.as_secs_f64().ceil())?;
        }
        error.end()
    }
}
