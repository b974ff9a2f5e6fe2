//! OpenAI Responses: a message is one item or several, since thoughts, calls and results are items of their own.

use std::borrow::Cow;

use domain::{Block, ResultPart, Role};
use serde::Serialize;
use serde_json::Value;

use super::{append_item, arguments, data_url, safe_name};

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Item<'a> {
    Message {
        role: &'static str,
        content: Vec<Part<'a>>,
    },
    FunctionCall {
        call_id: Cow<'a, str>,
        name: Cow<'a, str>,
        arguments: String,
    },
    FunctionCallOutput {
        call_id: Cow<'a, str>,
        output: Output<'a>,
    },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Part<'a> {
    InputText { text: &'a str },
    InputImage { image_url: String },
    OutputText { text: &'a str },
}

#[derive(Serialize)]
#[serde(untagged)]
enum Output<'a> {
    Text(String),
    Parts(Vec<Part<'a>>),
}

pub(super) fn append(json: &mut Vec<u8>, role: Role, blocks: &[&Block]) {
    // What a person says is one item, whatever it is made of.
    let mut said = Vec::new();
    for block in blocks {
        match block {
            Block::Text { text } if role == Role::User => said.push(Part::InputText { text }),
            Block::Text { text } => append_item(
                json,
                &Item::Message {
                    role: "assistant",
                    content: vec![Part::OutputText { text }],
                },
            ),
            Block::Image(image) => said.push(Part::InputImage {
                image_url: data_url(image),
            }),
            Block::Thinking { item: Some(item), .. } if is_whole(item) => append_item(json, item),
            Block::Thinking { .. } => {}
            Block::ToolUse(call) => append_item(
                json,
                &Item::FunctionCall {
                    call_id: safe_name(&call.id.0),
                    name: safe_name(&call.name),
                    arguments: arguments(call).to_string(),
                },
            ),
            Block::ToolResult(result) => append_item(
                json,
                &Item::FunctionCallOutput {
                    call_id: safe_name(&result.id.0),
                    output: output(&result.content),
                },
            ),
        }
    }
    if !said.is_empty() {
        append_item(
            json,
            &Item::Message {
                role: "user",
                content: said,
            },
        );
    }
}

/// A thought that came without its sealed content stands with the provider only, which was told to keep nothing.
fn is_whole(item: &Value) -> bool {
    item["type"] != "reasoning" || item["encrypted_content"].is_string()
}

fn output(content: &[ResultPart]) -> Output<'_> {
    if content.iter().any(|part| matches!(part, ResultPart::Image(_))) {
        let parts = content.iter().map(|part| match part {
            ResultPart::Text { text } => Part::InputText { text },
            ResultPart::Image(image) => Part::InputImage {
                image_url: data_url(image),
            },
        });
        return Output::Parts(parts.collect());
    }
    Output::Text(super::chat::texts(content))
}
