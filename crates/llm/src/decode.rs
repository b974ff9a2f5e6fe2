//! From a provider's stream to events and a reply.

mod anthropic;
mod chat;
mod responses;

use std::borrow::Cow;
use std::collections::HashSet;

use domain::{Block, DEEPEST, ToolCall, ToolCallId, Usage, is_too_deep};
use protocol::StopReason;
use serde::Deserialize;
use serde_json::Value;
use serde_json::error::Category;

use crate::bounds::{Written, count_text};
use crate::{Format, SseError, SseEvent, SseParser};

/// The longest stream that is read: far more than any model says in one reply.
const LIMIT: usize = 64 << 20;

/// The most tool calls in one reply: far more than any model makes. A reply is stored with all of them in one step.
const MOST_CALLS: usize = 512;

/// Something a model says, as it says it.
#[derive(Clone, PartialEq, Debug)]
pub enum StreamEvent {
    /// More words of the answer.
    Text(String),
    /// More words of a thought.
    Thinking(String),
    /// The model began to write a tool call; the whole of it stands in the reply.
    ToolCallStarted {
        /// The call's id.
        id: ToolCallId,
        /// The tool's name, as the model wrote it.
        name: String,
    },
    /// It wrote more of what is not shown as it comes: the arguments of a call.
    Unshown(Written),
    /// The model has finished; nothing follows.
    Done(Reply),
}

/// What a model said, whole.
#[derive(Clone, PartialEq, Debug)]
pub struct Reply {
    /// Its blocks, in order.
    pub blocks: Vec<Block>,
    /// Why it stopped.
    pub stop: StopReason,
    /// Tokens.
    pub usage: Usage,
    /// Who counted them.
    pub counted: Counted,
}

/// Who counted the tokens of a [`Usage`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counted {
    /// The provider, all of them.
    ByProvider,
    /// The provider those of the input; the output is our own count.
    InputByProvider,
    /// Nobody but us: the output is our own count, and the input fields are 0 because it is not known.
    ByUs,
}

/// Why a stream is not a reply.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// It is no event stream.
    #[error("the stream is no stream of events")]
    Sse(#[from] SseError),
    /// An event is not JSON, or not of the format.
    #[error("an event {event:?} of the stream is {problem} at byte {at}")]
    Event {
        /// The event's type.
        event: String,
        /// What is wrong with it. Nothing is quoted: a provider may send back what nobody may see.
        problem: &'static str,
        /// Where.
        at: usize,
    },
    /// Events contradict each other.
    #[error("the stream contradicts itself: {what}")]
    Inconsistent {
        /// In words.
        what: String,
    },
    /// The provider reported a failure in mid-stream.
    #[error("the provider reported {kind}: {message}")]
    Provider {
        /// The provider's word for it, such as `overloaded_error`.
        kind: String,
        /// What it says, as it says it.
        message: String,
    },
    /// The stream ended before the reply did.
    #[error("the stream ended before the reply was complete")]
    Cut,
    /// The stream is longer than any reply.
    #[error("the stream is longer than {limit} bytes")]
    TooLong {
        /// The most that is accepted.
        limit: usize,
    },
}

/// Reads the stream of one reply.
#[derive(Debug)]
pub struct Decoder {
    parser: SseParser,
    length: usize,
    ended: bool,
    reading: Reading,
}

#[derive(Debug)]
enum Reading {
    Anthropic(anthropic::Reading),
    Responses(responses::Reading),
    Chat(chat::Reading),
}

impl Decoder {
    /// A decoder at the beginning of a stream.
    #[must_use]
    pub fn new(format: Format) -> Self {
        Self {
            parser: SseParser::default(),
            length: 0,
            ended: false,
            reading: match format {
                Format::AnthropicMessages => Reading::Anthropic(anthropic::Reading::default()),
                Format::OpenaiResponses => Reading::Responses(responses::Reading::default()),
                Format::OpenaiChat => Reading::Chat(chat::Reading::default()),
            },
        }
    }

    /// Takes the next piece of the stream and appends what it says to `events`. What follows `Done` is ignored; after an
    /// error nothing more is to be fed.
    pub fn feed(&mut self, piece: &[u8], events: &mut Vec<StreamEvent>) -> Result<(), DecodeError> {
        self.length = self.length.saturating_add(piece.len());
        if self.length > LIMIT {
            return Err(DecodeError::TooLong { limit: LIMIT });
        }
        let Self {
            parser, ended, reading, ..
        } = self;
        parser.feed(piece, |event| reading.take(ended, event, events))
    }

    /// Takes one event of a stream that somebody else takes apart; otherwise as [`Self::feed`].
    pub fn take(&mut self, event: SseEvent<'_>, events: &mut Vec<StreamEvent>) -> Result<(), DecodeError> {
        self.length = self.length.saturating_add(event.name.len() + event.data.len());
        if self.length > LIMIT {
            return Err(DecodeError::TooLong { limit: LIMIT });
        }
        self.reading.take(&mut self.ended, event, events)
    }

    /// Says that the stream has ended: [`DecodeError::Cut`] if the reply has not. Servers of the Chat format that leave
    /// out its last line are forgiven: there this gives the `Done`.
    pub fn end(&mut self, events: &mut Vec<StreamEvent>) -> Result<(), DecodeError> {
        if self.ended {
            return Ok(());
        }
        self.ended = true;
        match &mut self.reading {
            Reading::Chat(reading) => reading.end(events),
            Reading::Anthropic(_) | Reading::Responses(_) => Err(DecodeError::Cut),
        }
    }

    /// What has been said so far, for a stream that was cut: whole blocks, open texts as far as they came, no half-written
    /// tool call. The stop reason is `Pause`. After `Done` it is empty: the reply is given once.
    #[must_use]
    pub fn partial(&self) -> Reply {
        match &self.reading {
            Reading::Anthropic(reading) => reading.partial(),
            Reading::Responses(reading) => reading.partial(),
            Reading::Chat(reading) => reading.partial(),
        }
    }
}

impl Reading {
    fn take(
        &mut self,
        ended: &mut bool,
        event: SseEvent<'_>,
        events: &mut Vec<StreamEvent>,
    ) -> Result<(), DecodeError> {
        if *ended {
            return Ok(());
        }
        match self {
            Self::Anthropic(reading) => reading.take(event, events)?,
            Self::Responses(reading) => reading.take(event, events)?,
            Self::Chat(reading) => reading.take(event, events)?,
        }
        *ended = matches!(events.last(), Some(StreamEvent::Done(_)));
        Ok(())
    }
}

/// What an answer that is no stream says of its tokens, as a reply without words; what it leaves out is our own count.
#[must_use]
pub fn whole_reply(format: Format, body: &[u8]) -> Reply {
    let told = match format {
        Format::AnthropicMessages => anthropic::counts(body),
        Format::OpenaiResponses => responses::counts(body),
        Format::OpenaiChat => chat::counts(body),
    };
    let (usage, counted) = settle(told, count_text(&String::from_utf8_lossy(body)));
    Reply {
        blocks: Vec::new(),
        stop: StopReason::EndTurn,
        usage,
        counted,
    }
}

/// Reads an event's JSON.
fn parse<'e, T: Deserialize<'e>>(kind: &str, data: &'e str) -> Result<T, DecodeError> {
    serde_json::from_str(data).map_err(|error| DecodeError::Event {
        event: kind.chars().take(80).collect(),
        problem: match error.classify() {
            Category::Io | Category::Syntax => "no JSON",
            Category::Eof => "JSON that ends too early",
            Category::Data => "not of the format",
        },
        at: error.column(),
    })
}

/// The type of an event: its name, or what its JSON says where a server leaves the name out.
fn kind<'e>(event: SseEvent<'e>) -> Result<Cow<'e, str>, DecodeError> {
    #[derive(Deserialize)]
    struct Typed<'e> {
        #[serde(borrow)]
        r#type: Cow<'e, str>,
    }
    if event.name.is_empty() {
        Ok(parse::<Typed<'_>>("without a name", event.data)?.r#type)
    } else {
        Ok(Cow::Borrowed(event.name))
    }
}

/// Tells how much was written that nobody is shown.
fn tell_unshown(written: Written, events: &mut Vec<StreamEvent>) {
    if written != Written::default() {
        events.push(StreamEvent::Unshown(written));
    }
}

fn inconsistent(what: impl Into<String>) -> DecodeError {
    DecodeError::Inconsistent { what: what.into() }
}

/// What a provider says of a failure in mid-stream.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Failure {
    r#type: Option<String>,
    code: Option<Value>,
    message: Option<String>,
}

impl From<Failure> for DecodeError {
    fn from(failure: Failure) -> Self {
        let code = failure.code.and_then(|code| match code {
            Value::String(code) => Some(code),
            Value::Null => None,
            other => Some(other.to_string()),
        });
        Self::Provider {
            kind: code.or(failure.r#type).unwrap_or_else(|| "an error".to_owned()),
            message: failure.message.unwrap_or_else(|| "it says no more".to_owned()),
        }
    }
}

/// A call's arguments as a model wrote them: nothing is an empty object, what is no JSON, or too deep, stays a text.
fn tool_input(written: &str) -> Value {
    if written.trim().is_empty() {
        return Value::Object(serde_json::Map::new());
    }
    let input = serde_json::from_str(written).ok().filter(|input| !is_too_deep(input));
    input.unwrap_or_else(|| Value::String(written.to_owned()))
}

/// An item that goes back to its provider as it came.
fn whole(item: Value) -> Result<Value, DecodeError> {
    if is_too_deep(&item) {
        return Err(inconsistent(format!("an item is nested deeper than {DEEPEST}")));
    }
    Ok(item)
}

/// Our own count of the tokens in what has been said.
fn count_blocks(blocks: &[Block]) -> u64 {
    blocks
        .iter()
        .map(|block| match block {
            Block::Text { text } | Block::Thinking { text, .. } => count_text(text),
            Block::ToolUse(call) => Written::call(&call.name).tokens() + count_text(&call.input.to_string()),
            Block::Image(_) | Block::ToolResult(_) => 0,
        })
        .sum()
}

/// Tokens as far as a provider has told them.
#[derive(Clone, Copy, Default, Debug)]
struct Told {
    usage: Usage,
    input: bool,
    output: bool,
}

/// Makes a reply of what a stream said: the last checks that all formats share.
fn reply(mut blocks: Vec<Block>, stop: StopReason, told: Told, unfinished: u64) -> Result<Reply, DecodeError> {
    blocks.retain(|block| !matches!(block, Block::Text { text } if text.is_empty()));
    let counted = count_blocks(&blocks) + unfinished;
    if stop == StopReason::MaxTokens {
        // The call that the limit cut is no wish.
        blocks.retain(|block| {
            !matches!(
                block,
                Block::ToolUse(ToolCall {
                    input: Value::String(_),
                    ..
                })
            )
        });
    }
    let calls = blocks.iter().filter(|block| matches!(block, Block::ToolUse(_))).count();
    if calls > MOST_CALLS {
        return Err(inconsistent(format!(
            "one reply makes {calls} tool calls; {MOST_CALLS} are the most"
        )));
    }
    let mut ids = HashSet::new();
    let mut calls = blocks.iter().filter_map(|block| match block {
        Block::ToolUse(call) => Some(&call.id),
        _ => None,
    });
    if let Some(id) = calls.find(|id| !ids.insert(*id)) {
        return Err(inconsistent(format!("two tool calls have the id {:?}", id.0)));
    }
    let stop = match stop {
        StopReason::EndTurn if !ids.is_empty() => StopReason::ToolUse,
        StopReason::ToolUse if ids.is_empty() => StopReason::EndTurn,
        other => other,
    };
    let (usage, counted) = settle(told, counted);
    Ok(Reply {
        blocks,
        stop,
        usage,
        counted,
    })
}

/// What a stream that was cut has said, with our count of what nobody told; `unfinished` counts what the blocks leave out.
fn partial(mut blocks: Vec<Block>, told: Told, unfinished: u64) -> Reply {
    blocks.retain(|block| !matches!(block, Block::Text { text } if text.is_empty()));
    let ours = count_blocks(&blocks) + unfinished;
    // What was told before the end is the count of that moment.
    let (mut usage, counted) = settle(Told { output: false, ..told }, ours);
    usage.output = usage.output.max(told.usage.output);
    Reply {
        blocks,
        stop: StopReason::Pause,
        usage,
        counted,
    }
}

fn settle(told: Told, ours: u64) -> (Usage, Counted) {
    let mut usage = told.usage;
    if !told.output {
        usage.output = ours;
    }
    match (told.input, told.output) {
        (true, true) => (usage, Counted::ByProvider),
        (true, false) => (usage, Counted::InputByProvider),
        (false, _) => (usage, Counted::ByUs),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_too_deep_for_those_who_read_them_later_stay_a_text() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(tool_input(&nested(DEEPEST)).is_array());
        for depth in [DEEPEST + 1, 120, 127, 200, 1_000_000] {
            assert_eq!(tool_input(&nested(depth)), Value::String(nested(depth)), "{depth}");
        }
        assert!(whole(serde_json::from_str(&nested(DEEPEST)).unwrap()).is_ok());
        assert!(whole(serde_json::from_str(&nested(DEEPEST + 1)).unwrap()).is_err());
    }

    #[test]
    fn a_reply_of_nothing_but_calls_is_none() {
        let calls = |count: usize| -> Vec<Block> {
            let call = |number: usize| {
                Block::ToolUse(ToolCall {
                    id: ToolCallId(number.to_string()),
                    name: "exec".to_owned(),
                    input: Value::Null,
                })
            };
            (0..count).map(call).collect()
        };
        let reply = |count| reply(calls(count), StopReason::ToolUse, Told::default(), 0);
        assert_eq!(reply(MOST_CALLS).unwrap().blocks.len(), MOST_CALLS);
        assert!(reply(MOST_CALLS + 1).is_err());
    }
}
