//! What people, models and tools say to each other, in one form for every model.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{MessageId, Timestamp, ToolCallId, UserId};

/// Whose turn a message is, as models see it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// What the model is told: by people, and by tools.
    User,
    /// What the model said.
    Assistant,
}

/// Who a message really comes from.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Author {
    /// A person who asked through a door.
    User {
        /// Who.
        id: UserId,
    },
    /// A model, by its name in the configuration.
    Model {
        /// Its name.
        name: String,
    },
    /// The tools of the session's sandbox.
    Sandbox,
    /// Belljar itself: summaries, and results of calls that were interrupted.
    ControlPlane,
}

/// An entry of a session's history.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Message {
    /// Which.
    pub id: MessageId,
    /// Whose turn it is.
    pub role: Role,
    /// Who it comes from.
    pub author: Author,
    /// What it says, in order.
    pub blocks: Vec<Block>,
    /// Cut short: what is here was said, more was to come.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
    /// When it was stored.
    pub at: Timestamp,
}

/// A piece of a message.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Block {
    /// Words.
    Text {
        /// The words.
        text: String,
    },
    /// A picture.
    Image(Image),
    /// What a model thought before it spoke. It goes back to the same kind of model unmodified, or not at all.
    Thinking {
        /// The thought, or its summary; may be empty.
        text: String,
        /// The provider's proof that the thought is its own (Anthropic's `signature`).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signature: Option<String>,
        /// The provider's whole item where it must be sent back verbatim (a redacted block, a reasoning item).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        item: Option<Value>,
    },
    /// A model's wish to use a tool.
    ToolUse(ToolCall),
    /// What a tool answered.
    ToolResult(ToolResult),
}

/// A picture.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Image {
    /// `image/png`, `image/jpeg`, `image/gif` or `image/webp`.
    pub media_type: String,
    /// Its bytes in base64.
    pub data: String,
}

/// A model's wish to use a tool.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ToolCall {
    /// The model's name for this call.
    pub id: ToolCallId,
    /// The tool's name.
    pub name: String,
    /// The arguments. What a model wrote that is not JSON arrives as a string.
    pub input: Value,
}

/// What a tool answered.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ToolResult {
    /// The call that it answers.
    pub id: ToolCallId,
    /// The answer.
    pub content: Vec<ResultPart>,
    /// The call failed, and the content says why.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_error: bool,
}

impl ToolResult {
    /// An answer of words.
    #[must_use]
    pub fn text(id: ToolCallId, text: impl Into<String>) -> Self {
        Self {
            id,
            content: vec![ResultPart::Text { text: text.into() }],
            is_error: false,
        }
    }

    /// A failure, said in words for the model.
    #[must_use]
    pub fn error(id: ToolCallId, text: impl Into<String>) -> Self {
        Self {
            is_error: true,
            ..Self::text(id, text)
        }
    }
}

/// A piece of a tool's answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ResultPart {
    /// Words.
    Text {
        /// The words.
        text: String,
    },
    /// A picture.
    Image(Image),
}

/// A tool as a model is told of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ToolDefinition {
    /// Its name.
    pub name: String,
    /// What it does, and when to use it.
    pub description: String,
    /// JSON Schema of its arguments, an object.
    pub input_schema: Value,
}
