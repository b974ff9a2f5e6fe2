//! Pictures where a format has them, and nowhere else: what stands at another place may be read as text, byte for byte.

use serde_json::Value;

use crate::Format;

/// What the address of a picture that is sent with the request begins with: its media type, and then this.
const BASE64: &str = ";base64,";

/// Bytes of base64 in one of a request's fields that its format takes for pictures. Each is counted by formula instead.
pub(super) fn base64(format: Format, field: &str, value: &Value) -> u64 {
    match (format, field) {
        (Format::AnthropicMessages, "messages") => parts(said_by("user", value), block),
        (Format::OpenaiChat, "messages") => parts(said_by("user", value), |part| match kind(part) {
            "image_url" => address(part["image_url"].get("url").unwrap_or(&part["image_url"])),
            _ => 0,
        }),
        (Format::OpenaiResponses, "input") => items(value).map(item).sum(),
        _ => 0,
    }
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn kind(part: &Value) -> &str {
    part["type"].as_str().unwrap_or_default()
}

/// What somebody said; models are shown no pictures as if they had made them.
fn said_by<'v>(role: &'static str, messages: &'v Value) -> impl Iterator<Item = &'v Value> {
    items(messages)
        .filter(move |message| message["role"] == role)
        .map(|message| &message["content"])
}

fn parts<'v>(contents: impl Iterator<Item = &'v Value>, of: impl Fn(&Value) -> u64) -> u64 {
    contents.flat_map(items).map(of).sum()
}

/// A block of Anthropic's (docs.anthropic.com, Messages).
fn block(block: &Value) -> u64 {
    let source = &block["source"];
    match (kind(block), kind(source)) {
        ("image", "base64") => source["data"].as_str().map_or(0, data),
        ("document", "content") => items(&source["content"])
            .filter(|part| kind(part) == "image")
            .map(self::block)
            .sum(),
        ("tool_result", _) => items(&block["content"]).map(self::block).sum(),
        _ => 0,
    }
}

/// An item of the Responses format's input (platform.openai.com, Responses).
fn item(item: &Value) -> u64 {
    let picture = |part: &Value| match kind(part) {
        "input_image" | "computer_screenshot" => address(&part["image_url"]),
        _ => 0,
    };
    match kind(item) {
        "" | "message" if item["role"] == "user" => items(&item["content"]).map(picture).sum(),
        "function_call_output" | "custom_tool_call_output" => items(&item["output"]).map(picture).sum(),
        "computer_call_output" => picture(&item["output"]),
        _ => 0,
    }
}

fn address(address: &Value) -> u64 {
    let picture = address.as_str().and_then(|address| address.strip_prefix("data:image/"));
    picture
        .and_then(|picture| picture.split_once(BASE64))
        .map_or(0, |(_, picture)| data(picture))
}

/// The length of base64; of what is none, nothing.
fn data(data: &str) -> u64 {
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=');
    if data.bytes().all(is_base64) {
        data.len() as u64
    } else {
        0
    }
}
