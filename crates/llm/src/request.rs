//! A request's body: how it opens, the stored messages joined by commas, and what changes from call to call.

use bytes::Bytes;
use domain::ToolDefinition;
use protocol::ToolChoice;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::Format;
use crate::encode::append_json;

/// How every request of a session to one model begins: the model, the tools and the system prompt, up to the first message. It is
/// written once, since it is long and does not change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opening {
    format: Format,
    json: Vec<u8>,
    has_tools: bool,
    cache: CacheMarks,
}

impl Opening {
    /// `model` is the provider's name of it; the system prompt may be empty; the tools stand in a fixed order. A history that holds
    /// tool calls needs the tools too: forbid them by `tool_choice` then. `cache` is where the provider is told to cache.
    #[must_use]
    pub fn new(format: Format, model: &str, system: &str, tools: &[ToolDefinition], cache: CacheMarks) -> Self {
        Self {
            format,
            json: opening_json(format, model, system, tools, cache),
            has_tools: !tools.is_empty(),
            cache,
        }
    }

    /// Its length in bytes.
    pub(crate) fn length(&self) -> usize {
        self.json.len()
    }
}

/// Everything of a request but the messages.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// Model, tools and system prompt.
    pub opening: &'a Opening,
    /// What the model may do with the tools.
    pub tool_choice: &'a ToolChoice,
    /// The most tokens that it may say, thinking included.
    pub max_tokens: u64,
    /// How a server of the Chat format is told so; the others have one field for it.
    pub chat_limit: ChatLimit,
    /// How much it thinks first.
    pub thinking: Thinking,
}

/// The field in which a server of the Chat format is told the most that may be said. There is none that all of them take.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum ChatLimit {
    /// `max_tokens`, which some servers know alone: they would take no notice of the other, and speak without a limit.
    #[default]
    MaxTokens,
    /// `max_completion_tokens`: OpenAI's newer models refuse the other.
    MaxCompletionTokens,
}

impl ChatLimit {
    /// The field's name.
    #[must_use]
    pub const fn field(self) -> &'static str {
        match self {
            Self::MaxTokens => "max_tokens",
            Self::MaxCompletionTokens => "max_completion_tokens",
        }
    }
}

/// How much a model thinks before it speaks.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Thinking {
    /// Nothing is said about it: the model's own default.
    #[default]
    Default,
    /// Not at all; also for models of the Responses format that cannot think, and refuse to be asked for thoughts.
    Off,
    /// At most so many tokens (Anthropic only; others take it for `Default`).
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

impl CacheMarks {
    /// The mark as it is spliced into a block, before the brace that closes it.
    const fn splice(self) -> Option<&'static str> {
        match self {
            Self::Off => None,
            Self::FiveMinutes => Some(r#","cache_control":{"type":"ephemeral"}"#),
            Self::Hour => Some(r#","cache_control":{"type":"ephemeral","ttl":"1h"}"#),
        }
    }
}

/// What Anthropic demands of a thinking budget.
const LEAST_BUDGET: u64 = 1_024;
/// How every message of a person or a tool begins in Anthropic's format, and how it ends: `crate::encode` writes it so.
const USER_BEGINS: &[u8] = br#"{"role":"user""#;
const CONTENT_ENDS: &[u8] = b"}]}";

/// The body of a streaming request. `messages` are what [`crate::encode_message`] gave for this format, oldest first; empty
/// ones are skipped. What stands before the first new message is the same, byte for byte, from call to call, save
/// Anthropic's cache marks: one behind tools and system prompt, one on each of the last two messages that are not the
/// model's (two, since a provider looks back only some blocks for what it knows, and a message of tool results may be long).
#[must_use]
pub fn request_body<'m>(head: &Head<'_>, messages: impl IntoIterator<Item = &'m [u8]>) -> Bytes {
    let messages: Vec<&[u8]> = messages.into_iter().filter(|message| !message.is_empty()).collect();
    let opening = head.opening;
    let tail = tail_json(head);
    let marks = match opening.format {
        Format::AnthropicMessages => opening.cache.splice(),
        Format::OpenaiResponses | Format::OpenaiChat => None,
    };
    let length = messages.iter().map(|message| message.len() + 1).sum::<usize>();
    let mut body = Vec::with_capacity(opening.length() + length + tail.len() + 128);
    body.extend_from_slice(&opening.json);
    let marked = marks.map_or(messages.len(), |_| second_last_user(&messages));
    for (place, message) in messages.iter().enumerate() {
        if !body.ends_with(b"[") {
            body.push(b',');
        }
        match (marks, message.strip_suffix(CONTENT_ENDS)) {
            (Some(mark), Some(open)) if place >= marked && message.starts_with(USER_BEGINS) => {
                body.extend_from_slice(open);
                body.extend_from_slice(mark.as_bytes());
                body.extend_from_slice(CONTENT_ENDS);
            }
            _ => body.extend_from_slice(message),
        }
    }
    body.extend_from_slice(&tail);
    Bytes::from(body)
}

fn second_last_user(messages: &[&[u8]]) -> usize {
    let mut users = (0..messages.len())
        .rev()
        .filter(|place| messages[*place].starts_with(USER_BEGINS));
    let last = users.next();
    users.next().or(last).unwrap_or(messages.len())
}

fn opening_json(format: Format, model: &str, system: &str, tools: &[ToolDefinition], cache: CacheMarks) -> Vec<u8> {
    let mut json = Vec::with_capacity(system.len() + 4_096);
    json.extend_from_slice(b"{\"model\":");
    append_json(&mut json, model);
    if !tools.is_empty() {
        json.extend_from_slice(b",\"tools\":[");
        for (place, tool) in tools.iter().enumerate() {
            if place > 0 {
                json.push(b',');
            }
            append_tool(&mut json, format, tool);
        }
        json.push(b']');
    }
    match format {
        Format::AnthropicMessages => {
            if !system.is_empty() {
                json.extend_from_slice(b",\"system\":[{\"type\":\"text\",\"text\":");
                append_json(&mut json, system);
                json.extend_from_slice(cache.splice().unwrap_or_default().as_bytes());
                json.extend_from_slice(b"}]");
            }
            json.extend_from_slice(b",\"messages\":[");
        }
        Format::OpenaiResponses => {
            if !system.is_empty() {
                json.extend_from_slice(b",\"instructions\":");
                append_json(&mut json, system);
            }
            json.extend_from_slice(b",\"input\":[");
        }
        Format::OpenaiChat => {
            json.extend_from_slice(b",\"messages\":[");
            if !system.is_empty() {
                json.extend_from_slice(b"{\"role\":\"system\",\"content\":");
                append_json(&mut json, system);
                json.push(b'}');
            }
        }
    }
    json
}

fn append_tool(json: &mut Vec<u8>, format: Format, tool: &ToolDefinition) {
    #[derive(Serialize)]
    struct Anthropic<'a> {
        name: &'a str,
        description: &'a str,
        input_schema: &'a serde_json::Value,
    }
    #[derive(Serialize)]
    struct Function<'a> {
        name: &'a str,
        description: &'a str,
        parameters: &'a serde_json::Value,
    }
    #[derive(Serialize)]
    struct Responses<'a> {
        r#type: &'static str,
        #[serde(flatten)]
        function: Function<'a>,
        strict: bool,
    }
    #[derive(Serialize)]
    struct Chat<'a> {
        r#type: &'static str,
        function: Function<'a>,
    }
    let (name, description) = (tool.name.as_str(), tool.description.as_str());
    let function = Function {
        name,
        description,
        parameters: &tool.input_schema,
    };
    match format {
        Format::AnthropicMessages => append_json(
            json,
            &Anthropic {
                name,
                description,
                input_schema: &tool.input_schema,
            },
        ),
        Format::OpenaiResponses => append_json(
            json,
            &Responses {
                r#type: "function",
                function,
                strict: false,
            },
        ),
        Format::OpenaiChat => append_json(
            json,
            &Chat {
                r#type: "function",
                function,
            },
        ),
    }
}

/// The part behind the messages, which closes the body.
fn tail_json(head: &Head<'_>) -> Vec<u8> {
    let (format, has_tools) = (head.opening.format, head.opening.has_tools);
    let mut json = Vec::with_capacity(256);
    json.push(b']');
    let mut field = |name: &str, value: serde_json::Value| {
        json.push(b',');
        append_json(&mut json, name);
        json.push(b':');
        append_json(&mut json, &value);
    };
    let forced = has_tools && *head.tool_choice == ToolChoice::Required;
    let choice = match (format, head.tool_choice) {
        _ if !has_tools => None,
        (_, ToolChoice::Auto) => None,
        (Format::AnthropicMessages, ToolChoice::None) => Some(json!({"type": "none"})),
        (Format::AnthropicMessages, ToolChoice::Required) => Some(json!({"type": "any"})),
        (Format::OpenaiResponses | Format::OpenaiChat, ToolChoice::None) => Some(json!("none")),
        (Format::OpenaiResponses | Format::OpenaiChat, ToolChoice::Required) => Some(json!("required")),
    };
    match format {
        Format::AnthropicMessages => {
            field("max_tokens", json!(head.max_tokens));
            // Anthropic refuses a forced tool together with thinking.
            match head.thinking {
                Thinking::Budget(budget) if !forced => {
                    let budget = u64::from(budget).min(head.max_tokens.saturating_sub(1));
                    if budget >= LEAST_BUDGET {
                        field("thinking", json!({"type": "enabled", "budget_tokens": budget}));
                    }
                }
                Thinking::Effort(effort) if !forced => {
                    field("thinking", json!({"type": "adaptive"}));
                    field("output_config", json!({"effort": effort}));
                }
                Thinking::Off => field("thinking", json!({"type": "disabled"})),
                Thinking::Default | Thinking::Budget(_) | Thinking::Effort(_) => {}
            }
        }
        Format::OpenaiResponses => {
            field("max_output_tokens", json!(head.max_tokens));
            // Nothing is kept by the provider: thoughts come back encrypted, and are sent again.
            field("store", json!(false));
            if head.thinking != Thinking::Off {
                field("include", json!(["reasoning.encrypted_content"]));
            }
            if let Thinking::Effort(effort) = head.thinking {
                field("reasoning", json!({"effort": effort, "summary": "auto"}));
            }
        }
        Format::OpenaiChat => {
            field(head.chat_limit.field(), json!(head.max_tokens));
            field("stream_options", json!({"include_usage": true}));
            if let Thinking::Effort(effort) = head.thinking {
                field("reasoning_effort", json!(effort));
            }
        }
    }
    if let Some(choice) = choice {
        field("tool_choice", choice);
    }
    field("stream", json!(true));
    json.push(b'}');
    json
}
