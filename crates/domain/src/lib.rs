//! The words of Belljar as types: sessions, runs, messages, events, money.
//!
//! Everything here is plain data that can be stored and sent. A value of these types is valid wherever it stands; what a
//! value *means next* is decided by `control`, what it looks like to a model by `llm`, and on a wire by `protocol`.

mod approval;
mod content;
mod content_hash;
mod depth;
mod event;
mod ids;
mod money;
mod run;
mod session;
mod time;
mod usage;

pub use approval::{ApprovalAnswer, ApprovalKind, ApprovalState};
pub use content::{Author, Block, Image, Message, ResultPart, Role, ToolCall, ToolDefinition, ToolResult};
pub use content_hash::{ContentHash, ParseContentHashError};
pub use depth::{DEEPEST, is_too_deep};
pub use event::{Delta, Event, EventNumber, NumberedEvent};
pub use ids::{
    ApprovalId, GenerationId, InstallationId, MessageId, ParseIdError, ProcessId, RunId, SandboxId, SessionId,
    SnapshotId, TokenId, ToolCallId, TurnId, UserId,
};
pub use money::{Money, Price};
pub use run::{Delivery, Epoch, Placement, RunLimits, RunState};
pub use session::{Door, ExternalKey, Trigger, means};
pub use time::{SteadyClock, Timestamp};
pub use usage::Usage;
