//! What a provider says when it says no, as a typed error that repeats no key.

use std::borrow::Cow;
use std::time::Duration;

use llm::DecodeError;
use secret::Secret;
use serde::Deserialize;

use crate::ModelError;

/// The most letters of a provider's message that are repeated.
const LONGEST: usize = 500;

/// A provider's no.
pub(crate) struct Refusal<'a> {
    pub(crate) model: &'a str,
    /// The HTTP status; 200 where the stream said no.
    pub(crate) status: u16,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) secrets: &'a [Secret],
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Body<'b> {
    #[serde(borrow)]
    error: Option<Said<'b>>,
    #[serde(borrow)]
    message: Option<Cow<'b, str>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Said<'b> {
    Whole {
        #[serde(borrow, default)]
        r#type: Option<Cow<'b, str>>,
        #[serde(default)]
        code: Option<serde_json::Value>,
        #[serde(borrow, default)]
        message: Option<Cow<'b, str>>,
    },
    Words(#[serde(borrow)] Cow<'b, str>),
}

impl Refusal<'_> {
    /// The error of an answer that is no stream.
    pub(crate) fn for_body(&self, body: &[u8]) -> ModelError {
        let text = String::from_utf8_lossy(body);
        let body: Body<'_> = serde_json::from_str(&text).unwrap_or_default();
        let (kind, message) = match body.error {
            Some(Said::Whole { r#type, code, message }) => {
                let code = code.and_then(|code| code.as_str().map(str::to_owned));
                (code.or(r#type.map(Cow::into_owned)), message)
            }
            Some(Said::Words(words)) => (None, Some(words)),
            None => (None, body.message),
        };
        self.of(kind.as_deref().unwrap_or_default(), message.as_deref().unwrap_or(&text))
    }

    /// The error of a stream that could not be read to its end.
    pub(crate) fn for_stream(&self, error: DecodeError) -> ModelError {
        let cleaned = |text: String| scrub(&text, self.secrets);
        let source = match error {
            DecodeError::Provider { kind, message } => {
                if let Some(status) = status_of(&kind) {
                    return Refusal { status, ..*self }.of(&kind, &message);
                }
                if is_window_full(&kind, &message) || is_about_picture(&kind, &message) {
                    return self.of(&kind, &message);
                }
                DecodeError::Provider {
                    kind: cleaned(kind),
                    message: cleaned(message),
                }
            }
            DecodeError::Inconsistent { what } => DecodeError::Inconsistent { what: cleaned(what) },
            DecodeError::Event { event, problem, at } => DecodeError::Event {
                event: cleaned(event),
                problem,
                at,
            },
            same @ (DecodeError::Sse(_) | DecodeError::Cut | DecodeError::TooLong { .. }) => same,
        };
        ModelError::Stream {
            model: self.model.to_owned(),
            source,
        }
    }

    fn of(&self, kind: &str, message: &str) -> ModelError {
        let model = self.model.to_owned();
        let status = self.status;
        let retry_after = self.retry_after;
        let window_full = is_window_full(kind, message);
        // Where a body is too large as a whole, it is pictures that made it so: words fill a window long before.
        let about_picture = status == 413 || is_about_picture(kind, message);
        let message = match scrub(message, self.secrets) {
            empty if empty.is_empty() => "it says no more".to_owned(),
            message => message,
        };
        match status {
            401 | 403 => ModelError::Unauthorized { model, status, message },
            // A used-up account answers 429 for ever.
            429 if kind == "insufficient_quota" => ModelError::Refused { model, status, message },
            429 => ModelError::RateLimited {
                model,
                retry_after,
                message,
            },
            408 | 409 | 500.. => ModelError::Overloaded {
                model,
                status,
                retry_after,
                message,
            },
            _ if window_full => ModelError::WindowFull { model, message },
            _ if about_picture => ModelError::PictureRefused { model, status, message },
            _ => ModelError::Refused { model, status, message },
        }
    }
}

/// The status that says over HTTP what these words say in a stream.
fn status_of(kind: &str) -> Option<u16> {
    Some(match kind {
        "overloaded_error" => 529,
        "rate_limit_error" | "rate_limit_exceeded" => 429,
        "api_error" | "server_error" | "internal_server_error" => 500,
        "timeout_error" => 504,
        "authentication_error" | "permission_error" | "invalid_api_key" => 401,
        "invalid_request_error" | "not_found_error" | "request_too_large" => 400,
        _ => return None,
    })
}

/// Whether it is a picture that a provider does not take, in the words that they all have for it.
fn is_about_picture(kind: &str, message: &str) -> bool {
    [kind, message]
        .iter()
        .any(|words| words.to_ascii_lowercase().contains("image"))
}

fn is_window_full(kind: &str, message: &str) -> bool {
    let said = message.to_ascii_lowercase();
    kind == "context_length_exceeded"
        || [
            "prompt is too long",
            "maximum context length",
            "context window",
            "exceed context limit",
            "context size",
        ]
        .iter()
        .any(|words| said.contains(words))
}

/// What may be repeated of a text: no key of ours, nothing that looks like one, no control characters, not too much.
pub(crate) fn scrub(text: &str, secrets: &[Secret]) -> String {
    let mut text = Cow::Borrowed(text);
    for secret in secrets.iter().map(Secret::expose).filter(|secret| secret.len() >= 4) {
        if text.contains(secret) {
            text = Cow::Owned(text.replace(secret, "[secret]"));
        }
    }
    let words = text.split_whitespace().map(|word| {
        let bare = word.trim_matches(|letter: char| !letter.is_ascii_alphanumeric());
        let key = bare.len() >= 16
            && ["sk-", "sk_", "key-", "AIza", "gsk_", "xai-"]
                .iter()
                .any(|start| bare.starts_with(start));
        if key { "[secret]" } else { word }
    });
    let mut clean = String::new();
    for word in words {
        if !clean.is_empty() {
            clean.push(' ');
        }
        clean.extend(word.chars().filter(|letter| !letter.is_control()));
        if clean.len() > LONGEST {
            let end = (0..=LONGEST)
                .rev()
                .find(|end| clean.is_char_boundary(*end))
                .unwrap_or_default();
            clean.truncate(end);
            clean.push('…');
            break;
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(status: u16, body: &str) -> ModelError {
        let secrets = [Secret::new("hunter2hunter2")];
        Refusal {
            model: "m",
            status,
            retry_after: None,
            secrets: &secrets,
        }
        .for_body(body.as_bytes())
    }

    #[test]
    fn a_no_is_told_by_status_and_words() {
        let nos = [
            (
                401,
                r#"{"error":{"type":"authentication_error","message":"invalid x-api-key"}}"#,
                "Unauthorized",
            ),
            (
                429,
                r#"{"error":{"type":"rate_limit_error","message":"slow"}}"#,
                "RateLimited",
            ),
            (
                429,
                r#"{"error":{"code":"insufficient_quota","message":"pay"}}"#,
                "Refused",
            ),
            (
                529,
                r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
                "Overloaded",
            ),
            (503, "<html>down</html>", "Overloaded"),
            (
                400,
                r#"{"error":{"type":"invalid_request_error","message":"prompt is too long: 210000 tokens > 200000"}}"#,
                "WindowFull",
            ),
            (
                400,
                r#"{"error":{"code":"context_length_exceeded","message":"too many"}}"#,
                "WindowFull",
            ),
            (
                400,
                r#"{"type":"error","error":{"type":"invalid_request_error","message":"Could not process image"}}"#,
                "PictureRefused",
            ),
            (
                400,
                r#"{"error":{"code":"image_parse_error","message":"unsupported"}}"#,
                "PictureRefused",
            ),
            (
                413,
                r#"{"error":{"type":"request_too_large","message":"Request exceeds the maximum size"}}"#,
                "PictureRefused",
            ),
            (400, r#"{"error":"no such field"}"#, "Refused"),
            (404, r#"{"message":"no such model"}"#, "Refused"),
        ];
        for (status, body, variant) in nos {
            let error = error(status, body);
            assert!(format!("{error:?}").starts_with(variant), "{status} {body}: {error:?}");
        }
    }

    #[test]
    fn threat_138_a_message_is_repeated_without_keys_and_bounded() {
        let body = format!(
            r#"{{"error":{{"message":"Bad key hunter2hunter2, not (sk-proj-abcdefghijklmnop)! \u001b[31m {}"}}}}"#,
            "ü ".repeat(5_000)
        );
        let said = error(400, &body).to_string();
        assert!(said.contains("Bad key [secret], not [secret] [31m ü"), "{said}");
        assert!(
            !said.contains("hunter2") && !said.contains("sk-proj") && !said.contains('\u{1b}'),
            "{said}"
        );
        assert!(said.len() < 700, "{}", said.len());
    }
}
