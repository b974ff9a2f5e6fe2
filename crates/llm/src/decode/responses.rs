//! OpenAI Responses: items that are written side by side; each is given whole when it is done, and that is what counts.

use std::borrow::Cow;
use std::collections::BTreeMap;

use domain::{Block, ToolCall, ToolCallId, Usage};
use protocol::StopReason;
use serde::Deserialize;
use serde_json::Value;

use super::{
    DecodeError, Failure, Reply, StreamEvent, Told, inconsistent, kind, parse, tell_unshown, tool_input, whole,
};
use crate::SseEvent;
use crate::bounds::Written;

#[derive(Debug, Default)]
pub(super) struct Reading {
    items: BTreeMap<u64, Item>,
    /// What was written of items that are done and that replies do not count.
    left_out: Written,
}

#[derive(Debug)]
enum Item {
    /// What was written of it so far: words, thoughts, arguments.
    Open {
        text: String,
        thinking: String,
        arguments: Written,
    },
    Done(Value),
}

#[derive(Deserialize)]
struct ItemEvent {
    output_index: u64,
    item: Value,
}

#[derive(Deserialize)]
struct Delta<'e> {
    output_index: u64,
    #[serde(borrow)]
    delta: Cow<'e, str>,
}

#[derive(Deserialize)]
struct SummaryPart {
    output_index: u64,
    #[serde(default)]
    summary_index: u64,
}

#[derive(Deserialize)]
struct Ended {
    response: Response,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Response {
    output: Option<Vec<Value>>,
    usage: Option<Counts>,
    incomplete_details: Option<Incomplete>,
    error: Option<Failure>,
}

#[derive(Deserialize)]
struct Incomplete {
    reason: Option<String>,
}

#[derive(Deserialize)]
struct Counts {
    input_tokens: u64,
    #[serde(default)]
    input_tokens_details: Option<InputDetails>,
    output_tokens: u64,
    #[serde(default)]
    output_tokens_details: Option<OutputDetails>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct InputDetails {
    cached_tokens: Option<u64>,
    cache_write_tokens: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OutputDetails {
    reasoning_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct Failed {
    error: Option<Failure>,
    #[serde(flatten)]
    flat: Failure,
}

impl Reading {
    pub(super) fn take(&mut self, event: SseEvent<'_>, events: &mut Vec<StreamEvent>) -> Result<(), DecodeError> {
        let kind = kind(event)?;
        match &*kind {
            "response.output_text.delta" | "response.refusal.delta" => {
                let Delta { output_index, delta } = parse(&kind, event.data)?;
                self.open(output_index)?.0.push_str(&delta);
                events.push(StreamEvent::Text(delta.into_owned()));
            }
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                let Delta { output_index, delta } = parse(&kind, event.data)?;
                self.open(output_index)?.1.push_str(&delta);
                events.push(StreamEvent::Thinking(delta.into_owned()));
            }
            "response.reasoning_summary_part.added" => {
                let part: SummaryPart = parse(&kind, event.data)?;
                if part.summary_index > 0 {
                    self.open(part.output_index)?.1.push_str("\n\n");
                    events.push(StreamEvent::Thinking("\n\n".to_owned()));
                }
            }
            "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta" => {
                let Delta { output_index, delta } = parse(&kind, event.data)?;
                let more = Written::of(&delta);
                *self.open(output_index)?.2 += more;
                tell_unshown(more, events);
            }
            "response.output_item.added" => self.add(parse(&kind, event.data)?, events)?,
            "response.output_item.done" => {
                let ItemEvent { output_index, item } = parse(&kind, event.data)?;
                let is_counted = matches!(kind_of(&item), Some("message" | "function_call" | "reasoning"));
                let whole = written_in(&item);
                let told = match self.items.insert(output_index, Item::Done(item)) {
                    Some(Item::Done(_)) => return Err(inconsistent(format!("item {output_index} is done twice"))),
                    Some(open @ Item::Open { .. }) => open.told(),
                    None => Written::default(),
                };
                // Servers that say an item at once, or what came in no piece of it.
                tell_unshown(whole.without(told), events);
                if !is_counted {
                    self.left_out += whole;
                }
            }
            "response.completed" | "response.incomplete" => {
                let Ended { response } = parse(&kind, event.data)?;
                events.push(StreamEvent::Done(self.finish(response)?));
            }
            "response.failed" => {
                let Ended { response } = parse(&kind, event.data)?;
                return Err(response.error.unwrap_or_default().into());
            }
            "error" => {
                let Failed { error, flat } = parse(&kind, event.data)?;
                return Err(error.unwrap_or(flat).into());
            }
            _ => {}
        }
        Ok(())
    }

    fn add(&mut self, added: ItemEvent, events: &mut Vec<StreamEvent>) -> Result<(), DecodeError> {
        let ItemEvent { output_index, item } = added;
        if self.items.contains_key(&output_index) {
            return Err(inconsistent(format!("item {output_index} begins twice")));
        }
        self.items.insert(
            output_index,
            Item::Open {
                text: String::new(),
                thinking: String::new(),
                arguments: Written::default(),
            },
        );
        if kind_of(&item) == Some("function_call") {
            let call = function_call(&item)?;
            events.push(StreamEvent::ToolCallStarted {
                id: call.id,
                name: call.name,
            });
        }
        Ok(())
    }

    /// Text, thoughts and arguments of the open item at this index.
    fn open(&mut self, index: u64) -> Result<(&mut String, &mut String, &mut Written), DecodeError> {
        match self.items.get_mut(&index) {
            Some(Item::Open {
                text,
                thinking,
                arguments,
            }) => Ok((text, thinking, arguments)),
            _ => Err(inconsistent(format!("an event for item {index}, which is not open"))),
        }
    }

    fn finish(&mut self, response: Response) -> Result<Reply, DecodeError> {
        let mut items = std::mem::take(&mut self.items);
        for (index, item) in (0..).zip(response.output.unwrap_or_default()) {
            if !matches!(items.get(&index), Some(Item::Done(_))) {
                items.insert(index, Item::Done(item));
            }
        }
        let mut blocks = Vec::new();
        let mut refused = false;
        let reason = response.incomplete_details.and_then(|details| details.reason);
        for (index, item) in items {
            match item {
                Item::Done(item) => refused |= append_item(&mut blocks, item)?,
                Item::Open { text, .. } if reason.is_some() => blocks.push(Block::Text { text }),
                Item::Open { .. } => {
                    return Err(inconsistent(format!(
                        "the response is complete while item {index} is open"
                    )));
                }
            }
        }
        let stop = match reason.as_deref() {
            Some("content_filter") => StopReason::Refusal,
            Some(_) => StopReason::MaxTokens,
            None if refused => StopReason::Refusal,
            None => StopReason::EndTurn,
        };
        super::reply(blocks, stop, told(response.usage), self.left_out.tokens())
    }

    pub(super) fn partial(&self) -> Reply {
        let mut blocks = Vec::new();
        let mut unfinished = self.left_out.tokens();
        for item in self.items.values() {
            match item {
                // What is malformed is left out: the stream ended in an error that says so.
                Item::Done(item) => drop(append_item(&mut blocks, item.clone())),
                Item::Open {
                    text,
                    thinking,
                    arguments,
                } => {
                    unfinished += arguments.tokens();
                    if !thinking.is_empty() {
                        blocks.push(Block::Thinking {
                            text: thinking.clone(),
                            signature: None,
                            item: None,
                        });
                    }
                    blocks.push(Block::Text { text: text.clone() });
                }
            }
        }
        super::partial(blocks, Told::default(), unfinished)
    }
}

impl Item {
    /// What was told of it.
    fn told(&self) -> Written {
        let mut told = Written::default();
        if let Self::Open {
            text,
            thinking,
            arguments,
        } = self
        {
            told = *arguments;
            told.add(text);
            told.add(thinking);
        }
        told
    }
}

fn kind_of(item: &Value) -> Option<&str> {
    item.get("type").and_then(Value::as_str)
}

/// What the model wrote of an item: its words, or the arguments of a call.
fn written_in(item: &Value) -> Written {
    let mut written = Written::default();
    let parts = ["summary", "content"].map(|key| item.get(key).and_then(Value::as_array));
    let parts = parts.into_iter().flatten().flatten();
    let words = parts.filter_map(|part| part.get("text").or_else(|| part.get("refusal")));
    let arguments = ["arguments", "input"].map(|key| item.get(key));
    for text in arguments.into_iter().flatten().chain(words).filter_map(Value::as_str) {
        written.add(text);
    }
    written
}

/// Appends what an item that is done holds; true if it is a refusal.
fn append_item(blocks: &mut Vec<Block>, item: Value) -> Result<bool, DecodeError> {
    let mut refused = false;
    match kind_of(&item) {
        Some("message") => {
            for part in item.get("content").and_then(Value::as_array).into_iter().flatten() {
                let refusal = part.get("refusal").and_then(Value::as_str);
                refused |= refusal.is_some();
                if let Some(text) = refusal.or_else(|| part.get("text").and_then(Value::as_str)) {
                    blocks.push(Block::Text { text: text.to_owned() });
                }
            }
        }
        Some("function_call") => blocks.push(Block::ToolUse(function_call(&item)?)),
        // A thought, or something newer than this program: it goes back as it came.
        Some(_) => blocks.push(Block::Thinking {
            text: summary(&item),
            signature: None,
            item: Some(whole(item)?),
        }),
        None => return Err(inconsistent("an item has no type")),
    }
    Ok(refused)
}

fn function_call(item: &Value) -> Result<ToolCall, DecodeError> {
    let word = |key: &str| item.get(key).and_then(Value::as_str).unwrap_or_default();
    let (id, name) = (word("call_id"), word("name"));
    if id.is_empty() || name.is_empty() {
        return Err(inconsistent("a function call has no call_id or no name"));
    }
    Ok(ToolCall {
        id: ToolCallId(id.to_owned()),
        name: name.to_owned(),
        input: tool_input(word("arguments")),
    })
}

/// The words of a thought: its summary, or the thought itself where a model shows it.
fn summary(item: &Value) -> String {
    let texts = |key: &str| -> Vec<&str> {
        let parts = item.get(key).and_then(Value::as_array).into_iter().flatten();
        parts.filter_map(|part| part.get("text")?.as_str()).collect()
    };
    let summary = texts("summary");
    if summary.is_empty() { texts("content") } else { summary }.join("\n\n")
}

/// What an answer that is no stream says of its tokens.
pub(super) fn counts(body: &[u8]) -> Told {
    let response: Response = serde_json::from_slice(body).unwrap_or_default();
    told(response.usage)
}

fn told(counts: Option<Counts>) -> Told {
    let Some(counts) = counts else {
        return Told::default();
    };
    let input = counts.input_tokens_details.unwrap_or_default();
    Told {
        usage: usage(
            counts.input_tokens,
            input.cached_tokens,
            input.cache_write_tokens,
            counts.output_tokens,
            counts
                .output_tokens_details
                .and_then(|details| details.reasoning_tokens),
        ),
        input: true,
        output: true,
    }
}

/// OpenAI's input includes what the cache knew: each token is put into one field.
pub(super) fn usage(input: u64, read: Option<u64>, written: Option<u64>, output: u64, thinking: Option<u64>) -> Usage {
    let cache_read = read.unwrap_or_default().min(input);
    let cache_write = written.unwrap_or_default().min(input - cache_read);
    Usage {
        input: input - cache_read - cache_write,
        cache_read,
        cache_write,
        cache_write_hour: 0,
        output,
        thinking: thinking.unwrap_or_default(),
    }
}
