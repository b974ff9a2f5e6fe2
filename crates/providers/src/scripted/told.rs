//! What a script says, in the streams and answers of three languages.

use std::time::Duration;

use domain::Usage;
use llm::Format;
use serde_json::{Value, json};

use super::playback::Speech;

/// The events of a stream, each so long after the one before.
pub(super) struct Told {
    pub(super) events: Vec<(Duration, Value)>,
    /// So many of them stand before the calls.
    pub(super) words: usize,
}

impl Told {
    fn say(&mut self, delay: Duration, event: Value) {
        self.events.push((delay, event));
    }
}

/// What a provider would stream.
pub(super) fn stream(speech: &Speech, format: Format, counts: bool) -> Told {
    match format {
        Format::AnthropicMessages => anthropic(speech, counts),
        Format::OpenaiResponses => responses(speech, counts),
        Format::OpenaiChat => chat(speech, counts),
    }
}

/// What a provider would answer that is asked for no stream.
pub(super) fn whole(speech: &Speech, format: Format, counts: bool) -> Value {
    let usage = |value: Value| if counts { value } else { Value::Null };
    match format {
        Format::AnthropicMessages => {
            let mut content = Vec::new();
            if !speech.thinking.is_empty() {
                content.push(json!({"type": "thinking", "thinking": speech.thinking, "signature": "scripted"}));
            }
            if !speech.text.is_empty() {
                content.push(json!({"type": "text", "text": speech.text}));
            }
            for (id, name, arguments) in &speech.calls {
                let input: Value = serde_json::from_str(arguments).unwrap_or_else(|_| json!({}));
                content.push(json!({"type": "tool_use", "id": id, "name": name, "input": input}));
            }
            let mut told = anthropic_input(&speech.usage);
            told["output_tokens"] = speech.usage.output.into();
            told["output_tokens_details"] = json!({"thinking_tokens": speech.usage.thinking});
            json!({
                "id": "msg_scripted", "type": "message", "role": "assistant", "model": "scripted", "content": content,
                "stop_reason": speech.stop, "stop_sequence": null, "usage": usage(told),
            })
        }
        Format::OpenaiResponses => response(
            speech,
            "completed",
            &output(speech),
            usage(responses_usage(&speech.usage)),
        ),
        Format::OpenaiChat => {
            let mut message = json!({"role": "assistant", "content": speech.text});
            if !speech.calls.is_empty() {
                let call = |(id, name, arguments): &(String, String, String)| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
                message["tool_calls"] = speech.calls.iter().map(call).collect();
            }
            json!({
                "id": "chatcmpl-scripted", "object": "chat.completion", "created": 0, "model": "scripted",
                "choices": [{"index": 0, "message": message, "finish_reason": finish(speech)}],
                "usage": usage(chat_usage(&speech.usage)),
            })
        }
    }
}

fn anthropic_input(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.input,
        "cache_read_input_tokens": usage.cache_read,
        "cache_creation_input_tokens": usage.cache_write + usage.cache_write_hour,
        "cache_creation": {"ephemeral_5m_input_tokens": usage.cache_write, "ephemeral_1h_input_tokens": usage.cache_write_hour},
    })
}

fn anthropic(speech: &Speech, counts: bool) -> Told {
    let usage = |value: Value| if counts { value } else { Value::Null };
    let mut told = Told {
        events: Vec::new(),
        words: 0,
    };
    told.say(
        speech.delay,
        json!({"type": "message_start", "message": {
            "id": "msg_scripted", "type": "message", "role": "assistant", "model": "scripted", "content": [],
            "stop_reason": null, "stop_sequence": null, "usage": usage(anthropic_input(&speech.usage)),
        }}),
    );
    let mut index = 0;
    for (kind, text) in [("thinking", &speech.thinking), ("text", &speech.text)] {
        if text.is_empty() {
            continue;
        }
        let mut start = json!({"type": kind, kind: ""});
        if kind == "thinking" {
            start["signature"] = "".into();
        }
        told.say(
            Duration::ZERO,
            json!({"type": "content_block_start", "index": index, "content_block": start}),
        );
        for (pause, piece) in speech.pieces(text) {
            let delta = json!({"type": format!("{kind}_delta"), kind: piece});
            told.say(
                pause,
                json!({"type": "content_block_delta", "index": index, "delta": delta}),
            );
        }
        if kind == "thinking" {
            let delta = json!({"type": "signature_delta", "signature": "scripted"});
            told.say(
                Duration::ZERO,
                json!({"type": "content_block_delta", "index": index, "delta": delta}),
            );
        }
        told.say(Duration::ZERO, json!({"type": "content_block_stop", "index": index}));
        index += 1;
    }
    told.words = told.events.len();
    for (id, name, arguments) in &speech.calls {
        let start = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
        told.say(
            Duration::ZERO,
            json!({"type": "content_block_start", "index": index, "content_block": start}),
        );
        let delta = json!({"type": "input_json_delta", "partial_json": arguments});
        told.say(
            Duration::ZERO,
            json!({"type": "content_block_delta", "index": index, "delta": delta}),
        );
        told.say(Duration::ZERO, json!({"type": "content_block_stop", "index": index}));
        index += 1;
    }
    let details = json!({"thinking_tokens": speech.usage.thinking});
    told.say(
        Duration::ZERO,
        json!({
            "type": "message_delta",
            "delta": {"stop_reason": speech.stop, "stop_sequence": null},
            "usage": usage(json!({"output_tokens": speech.usage.output, "output_tokens_details": details})),
        }),
    );
    told.say(Duration::ZERO, json!({"type": "message_stop"}));
    told
}

fn all_input(usage: &Usage) -> u64 {
    usage.input + usage.cache_read + usage.cache_write + usage.cache_write_hour
}

fn responses_usage(usage: &Usage) -> Value {
    json!({
        "input_tokens": all_input(usage),
        "input_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write + usage.cache_write_hour},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.thinking},
        "total_tokens": all_input(usage) + usage.output,
    })
}

fn response(speech: &Speech, status: &str, output: &[Value], usage: Value) -> Value {
    let is_cut = speech.stop == "max_tokens" && status == "completed";
    json!({
        "id": "resp_scripted", "object": "response", "created_at": 0, "model": "scripted",
        "status": if is_cut { "incomplete" } else { status },
        "error": null, "incomplete_details": is_cut.then(|| json!({"reason": "max_output_tokens"})),
        "output": output, "usage": usage, "parallel_tool_calls": true, "tool_choice": "auto", "tools": [],
    })
}

/// The items of an answer in the Responses format, as they are when they are done.
fn output(speech: &Speech) -> Vec<Value> {
    let mut items = Vec::new();
    if !speech.thinking.is_empty() {
        let summary = json!([{"type": "summary_text", "text": speech.thinking}]);
        items.push(json!({"type": "reasoning", "id": "rs_scripted", "summary": summary}));
    }
    if !speech.text.is_empty() {
        let content = json!([{"type": "output_text", "text": speech.text, "annotations": []}]);
        items.push(json!({"type": "message", "id": "msg_scripted", "role": "assistant", "status": "completed", "content": content}));
    }
    for (id, name, arguments) in &speech.calls {
        items.push(json!({
            "type": "function_call", "id": format!("fc_{id}"), "call_id": id, "name": name, "arguments": arguments,
            "status": "completed",
        }));
    }
    items
}

fn responses(speech: &Speech, counts: bool) -> Told {
    let mut told = Told {
        events: Vec::new(),
        words: 0,
    };
    let begun = response(speech, "in_progress", &[], Value::Null);
    told.say(speech.delay, json!({"type": "response.created", "response": begun}));
    told.say(
        Duration::ZERO,
        json!({"type": "response.in_progress", "response": begun}),
    );
    let items = output(speech);
    for (index, item) in items.iter().enumerate() {
        let (kind, id) = (item["type"].as_str().unwrap_or_default(), &item["id"]);
        let place = |kind: &str| json!({"type": kind, "item_id": id, "output_index": index});
        let mut added = item.clone();
        match kind {
            "reasoning" => added["summary"] = json!([]),
            "message" => added["content"] = json!([]),
            _ => added["arguments"] = "".into(),
        }
        if kind != "reasoning" {
            added["status"] = "in_progress".into();
        }
        told.say(
            Duration::ZERO,
            json!({"type": "response.output_item.added", "output_index": index, "item": added}),
        );
        match kind {
            "reasoning" => {
                let with = |kind: &str, key: &str, value: Value| {
                    let mut event = place(kind);
                    event["summary_index"] = 0.into();
                    event[key] = value;
                    event
                };
                let part = |text: &str| json!({"type": "summary_text", "text": text});
                told.say(
                    Duration::ZERO,
                    with("response.reasoning_summary_part.added", "part", part("")),
                );
                for (pause, piece) in speech.pieces(&speech.thinking) {
                    told.say(
                        pause,
                        with("response.reasoning_summary_text.delta", "delta", piece.into()),
                    );
                }
                let whole = speech.thinking.as_str();
                told.say(
                    Duration::ZERO,
                    with("response.reasoning_summary_text.done", "text", whole.into()),
                );
                told.say(
                    Duration::ZERO,
                    with("response.reasoning_summary_part.done", "part", part(whole)),
                );
            }
            "message" => {
                let with = |kind: &str, key: &str, value: Value| {
                    let mut event = place(kind);
                    event["content_index"] = 0.into();
                    event[key] = value;
                    event
                };
                let part = |text: &str| json!({"type": "output_text", "text": text, "annotations": []});
                told.say(Duration::ZERO, with("response.content_part.added", "part", part("")));
                for (pause, piece) in speech.pieces(&speech.text) {
                    let mut event = with("response.output_text.delta", "delta", piece.into());
                    event["logprobs"] = json!([]);
                    told.say(pause, event);
                }
                let mut done = with("response.output_text.done", "text", speech.text.as_str().into());
                done["logprobs"] = json!([]);
                told.say(Duration::ZERO, done);
                told.say(
                    Duration::ZERO,
                    with("response.content_part.done", "part", part(&speech.text)),
                );
            }
            _ => {
                let mut delta = place("response.function_call_arguments.delta");
                delta["delta"] = item["arguments"].clone();
                told.say(Duration::ZERO, delta);
                let mut done = place("response.function_call_arguments.done");
                done["arguments"] = item["arguments"].clone();
                done["name"] = item["name"].clone();
                told.say(Duration::ZERO, done);
            }
        }
        told.say(
            Duration::ZERO,
            json!({"type": "response.output_item.done", "output_index": index, "item": item}),
        );
        if kind != "function_call" {
            told.words = told.events.len();
        }
    }
    let usage = if counts {
        responses_usage(&speech.usage)
    } else {
        Value::Null
    };
    let ended = if speech.stop == "max_tokens" {
        "response.incomplete"
    } else {
        "response.completed"
    };
    told.say(
        Duration::ZERO,
        json!({"type": ended, "response": response(speech, "completed", &items, usage)}),
    );
    for (number, (_, event)) in (0_u64..).zip(&mut told.events) {
        event["sequence_number"] = number.into();
    }
    told
}

fn finish(speech: &Speech) -> &'static str {
    match speech.stop {
        "max_tokens" => "length",
        "tool_use" => "tool_calls",
        _ => "stop",
    }
}

fn chat_usage(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": all_input(usage),
        "prompt_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write + usage.cache_write_hour},
        "completion_tokens": usage.output,
        "completion_tokens_details": {"reasoning_tokens": usage.thinking},
        "total_tokens": all_input(usage) + usage.output,
    })
}

fn chat(speech: &Speech, counts: bool) -> Told {
    let chunk = |choices: Value| json!({"id": "chatcmpl-scripted", "object": "chat.completion.chunk", "created": 0, "model": "scripted", "choices": choices});
    let choice =
        |delta: Value, finish: Option<&str>| chunk(json!([{"index": 0, "delta": delta, "finish_reason": finish}]));
    let mut told = Told {
        events: Vec::new(),
        words: 0,
    };
    told.say(speech.delay, choice(json!({"role": "assistant", "content": ""}), None));
    for (key, text) in [("reasoning_content", &speech.thinking), ("content", &speech.text)] {
        for (pause, piece) in speech.pieces(text) {
            told.say(pause, choice(json!({key: piece}), None));
        }
    }
    told.words = told.events.len();
    for (index, (id, name, arguments)) in speech.calls.iter().enumerate() {
        let begun = json!({"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}});
        told.say(Duration::ZERO, choice(json!({"tool_calls": [begun]}), None));
        let more = json!({"index": index, "function": {"arguments": arguments}});
        told.say(Duration::ZERO, choice(json!({"tool_calls": [more]}), None));
    }
    told.say(Duration::ZERO, choice(json!({}), Some(finish(speech))));
    if counts {
        let mut last = chunk(json!([]));
        last["usage"] = chat_usage(&speech.usage);
        told.say(Duration::ZERO, last);
    }
    told
}
