//! From what a tool answers to a result.

use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};
use serde_json::{Map, Value, json};

use crate::definition::Method;
use crate::refusal::words;
use crate::{Code, Failure};

/// The type of a result where the tool declares none.
pub(crate) fn unsaid() -> Value {
    json!({
        "type": "object",
        "required": ["text"],
        "properties": {
            "text": { "type": "string", "description": "All texts of the answer" },
            "parts": {
                "type": "array",
                "description": "What is no text",
                "items": {
                    "type": "object",
                    "required": ["type"],
                    "properties": {
                        "type": { "enum": ["image", "audio", "resource", "link"] },
                        "mediaType": { "type": "string" },
                        "base64": { "type": "string" },
                        "text": { "type": "string" },
                        "uri": { "type": "string" },
                        "name": { "type": "string" },
                    },
                },
            },
        },
    })
}

/// The result in an answer; where the tool or its method declares a schema, what it calls structured, or says as JSON. What a server says of resources is
/// passed on as it is; nothing is fetched.
pub(super) fn result(what: &str, method: &Method, answer: CallToolResult) -> Result<Value, Failure> {
    let (text, parts) = contents(answer.content);
    if answer.is_error == Some(true) {
        let said = match (text.trim(), answer.structured_content) {
            ("", Some(structured)) => structured.to_string(),
            ("", None) => "without a word".to_owned(),
            (text, _) => text.to_owned(),
        };
        return Err(Failure::new(
            Code::Refused,
            format!("{what}: the tool failed: {}", words(said.into())),
        )
        .remedy("correct the arguments"));
    }
    if method.result.is_some() && !declares_nothing(method) {
        // Older servers say in a text what they could say structured.
        let said = answer.structured_content.or_else(|| serde_json::from_str(&text).ok());
        return said.ok_or_else(|| {
            Failure::new(
                Code::AnswerMalformed,
                format!("{what}: the tool declares a result and gave none"),
            )
        });
    }
    let mut result = json!({ "text": text });
    if !parts.is_empty() {
        result["parts"] = parts.into();
    }
    Ok(result)
}

fn declares_nothing(method: &Method) -> bool {
    method.result.as_ref().is_some_and(|schema| *schema.value() == unsaid())
}

fn contents(blocks: Vec<ContentBlock>) -> (String, Vec<Value>) {
    let (mut texts, mut parts) = (Vec::new(), Vec::new());
    for block in blocks {
        match block {
            ContentBlock::Text(text) => texts.push(text.text),
            ContentBlock::Image(image) => parts.push(part(
                "image",
                [("mediaType", Some(image.mime_type)), ("base64", Some(image.data))],
            )),
            ContentBlock::Audio(audio) => parts.push(part(
                "audio",
                [("mediaType", Some(audio.mime_type)), ("base64", Some(audio.data))],
            )),
            ContentBlock::Resource(embedded) => parts.push(match embedded.resource {
                ResourceContents::TextResourceContents {
                    uri, mime_type, text, ..
                } => part(
                    "resource",
                    [("uri", Some(uri)), ("mediaType", mime_type), ("text", Some(text))],
                ),
                ResourceContents::BlobResourceContents {
                    uri, mime_type, blob, ..
                } => part(
                    "resource",
                    [("uri", Some(uri)), ("mediaType", mime_type), ("base64", Some(blob))],
                ),
                _ => continue,
            }),
            ContentBlock::ResourceLink(link) => parts.push(part(
                "link",
                [
                    ("uri", Some(link.uri)),
                    ("name", Some(link.name)),
                    ("mediaType", link.mime_type),
                ],
            )),
            // Of a kind that the protocol did not have when this was written.
            _ => {}
        }
    }
    (texts.join("\n"), parts)
}

fn part<const FIELDS: usize>(kind: &str, fields: [(&str, Option<String>); FIELDS]) -> Value {
    let mut made = Map::from_iter([("type".to_owned(), kind.into())]);
    for (name, text) in fields {
        made.extend(text.map(|text| (name.to_owned(), text.into())));
    }
    Value::Object(made)
}
