//! What real providers refuse.

use std::collections::{BTreeSet, HashSet};

use serde_json::{Map, Value};

use super::{Protocol, Received};

/// Status and message of the refusal.
type Refused = (u16, String);

/// The field of Chat Completions in which most servers want to be told the most that may be said, and OpenAI's.
pub(super) const USUAL_LIMIT: &str = "max_tokens";
pub(super) const OPENAI_LIMIT: &str = "max_completion_tokens";

/// Within a text its quotes would be escaped.
const MARK: &[u8] = b"\"cache_control\":";

pub(super) fn check(received: &Received, key: &str, chat_limit: &str) -> Result<(), Refused> {
    let Some(protocol) = received.protocol else {
        return Err((404, "there is nothing at this path".to_owned()));
    };
    let header = |name: &str| {
        received
            .headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    };
    let (known, shown) = match protocol {
        Protocol::Anthropic => (header("x-api-key") == key, "x-api-key"),
        Protocol::Responses | Protocol::Chat => (header("authorization") == format!("Bearer {key}"), "authorization"),
    };
    if !known {
        // Some providers repeat what they were shown.
        return Err((401, format!("invalid key in {shown}: {}", header(shown))));
    }
    check_body(protocol, received, chat_limit, &header).map_err(|message| (400, message))
}

fn check_body<'h>(
    protocol: Protocol,
    received: &Received,
    chat_limit: &str,
    header: &impl Fn(&str) -> &'h str,
) -> Result<(), String> {
    ensure(header("content-type") == "application/json", || {
        "content-type is not application/json".to_owned()
    })?;
    let body = received.body.as_object().ok_or("the body is no JSON object")?;
    let (fields, limit): (&[&str], &str) = match protocol {
        Protocol::Anthropic => {
            ensure(header("anthropic-version") == "2023-06-01", || {
                "anthropic-version is missing".to_owned()
            })?;
            (&["system", "messages", "thinking", "output_config"], "max_tokens")
        }
        Protocol::Responses => (
            &["instructions", "input", "store", "include", "reasoning"],
            "max_output_tokens",
        ),
        Protocol::Chat => (&["messages", "stream_options", "reasoning_effort"], chat_limit),
    };
    ensure(limit != OPENAI_LIMIT || !body.contains_key(USUAL_LIMIT), || {
        format!("Unsupported parameter: '{USUAL_LIMIT}' is not supported with this model. Use '{limit}' instead.")
    })?;
    for field in body.keys() {
        let known = fields.contains(&field.as_str())
            || [limit, "model", "tools", "tool_choice", "stream"].contains(&field.as_str());
        ensure(known, || format!("unknown field {field:?}"))?;
    }
    ensure(text(body, "model").is_some_and(|model| !model.is_empty()), || {
        "model is missing".to_owned()
    })?;
    ensure(body.get("stream") == Some(&Value::Bool(true)), || {
        "stream is not true".to_owned()
    })?;
    ensure(
        body.get(limit).and_then(Value::as_u64).is_some_and(|limit| limit > 0),
        || format!("{limit} is missing"),
    )?;
    let has_tools = list(body, "tools").next().is_some();
    ensure(has_tools || !body.contains_key("tool_choice"), || {
        "tool_choice without tools".to_owned()
    })?;
    match protocol {
        Protocol::Anthropic => check_anthropic(body, &received.bytes, has_tools),
        Protocol::Responses => check_responses(body),
        Protocol::Chat => check_chat(body),
    }
}

fn check_anthropic(body: &Map<String, Value>, bytes: &[u8], has_tools: bool) -> Result<(), String> {
    let marks = bytes.windows(MARK.len()).filter(|window| *window == MARK).count();
    ensure(marks <= 4, || format!("{marks} blocks with cache_control: at most 4"))?;
    if let Some(budget) = body
        .get("thinking")
        .and_then(|thinking| thinking.get("budget_tokens")?.as_u64())
    {
        let most = body.get("max_tokens").and_then(Value::as_u64).unwrap_or_default();
        ensure((1_024..most).contains(&budget), || {
            "thinking.budget_tokens is not from 1024 to max_tokens".to_owned()
        })?;
    }
    // Messages of one role in a row are one turn.
    let mut turns: Vec<(&str, Vec<&Value>)> = Vec::new();
    for message in list(body, "messages") {
        let message = message.as_object().ok_or("a message is no object")?;
        let role = text(message, "role").unwrap_or_default();
        ensure(["user", "assistant"].contains(&role), || {
            format!("unknown role {role:?}")
        })?;
        let content: Vec<&Value> = list(message, "content").collect();
        ensure(!content.is_empty(), || "a message has no content".to_owned())?;
        match turns.last_mut() {
            Some((last, blocks)) if *last == role => blocks.extend(content),
            _ => turns.push((role, content)),
        }
    }
    ensure(turns.first().is_some_and(|(role, _)| *role == "user"), || {
        "the first message is not the user's".to_owned()
    })?;
    ensure(turns.last().is_some_and(|(role, _)| *role == "user"), || {
        "the last message is the assistant's".to_owned()
    })?;
    let mut asked = BTreeSet::new();
    for (role, blocks) in &turns {
        let mut answered = BTreeSet::new();
        let mut results_over = false;
        for block in blocks {
            let block = block.as_object().ok_or("a block is no object")?;
            let kind = text(block, "type").unwrap_or_default();
            match (*role, kind) {
                (_, "text") => not_blank(block)?,
                ("user", "image") => {}
                ("user", "tool_result") => {
                    let id = text(block, "tool_use_id").unwrap_or_default();
                    ensure(!results_over, || "a tool_result stands behind other content".to_owned())?;
                    ensure(asked.contains(id), || {
                        format!("tool_result {id} answers no tool_use of the message before")
                    })?;
                    ensure(answered.insert(id), || format!("tool_use {id} is answered twice"))?;
                    for part in list(block, "content").filter_map(Value::as_object) {
                        if text(part, "type") == Some("text") {
                            not_blank(part)?;
                        }
                    }
                }
                ("assistant", "thinking") => {
                    ensure(
                        text(block, "signature").is_some_and(|signature| !signature.is_empty()),
                        || "a thought has no signature".to_owned(),
                    )?;
                }
                ("assistant", "redacted_thinking") => {}
                ("assistant", "tool_use") => {
                    ensure(has_tools, || "tool_use in a request without tools".to_owned())?;
                    ensure(block.get("input").is_some_and(Value::is_object), || {
                        "the input of a tool_use is no object".to_owned()
                    })?;
                    check_name(text(block, "id"))?;
                    check_name(text(block, "name"))?;
                }
                (role, kind) => return Err(format!("a block {kind:?} in a message of the {role}")),
            }
            results_over |= kind != "tool_result";
        }
        ensure(*role == "assistant" || answered == asked, || {
            format!("tool_use {asked:?} is not answered in the next message")
        })?;
        asked = BTreeSet::new();
        if *role == "assistant" {
            for id in blocks
                .iter()
                .filter(|block| block["type"] == "tool_use")
                .filter_map(|block| block["id"].as_str())
            {
                ensure(asked.insert(id), || format!("two tool_use have the id {id}"))?;
            }
        }
    }
    Ok(())
}

fn check_responses(body: &Map<String, Value>) -> Result<(), String> {
    let mut open = BTreeSet::new();
    let mut seen = HashSet::new();
    let mut thought = false;
    for item in list(body, "input") {
        let item = item.as_object().ok_or("an item is no object")?;
        let kind = text(item, "type").unwrap_or_default();
        let id = text(item, "call_id").unwrap_or_default();
        match kind {
            "message" => {
                let role = text(item, "role").unwrap_or_default();
                ensure(role == "assistant" || open.is_empty(), || {
                    format!("no output for the calls {open:?}")
                })?;
                for part in list(item, "content") {
                    let part = part["type"].as_str().unwrap_or_default();
                    let fits = match role {
                        "user" => ["input_text", "input_image"].contains(&part),
                        "assistant" => part == "output_text",
                        _ => false,
                    };
                    ensure(fits, || format!("a part {part:?} in a message of {role:?}"))?;
                }
                ensure(!thought || role == "assistant", || {
                    "a reasoning item without the item that follows it".to_owned()
                })?;
            }
            "function_call" => {
                check_name(text(item, "name"))?;
                let arguments: Option<Value> =
                    text(item, "arguments").and_then(|arguments| serde_json::from_str(arguments).ok());
                ensure(arguments.is_some_and(|arguments| arguments.is_object()), || {
                    "arguments are no JSON object".to_owned()
                })?;
                ensure(!id.is_empty() && seen.insert(id) && open.insert(id), || {
                    format!("two calls have the id {id:?}")
                })?;
            }
            "function_call_output" => {
                ensure(open.remove(id), || format!("no call or two outputs for {id:?}"))?;
                ensure(
                    item.get("output")
                        .is_some_and(|output| output.is_string() || output.is_array()),
                    || "output is missing".to_owned(),
                )?;
            }
            "reasoning" => ensure(text(item, "encrypted_content").is_some(), || {
                "a reasoning item that was not stored".to_owned()
            })?,
            // Newer kinds of items go through.
            kind => ensure(!kind.is_empty(), || "an item without a type".to_owned())?,
        }
        thought = kind == "reasoning";
    }
    ensure(open.is_empty() && !thought, || {
        format!("no output for the calls {open:?}, or a reasoning item at the end")
    })?;
    ensure(!list(body, "input").next().is_none_or(Value::is_null), || {
        "input is missing".to_owned()
    })
}

fn check_chat(body: &Map<String, Value>) -> Result<(), String> {
    let mut open = BTreeSet::new();
    let mut others = 0;
    for (place, message) in list(body, "messages").enumerate() {
        let message = message.as_object().ok_or("a message is no object")?;
        let role = text(message, "role").unwrap_or_default();
        ensure(role == "tool" || open.is_empty(), || {
            format!("tool calls {open:?} are not answered before the next message")
        })?;
        others += usize::from(role != "system");
        match role {
            "system" => ensure(place == 0, || "a system message that is not the first".to_owned())?,
            "user" => {
                let content = message.get("content");
                let parts = content.and_then(Value::as_array).into_iter().flatten();
                for kind in parts.map(|part| part["type"].as_str().unwrap_or_default()) {
                    ensure(["text", "image_url"].contains(&kind), || format!("a part {kind:?}"))?;
                }
                ensure(
                    content.is_some_and(|content| content.is_string() || content.is_array()),
                    || "no content".to_owned(),
                )?;
            }
            "tool" => {
                let id = text(message, "tool_call_id").unwrap_or_default();
                ensure(open.remove(id), || {
                    format!("tool message {id:?} answers no call, or answers twice")
                })?;
                ensure(text(message, "content").is_some(), || {
                    "a tool message takes words only".to_owned()
                })?;
            }
            "assistant" => {
                let mut calls = list(message, "tool_calls").peekable();
                let says = text(message, "content").is_some();
                ensure(says || calls.peek().is_some(), || {
                    "an assistant message says nothing".to_owned()
                })?;
                for call in calls {
                    check_name(call["function"]["name"].as_str())?;
                    let arguments: Option<Value> = call["function"]["arguments"]
                        .as_str()
                        .and_then(|arguments| serde_json::from_str(arguments).ok());
                    ensure(arguments.is_some_and(|arguments| arguments.is_object()), || {
                        "arguments are no JSON object".to_owned()
                    })?;
                    let id = call["id"].as_str().unwrap_or_default();
                    ensure(!id.is_empty() && open.insert(id), || {
                        format!("two calls have the id {id:?}")
                    })?;
                }
            }
            role => return Err(format!("unknown role {role:?}")),
        }
    }
    ensure(open.is_empty(), || format!("tool calls {open:?} are not answered"))?;
    ensure(others > 0, || "there are no messages".to_owned())
}

fn ensure(holds: bool, problem: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(problem()) }
}

fn text<'v>(object: &'v Map<String, Value>, key: &str) -> Option<&'v str> {
    object.get(key).and_then(Value::as_str)
}

fn list<'v>(object: &'v Map<String, Value>, key: &str) -> impl Iterator<Item = &'v Value> {
    object.get(key).and_then(Value::as_array).into_iter().flatten()
}

fn not_blank(block: &Map<String, Value>) -> Result<(), String> {
    ensure(text(block, "text").is_some_and(|text| !text.trim().is_empty()), || {
        "text content blocks must be non-empty".to_owned()
    })
}

fn check_name(name: Option<&str>) -> Result<(), String> {
    let name = name.unwrap_or_default();
    let fits = !name.is_empty()
        && name.len() <= 64
        && name
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || "_-".contains(letter));
    ensure(fits, || format!("{name:?} is no name: ^[a-zA-Z0-9_-]{{1,64}}$"))
}

#[cfg(test)]
mod tests;
