//! A turn: the loop hands in tool results, the control plane answers with what the model wants next.

use domain::{Epoch, MessageId, RunId, ToolCall, ToolCallId, ToolResult};
use serde::{Deserialize, Serialize};

/// Asks for the next call of the model. Safe to repeat: the same turn of the same run has one reply.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TurnRequest {
    /// The run.
    pub run: RunId,
    /// The hold on the session under which the loop was started.
    pub epoch: Epoch,
    /// Counts the run's turns, from 1.
    pub turn: u32,
    /// Results of the calls that the turn before asked for; nothing else is accepted. Those that were kept before
    /// ([`EarlyResults`]) need not stand here again.
    pub results: Vec<ToolResult>,
    /// How long the calls took, where the run is traced. Since protocol 3: who asks for it with `traced` understands it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub times: Vec<CallTime>,
    /// What the model may do with its tools.
    #[serde(default)]
    pub tool_choice: ToolChoice,
}

/// Hands in results of calls while others of the same reply are still made, so that they are told at once and outlive the
/// sandbox. Safe to repeat, and to leave to the turn: of two results of one call the first that came counts. Since protocol 3.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EarlyResults {
    /// The run.
    pub run: RunId,
    /// The hold on the session under which the loop was started.
    pub epoch: Epoch,
    /// The turn that is going to bring the others.
    pub turn: u32,
    /// Results of the calls that the turn before it asked for; nothing else is accepted.
    pub results: Vec<ToolResult>,
    /// How long the calls took, where the run is traced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub times: Vec<CallTime>,
}

/// How long a call took, where it was made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallTime {
    /// The call.
    pub call: ToolCallId,
    /// Microseconds from its begin to this request: no clock of one side is compared with the other's.
    pub ago: u64,
    /// Microseconds that it took.
    pub took: u64,
}

/// What the model may do with its tools.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoice {
    /// Use any, or none.
    #[default]
    Auto,
    /// Answer in words.
    None,
    /// Use at least one.
    Required,
}

/// What the model wants next.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TurnReply {
    /// The message that was stored.
    pub message: MessageId,
    /// Calls to be made, all at once; empty where the model has finished.
    pub calls: Vec<ToolCall>,
    /// Why it stopped.
    pub stop: StopReason,
}

/// Why a model stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// It has said all it wanted.
    EndTurn,
    /// It wants tools used.
    ToolUse,
    /// It reached the most it may say.
    MaxTokens,
    /// It will not answer.
    Refusal,
    /// Its window is full.
    WindowFull,
    /// It was cut at the cap of a budget.
    BudgetExhausted,
    /// It pauses, and goes on when it is called again.
    Pause,
}

/// Asks whether a name that somebody inside looked up may have an address.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NameRequest {
    /// The name, in lower case and without a dot at its end.
    pub name: String,
}

/// The address that a name has in this session, for a runtime that accepts JSON as the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NameAnswer {
    /// Counts the session's synthetic addresses, from 0.
    pub number: u32,
}

/// Why the control plane said no.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// For programs.
    pub code: RefusalCode,
    /// For people.
    pub message: String,
    /// More of a denial, where the policy said no.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub denial: Option<Denial>,
}

/// What a policy says beside its no.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Denial {
    /// For programs: why, in a word.
    pub reason: String,
    /// The rule that decided; none where it was the lack of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// What to do about it: how to ask for access.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Refusal {
    /// A refusal in words.
    #[must_use]
    pub fn new(code: RefusalCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            denial: None,
        }
    }

    /// The policy says no.
    #[must_use]
    pub fn denied(message: impl Into<String>, denial: Denial) -> Self {
        Self {
            denial: Some(denial),
            ..Self::new(RefusalCode::Denied, message)
        }
    }
}

/// The kinds of no.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// The token is unknown, spent, of another session or on another link. Nothing will help.
    Unauthorized,
    /// The run was taken over, or has ended: the loop stops.
    Stale,
    /// What was asked is malformed, or not for a sandbox to say.
    Invalid,
    /// A cap is reached: the run has ended.
    BudgetExhausted,
    /// The model cannot be had: the run has ended.
    ModelFailed,
    /// The policy says no.
    Denied,
    /// Not now; the same request may go through later.
    Unavailable,
}

impl RefusalCode {
    /// Whether the same request may go through later.
    #[must_use]
    pub const fn may_retry(self) -> bool {
        matches!(self, Self::Unavailable)
    }
}
