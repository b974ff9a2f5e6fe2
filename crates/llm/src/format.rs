//! The languages that models speak.

use serde::{Deserialize, Serialize};

/// The language of a model's API.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// Anthropic Messages: `POST /v1/messages`.
    AnthropicMessages,
    /// OpenAI Responses: `POST /v1/responses`.
    OpenaiResponses,
    /// OpenAI Chat Completions: `POST /v1/chat/completions`, spoken by nearly every local server too.
    OpenaiChat,
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 3] = [Self::AnthropicMessages, Self::OpenaiResponses, Self::OpenaiChat];

    /// The word that stands beside stored bytes, to say what they are.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AnthropicMessages => "anthropic-messages",
            Self::OpenaiResponses => "openai-responses",
            Self::OpenaiChat => "openai-chat",
        }
    }
}
