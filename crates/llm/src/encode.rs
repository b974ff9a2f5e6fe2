//! From a message to the bytes that a request carries.

mod anthropic;
mod chat;
mod responses;

use std::borrow::Cow;

use bytes::Bytes;
use domain::{Block, Image, Message, Role, ToolCall};
use serde::Serialize;
use serde_json::{Value, json};

use crate::Format;

/// What becomes of the thoughts in an assistant's message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Thoughts {
    /// They go back unmodified: the model that reads them speaks the same format and is of the family that had them.
    Keep,
    /// They are left out.
    Drop,
}

/// What a request of this format carries for this message: one JSON value, or several joined by commas, or nothing where
/// nothing of the message can be said in it. Joined by commas, such bytes are the format's list of messages.
///
/// What providers refuse does not come out of it: blank texts, thoughts that nothing follows, tool names and call ids with
/// letters that they do not know, arguments that are no object. The same message gives the same bytes always.
#[must_use]
pub fn encode_message(format: Format, thoughts: Thoughts, message: &Message) -> Bytes {
    let blocks = sendable(thoughts, message);
    if blocks.is_empty() {
        return Bytes::new();
    }
    let mut json = Vec::with_capacity(256);
    match format {
        Format::AnthropicMessages => anthropic::append(&mut json, message.role, &blocks),
        Format::OpenaiResponses => responses::append(&mut json, message.role, &blocks),
        Format::OpenaiChat => chat::append(&mut json, message.role, &blocks),
    }
    Bytes::from(json)
}

/// The blocks that may be sent at all, results before everything else.
fn sendable(thoughts: Thoughts, message: &Message) -> Vec<&Block> {
    let mut blocks: Vec<&Block> = message
        .blocks
        .iter()
        .filter(|block| match block {
            Block::Text { text } => !text.trim().is_empty(),
            Block::Image(_) | Block::ToolResult(_) => message.role == Role::User,
            Block::Thinking { .. } => message.role == Role::Assistant && thoughts == Thoughts::Keep,
            Block::ToolUse(_) => message.role == Role::Assistant,
        })
        .collect();
    blocks.sort_by_key(|block| message.role == Role::User && !matches!(block, Block::ToolResult(_)));
    while matches!(blocks.last(), Some(Block::Thinking { .. })) {
        blocks.pop();
    }
    blocks
}

/// Appends a value that is always JSON: no map in it has keys that are not text.
pub(crate) fn append_json(json: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    serde_json::to_writer(json, value).expect("texts, numbers and lists are always JSON");
}

/// Appends a further value to a list that is joined by commas.
fn append_item(json: &mut Vec<u8>, value: &impl Serialize) {
    if !json.is_empty() {
        json.push(b',');
    }
    append_json(json, value);
}

/// A name or an id in the letters that every provider takes.
fn safe_name(name: &str) -> Cow<'_, str> {
    let safe = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
    if name.is_empty() {
        Cow::Borrowed("unnamed")
    } else if name.len() <= 64 && name.chars().all(safe) {
        Cow::Borrowed(name)
    } else {
        let letters = name.chars().map(|letter| if safe(letter) { letter } else { '_' });
        Cow::Owned(letters.take(64).collect())
    }
}

/// The arguments as an object, which providers insist on even where the model wrote none.
fn arguments(call: &ToolCall) -> Cow<'_, Value> {
    match &call.input {
        Value::Object(_) => Cow::Borrowed(&call.input),
        other => Cow::Owned(json!({"malformed_arguments": other})),
    }
}

fn data_url(image: &Image) -> String {
    format!("data:{};base64,{}", image.media_type, image.data)
}
