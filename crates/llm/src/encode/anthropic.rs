//! Anthropic Messages: a message is one JSON value, its content always a list (cache marks are spliced in at its end).

use std::borrow::Cow;

use domain::{Block, Image, ResultPart, Role};
use serde::Serialize;
use serde_json::Value;

use super::{append_json, arguments, safe_name};

#[derive(Serialize)]
struct Turn<'a> {
    role: &'static str,
    content: Vec<Part<'a>>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Known<'a> {
    Text {
        text: &'a str,
    },
    Image {
        source: Source<'a>,
    },
    Thinking {
        thinking: &'a str,
        signature: &'a str,
    },
    ToolUse {
        id: Cow<'a, str>,
        name: Cow<'a, str>,
        input: Cow<'a, Value>,
    },
    ToolResult {
        tool_use_id: Cow<'a, str>,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        is_error: bool,
        content: Vec<Known<'a>>,
    },
}

#[derive(Serialize)]
#[serde(untagged)]
enum Part<'a> {
    Known(Known<'a>),
    Item(&'a Value),
}

#[derive(Serialize)]
struct Source<'a> {
    r#type: &'static str,
    media_type: &'a str,
    data: &'a str,
}

pub(super) fn append(json: &mut Vec<u8>, role: Role, blocks: &[&Block]) {
    let content: Vec<Part<'_>> = blocks.iter().filter_map(|block| part(block)).collect();
    if content.is_empty() {
        return;
    }
    let role = match role {
        Role::User => "user",
        Role::Assistant => "assistant",
    };
    append_json(json, &Turn { role, content });
}

fn part(block: &Block) -> Option<Part<'_>> {
    let known = match block {
        Block::Text { text } => Known::Text { text },
        Block::Image(image) => picture(image),
        Block::Thinking { item: Some(item), .. } => return Some(Part::Item(item)),
        // A thought without a signature is refused.
        Block::Thinking { text, signature, .. } => Known::Thinking {
            thinking: text,
            signature: signature.as_deref()?,
        },
        Block::ToolUse(call) => Known::ToolUse {
            id: safe_name(&call.id.0),
            name: safe_name(&call.name),
            input: arguments(call),
        },
        Block::ToolResult(result) => Known::ToolResult {
            tool_use_id: safe_name(&result.id.0),
            is_error: result.is_error,
            content: result
                .content
                .iter()
                .filter_map(|part| match part {
                    ResultPart::Text { text } if text.trim().is_empty() => None,
                    ResultPart::Text { text } => Some(Known::Text { text }),
                    ResultPart::Image(image) => Some(picture(image)),
                })
                .collect(),
        },
    };
    Some(Part::Known(known))
}

fn picture(image: &Image) -> Known<'_> {
    Known::Image {
        source: Source {
            r#type: "base64",
            media_type: &image.media_type,
            data: &image.data,
        },
    }
}
