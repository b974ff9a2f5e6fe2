//! What a watcher of a session sees.
//!
//! Only durable events have a number. A text that is still being written travels as deltas, each with the message's id and
//! the byte at which it begins; a watcher who returns with `number:offset` gets the durable events after `number`, then the
//! open message's text from `offset` on: nothing lost, nothing doubled.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    ApprovalId, ApprovalKind, ApprovalState, Delivery, Epoch, Message, MessageId, Money, RunId, RunState, SessionId,
    SnapshotId, Timestamp, ToolCallId, Usage,
};

/// Counts a session's durable events, from 1 without a gap.
pub type EventNumber = i64;

/// A durable event as it is stored and sent.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct NumberedEvent {
    /// Its place among the session's events.
    #[cfg_attr(feature = "schema", schema(value_type = i64))]
    pub number: EventNumber,
    /// When it was stored.
    pub at: Timestamp,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

/// Something that happened in a session and is kept.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event {
    /// A message was added to the history, whole.
    Message {
        /// The message.
        message: Message,
    },
    /// A model began to speak; deltas with this message's id follow, then `message` with the same id.
    MessageOpened {
        /// The message that is being written.
        message: MessageId,
        /// The run it belongs to.
        run: RunId,
    },
    /// A run changed its state.
    Run {
        /// Which.
        run: RunId,
        /// Whose hold on it counts.
        epoch: Epoch,
        /// Where it stands now.
        state: RunState,
        /// How its prompt was delivered.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        delivery: Option<Delivery>,
        /// Why, in words for a person; where it failed, or was stopped.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// Why, in one word for a program: `budget_exhausted`, `step_limit`, `model_failed`…
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<String>,
    },
    /// A tool began to work.
    ToolStarted {
        /// Which call.
        call: ToolCallId,
        /// The tool's name.
        name: String,
        /// Its arguments.
        input: Value,
    },
    /// A tool has ended; its result stands in the next message of the sandbox.
    ToolEnded {
        /// Which call.
        call: ToolCallId,
        /// It failed.
        is_error: bool,
        /// The first line or so of what it said.
        summary: String,
    },
    /// A model call was paid.
    Usage {
        /// The run it belongs to.
        run: RunId,
        /// The model's name.
        model: String,
        /// Tokens.
        usage: Usage,
        /// What was charged.
        cost: Money,
        /// Counted by us, since the provider said nothing.
        estimated: bool,
    },
    /// A model call is tried again, or the next model of the chain is asked.
    ModelRetry {
        /// The model that failed.
        model: String,
        /// What it said.
        reason: String,
    },
    /// The history sent to the model now begins with a summary of its older part.
    Compacted {
        /// The last message that the summary stands for.
        through: MessageId,
        /// The summary.
        summary: String,
    },
    /// The session went back to a snapshot, its files and what was said: the messages after one are part of it no longer. They
    /// are kept.
    Rewound {
        /// Which snapshot.
        snapshot: SnapshotId,
        /// The last message that is still part of it; none where it begins anew.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        through: Option<MessageId>,
    },
    /// The files of a snapshot that the session was to have are gone; it goes on with those it has.
    FilesGone {
        /// Which snapshot.
        snapshot: SnapshotId,
    },
    /// The session was made from another, with what had been said there up to here.
    Forked {
        /// Of which session.
        parent: SessionId,
        /// The snapshot that its files come from; none where the other had no files.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        snapshot: Option<SnapshotId>,
    },
    /// The session's sandbox changed its state.
    Sandbox {
        /// `starting`, `running`, `frozen`, `suspended` (its processes are kept), `hibernated` (they are gone), `archived`, `lost`.
        state: String,
        /// Why, where there is a reason.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// The keeping of the session's files changed its state.
    Files {
        /// `full`: what does not fit is on the disk only. `archived`: they are in the object store only. `unkept`: the object
        /// store is of no use at the moment; `kept`: it is again. `no_room`: the sandbox's disk has no room for some of them;
        /// `back`: it has all of them.
        state: String,
        /// Why, where there is a reason.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A method of a service was called, or refused. What was handed in and what came back stand nowhere.
    ServiceCalled {
        /// The run that it was called in; none where none was under way.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<RunId>,
        /// The tool call that it was made in, where that is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        call: Option<ToolCallId>,
        /// The service's name.
        service: String,
        /// The method's name.
        method: String,
        /// What was decided: `allow`, also by a person who was asked; `ask`; `deny`.
        outcome: String,
        /// What came of it, as HTTP says it.
        status: u16,
        /// Why it failed, in one word for a program.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<String>,
        /// How long it took, in microseconds.
        micros: u64,
        /// Bytes of the result that were handed on.
        bytes: u64,
    },
    /// A program in the sandbox asked a model by itself, or was refused. What was said stands nowhere.
    ModelCalled {
        /// The run that it was asked in; none where none was under way.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<RunId>,
        /// The model that was asked for.
        model: String,
        /// How: `messages`, `responses`, `chat/completions`.
        route: String,
        /// What came of it, as HTTP says it; 499 where nobody waited for the end.
        status: u16,
        /// Why it failed, in one word for a program.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<String>,
        /// How long it took, to the last word, in microseconds.
        micros: u64,
        /// Tokens. They stand in an event `usage` too, which is what is paid.
        usage: Usage,
        /// What was charged.
        cost: Money,
    },
    /// Something in the sandbox wanted out, and was refused.
    EgressDenied {
        /// The name or address that it asked for.
        host: String,
        /// The port.
        port: u16,
        /// `tcp` or `dns`.
        protocol: String,
        /// Why.
        reason: String,
    },
    /// A person is asked whether something may be done.
    ApprovalRequested {
        /// The question.
        approval: ApprovalId,
        /// The run that asks; none where none was under way.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<RunId>,
        /// What it is about.
        kind: ApprovalKind,
        /// What an approval for always would stand for: `crm.deleteContact`, `exec`, `api.example.com:443`.
        subject: String,
        /// The agent asks for what its scope does not have, so an admin answers.
        proposal: bool,
        /// Only admins may answer.
        admins_only: bool,
        /// All that is asked for: what a person sees before they say yes.
        request: Value,
        /// The SHA-256 of `request` as it is stored, in hex. Whoever answers says it, so that what is approved is what was seen.
        sha256: String,
        /// Why a person is asked.
        reason: String,
        /// When it is too late.
        expires: Timestamp,
    },
    /// A question to a person is over.
    ApprovalDecided {
        /// The question.
        approval: ApprovalId,
        /// What it was about.
        subject: String,
        /// Where it stands now.
        state: ApprovalState,
        /// Who answered, by name; nobody where it expired or was withdrawn.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        /// Why, in their words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
}

/// Something that a watcher sees as it happens, and that is not kept as such.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Delta {
    /// More of the open message's text.
    Text {
        /// Which message.
        message: MessageId,
        /// The byte of the text at which this begins.
        offset: u64,
        /// The words.
        text: String,
    },
    /// More of the open message's thinking.
    Thinking {
        /// Which message.
        message: MessageId,
        /// The byte of the thinking at which this begins.
        offset: u64,
        /// The words.
        text: String,
    },
    /// More of a tool's output.
    ToolProgress {
        /// Which call.
        call: ToolCallId,
        /// The words.
        text: String,
    },
}
