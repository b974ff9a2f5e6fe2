//! OpenAI Chat Completions: results are messages of their own, and pictures in them follow in a message of the user, since
//! a tool's message takes words only.

use std::borrow::Cow;

use domain::{Block, Image, ResultPart, Role};
use serde::Serialize;

use super::{append_item, arguments, data_url, safe_name};

#[derive(Serialize)]
#[serde(tag = "role", rename_all = "snake_case")]
enum Turn<'a> {
    User {
        content: Content<'a>,
    },
    Assistant {
        content: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reasoning_content: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reasoning: Option<&'a str>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<Call<'a>>,
    },
    Tool {
        tool_call_id: Cow<'a, str>,
        content: String,
    },
}

#[derive(Serialize)]
#[serde(untagged)]
enum Content<'a> {
    Text(&'a str),
    Parts(Vec<Part<'a>>),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Part<'a> {
    Text { text: Cow<'a, str> },
    ImageUrl { image_url: Address },
}

#[derive(Serialize)]
struct Address {
    url: String,
}

#[derive(Serialize)]
struct Call<'a> {
    id: Cow<'a, str>,
    r#type: &'static str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: Cow<'a, str>,
    arguments: String,
}

pub(super) fn append(json: &mut Vec<u8>, role: Role, blocks: &[&Block]) {
    match role {
        Role::User => append_user(json, blocks),
        Role::Assistant => append_assistant(json, blocks),
    }
}

fn append_user(json: &mut Vec<u8>, blocks: &[&Block]) {
    let mut parts = Vec::new();
    for block in blocks {
        match block {
            Block::ToolResult(result) => {
                append_item(
                    json,
                    &Turn::Tool {
                        tool_call_id: safe_name(&result.id.0),
                        content: texts(&result.content),
                    },
                );
                let mut pictures = result.content.iter().filter_map(|part| match part {
                    ResultPart::Image(image) => Some(image),
                    ResultPart::Text { .. } => None,
                });
                if let Some(first) = pictures.next() {
                    parts.push(Part::Text {
                        text: format!("Pictures from the result of call {}:", safe_name(&result.id.0)).into(),
                    });
                    parts.push(picture(first));
                    parts.extend(pictures.map(picture));
                }
            }
            Block::Text { text } => parts.push(Part::Text { text: text.into() }),
            Block::Image(image) => parts.push(picture(image)),
            Block::Thinking { .. } | Block::ToolUse(_) => {}
        }
    }
    let content = match &parts[..] {
        [] => return,
        [Part::Text { text }] => Content::Text(text),
        _ => Content::Parts(parts),
    };
    append_item(json, &Turn::User { content });
}

fn append_assistant(json: &mut Vec<u8>, blocks: &[&Block]) {
    let mut said: Option<String> = None;
    let (mut reasoning_content, mut reasoning) = (None, None);
    let mut tool_calls = Vec::new();
    for block in blocks {
        match block {
            Block::Text { text } => match &mut said {
                None => said = Some(text.clone()),
                Some(said) => {
                    said.push('\n');
                    said.push_str(text);
                }
            },
            // It goes back in the field that it came in.
            Block::Thinking { text, item, .. } => match item.as_ref().and_then(|item| item.get("field")?.as_str()) {
                Some("reasoning_content") => reasoning_content = Some(text.as_str()),
                Some("reasoning") => reasoning = Some(text.as_str()),
                _ => {}
            },
            Block::ToolUse(call) => tool_calls.push(Call {
                id: safe_name(&call.id.0),
                r#type: "function",
                function: Function {
                    name: safe_name(&call.name),
                    arguments: arguments(call).to_string(),
                },
            }),
            Block::Image(_) | Block::ToolResult(_) => {}
        }
    }
    append_item(
        json,
        &Turn::Assistant {
            content: said,
            reasoning_content,
            reasoning,
            tool_calls,
        },
    );
}

/// The words of a result, a line for each part.
pub(super) fn texts(content: &[ResultPart]) -> String {
    let texts: Vec<&str> = content
        .iter()
        .filter_map(|part| match part {
            ResultPart::Text { text } => Some(text.as_str()),
            ResultPart::Image(_) => None,
        })
        .collect();
    texts.join("\n")
}

fn picture(image: &Image) -> Part<'_> {
    Part::ImageUrl {
        image_url: Address { url: data_url(image) },
    }
}
