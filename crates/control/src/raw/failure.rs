//! What went wrong, as programs understand it: statuses and words that providers use.

use std::time::Duration;

use causes::with_causes;
use protocol::{ModelRoute, ServiceFailure};
use providers::ModelError;

pub(super) fn refused(status: u16, code: &str, words: impl Into<String>) -> ServiceFailure {
    ServiceFailure::new(status, code, words)
}

/// A provider's failure, in its own words where it has some: programs shorten a conversation when they read them.
pub(super) fn of(error: &ModelError, route: ModelRoute) -> ServiceFailure {
    let after = |delay: Option<Duration>| delay.and_then(|delay| u32::try_from(delay.as_secs().max(1)).ok());
    match error {
        ModelError::RateLimited {
            message, retry_after, ..
        } => ServiceFailure {
            retry_after: after(*retry_after),
            ..refused(429, "rate_limit_error", message)
        },
        ModelError::Overloaded {
            message,
            retry_after,
            status,
            ..
        } => {
            let (status, code) = match status {
                529 => (529, "overloaded_error"),
                _ => (503, "api_error"),
            };
            ServiceFailure {
                retry_after: after(*retry_after),
                ..refused(status, code, message)
            }
        }
        ModelError::WindowFull { message, .. } => {
            let code = match route {
                ModelRoute::Messages | ModelRoute::CountTokens => "invalid_request_error",
                ModelRoute::Responses | ModelRoute::ChatCompletions => "context_length_exceeded",
            };
            refused(400, code, message)
        }
        ModelError::Refused { status, message, .. } | ModelError::PictureRefused { status, message, .. } => {
            let status = Some(*status).filter(|status| (400..500).contains(status));
            refused(status.unwrap_or(400), "invalid_request_error", message)
        }
        ModelError::Silent { .. } => refused(504, "timeout_error", error.to_string()),
        ModelError::NoKey { .. }
        | ModelError::BadKey { .. }
        | ModelError::Unauthorized { .. }
        | ModelError::Unreachable { .. }
        | ModelError::Broken { .. }
        | ModelError::Stream { .. } => refused(502, "api_error", with_causes(error)),
        ModelError::Script { .. } => refused(500, "api_error", error.to_string()),
        ModelError::Unknown { .. } => refused(404, "not_found_error", error.to_string()),
    }
}
