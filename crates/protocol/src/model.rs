//! A call of a model that a program of the sandbox's user makes by itself, in a language of its own: another harness, an SDK.
//!
//! The request is the program's, the answer the provider's, byte for byte where nothing has to differ. What went wrong is a
//! [`ServiceFailure`] on the link, and what each language calls an error to the program: [`ModelRoute::error`].

use bytes::Bytes;
use serde_json::{Value, json};

use crate::ServiceFailure;

/// The longest request, in bytes: pictures included.
pub const MODEL_REQUEST_BYTES: usize = 8 << 20;

/// The header by which a program asks for what an Anthropic model may do beyond the standard.
pub const BETA_HEADER: &str = "anthropic-beta";

/// What may be asked of models, and of nothing else: every other route of an API costs money or keeps something.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ModelRoute {
    /// Anthropic Messages.
    Messages,
    /// How many tokens an Anthropic request has.
    CountTokens,
    /// OpenAI Responses.
    Responses,
    /// OpenAI Chat Completions.
    ChatCompletions,
}

impl ModelRoute {
    /// Every route.
    pub const ALL: [Self; 4] = [
        Self::Messages,
        Self::CountTokens,
        Self::Responses,
        Self::ChatCompletions,
    ];

    /// Its path behind `/v1/`, as programs know it.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::CountTokens => "messages/count_tokens",
            Self::Responses => "responses",
            Self::ChatCompletions => "chat/completions",
        }
    }

    /// The route of a path behind `/v1/`; none for any other spelling.
    #[must_use]
    pub fn of(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|route| route.path() == path)
    }

    /// A failure as programs that speak this language read it.
    #[must_use]
    pub fn error(self, failure: &ServiceFailure) -> Value {
        let message = match &failure.remedy {
            Some(remedy) => format!("{}: {remedy}", failure.message),
            None => failure.message.clone(),
        };
        match self {
            Self::Messages | Self::CountTokens => {
                json!({"type": "error", "error": {"type": failure.code, "message": message}})
            }
            Self::Responses | Self::ChatCompletions => {
                json!({"error": {"type": failure.code, "code": failure.code, "param": null, "message": message}})
            }
        }
    }
}

/// A request of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModelRequest {
    /// Which route it was made to.
    pub route: ModelRoute,
    /// What it asked for beyond the standard; a claim of an untrusted party.
    pub betas: Vec<String>,
    /// Its body, as it came.
    pub body: Bytes,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_has_one_spelling() {
        for route in ModelRoute::ALL {
            assert_eq!(ModelRoute::of(route.path()), Some(route));
        }
        for path in [
            "",
            "Messages",
            "messages/",
            "messages/batches",
            "embeddings",
            "completions",
            "responses/x",
        ] {
            assert_eq!(ModelRoute::of(path), None, "{path}");
        }
    }

    #[test]
    fn a_failure_is_told_in_each_language() {
        let failure = ServiceFailure::new(402, "budget_exhausted", "there is nothing left").remedy("stop");
        let error = |route: ModelRoute| route.error(&failure);
        assert_eq!(error(ModelRoute::Messages)["type"], "error");
        for route in ModelRoute::ALL {
            let said = &error(route)["error"];
            assert_eq!(said["type"], "budget_exhausted");
            assert_eq!(said["message"], "there is nothing left: stop");
        }
    }
}
