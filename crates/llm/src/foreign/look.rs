//! What stands in messages and among tools.

use serde_json::{Map, Value};

use super::{ForeignError, KEPT_THERE, OTHER_PRICE, REACHES_OUT, refused};
use crate::Format;

/// Why a document is refused that is no text.
const NO_TEXT: &str = "its tokens cannot be told from its bytes: send its text, or pictures of its pages";
/// Why a tool is refused that does not run where the program is.
const RUN_THERE: &str = "the provider would run it, past what bounds and audits this session: leave it out";

/// Parts of messages that are refused, by their type.
const PARTS: &[(&str, &str)] = &[
    ("audio", OTHER_PRICE),
    ("audio_url", REACHES_OUT),
    ("container_upload", KEPT_THERE),
    ("file", NO_TEXT),
    ("input_audio", OTHER_PRICE),
    ("input_file", NO_TEXT),
    ("item_reference", KEPT_THERE),
    ("video_url", REACHES_OUT),
];

/// Keys of parts that are refused.
const KEYS: &[(&str, &str)] = &[
    ("file_data", NO_TEXT),
    ("file_id", KEPT_THERE),
    ("file_url", REACHES_OUT),
];

/// Tools of Anthropic's own that the program runs; the date that follows differs.
const ANTHROPIC_TOOLS: [&str; 4] = ["bash_", "computer_", "memory_", "text_editor_"];
/// Tools of the Responses format that the program runs.
const RESPONSES_TOOLS: [&str; 6] = [
    "apply_patch",
    "computer_use_preview",
    "custom",
    "function",
    "local_shell",
    "namespace",
];

/// What was seen so far.
#[derive(Debug)]
pub(super) struct Look {
    format: Format,
    /// Whatever may be a picture, wherever it stands.
    pub(super) pictures: u64,
    /// Tools of the provider's making, which it explains to the model at length.
    pub(super) explained: u64,
}

impl Look {
    pub(super) const fn new(format: Format) -> Self {
        Self {
            format,
            pictures: 0,
            explained: 0,
        }
    }

    /// Looks through messages, or parts of them.
    pub(super) fn content(&mut self, content: &Value) -> Result<(), ForeignError> {
        match content {
            Value::Array(items) => items.iter().try_for_each(|item| self.content(item)),
            Value::Object(part) => self.part(part),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
        }
    }

    fn part(&mut self, part: &Map<String, Value>) -> Result<(), ForeignError> {
        let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
        if let Some((_, why)) = PARTS.iter().find(|(refused, _)| *refused == kind) {
            return Err(refused(kind, why));
        }
        for (key, value) in part {
            if let Some((_, why)) = KEYS.iter().find(|(refused, _)| refused == key)
                && !value.is_null()
            {
                return Err(refused(key, why));
            }
            match (&**key, kind) {
                // Arguments are the program's own.
                ("input", "tool_use") => {}
                ("source", _) if value.is_object() => self.source(kind, value)?,
                ("image_url", _) => self.picture(value)?,
                ("tools", _) => self.tools(value)?,
                _ => self.content(value)?,
            }
        }
        Ok(())
    }

    /// What an Anthropic block is made of.
    fn source(&mut self, kind: &str, source: &Value) -> Result<(), ForeignError> {
        match (source["type"].as_str().unwrap_or_default(), kind) {
            ("base64", "image") => self.pictures += 1,
            ("base64", _) => return Err(refused(kind, NO_TEXT)),
            ("text" | "content", _) => return self.content(&source["content"]),
            ("file", _) => return Err(refused(format!("{kind} from a file"), KEPT_THERE)),
            (other, _) => return Err(refused(format!("{kind} from {other}"), REACHES_OUT)),
        }
        Ok(())
    }

    /// A picture of the OpenAI formats.
    fn picture(&mut self, picture: &Value) -> Result<(), ForeignError> {
        let address = match picture {
            Value::Null => return Ok(()),
            Value::Object(picture) => picture.get("url").and_then(Value::as_str),
            picture => picture.as_str(),
        };
        match address {
            Some(address) if address.starts_with("data:image/") => self.pictures += 1,
            _ => return Err(refused("image_url", REACHES_OUT)),
        }
        Ok(())
    }

    /// Looks through tools: none that the provider runs.
    pub(super) fn tools(&mut self, tools: &Value) -> Result<(), ForeignError> {
        for tool in tools.as_array().into_iter().flatten() {
            let kind = tool.get("type").and_then(Value::as_str);
            let ours = match (self.format, kind) {
                (Format::AnthropicMessages, None | Some("custom")) => true,
                (Format::AnthropicMessages, Some(kind)) => {
                    ANTHROPIC_TOOLS.iter().any(|begins| kind.starts_with(begins))
                }
                (Format::OpenaiResponses, Some(kind)) => RESPONSES_TOOLS.contains(&kind),
                (Format::OpenaiChat, Some(kind)) => ["custom", "function"].contains(&kind),
                (Format::OpenaiResponses | Format::OpenaiChat, None) => false,
            };
            if !ours {
                return Err(refused(format!("the tool {:?}", kind.unwrap_or_default()), RUN_THERE));
            }
            self.explained += u64::from(!matches!(kind, None | Some("custom" | "function" | "namespace")));
            if let Some(within) = tool.get("tools") {
                self.tools(within)?;
            }
        }
        Ok(())
    }
}
