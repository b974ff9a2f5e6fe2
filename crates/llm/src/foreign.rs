//! Requests that other programs wrote in the language of a format: read strictly enough to know what they may cost, and
//! written anew with what is ours to say.
//!
//! A provider is handed the fields that stand in a list here, byte for byte; others are left out. What would have it reach
//! out by itself (an address of a picture, a tool that it runs, a server that it asks), use what it keeps (a file, an earlier
//! response), or charge by something else than tokens of text and pictures, is refused: nobody here could bound or see it. How
//! likely each token was is refused too: there a text stands in pieces, in which no secret would be found.

mod look;
mod pictures;
mod strict;

use bytes::Bytes;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::bounds::{PREAMBLE, picture};
use crate::encode::append_json;
use crate::{ChatLimit, Format};

use look::Look;

/// What Anthropic demands of a thinking budget.
const LEAST_BUDGET: u64 = 1_024;

/// Fields that are handed on as they are.
const ANTHROPIC: &[&str] = &[
    "cache_control",
    "context_management",
    "messages",
    "output_config",
    "output_format",
    "stop_sequences",
    "system",
    "temperature",
    "thinking",
    "tool_choice",
    "tools",
    "top_k",
    "top_p",
];
const RESPONSES: &[&str] = &[
    "include",
    "input",
    "instructions",
    "max_tool_calls",
    "parallel_tool_calls",
    "reasoning",
    "stream_options",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_p",
    "truncation",
];
const CHAT: &[&str] = &[
    "chat_template_kwargs",
    "frequency_penalty",
    "function_call",
    "functions",
    "logit_bias",
    "messages",
    "parallel_tool_calls",
    "presence_penalty",
    "reasoning_effort",
    "response_format",
    "seed",
    "stop",
    "temperature",
    "thinking",
    "tool_choice",
    "tools",
    "top_k",
    "top_p",
    "verbosity",
];

/// Why some fields are refused rather than left out: without them the answer would be another one.
const REACHES_OUT: &str = "the provider would reach out by itself, past what lets this session out";
const KEPT_THERE: &str = "what the provider keeps is not this session's: send the whole conversation";
const OTHER_PRICE: &str = "it has a price of its own, which nobody has set here";
const TOKEN_BY_TOKEN: &str = "a text token by token would be said past what looks for secrets in it";

const REFUSED: &[(&str, &str)] = &[
    ("audio", OTHER_PRICE),
    ("background", KEPT_THERE),
    ("container", KEPT_THERE),
    ("conversation", KEPT_THERE),
    ("inference_geo", OTHER_PRICE),
    ("logprobs", TOKEN_BY_TOKEN),
    ("mcp_servers", REACHES_OUT),
    ("previous_response_id", KEPT_THERE),
    ("prompt", KEPT_THERE),
    ("speed", OTHER_PRICE),
    ("web_search_options", REACHES_OUT),
];

/// Why a request is not made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ForeignError {
    /// It is no request of its format.
    #[error("the request is malformed: {0}")]
    Malformed(String),
    /// It wants what cannot be had here.
    #[error("{what} cannot be used here: {why}")]
    Refused {
        /// What, as the request calls it.
        what: String,
        /// Why.
        why: &'static str,
    },
}

/// A request that another program wrote.
#[derive(Debug)]
pub struct Foreign<'b> {
    format: Format,
    /// What is handed on, in its order.
    fields: Vec<(&'static str, &'b RawValue)>,
    /// The model that it names.
    pub model: Option<String>,
    /// It wants the answer as it is written.
    pub streams: bool,
    /// Of a stream of the Chat format: it wants to be told of tokens too.
    pub wants_usage: bool,
    /// The most that it wants to be said.
    pub max_tokens: Option<u64>,
    /// The field in which it says so.
    limit: &'static str,
    thinking_budget: Option<u64>,
    /// It is asked to think.
    thinks: bool,
    bound: u64,
}

impl<'b> Foreign<'b> {
    /// Whether the model is asked to think, or does so unasked, without showing it: what was shown of an answer is then no
    /// measure of what it costs.
    #[must_use]
    pub fn thinks_unseen(&self) -> bool {
        match self.format {
            Format::AnthropicMessages => self.thinks,
            Format::OpenaiResponses | Format::OpenaiChat => true,
        }
    }

    /// Reads a request.
    ///
    /// # Errors
    /// [`ForeignError`], in words for whoever wrote the program.
    pub fn parse(format: Format, body: &'b [u8]) -> Result<Self, ForeignError> {
        let mut request = Self {
            format,
            fields: Vec::new(),
            model: None,
            streams: false,
            wants_usage: false,
            max_tokens: None,
            limit: match format {
                Format::AnthropicMessages | Format::OpenaiChat => "max_tokens",
                Format::OpenaiResponses => "max_output_tokens",
            },
            thinking_budget: None,
            thinks: false,
            bound: PREAMBLE,
        };
        let mut look = Look::new(format);
        let (mut length, mut base64, mut said) = (0_u64, 0_u64, false);
        for (name, raw) in strict::fields(body)? {
            let wanted = || read(&name, raw);
            match (&*name, format) {
                ("model", _) => request.model = string(&name, wanted()?)?,
                ("stream", _) => request.streams = flag(&name, &wanted()?)?,
                ("max_tokens", Format::AnthropicMessages | Format::OpenaiChat)
                | ("max_output_tokens", Format::OpenaiResponses) => {
                    request.max_tokens = least(request.max_tokens, number(&name, &wanted()?)?);
                }
                ("max_completion_tokens", Format::OpenaiChat) => {
                    request.max_tokens = least(request.max_tokens, number(&name, &wanted()?)?);
                    request.limit = "max_completion_tokens";
                }
                ("stream_options", Format::OpenaiChat) => request.wants_usage = wanted()?["include_usage"] == true,
                ("n", _) if wanted()?.as_u64() != Some(1) && !is_nothing(&wanted()?) => {
                    return Err(refused("n", "one answer is what is bounded and paid"));
                }
                ("modalities", _) if wanted()? != serde_json::json!(["text"]) && !is_nothing(&wanted()?) => {
                    return Err(refused("modalities", OTHER_PRICE));
                }
                _ => {
                    if let Some((_, why)) = REFUSED.iter().find(|(refused, _)| *refused == name)
                        && !is_nothing(&wanted()?)
                    {
                        return Err(refused(name, why));
                    }
                    let Some(known) = handed_on(format).iter().find(|known| **known == name) else {
                        continue;
                    };
                    match *known {
                        "tools" => look.tools(&wanted()?)?,
                        "messages" | "input" | "system" => {
                            said |= *known != "system";
                            let content = wanted()?;
                            look.content(&content)?;
                            base64 += pictures::base64(format, known, &content);
                        }
                        "include" if wanted()?.to_string().contains("logprobs") => {
                            return Err(refused("include", TOKEN_BY_TOKEN));
                        }
                        "thinking" => {
                            let thinking = wanted()?;
                            request.thinking_budget = thinking["budget_tokens"].as_u64();
                            request.thinks = !is_nothing(&thinking) && thinking["type"] != "disabled";
                        }
                        _ => {}
                    }
                    length += raw.get().len() as u64;
                    request.fields.push((known, raw));
                }
            }
        }
        if !said {
            let what = if format == Format::OpenaiResponses {
                "input"
            } else {
                "messages"
            };
            return Err(ForeignError::Malformed(format!("it has no {what}")));
        }
        request.bound = PREAMBLE
            .saturating_mul(look.explained.saturating_add(1))
            .saturating_add(length.saturating_sub(base64))
            .saturating_add(look.pictures.saturating_mul(picture(format)));
        Ok(request)
    }

    /// The most tokens that its input has: no token is shorter than a byte, pictures are counted by formula where the
    /// format has them (and by their bytes too anywhere else), and the provider explains tools of its own making.
    #[must_use]
    pub const fn bound(&self) -> u64 {
        self.bound
    }

    /// Tokens that its input likely has.
    #[must_use]
    pub const fn likely(&self) -> u64 {
        self.bound.div_ceil(3)
    }

    /// The request as the provider gets it: its own name of the model, the most that may be said, nothing kept, and tokens
    /// told at a stream's end. In which field a server of the Chat format is told the most is the program's choice, unless
    /// this one takes no other than `max_completion_tokens`.
    #[must_use]
    pub fn body(&self, model: &str, max_tokens: u64, chat_limit: ChatLimit) -> Bytes {
        let length: usize = self
            .fields
            .iter()
            .map(|(name, raw)| name.len() + raw.get().len() + 4)
            .sum();
        let mut json = Vec::with_capacity(length + 256);
        json.extend_from_slice(b"{\"model\":");
        append_json(&mut json, model);
        let mut field = |name: &str, value: &str| {
            json.push(b',');
            append_json(&mut json, name);
            json.push(b':');
            json.extend_from_slice(value.as_bytes());
        };
        for (name, raw) in &self.fields {
            match self
                .thinking_budget
                .filter(|budget| *name == "thinking" && *budget >= max_tokens)
            {
                None => field(name, raw.get()),
                // A thought must fit the answer that it is part of.
                Some(_) if max_tokens > LEAST_BUDGET => {
                    let budget = max_tokens - 1;
                    field(name, &format!(r#"{{"type":"enabled","budget_tokens":{budget}}}"#));
                }
                Some(_) => {}
            }
        }
        let limit = match (self.format, chat_limit) {
            (Format::OpenaiChat, ChatLimit::MaxCompletionTokens) => chat_limit.field(),
            _ => self.limit,
        };
        field(limit, &max_tokens.to_string());
        match self.format {
            Format::AnthropicMessages => {}
            Format::OpenaiResponses => field("store", "false"),
            Format::OpenaiChat if self.streams => field("stream_options", r#"{"include_usage":true}"#),
            Format::OpenaiChat => {}
        }
        field("stream", if self.streams { "true" } else { "false" });
        json.push(b'}');
        json.into()
    }
}

const fn handed_on(format: Format) -> &'static [&'static str] {
    match format {
        Format::AnthropicMessages => ANTHROPIC,
        Format::OpenaiResponses => RESPONSES,
        Format::OpenaiChat => CHAT,
    }
}

fn refused(what: impl Into<String>, why: &'static str) -> ForeignError {
    ForeignError::Refused { what: what.into(), why }
}

fn read(name: &str, raw: &RawValue) -> Result<Value, ForeignError> {
    serde_json::from_str(raw.get())
        .map_err(|error| ForeignError::Malformed(format!("its {name} cannot be read: {error}")))
}

fn unfit(name: &str, wanted: &str) -> ForeignError {
    ForeignError::Malformed(format!("its {name} is {wanted}"))
}

fn string(name: &str, value: Value) -> Result<Option<String>, ForeignError> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text)),
        _ => Err(unfit(name, "no text")),
    }
}

fn flag(name: &str, value: &Value) -> Result<bool, ForeignError> {
    match value {
        Value::Null => Ok(false),
        Value::Bool(flag) => Ok(*flag),
        _ => Err(unfit(name, "neither true nor false")),
    }
}

fn number(name: &str, value: &Value) -> Result<Option<u64>, ForeignError> {
    match value {
        Value::Null => Ok(None),
        value => match value.as_u64() {
            Some(number) if number > 0 => Ok(Some(number)),
            _ => Err(unfit(name, "no number of tokens")),
        },
    }
}

fn least(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// What says as much as leaving it out.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Bool(true) | Value::Number(_) | Value::String(_) => false,
    }
}
