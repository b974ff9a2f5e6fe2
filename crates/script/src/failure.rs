//! Why a script has no result.

use std::io;

use rquickjs::{CaughtError, Ctx, Error};

use crate::limits::Limits;

/// Why a script has no result.
#[derive(Debug)]
pub enum Failure {
    /// It threw, or is no JavaScript.
    Threw {
        /// What was thrown.
        message: String,
        /// The line of the script, from 1, where it is known.
        line: Option<u32>,
    },
    /// It met a limit; a phrase that goes on from "it".
    Limit(String),
    /// The host is gone.
    Abandoned(io::Error),
}

impl Failure {
    pub(crate) fn threw(message: impl Into<String>) -> Self {
        Self::Threw {
            message: message.into(),
            line: None,
        }
    }

    pub(crate) fn memory(limits: Limits) -> Self {
        Self::Limit(format!("needed more than {} bytes of memory", limits.memory_bytes))
    }
}

/// What was thrown.
pub(crate) fn caught<'js>(ctx: &Ctx<'js>, error: Error) -> CaughtError<'js> {
    CaughtError::from_error(ctx, error)
}

/// What was thrown, in words.
pub(crate) fn why(caught: CaughtError<'_>, limits: Limits) -> Failure {
    match caught {
        CaughtError::Exception(exception) => {
            let message = exception.message().unwrap_or_default();
            if message == "out of memory" {
                return Failure::memory(limits);
            }
            let name: Option<String> = exception.as_object().get("name").ok();
            let name = name.filter(|name| !name.is_empty() && name != "Error");
            Failure::Threw {
                message: name.map_or(message.clone(), |name| format!("{name}: {message}")),
                line: exception.stack().as_deref().and_then(line),
            }
        }
        CaughtError::Value(value) => {
            if value.is_null() {
                // The engine has no memory left for an error.
                return Failure::memory(limits);
            }
            let said: Option<String> = value.get().ok();
            Failure::threw(said.unwrap_or_else(|| "it threw something that is no error".to_owned()))
        }
        CaughtError::Error(Error::Allocation) => Failure::memory(limits),
        CaughtError::Error(error) => Failure::threw(error.to_string()),
    }
}

/// The innermost line of the script in a stack trace.
fn line(stack: &str) -> Option<u32> {
    let place = stack.split(&format!("{}:", crate::FILE)).nth(1)?;
    let digits: String = place.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}
