//! The same words in the streams of three protocols.

use serde_json::{Value, json};

use super::Protocol;

/// Letters of a piece of a thought, or of a call's arguments.
const PIECE: usize = 200;

/// What the model says.
#[derive(Clone, Debug, Default)]
pub struct Speech {
    /// A thought, before the words.
    pub thinking: Option<String>,
    /// The words, in the pieces in which they are sent.
    pub text: Vec<String>,
    /// Calls of tools: id, name, arguments as they are written.
    pub calls: Vec<(String, String, String)>,
    /// Tokens of the input that no cache knew.
    pub input: u64,
    /// Tokens of the input that a cache knew.
    pub cached: u64,
    /// Tokens of the output.
    pub output: u64,
}

impl Speech {
    /// Words.
    #[must_use]
    pub fn text(text: &str) -> Self {
        Self {
            text: text.split_inclusive(' ').map(str::to_owned).collect(),
            input: 10,
            output: 5,
            ..Self::default()
        }
    }

    /// A call of a tool. Ids must differ within a conversation.
    #[must_use]
    pub fn call(mut self, id: &str, name: &str, input: &Value) -> Self {
        self.calls.push((id.to_owned(), name.to_owned(), input.to_string()));
        self
    }

    /// Much more than anybody lets it say, in arguments of a call that are cut nowhere.
    #[must_use]
    pub fn endless_call() -> Self {
        Self::default().call("endless", "exec", &json!({"code": "wait ".repeat(100_000)}))
    }

    /// The same, in a thought.
    #[must_use]
    pub fn endless_thought() -> Self {
        Self {
            thinking: Some("think ".repeat(100_000)),
            ..Self::default()
        }
    }

    /// The events of the stream, each a whole one.
    #[must_use]
    pub fn events(&self, protocol: Protocol) -> Vec<String> {
        match protocol {
            Protocol::Anthropic => named(&self.anthropic()),
            Protocol::Responses => named(&self.responses()),
            Protocol::Chat => {
                let mut events: Vec<String> = self.chat().iter().map(|event| format!("data: {event}\n\n")).collect();
                events.push("data: [DONE]\n\n".to_owned());
                events
            }
        }
    }

    fn anthropic(&self) -> Vec<Value> {
        let mut events = vec![json!({"type": "message_start", "message": {
            "id": "msg_1", "type": "message", "role": "assistant", "model": "fake", "content": [], "stop_reason": null,
            "usage": {"input_tokens": self.input, "cache_read_input_tokens": self.cached, "cache_creation_input_tokens": 0, "output_tokens": 1},
        }})];
        let mut block = |start: Value, deltas: Vec<Value>| {
            let index = events
                .iter()
                .filter(|event| event["type"] == "content_block_start")
                .count();
            events.push(json!({"type": "content_block_start", "index": index, "content_block": start}));
            events.extend(
                deltas
                    .into_iter()
                    .map(|delta| json!({"type": "content_block_delta", "index": index, "delta": delta})),
            );
            events.push(json!({"type": "content_block_stop", "index": index}));
        };
        if let Some(thinking) = &self.thinking {
            block(
                json!({"type": "thinking", "thinking": "", "signature": ""}),
                pieces(thinking)
                    .map(|piece| json!({"type": "thinking_delta", "thinking": piece}))
                    .chain([json!({"type": "signature_delta", "signature": "c2lnbmVk"})])
                    .collect(),
            );
        }
        if !self.text.is_empty() {
            let deltas = self.text.iter().map(|text| json!({"type": "text_delta", "text": text}));
            block(json!({"type": "text", "text": ""}), deltas.collect());
        }
        for (id, name, arguments) in &self.calls {
            let deltas = pieces(arguments).map(|piece| json!({"type": "input_json_delta", "partial_json": piece}));
            block(
                json!({"type": "tool_use", "id": id, "name": name, "input": {}}),
                deltas.collect(),
            );
        }
        let stop = if self.calls.is_empty() { "end_turn" } else { "tool_use" };
        events.push(
            json!({"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": self.output}}),
        );
        events.push(json!({"type": "message_stop"}));
        events
    }

    fn responses(&self) -> Vec<Value> {
        let mut events = vec![json!({"type": "response.created", "response": {"id": "resp_1"}})];
        let mut output = Vec::new();
        let mut item = |begun: Value, deltas: Vec<Value>, done: Value| {
            let index = output.len();
            events.push(json!({"type": "response.output_item.added", "output_index": index, "item": begun}));
            for mut delta in deltas {
                delta["output_index"] = index.into();
                events.push(delta);
            }
            events.push(json!({"type": "response.output_item.done", "output_index": index, "item": done}));
            output.push(done);
        };
        if let Some(thinking) = &self.thinking {
            let reasoning = |summary: Value| json!({"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "c2VhbGVk"});
            let deltas = pieces(thinking).map(
                |piece| json!({"type": "response.reasoning_summary_text.delta", "summary_index": 0, "delta": piece}),
            );
            item(
                reasoning(json!([])),
                deltas.collect(),
                reasoning(json!([{"type": "summary_text", "text": thinking}])),
            );
        }
        if !self.text.is_empty() {
            let message =
                |content: Value| json!({"type": "message", "id": "msg_1", "role": "assistant", "content": content});
            let deltas = self
                .text
                .iter()
                .map(|text| json!({"type": "response.output_text.delta", "content_index": 0, "delta": text}));
            item(
                message(json!([])),
                deltas.collect(),
                message(json!([{"type": "output_text", "text": self.text.concat()}])),
            );
        }
        for (id, name, arguments) in &self.calls {
            let call = |arguments: &str| json!({"type": "function_call", "id": format!("fc_{id}"), "call_id": id, "name": name, "arguments": arguments});
            let deltas = pieces(arguments)
                .map(|piece| json!({"type": "response.function_call_arguments.delta", "delta": piece}));
            item(call(""), deltas.collect(), call(arguments));
        }
        let input = self.input + self.cached;
        events.push(
            json!({"type": "response.completed", "response": {"id": "resp_1", "output": output, "usage": {
                "input_tokens": input, "input_tokens_details": {"cached_tokens": self.cached},
                "output_tokens": self.output, "total_tokens": input + self.output,
            }}}),
        );
        for (number, event) in (0_u64..).zip(&mut events) {
            event["sequence_number"] = number.into();
        }
        events
    }

    fn chat(&self) -> Vec<Value> {
        let chunk = |delta: Value, finish: Option<&str>| json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]});
        let mut events = vec![chunk(json!({"role": "assistant", "content": ""}), None)];
        events.extend(
            self.thinking
                .iter()
                .flat_map(|thinking| pieces(thinking))
                .map(|piece| chunk(json!({"reasoning_content": piece}), None)),
        );
        events.extend(self.text.iter().map(|text| chunk(json!({"content": text}), None)));
        for (index, (id, name, arguments)) in self.calls.iter().enumerate() {
            let begun =
                json!({"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}});
            events.push(chunk(json!({"tool_calls": [begun]}), None));
            events.extend(pieces(arguments).map(|piece| {
                let more = json!({"index": index, "function": {"arguments": piece}});
                chunk(json!({"tool_calls": [more]}), None)
            }));
        }
        events.push(chunk(
            json!({}),
            Some(if self.calls.is_empty() { "stop" } else { "tool_calls" }),
        ));
        let input = self.input + self.cached;
        events.push(
            json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [], "usage": {
                "prompt_tokens": input, "prompt_tokens_details": {"cached_tokens": self.cached},
                "completion_tokens": self.output, "total_tokens": input + self.output,
            }}),
        );
        events
    }
}

/// A text as it is written: what is short at once.
fn pieces(text: &str) -> impl Iterator<Item = String> {
    let letters: Vec<char> = text.chars().collect();
    let count = letters.len().div_ceil(PIECE).max(1);
    (0..count).map(move |place| letters.iter().skip(place * PIECE).take(PIECE).collect())
}

fn named(events: &[Value]) -> Vec<String> {
    events
        .iter()
        .map(|event| {
            format!(
                "event: {}\ndata: {event}\n\n",
                event["type"].as_str().unwrap_or_default()
            )
        })
        .collect()
}
