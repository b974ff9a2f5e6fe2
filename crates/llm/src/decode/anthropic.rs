//! Anthropic Messages: blocks that are opened, written and closed, each with its place.

use std::borrow::Cow;

use domain::{Block, ToolCall, ToolCallId};
use protocol::StopReason;
use serde::Deserialize;
use serde_json::Value;

use super::{
    DecodeError, Failure, Reply, StreamEvent, Told, count_text, inconsistent, kind, parse, tell_unshown, tool_input,
    whole,
};
use crate::SseEvent;
use crate::bounds::Written;

#[derive(Debug, Default)]
pub(super) struct Reading {
    blocks: Vec<Open>,
    closed: usize,
    stop: Option<StopReason>,
    told: Told,
}

/// A block as far as it is written. Only the last one is open.
#[derive(Debug)]
enum Open {
    Text(String),
    Thinking {
        text: String,
        signature: String,
    },
    Tool {
        id: String,
        name: String,
        given: Option<Value>,
        json: String,
    },
    /// A redacted thought, or something newer than this program: it goes back as it came.
    Item {
        item: Value,
        /// What came in pieces.
        written: Written,
    },
}

#[derive(Deserialize)]
struct MessageStart {
    message: Started,
}

#[derive(Deserialize)]
struct Started {
    #[serde(default)]
    usage: Option<Counts>,
}

#[derive(Deserialize)]
struct BlockStart {
    index: usize,
    content_block: Value,
}

#[derive(Deserialize)]
struct BlockDelta<'e> {
    index: usize,
    #[serde(borrow)]
    delta: Delta<'e>,
}

#[derive(Deserialize)]
struct Delta<'e> {
    #[serde(borrow)]
    r#type: Cow<'e, str>,
    #[serde(borrow)]
    text: Option<Cow<'e, str>>,
    #[serde(borrow)]
    thinking: Option<Cow<'e, str>>,
    #[serde(borrow)]
    signature: Option<Cow<'e, str>>,
    #[serde(borrow)]
    partial_json: Option<Cow<'e, str>>,
}

#[derive(Deserialize)]
struct BlockStop {
    index: usize,
}

#[derive(Deserialize)]
struct MessageDelta {
    delta: Ending,
    #[serde(default)]
    usage: Option<Counts>,
}

#[derive(Deserialize)]
struct Ending {
    stop_reason: Option<String>,
}

#[derive(Deserialize)]
struct Failed {
    error: Failure,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Counts {
    input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    cache_creation: Option<CacheCreation>,
    output_tokens: Option<u64>,
    output_tokens_details: Option<OutputDetails>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CacheCreation {
    ephemeral_1h_input_tokens: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OutputDetails {
    thinking_tokens: Option<u64>,
}

/// What an answer that is no stream says of its tokens.
pub(super) fn counts(body: &[u8]) -> Told {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Whole {
        usage: Option<Counts>,
    }
    let whole: Whole = serde_json::from_slice(body).unwrap_or_default();
    let mut reading = Reading::default();
    reading.count(whole.usage, true);
    reading.told
}

impl Reading {
    pub(super) fn take(&mut self, event: SseEvent<'_>, events: &mut Vec<StreamEvent>) -> Result<(), DecodeError> {
        let kind = kind(event)?;
        match &*kind {
            "content_block_delta" => self.delta(&parse(&kind, event.data)?, events),
            "content_block_start" => self.start(parse(&kind, event.data)?, events),
            "content_block_stop" => {
                let BlockStop { index } = parse(&kind, event.data)?;
                self.open(index)?;
                self.closed += 1;
                Ok(())
            }
            "message_start" => {
                let MessageStart { message } = parse(&kind, event.data)?;
                self.count(message.usage, false);
                Ok(())
            }
            "message_delta" => {
                let MessageDelta { delta, usage } = parse(&kind, event.data)?;
                self.count(usage, true);
                if let Some(word) = delta.stop_reason {
                    self.stop = Some(stop_reason(&word));
                }
                Ok(())
            }
            "message_stop" => self.finish(events),
            "error" => Err(parse::<Failed>(&kind, event.data)?.error.into()),
            _ => Ok(()),
        }
    }

    fn start(&mut self, start: BlockStart, events: &mut Vec<StreamEvent>) -> Result<(), DecodeError> {
        if start.index != self.blocks.len() || self.closed != self.blocks.len() {
            return Err(inconsistent(format!(
                "block {} begins when {} blocks were begun and {} ended",
                start.index,
                self.blocks.len(),
                self.closed
            )));
        }
        let word = |key: &str| {
            start
                .content_block
                .get(key)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let block = match start.content_block.get("type").and_then(Value::as_str) {
            Some("text") => {
                let text = word("text");
                if !text.is_empty() {
                    events.push(StreamEvent::Text(text.clone()));
                }
                Open::Text(text)
            }
            Some("thinking") => {
                let text = word("thinking");
                if !text.is_empty() {
                    events.push(StreamEvent::Thinking(text.clone()));
                }
                Open::Thinking {
                    text,
                    signature: word("signature"),
                }
            }
            Some("tool_use") => {
                let (id, name) = (word("id"), word("name"));
                if id.is_empty() || name.is_empty() {
                    return Err(inconsistent(format!(
                        "the tool call in block {} has no id or no name",
                        start.index
                    )));
                }
                events.push(StreamEvent::ToolCallStarted {
                    id: ToolCallId(id.clone()),
                    name: name.clone(),
                });
                // Arguments that follow in pieces are announced by an empty object.
                let given = start
                    .content_block
                    .get("input")
                    .filter(|input| !input.is_null() && input.as_object().is_none_or(|object| !object.is_empty()));
                tell_unshown(
                    given.map(|given| Written::of(&given.to_string())).unwrap_or_default(),
                    events,
                );
                Open::Tool {
                    id,
                    name,
                    given: given.cloned(),
                    json: String::new(),
                }
            }
            Some(_) => Open::Item {
                item: whole(start.content_block)?,
                written: Written::default(),
            },
            None => return Err(inconsistent(format!("block {} has no type", start.index))),
        };
        self.blocks.push(block);
        Ok(())
    }

    fn delta(&mut self, delta: &BlockDelta<'_>, events: &mut Vec<StreamEvent>) -> Result<(), DecodeError> {
        let BlockDelta { index, delta } = delta;
        let block = self.open(*index)?;
        match (&*delta.r#type, block) {
            ("text_delta", Open::Text(text)) => {
                if let Some(more) = delta.text.as_deref().filter(|more| !more.is_empty()) {
                    text.push_str(more);
                    events.push(StreamEvent::Text(more.to_owned()));
                }
            }
            ("input_json_delta", Open::Tool { json, .. }) => {
                let more = delta.partial_json.as_deref().unwrap_or_default();
                json.push_str(more);
                tell_unshown(Written::of(more), events);
            }
            ("thinking_delta", Open::Thinking { text, .. }) => {
                if let Some(more) = delta.thinking.as_deref().filter(|more| !more.is_empty()) {
                    text.push_str(more);
                    events.push(StreamEvent::Thinking(more.to_owned()));
                }
            }
            ("signature_delta", Open::Thinking { signature, .. }) => {
                signature.push_str(delta.signature.as_deref().unwrap_or_default());
            }
            (_, Open::Item { written, .. }) => {
                let more = delta.partial_json.as_deref().or(delta.text.as_deref());
                let more = Written::of(more.unwrap_or_default());
                *written += more;
                tell_unshown(more, events);
            }
            (kind @ ("text_delta" | "input_json_delta" | "thinking_delta" | "signature_delta"), _) => {
                return Err(inconsistent(format!(
                    "a {kind} in block {index}, which is of another kind"
                )));
            }
            _ => {}
        }
        Ok(())
    }

    /// The open block, which must be the one at this index.
    fn open(&mut self, index: usize) -> Result<&mut Open, DecodeError> {
        let closed = self.closed;
        match self.blocks.get_mut(index) {
            Some(block) if index == closed => Ok(block),
            _ => Err(inconsistent(format!("an event for block {index}, which is not open"))),
        }
    }

    fn count(&mut self, counts: Option<Counts>, last: bool) {
        let Some(counts) = counts else { return };
        let usage = &mut self.told.usage;
        if let Some(tokens) = counts.input_tokens {
            usage.input = tokens;
            self.told.input = true;
        }
        if let Some(tokens) = counts.cache_read_input_tokens {
            usage.cache_read = tokens;
        }
        if let Some(tokens) = counts.cache_creation_input_tokens {
            let hour = counts
                .cache_creation
                .and_then(|creation| creation.ephemeral_1h_input_tokens);
            usage.cache_write_hour = hour.unwrap_or(usage.cache_write_hour).min(tokens);
            usage.cache_write = tokens - usage.cache_write_hour;
        }
        if let Some(tokens) = counts.output_tokens {
            usage.output = tokens;
            self.told.output |= last;
        }
        if let Some(tokens) = counts.output_tokens_details.and_then(|details| details.thinking_tokens) {
            usage.thinking = tokens;
        }
    }

    fn finish(&mut self, events: &mut Vec<StreamEvent>) -> Result<(), DecodeError> {
        if self.closed != self.blocks.len() {
            return Err(inconsistent("the message ends while a block is open"));
        }
        let Some(stop) = self.stop else {
            return Err(inconsistent("the message ends without a stop reason"));
        };
        let blocks = std::mem::take(&mut self.blocks);
        let unshown = blocks.iter().map(Open::left_out).sum();
        let blocks = blocks.into_iter().map(Open::into_block).collect();
        self.closed = 0;
        events.push(StreamEvent::Done(super::reply(blocks, stop, self.told, unshown)?));
        Ok(())
    }

    pub(super) fn partial(&self) -> Reply {
        let mut unfinished = 0;
        let mut blocks = Vec::new();
        for (place, block) in self.blocks.iter().enumerate() {
            match block {
                Open::Tool { name, json, .. } if place >= self.closed => {
                    unfinished += Written::call(name).tokens() + count_text(json);
                }
                Open::Text(text) => blocks.push(Block::Text { text: text.clone() }),
                Open::Thinking { text, signature } => blocks.push(thinking(text.clone(), signature.clone())),
                Open::Tool { id, name, given, json } => blocks.push(tool(id, name, given.clone(), json)),
                Open::Item { item, .. } => {
                    unfinished += block.left_out();
                    blocks.push(whole_item(item.clone()));
                }
            }
        }
        super::partial(blocks, self.told, unfinished)
    }
}

impl Open {
    fn into_block(self) -> Block {
        match self {
            Self::Text(text) => Block::Text { text },
            Self::Thinking { text, signature } => thinking(text, signature),
            Self::Tool { id, name, given, json } => tool(&id, &name, given, &json),
            Self::Item { item, .. } => whole_item(item),
        }
    }

    /// Tokens that came in pieces and do not stand in the block.
    fn left_out(&self) -> u64 {
        match self {
            Self::Item { written, .. } => written.tokens(),
            Self::Text(_) | Self::Thinking { .. } | Self::Tool { .. } => 0,
        }
    }
}

fn thinking(text: String, signature: String) -> Block {
    Block::Thinking {
        text,
        signature: Some(signature).filter(|signature| !signature.is_empty()),
        item: None,
    }
}

fn tool(id: &str, name: &str, given: Option<Value>, json: &str) -> Block {
    let input = match given {
        Some(given) if json.is_empty() => tool_input(&given.to_string()),
        _ => tool_input(json),
    };
    Block::ToolUse(ToolCall {
        id: ToolCallId(id.to_owned()),
        name: name.to_owned(),
        input,
    })
}

fn whole_item(item: Value) -> Block {
    Block::Thinking {
        text: String::new(),
        signature: None,
        item: Some(item),
    }
}

fn stop_reason(word: &str) -> StopReason {
    match word {
        "max_tokens" => StopReason::MaxTokens,
        "tool_use" => StopReason::ToolUse,
        "pause_turn" => StopReason::Pause,
        "refusal" => StopReason::Refusal,
        "model_context_window_exceeded" => StopReason::WindowFull,
        _ => StopReason::EndTurn,
    }
}
