//! What the loop is given.

use std::error::Error;
use std::future::{Future, ready};
use std::time::Duration;

use domain::{RunLimits, ToolCall, ToolResult};
use protocol::{EarlyResults, Refusal, TurnReply, TurnRequest};

/// How long a result waits for those of other calls before it is worth a request of its own.
pub const TOGETHER: Duration = Duration::from_millis(20);

/// A turn could not be had.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The control plane answered, and said no.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// No answer came; the same turn may be asked for again.
    #[error("no answer from the control plane to a turn")]
    NoAnswer(#[source] Box<dyn Error + Send + Sync>),
}

impl GatewayError {
    /// Whether the same turn may be asked for again.
    #[must_use]
    pub fn may_retry(&self) -> bool {
        match self {
            Self::Refused(refusal) => refusal.code.may_retry(),
            Self::NoAnswer(_) => true,
        }
    }
}

/// The way to the model, and to the history behind it.
pub trait Gateway: Sync {
    /// Hands in what the tools said and answers with what the model wants next. Asking for the same turn again gives the
    /// same reply, so a call whose answer was lost is simply repeated.
    fn invoke_llm(&self, request: &TurnRequest) -> impl Future<Output = Result<TurnReply, GatewayError>> + Send;

    /// Hands in results of calls while others of the same reply are still made. True: they are kept, and the turn need not
    /// bring them. False: the turn brings them, as it does where this is dropped before it has an answer. The least that one
    /// waits first is [`TOGETHER`]; a gateway whose history dies with it keeps nothing early.
    fn hand_in(&self, results: &EarlyResults) -> impl Future<Output = bool> + Send {
        let _ = results;
        ready(false)
    }

    /// Waits before a turn is asked for again, the longer the more often it was (`attempt` counts from 1). False: it has
    /// been tried often enough.
    fn pause(&self, attempt: u32) -> impl Future<Output = bool> + Send;
}

/// What uses tools.
pub trait Hands: Sync {
    /// Uses a tool. Always answers within `limits.tool_seconds`; a failure is a result that says so in words for the model.
    /// When the future is dropped, every process of the call dies.
    fn use_tool(&self, call: &ToolCall, limits: &RunLimits) -> impl Future<Output = ToolResult> + Send;
}
