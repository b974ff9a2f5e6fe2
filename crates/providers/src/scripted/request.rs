//! What a script wants to know of a request.

use serde::Deserialize;
use serde_json::Value;

/// A request as a script sees it.
#[derive(Debug, PartialEq)]
pub(super) struct Request {
    /// Counts the model's answers since the last words of a person, this one included.
    pub(super) turn: u32,
    /// The last words of a person.
    pub(super) prompt: String,
    /// The texts of the last results, in the order of the calls.
    pub(super) results: Vec<String>,
    pub(super) max_tokens: u64,
    /// Bytes of the request.
    pub(super) length: usize,
}

#[derive(Deserialize)]
struct Body {
    max_tokens: u64,
    messages: Vec<Message>,
}

#[derive(Deserialize)]
struct Message {
    role: String,
    content: Vec<Part>,
}

#[derive(Deserialize)]
struct Part {
    r#type: String,
    #[serde(default)]
    text: String,
    #[serde(default)]
    content: Option<Value>,
}

impl Request {
    pub(super) fn parse(body: &[u8]) -> Result<Self, String> {
        let length = body.len();
        let body: Body =
            serde_json::from_slice(body).map_err(|error| format!("the request cannot be read: {error}"))?;
        let prompt = body
            .messages
            .iter()
            .rposition(|message| message.role == "user" && message.content.iter().any(|part| part.r#type == "text"));
        let since = prompt.map_or(0, |place| place + 1);
        let answers = body.messages[since..]
            .iter()
            .filter(|message| message.role == "assistant")
            .count();
        let results = body
            .messages
            .iter()
            .rev()
            .find(|message| message.content.iter().any(|part| part.r#type == "tool_result"));
        Ok(Self {
            turn: u32::try_from(answers).unwrap_or(u32::MAX).saturating_add(1),
            prompt: prompt
                .map(|place| words(&body.messages[place].content))
                .unwrap_or_default(),
            results: results
                .map(|message| {
                    message
                        .content
                        .iter()
                        .filter(|part| part.r#type == "tool_result")
                        .map(result)
                        .collect()
                })
                .unwrap_or_default(),
            max_tokens: body.max_tokens,
            length,
        })
    }
}

fn words(parts: &[Part]) -> String {
    let texts: Vec<&str> = parts
        .iter()
        .filter(|part| part.r#type == "text")
        .map(|part| part.text.as_str())
        .collect();
    texts.join("\n")
}

fn result(part: &Part) -> String {
    let parts = part.content.as_ref().and_then(Value::as_array).into_iter().flatten();
    let texts: Vec<&str> = parts.filter_map(|part| part.get("text")?.as_str()).collect();
    texts.join("\n")
}
