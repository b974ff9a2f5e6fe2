//! What a model said comes back to it as it said it.

use domain::{Block, Role, ToolCall, ToolCallId};
use llm::{Format, StreamEvent, Thoughts, encode_message};
use serde_json::{Value, json};

use crate::decode::hear;
use crate::dice::Dice;
use crate::encode::message;

impl Dice {
    fn words(&mut self) -> String {
        const LETTERS: [&str; 8] = ["a", "\"", "\\", "\n", "ü", "😀", " ", "{}"];
        let length = 1 + self.roll(12);
        let words: String = (0..length)
            .map(|_| LETTERS[usize::try_from(self.roll(8)).unwrap()])
            .collect();
        format!("w{words}")
    }

    /// A message as a model of this format may say it.
    fn blocks(&mut self, format: Format) -> Vec<Block> {
        let mut blocks = Vec::new();
        if self.roll(2) == 0 {
            let text = self.words();
            blocks.push(match format {
                Format::AnthropicMessages => Block::Thinking {
                    signature: Some(self.words()),
                    text,
                    item: None,
                },
                Format::OpenaiResponses => {
                    let summary = json!([{"type": "summary_text", "text": text}]);
                    Block::Thinking {
                        text,
                        signature: None,
                        item: Some(json!({"type": "reasoning", "id": self.words(), "summary": summary, "encrypted_content": "gAAA"})),
                    }
                }
                Format::OpenaiChat => Block::Thinking {
                    text,
                    signature: None,
                    item: Some(json!({"field": "reasoning_content"})),
                },
            });
        }
        blocks.push(Block::Text { text: self.words() });
        for call in 0..self.roll(4) {
            blocks.push(Block::ToolUse(ToolCall {
                id: ToolCallId(format!("call_{call}")),
                name: "read".to_owned(),
                input: json!({"path": self.words(), "n": self.roll(100)}),
            }));
        }
        blocks
    }
}

/// The stream in which a provider says what was encoded.
fn stream(format: Format, encoded: &[u8]) -> String {
    let items: Vec<Value> = serde_json::from_str(&format!("[{}]", std::str::from_utf8(encoded).unwrap())).unwrap();
    let mut stream = String::new();
    let mut say = |value: Value| {
        if let Some(kind) = value["type"].as_str() {
            stream.push_str(&format!("event: {kind}\n"));
        }
        stream.push_str(&format!("data: {value}\n\n"));
    };
    match format {
        Format::AnthropicMessages => {
            for (index, part) in items[0]["content"].as_array().unwrap().iter().enumerate() {
                say(json!({"type": "content_block_start", "index": index, "content_block": part}));
                say(json!({"type": "content_block_stop", "index": index}));
            }
            say(json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}));
            say(json!({"type": "message_stop"}));
        }
        Format::OpenaiResponses => say(json!({"type": "response.completed", "response": {"output": items}})),
        Format::OpenaiChat => {
            let mut delta = items[0].clone();
            for (index, call) in delta["tool_calls"].as_array_mut().into_iter().flatten().enumerate() {
                call["index"] = json!(index);
            }
            say(json!({"choices": [{"delta": delta, "finish_reason": "stop"}]}));
            stream.push_str("data: [DONE]\n\n");
        }
    }
    stream
}

#[test]
fn what_is_decoded_and_encoded_again_is_the_same() {
    let mut dice = Dice(7);
    for round in 0..300 {
        for format in Format::ALL {
            let blocks = dice.blocks(format);
            let encoded = encode_message(format, Thoughts::Keep, &message(Role::Assistant, blocks.clone()));
            let heard = hear(format, stream(format, &encoded).as_bytes().chunks(1 + round % 50));
            let Some(StreamEvent::Done(reply)) = heard.events.last() else {
                panic!("{format:?} round {round}: {:?}", heard.end);
            };
            assert_eq!(reply.blocks, blocks, "{format:?} round {round}");
            let again = encode_message(format, Thoughts::Keep, &message(Role::Assistant, reply.blocks.clone()));
            assert_eq!(again, encoded, "{format:?} round {round}");
        }
    }
}
