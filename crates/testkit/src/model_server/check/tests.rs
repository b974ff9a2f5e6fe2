use hyper::HeaderMap;
use serde_json::json;

use super::*;

const KEY: &str = "the-key";

fn received(protocol: Protocol, body: &Value) -> Received {
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("content-type", "application/json"),
        ("x-api-key", KEY),
        ("authorization", "Bearer the-key"),
        ("anthropic-version", "2023-06-01"),
    ] {
        headers.insert(name, value.parse().unwrap());
    }
    Received {
        protocol: Some(protocol),
        headers,
        bytes: body.to_string().into(),
        body: body.clone(),
        refused: None,
    }
}

/// A request with one exchange, in order.
fn good(protocol: Protocol) -> Value {
    match protocol {
        Protocol::Anthropic => json!({
            "model": "m", "max_tokens": 10, "stream": true, "tools": [{"name": "read"}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "go"}]},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "tool_use", "id": "a", "name": "read", "input": {}},
                ]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": []}]},
                {"role": "user", "content": [{"type": "text", "text": "and hurry"}]},
            ],
        }),
        Protocol::Responses => json!({
            "model": "m", "max_output_tokens": 10, "stream": true, "tools": [{"name": "read"}],
            "input": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
                {"type": "reasoning", "encrypted_content": "x"},
                {"type": "function_call", "call_id": "a", "name": "read", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "a", "output": "x"},
            ],
        }),
        Protocol::Chat => json!({
            "model": "m", "max_tokens": 10, "stream": true, "tools": [{"name": "read"}],
            "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": "go"},
                {"role": "assistant", "content": null, "tool_calls": [{"id": "a", "function": {"name": "read", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "a", "content": "x"},
            ],
        }),
    }
}

#[test]
fn what_is_in_order_is_accepted() {
    for protocol in [Protocol::Anthropic, Protocol::Responses, Protocol::Chat] {
        assert_eq!(check(&received(protocol, &good(protocol)), KEY, USUAL_LIMIT), Ok(()));
        let (status, _) = check(&received(protocol, &good(protocol)), "another", USUAL_LIMIT).unwrap_err();
        assert_eq!(status, 401);
    }
}

#[test]
fn what_real_providers_refuse_is_refused() {
    use Protocol::{Anthropic, Chat, Responses};
    let text = |text: &str| json!({"type": "text", "text": text});
    let marked = json!({"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}});
    let changes = [
        (Anthropic, "/model", json!(""), "model is missing"),
        (Anthropic, "/max_tokens", json!(0), "max_tokens is missing"),
        (Anthropic, "/stream", json!(false), "stream is not true"),
        (Anthropic, "/tools", json!([]), "without tools"),
        (Anthropic, "/messages/0/content/0", text(" "), "must be non-empty"),
        (
            Anthropic,
            "/messages/0/role",
            json!("assistant"),
            "first message is not the user's",
        ),
        (
            Anthropic,
            "/messages/0/content",
            json!([marked, marked, marked, marked, marked]),
            "at most 4",
        ),
        (Anthropic, "/messages/1/content/0/signature", json!(""), "no signature"),
        (Anthropic, "/messages/1/content/1/input", json!("x"), "no object"),
        (Anthropic, "/messages/1/content/1/name", json!("a b"), "is no name"),
        (
            Anthropic,
            "/messages/2/content/0/tool_use_id",
            json!("b"),
            "answers no tool_use",
        ),
        (
            Anthropic,
            "/messages/2/content/0",
            text("x"),
            "is not answered in the next message",
        ),
        (
            Anthropic,
            "/messages/3/role",
            json!("assistant"),
            "last message is the assistant's",
        ),
        (Responses, "/input/2/arguments", json!("{"), "no JSON object"),
        (Responses, "/input/3/call_id", json!("b"), "no call or two outputs"),
        (
            Responses,
            "/input/3/type",
            json!("additional_tools"),
            "no output for the calls",
        ),
        (Responses, "/input/1/encrypted_content", json!(null), "was not stored"),
        (Responses, "/input/0/content/0/type", json!("output_text"), "a part"),
        (Chat, "/messages/0/role", json!("tool"), "answers no call"),
        (Chat, "/messages/2/tool_calls", json!([]), "says nothing"),
        (
            Chat,
            "/messages/2/tool_calls/0/function/arguments",
            json!("no"),
            "no JSON object",
        ),
        (Chat, "/messages/3/tool_call_id", json!("b"), "answers no call"),
        (
            Chat,
            "/messages/3",
            json!({"role": "user", "content": "x"}),
            "not answered before the next message",
        ),
        (Chat, "/messages/3/content", json!([]), "words only"),
    ];
    for (protocol, place, value, expected) in changes {
        let mut body = good(protocol);
        *body.pointer_mut(place).unwrap() = value;
        let (status, problem) = check(&received(protocol, &body), KEY, USUAL_LIMIT).expect_err(place);
        assert_eq!(status, 400);
        assert!(problem.contains(expected), "{protocol:?} {place}: {problem}");
        let mut unknown = good(protocol);
        unknown["temprature"] = json!(1);
        assert!(
            check(&received(protocol, &unknown), KEY, USUAL_LIMIT)
                .unwrap_err()
                .1
                .contains("unknown field")
        );
    }
}

#[test]
fn each_kind_of_chat_server_takes_its_own_limit_and_not_the_other() {
    let usual = good(Protocol::Chat);
    let mut newer = usual.clone();
    let tokens = newer.as_object_mut().unwrap().remove("max_tokens").unwrap();
    newer["max_completion_tokens"] = tokens;
    let told = |body: &Value, limit| check(&received(Protocol::Chat, body), KEY, limit);
    assert_eq!(told(&usual, USUAL_LIMIT), Ok(()));
    assert_eq!(told(&newer, OPENAI_LIMIT), Ok(()));
    assert!(told(&newer, USUAL_LIMIT).unwrap_err().1.contains("unknown field"));
    let (status, words) = told(&usual, OPENAI_LIMIT).unwrap_err();
    assert_eq!(status, 400);
    assert!(words.contains("Use 'max_completion_tokens'"), "{words}");
}
