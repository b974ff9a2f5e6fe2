//! OpenAI Chat Completions: pieces of one choice, tool calls told apart by their index.

use std::borrow::Cow;

use domain::{Block, MessageId, ToolCall, ToolCallId};
use protocol::StopReason;
use serde::Deserialize;
use serde_json::json;

use super::{
    DecodeError, Failure, Reply, StreamEvent, Told, count_text, inconsistent, parse, responses, tell_unshown,
    tool_input,
};
use crate::SseEvent;
use crate::bounds::Written;

#[derive(Debug, Default)]
pub(super) struct Reading {
    text: String,
    thinking: String,
    thinking_field: Option<&'static str>,
    calls: Vec<Call>,
    /// A call as programs of old ask for it, which is handed on to them and part of no reply.
    old_call: Written,
    stop: Option<StopReason>,
    told: Told,
}

#[derive(Debug)]
struct Call {
    index: Option<u64>,
    id: ToolCallId,
    name: String,
    arguments: String,
}

#[derive(Deserialize)]
struct Chunk<'e> {
    #[serde(borrow, default)]
    choices: Vec<Choice<'e>>,
    #[serde(default)]
    usage: Option<Counts>,
    #[serde(default)]
    error: Option<Failure>,
}

#[derive(Deserialize)]
struct Choice<'e> {
    #[serde(default)]
    index: u64,
    #[serde(borrow, default)]
    delta: Option<Delta<'e>>,
    #[serde(borrow, default)]
    finish_reason: Option<Cow<'e, str>>,
}

#[derive(Deserialize)]
struct Delta<'e> {
    #[serde(borrow, default)]
    content: Option<Cow<'e, str>>,
    #[serde(borrow, default)]
    refusal: Option<Cow<'e, str>>,
    #[serde(borrow, default)]
    reasoning_content: Option<Cow<'e, str>>,
    #[serde(borrow, default)]
    reasoning: Option<Cow<'e, str>>,
    #[serde(borrow, default)]
    tool_calls: Option<Vec<Fragment<'e>>>,
    #[serde(borrow, default)]
    function_call: Option<Function<'e>>,
}

#[derive(Deserialize)]
struct Fragment<'e> {
    #[serde(default)]
    index: Option<u64>,
    #[serde(borrow, default)]
    id: Option<Cow<'e, str>>,
    #[serde(borrow, default)]
    function: Option<Function<'e>>,
}

#[derive(Deserialize)]
struct Function<'e> {
    #[serde(borrow, default)]
    name: Option<Cow<'e, str>>,
    #[serde(borrow, default)]
    arguments: Option<Cow<'e, str>>,
}

#[derive(Deserialize)]
struct Counts {
    prompt_tokens: u64,
    #[serde(default)]
    prompt_tokens_details: Option<InputDetails>,
    #[serde(default)]
    completion_tokens: u64,
    #[serde(default)]
    completion_tokens_details: Option<OutputDetails>,
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

impl From<Counts> for Told {
    fn from(counts: Counts) -> Self {
        let input = counts.prompt_tokens_details.unwrap_or_default();
        let output = counts.completion_tokens_details.unwrap_or_default();
        Self {
            usage: responses::usage(
                counts.prompt_tokens,
                input.cached_tokens,
                input.cache_write_tokens,
                counts.completion_tokens,
                output.reasoning_tokens,
            ),
            input: true,
            output: true,
        }
    }
}

/// What an answer that is no stream says of its tokens.
pub(super) fn counts(body: &[u8]) -> Told {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Whole {
        usage: Option<Counts>,
    }
    let whole: Whole = serde_json::from_slice(body).unwrap_or_default();
    whole.usage.map(Told::from).unwrap_or_default()
}

impl Reading {
    pub(super) fn take(&mut self, event: SseEvent<'_>, events: &mut Vec<StreamEvent>) -> Result<(), DecodeError> {
        if event.data == "[DONE]" {
            return self.end(events);
        }
        let chunk: Chunk<'_> = parse("chat.completion.chunk", event.data)?;
        if let Some(failure) = chunk.error {
            return Err(failure.into());
        }
        if let Some(counts) = chunk.usage {
            self.told = counts.into();
        }
        // One choice is asked for; more are nobody's.
        for choice in chunk.choices.into_iter().filter(|choice| choice.index == 0) {
            if let Some(delta) = choice.delta {
                self.delta(delta, events)?;
            }
            if let Some(word) = choice.finish_reason.filter(|word| !word.is_empty()) {
                self.stop = Some(match &*word {
                    "length" => StopReason::MaxTokens,
                    "tool_calls" | "function_call" => StopReason::ToolUse,
                    "content_filter" => StopReason::Refusal,
                    _ => StopReason::EndTurn,
                });
            }
        }
        Ok(())
    }

    fn delta(&mut self, delta: Delta<'_>, events: &mut Vec<StreamEvent>) -> Result<(), DecodeError> {
        let thoughts = [
            ("reasoning_content", delta.reasoning_content),
            ("reasoning", delta.reasoning),
        ];
        // Some servers send the same thought in both fields.
        let thought = thoughts
            .into_iter()
            .find_map(|(field, more)| Some((field, more.filter(|more| !more.is_empty())?)));
        if let Some((field, more)) = thought {
            self.thinking.push_str(&more);
            self.thinking_field = Some(field);
            events.push(StreamEvent::Thinking(more.into_owned()));
        }
        for more in [delta.content, delta.refusal]
            .into_iter()
            .flatten()
            .filter(|more| !more.is_empty())
        {
            self.text.push_str(&more);
            events.push(StreamEvent::Text(more.into_owned()));
        }
        for fragment in delta.tool_calls.into_iter().flatten() {
            self.fragment(fragment, events)?;
        }
        if let Some(old) = delta.function_call {
            let mut written = old.name.as_deref().map(Written::call).unwrap_or_default();
            written.add(old.arguments.as_deref().unwrap_or_default());
            self.old_call += written;
            tell_unshown(written, events);
        }
        Ok(())
    }

    fn fragment(&mut self, fragment: Fragment<'_>, events: &mut Vec<StreamEvent>) -> Result<(), DecodeError> {
        let id = fragment.id.filter(|id| !id.is_empty());
        let (name, arguments) = fragment
            .function
            .map_or((None, None), |function| (function.name, function.arguments));
        let known = match (fragment.index, &id) {
            (Some(index), _) => self.calls.iter().position(|call| call.index == Some(index)),
            // Servers that leave the index out: a new id is a new call.
            (None, Some(id)) => self.calls.iter().position(|call| call.id.0 == **id),
            (None, None) => self.calls.len().checked_sub(1),
        };
        let place = match known {
            Some(place) => {
                if id.is_some_and(|id| id != self.calls[place].id.0) {
                    return Err(inconsistent(format!("two tool calls have the index {place}")));
                }
                place
            }
            None => {
                let Some(name) = name.filter(|name| !name.is_empty()) else {
                    return Err(inconsistent("a tool call begins without a name"));
                };
                let id = ToolCallId(id.map_or_else(|| format!("call_{}", MessageId::new()), Cow::into_owned));
                events.push(StreamEvent::ToolCallStarted {
                    id: id.clone(),
                    name: name.clone().into_owned(),
                });
                self.calls.push(Call {
                    index: fragment.index,
                    id,
                    name: name.into_owned(),
                    arguments: String::new(),
                });
                self.calls.len() - 1
            }
        };
        let more = arguments.as_deref().unwrap_or_default();
        self.calls[place].arguments.push_str(more);
        tell_unshown(Written::of(more), events);
        Ok(())
    }

    /// Ends the reply, which must have said why it stops.
    pub(super) fn end(&mut self, events: &mut Vec<StreamEvent>) -> Result<(), DecodeError> {
        let stop = self.stop.ok_or(DecodeError::Cut)?;
        let mut blocks = self.said();
        for call in std::mem::take(&mut self.calls) {
            blocks.push(Block::ToolUse(ToolCall {
                id: call.id,
                name: call.name,
                input: tool_input(&call.arguments),
            }));
        }
        self.text.clear();
        self.thinking.clear();
        self.thinking_field = None;
        events.push(StreamEvent::Done(super::reply(
            blocks,
            stop,
            self.told,
            self.old_call.tokens(),
        )?));
        Ok(())
    }

    fn said(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        if let Some(field) = self.thinking_field {
            blocks.push(Block::Thinking {
                text: self.thinking.clone(),
                signature: None,
                item: Some(json!({"field": field})),
            });
        }
        blocks.push(Block::Text {
            text: self.text.clone(),
        });
        blocks
    }

    /// No call of an open stream is known to be whole.
    pub(super) fn partial(&self) -> Reply {
        let calls = self
            .calls
            .iter()
            .map(|call| Written::call(&call.name).tokens() + count_text(&call.arguments));
        super::partial(self.said(), self.told, calls.sum::<u64>() + self.old_call.tokens())
    }
}
