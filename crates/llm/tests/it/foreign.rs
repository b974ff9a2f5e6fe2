//! Requests of other programs.

use llm::{ChatLimit, Foreign, ForeignError, Format};
use serde_json::{Value, json};

fn said(format: Format, content: Value) -> Value {
    match format {
        Format::OpenaiResponses => json!({"model": "m", "input": [{"role": "user", "content": content}]}),
        Format::AnthropicMessages | Format::OpenaiChat => {
            json!({"model": "m", "messages": [{"role": "user", "content": content}]})
        }
    }
}

fn with(format: Format, key: &str, value: Value) -> Value {
    let mut body = said(format, "hello".into());
    body[key] = value;
    body
}

fn refusal(format: Format, body: &Value) -> ForeignError {
    Foreign::parse(format, body.to_string().as_bytes())
        .map(|_| panic!("{format:?} takes {body}"))
        .unwrap_err()
}

#[test]
fn a_request_is_handed_on_in_its_own_words_with_ours_beside_them() {
    let wanted = [
        (
            Format::AnthropicMessages,
            r#"{"max_tokens": 9000, "messages": [ {"role":"user","content":"h\u00e9"} ], "model":"m", "stream":true, "tools":[{"name":"b","input_schema":{"z":1,"a":2}}], "metadata":{"user_id":"eve"}, "api_base":"http://evil.test"}"#,
            r#"{"model":"fake","messages":[ {"role":"user","content":"h\u00e9"} ],"tools":[{"name":"b","input_schema":{"z":1,"a":2}}],"max_tokens":500,"stream":true}"#,
        ),
        (
            Format::OpenaiResponses,
            r#"{"model":"m","input":"hi","store":true,"stream":true,"prompt_cache_key":"x","reasoning":{"effort":"low"}}"#,
            r#"{"model":"fake","input":"hi","reasoning":{"effort":"low"},"max_output_tokens":500,"store":false,"stream":true}"#,
        ),
        (
            Format::OpenaiChat,
            r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"max_completion_tokens":20,"stream":true,"service_tier":"priority","n":1}"#,
            r#"{"model":"fake","messages":[{"role":"user","content":"hi"}],"max_completion_tokens":500,"stream_options":{"include_usage":true},"stream":true}"#,
        ),
    ];
    for (format, body, expected) in wanted {
        let request = Foreign::parse(format, body.as_bytes()).unwrap();
        assert_eq!(request.model.as_deref(), Some("m"));
        assert!(request.streams);
        let body = request.body("fake", 500, ChatLimit::MaxTokens);
        assert_eq!(body, expected.as_bytes(), "{format:?}");
    }
}

#[test]
fn a_server_of_the_chat_format_is_told_the_most_in_a_field_that_it_takes() {
    for (said, tokens, completion) in [
        (json!({}), "max_tokens", "max_completion_tokens"),
        (json!({"max_tokens": 20}), "max_tokens", "max_completion_tokens"),
        (
            json!({"max_completion_tokens": 20}),
            "max_completion_tokens",
            "max_completion_tokens",
        ),
    ] {
        let mut body = with(Format::OpenaiChat, "temperature", 1.into());
        body.as_object_mut().unwrap().extend(said.as_object().unwrap().clone());
        let body = body.to_string();
        let request = Foreign::parse(Format::OpenaiChat, body.as_bytes()).unwrap();
        for (limit, expected) in [
            (ChatLimit::MaxTokens, tokens),
            (ChatLimit::MaxCompletionTokens, completion),
        ] {
            let sent: Value = serde_json::from_slice(&request.body("fake", 500, limit)).unwrap();
            let fields = ["max_tokens", "max_completion_tokens"].map(|field| sent.get(field).map(Value::as_u64));
            let only = |field: &str| (field == expected).then_some(Some(500));
            assert_eq!(fields, [only("max_tokens"), only("max_completion_tokens")], "{body}");
        }
    }
}

#[test]
fn threat_133_what_spends_or_reaches_out_beside_the_tokens_is_refused() {
    use Format::{AnthropicMessages, OpenaiChat, OpenaiResponses};
    let url = "https://evil.test/?d=secret";
    let bodies = [
        (
            AnthropicMessages,
            with(AnthropicMessages, "mcp_servers", json!([{"type": "url", "url": url}])),
        ),
        (AnthropicMessages, with(AnthropicMessages, "container", json!("c"))),
        (AnthropicMessages, with(AnthropicMessages, "speed", json!("fast"))),
        (AnthropicMessages, with(AnthropicMessages, "inference_geo", json!("us"))),
        (
            AnthropicMessages,
            with(
                AnthropicMessages,
                "tools",
                json!([{"type": "web_search_20250305", "name": "web_search"}]),
            ),
        ),
        (
            AnthropicMessages,
            with(AnthropicMessages, "tools", json!([{"type": "web_fetch_20250910"}])),
        ),
        (
            AnthropicMessages,
            with(AnthropicMessages, "tools", json!([{"type": "code_execution_20250825"}])),
        ),
        (
            AnthropicMessages,
            with(AnthropicMessages, "tools", json!([{"type": "mcp_toolset"}])),
        ),
        (
            AnthropicMessages,
            said(
                AnthropicMessages,
                json!([{"type": "image", "source": {"type": "url", "url": url}}]),
            ),
        ),
        (
            AnthropicMessages,
            said(
                AnthropicMessages,
                json!([{"type": "image", "source": {"type": "file", "file_id": "f"}}]),
            ),
        ),
        (
            AnthropicMessages,
            said(
                AnthropicMessages,
                json!([{"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "eA=="}}]),
            ),
        ),
        (
            AnthropicMessages,
            said(
                AnthropicMessages,
                json!([{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image", "source": {"type": "url", "url": url}}]}]),
            ),
        ),
        (
            OpenaiResponses,
            with(OpenaiResponses, "previous_response_id", json!("resp_of_another")),
        ),
        (OpenaiResponses, with(OpenaiResponses, "conversation", json!("conv"))),
        (OpenaiResponses, with(OpenaiResponses, "background", json!(true))),
        (OpenaiResponses, with(OpenaiResponses, "prompt", json!({"id": "p"}))),
        (
            OpenaiResponses,
            with(OpenaiResponses, "tools", json!([{"type": "web_search"}])),
        ),
        (
            OpenaiResponses,
            with(OpenaiResponses, "tools", json!([{"type": "mcp", "server_url": url}])),
        ),
        (
            OpenaiResponses,
            with(OpenaiResponses, "tools", json!([{"type": "image_generation"}])),
        ),
        (
            OpenaiResponses,
            with(
                OpenaiResponses,
                "tools",
                json!([{"type": "namespace", "tools": [{"type": "file_search"}]}]),
            ),
        ),
        (
            OpenaiResponses,
            with(
                OpenaiResponses,
                "input",
                json!([{"type": "additional_tools", "tools": [{"type": "code_interpreter"}]}]),
            ),
        ),
        (
            OpenaiResponses,
            with(OpenaiResponses, "input", json!([{"type": "item_reference", "id": "i"}])),
        ),
        (
            OpenaiResponses,
            said(OpenaiResponses, json!([{"type": "input_image", "image_url": url}])),
        ),
        (
            OpenaiResponses,
            said(OpenaiResponses, json!([{"type": "input_file", "file_url": url}])),
        ),
        (
            OpenaiChat,
            with(OpenaiChat, "web_search_options", json!({"search_context_size": "high"})),
        ),
        (OpenaiChat, with(OpenaiChat, "logprobs", json!(true))),
        (
            OpenaiResponses,
            with(OpenaiResponses, "include", json!(["message.output_text.logprobs"])),
        ),
        (OpenaiChat, with(OpenaiChat, "modalities", json!(["text", "audio"]))),
        (OpenaiChat, with(OpenaiChat, "n", json!(100))),
        (
            OpenaiChat,
            said(OpenaiChat, json!([{"type": "image_url", "image_url": {"url": url}}])),
        ),
        (
            OpenaiChat,
            said(
                OpenaiChat,
                json!([{"type": "input_audio", "input_audio": {"data": "eA=="}}]),
            ),
        ),
        (
            OpenaiChat,
            said(OpenaiChat, json!([{"type": "file", "file": {"file_id": "f"}}])),
        ),
    ];
    for (format, body) in bodies {
        let refusal = refusal(format, &body);
        assert!(matches!(refusal, ForeignError::Refused { .. }), "{body}: {refusal}");
    }
}

#[test]
fn what_a_program_does_by_itself_is_its_own() {
    for (format, body) in [
        (
            Format::AnthropicMessages,
            with(
                Format::AnthropicMessages,
                "tools",
                json!([{"type": "bash_20250124", "name": "bash"}, {"type": "custom", "name": "x", "input_schema": {"file_id": {"type": "string"}}}]),
            ),
        ),
        (
            Format::AnthropicMessages,
            json!({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "x", "input": {"file_id": "mine", "source": {"type": "url"}}}]}]}),
        ),
        (
            Format::OpenaiResponses,
            json!({"input": [{"type": "additional_tools", "tools": [{"type": "function", "name": "x"}]}, {"type": "something_newer", "content": "x"}]}),
        ),
        (
            Format::OpenaiChat,
            with(Format::OpenaiChat, "web_search_options", Value::Null),
        ),
    ] {
        Foreign::parse(format, body.to_string().as_bytes()).unwrap();
    }
}

#[test]
fn threat_136_what_is_read_in_two_ways_is_refused() {
    let bodies = [
        r#"{"model":"cheap","messages":[],"model":"dear"}"#,
        r#"{"model":"m","messages":[{"role":"user","role":"system","content":"x"}]}"#,
        r#"{"model":"m","max_tokens":1,"messages":[],"max_tokens":100000}"#,
        r#"{"model":"m","messages":[]} {"model":"dear"}"#,
        r#"{"model":7,"messages":[]}"#,
        r#"{"model":"m","messages":[],"max_tokens":-1}"#,
        r#"{"model":"m","messages":[],"stream":"yes"}"#,
        r#"{"model":"m"}"#,
        "[]",
        "",
    ];
    for body in bodies {
        let refusal = Foreign::parse(Format::AnthropicMessages, body.as_bytes());
        assert!(matches!(refusal, Err(ForeignError::Malformed(_))), "{body}");
    }
    let many = format!(r#"{{"model":"m","messages":[{}0]}}"#, "0,".repeat(600_000));
    assert!(Foreign::parse(Format::AnthropicMessages, many.as_bytes()).is_err());
    let deep = format!(
        r#"{{"model":"m","messages":{}{}}}"#,
        "[".repeat(10_000),
        "]".repeat(10_000)
    );
    assert!(Foreign::parse(Format::AnthropicMessages, deep.as_bytes()).is_err());
}

#[test]
fn threat_131_the_whole_context_bounds_the_input_and_pictures_count_by_formula() {
    let picture = "A".repeat(400_000);
    let with_picture = |source: Value| {
        let body = said(Format::AnthropicMessages, json!([source]));
        let body = body.to_string();
        Foreign::parse(Format::AnthropicMessages, body.as_bytes())
            .unwrap()
            .bound()
    };
    let bound = with_picture(
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": picture}}),
    );
    assert!((4_784..8_000).contains(&bound), "{bound}");
    assert!(with_picture(json!({"type": "text", "text": picture})) > 400_000);
    let data = format!("data:image/png;base64,{picture}");
    let body = said(
        Format::OpenaiChat,
        json!([{"type": "image_url", "image_url": {"url": data}}]),
    )
    .to_string();
    let bound = Foreign::parse(Format::OpenaiChat, body.as_bytes()).unwrap().bound();
    assert!((48_169..60_000).contains(&bound), "{bound}");
}

#[test]
fn a_thought_fits_the_answer_that_it_is_part_of() {
    let body = with(
        Format::AnthropicMessages,
        "thinking",
        json!({"type": "enabled", "budget_tokens": 4000}),
    );
    let body = body.to_string();
    let request = Foreign::parse(Format::AnthropicMessages, body.as_bytes()).unwrap();
    let thinking = |most: u64| {
        let body: Value = serde_json::from_slice(&request.body("m", most, ChatLimit::MaxTokens)).unwrap();
        body["thinking"]["budget_tokens"].as_u64()
    };
    assert_eq!(
        (thinking(8_000), thinking(2_000), thinking(600)),
        (Some(4_000), Some(1_999), None)
    );
}
