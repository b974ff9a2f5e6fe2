//! Why a model did not answer.

use std::time::Duration;

use llm::DecodeError;
use secret::{Because, Unresolved};

/// Why a model did not answer, or not to the end. `model` is its name in the configuration; what the provider said is cut
/// to a few hundred letters, and keys are taken out of it.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The provider does not know the key.
    #[error("model {model}: the provider refused the key ({status}): {message}; check models.{model}.key")]
    Unauthorized {
        /// The model.
        model: String,
        /// The HTTP status.
        status: u16,
        /// What the provider said.
        message: String,
    },
    /// The key cannot be had.
    #[error("model {model} has no key")]
    NoKey {
        /// The model.
        model: String,
        /// Why, and what to do.
        #[source]
        source: Box<Unresolved>,
    },
    /// The key is one that cannot be sent.
    #[error("model {model}: its key is empty or has letters that no key has; check models.{model}.key")]
    BadKey {
        /// The model.
        model: String,
    },
    /// Too many requests, and still so after the last attempt.
    #[error("model {model}: the provider's rate limit is reached: {message}")]
    RateLimited {
        /// The model.
        model: String,
        /// How long the provider wants to be left alone.
        retry_after: Option<Duration>,
        /// What the provider said.
        message: String,
    },
    /// The provider is down or overloaded, and still so after the last attempt.
    #[error("model {model}: the provider has a fault ({status}): {message}")]
    Overloaded {
        /// The model.
        model: String,
        /// The HTTP status; 200 where the stream said it.
        status: u16,
        /// How long the provider wants to be left alone.
        retry_after: Option<Duration>,
        /// What the provider said.
        message: String,
    },
    /// What was sent does not fit the model's window.
    #[error("model {model}: the conversation is longer than its window: {message}")]
    WindowFull {
        /// The model.
        model: String,
        /// What the provider said.
        message: String,
    },
    /// The provider refuses a picture that the conversation holds, or the size that pictures have together: without them it may
    /// answer.
    #[error("model {model}: the provider refused a picture ({status}): {message}")]
    PictureRefused {
        /// The model.
        model: String,
        /// The HTTP status; 200 where the stream said it.
        status: u16,
        /// What the provider said.
        message: String,
    },
    /// The provider refuses this request, and will refuse it again.
    #[error("model {model}: the provider refused the request ({status}): {message}")]
    Refused {
        /// The model.
        model: String,
        /// The HTTP status.
        status: u16,
        /// What the provider said.
        message: String,
    },
    /// No connection, or it broke before the first word.
    #[error("model {model}: {address} could not be reached")]
    Unreachable {
        /// The model.
        model: String,
        /// Scheme, host and port.
        address: String,
        /// Why.
        #[source]
        source: reqwest::Error,
    },
    /// The provider was silent for too long.
    #[error("model {model}: no {awaited} within {limit:?}")]
    Silent {
        /// The model.
        model: String,
        /// `answer`, `further words` or `end of the reply`.
        awaited: &'static str,
        /// How long it had.
        limit: Duration,
    },
    /// The connection broke in mid-stream.
    #[error("model {model}: the connection broke in the middle of the reply")]
    Broken {
        /// The model.
        model: String,
        /// Why.
        #[source]
        source: reqwest::Error,
    },
    /// The stream is malformed, ended too early, or reported a failure.
    #[error("model {model}: the reply could not be read to its end")]
    Stream {
        /// The model.
        model: String,
        /// What is wrong with it.
        #[source]
        source: DecodeError,
    },
    /// The model's script has no answer.
    #[error("model {model}: {message}")]
    Script {
        /// The model.
        model: String,
        /// Why, and where in the script.
        message: String,
    },
    /// There is no such model.
    #[error("there is no model {model:?} in the configuration; there are: {known}")]
    Unknown {
        /// What was asked for.
        model: String,
        /// What there is.
        known: String,
    },
}

impl ModelError {
    /// Whether the same call may go through a little later.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::RateLimited { .. }
            | Self::Overloaded { .. }
            | Self::Unreachable { .. }
            | Self::Silent { .. }
            | Self::Broken { .. } => true,
            Self::Stream { source, .. } => matches!(source, DecodeError::Cut),
            Self::NoKey { source, .. } => source.because == Because::Unavailable,
            Self::BadKey { .. }
            | Self::Unauthorized { .. }
            | Self::WindowFull { .. }
            | Self::PictureRefused { .. }
            | Self::Refused { .. }
            | Self::Script { .. }
            | Self::Unknown { .. } => false,
        }
    }

    /// Whether another model may succeed where this one did not.
    #[must_use]
    pub fn next_model_may_help(&self) -> bool {
        match self {
            Self::NoKey { .. }
            | Self::BadKey { .. }
            | Self::Unauthorized { .. }
            | Self::PictureRefused { .. }
            | Self::Refused { .. }
            | Self::Stream { .. } => true,
            Self::WindowFull { .. } | Self::Script { .. } | Self::Unknown { .. } => false,
            _ => self.may_pass(),
        }
    }

    /// Whether the provider may have read the request, and want money for it, though nothing of use came back.
    #[must_use]
    pub fn may_have_cost(&self) -> bool {
        match self {
            Self::Unreachable { source, .. } => !source.is_connect(),
            Self::Silent { .. } | Self::Broken { .. } => true,
            Self::Stream { source, .. } => !matches!(source, DecodeError::Provider { .. }),
            Self::NoKey { .. }
            | Self::BadKey { .. }
            | Self::Unauthorized { .. }
            | Self::RateLimited { .. }
            | Self::Overloaded { .. }
            | Self::WindowFull { .. }
            | Self::PictureRefused { .. }
            | Self::Refused { .. }
            | Self::Script { .. }
            | Self::Unknown { .. } => false,
        }
    }

    /// How long the provider wants to be left alone.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { retry_after, .. } | Self::Overloaded { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}
