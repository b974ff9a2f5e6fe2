//! What a caller can act on.

use std::error::Error;

use causes::with_causes;
use store::StoreError;

/// Why control said no, in the terms of what a caller can do about it. The text is for whoever asked; what only an operator
/// should see is its source.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// There is no such thing, or the asker may not know of it.
    #[error("there is no {kind} {name}")]
    NotFound {
        /// What kind of thing.
        kind: &'static str,
        /// What it was called.
        name: String,
    },
    /// The asker is nobody.
    #[error("{0}")]
    Unauthorized(String),
    /// The asker is known and may not.
    #[error("{0}")]
    Denied(String),
    /// What was asked makes no sense; the words say what would.
    #[error("{0}")]
    Invalid(String),
    /// Not in the state that things are in.
    #[error("{0}")]
    Conflict(String),
    /// Larger than is accepted.
    #[error("{what} has {bytes} bytes; at most {most} are accepted")]
    TooLarge {
        /// What has.
        what: &'static str,
        /// How many, as far as it was read.
        bytes: u64,
        /// The most that is accepted.
        most: u64,
    },
    /// Not now; the same request may go through later.
    #[error("{0}")]
    Unavailable(String),
    /// A fault of Belljar or its machine. The source is for the operator, and was logged.
    #[error("Belljar could not {attempt}: a fault of its own, which its log explains")]
    Internal {
        /// What was tried.
        attempt: &'static str,
        /// Why it failed.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

impl ControlError {
    /// A fault of our own. It is logged here, where whoever asked stops seeing its cause.
    pub(crate) fn internal(attempt: &'static str, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let source = source.into();
        tracing::error!(attempt, error = with_causes(source.as_ref()), "failed");
        Self::Internal { attempt, source }
    }
}

impl From<StoreError> for ControlError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NotFound { kind, id } => Self::NotFound { kind, name: id },
            StoreError::Denied { .. } => Self::Denied(error.to_string()),
            StoreError::Unauthorized { .. } => Self::Unauthorized(error.to_string()),
            StoreError::Invalid { .. } => Self::Invalid(error.to_string()),
            StoreError::Conflict { .. }
            | StoreError::Stale { .. }
            | StoreError::OverCap(_)
            | StoreError::SessionFull { .. } => Self::Conflict(error.to_string()),
            StoreError::DiskFull { .. } | StoreError::Closed { .. } => Self::Unavailable(error.to_string()),
            error => Self::internal("use its store", error),
        }
    }
}
