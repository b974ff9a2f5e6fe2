//! What requests of other programs may cost at most.

use llm::{Foreign, Format};
use serde_json::{Value, json};

use crate::dice::Dice;

/// The most that one picture costs.
const PICTURES: [(Format, u64); 3] = [
    (Format::AnthropicMessages, 4_784),
    (Format::OpenaiResponses, 48_169),
    (Format::OpenaiChat, 48_169),
];

/// A request, and what a provider charges that takes everything for text but the pictures where its format has them, a token
/// for each byte.
struct Written {
    dice: Dice,
    format: Format,
    picture: u64,
    charge: u64,
}

impl Written {
    fn letters(&mut self) -> String {
        "A".repeat(usize::try_from(self.dice.roll(200_000)).unwrap())
    }

    /// Text that a provider reads.
    fn read(&mut self) -> String {
        let text = self.letters();
        self.charge += text.len() as u64;
        text
    }

    /// What looks like a picture's address to whoever does not look closely.
    fn disguised(&mut self) -> String {
        let text = self.read();
        match self.dice.roll(4) {
            0 => format!("data:image/svg+xml,{text}"),
            1 => format!("data:image/png;base64,{text} {text}"),
            _ => format!("data:image/png;base64,{text}"),
        }
    }

    /// A picture as the format has it.
    fn picture(&mut self) -> Value {
        self.charge += self.picture;
        let data = self.letters();
        self.shows(&data)
    }

    /// Words where a picture's bytes belong.
    fn no_picture(&mut self) -> Value {
        let words = self.read();
        self.shows(&format!("{words} {words}"))
    }

    fn shows(&self, data: &str) -> Value {
        let address = format!("data:image/png;base64,{data}");
        match self.format {
            Format::AnthropicMessages => {
                json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}})
            }
            Format::OpenaiResponses => json!({"type": "input_image", "image_url": address}),
            Format::OpenaiChat => json!({"type": "image_url", "image_url": {"url": address}}),
        }
    }

    /// The same, where a model's words or unknown things stand: text to whoever reads on.
    fn stray(&mut self) -> Value {
        let charge = self.charge;
        let mut picture = self.picture();
        self.charge = charge + picture.to_string().len() as u64;
        match self.dice.roll(3) {
            0 => json!({"role": "assistant", "content": [picture]}),
            // Unknown blocks of Anthropic's that have bytes are refused.
            1 if self.format != Format::AnthropicMessages => {
                picture["type"] = json!("something_newer");
                json!({"role": "user", "content": [picture]})
            }
            _ => json!({"role": "user", "type": "something_newer", "extra": [picture], "content": "x"}),
        }
    }

    fn part(&mut self) -> Value {
        let text = match self.format {
            Format::OpenaiResponses => "input_text",
            Format::AnthropicMessages | Format::OpenaiChat => "text",
        };
        match self.dice.roll(5) {
            0 => self.picture(),
            4 => self.no_picture(),
            1 => json!({"type": text, "text": self.read()}),
            2 => json!({"type": text, "text": "x", "image_url": self.disguised()}),
            _ => json!({"type": text, "text": "x", "more": {"image_url": {"url": self.disguised()}}}),
        }
    }

    fn parts(&mut self) -> Value {
        (0..self.dice.roll(4)).map(|_| self.part()).collect()
    }

    /// What a model called for, with arguments and a result.
    fn called(&mut self) -> [Value; 2] {
        match self.format {
            Format::AnthropicMessages => {
                let input = json!({"image_url": self.disguised(), "content": [self.disguised()]});
                let call = json!({"type": "tool_use", "id": "a", "name": "x", "input": input});
                let result = json!({"type": "tool_result", "tool_use_id": "a", "content": self.parts()});
                [
                    json!({"role": "assistant", "content": [call]}),
                    json!({"role": "user", "content": [result]}),
                ]
            }
            Format::OpenaiResponses => [
                json!({"type": "function_call", "name": "x", "arguments": "{}", "image_url": self.disguised()}),
                json!({"type": "function_call_output", "call_id": "a", "output": self.parts()}),
            ],
            Format::OpenaiChat => {
                let call = json!({"id": "a", "type": "function", "function": {"image_url": self.disguised()}});
                let text = self.disguised();
                let result = json!({"type": "image_url", "image_url": {"url": text}});
                [
                    json!({"role": "assistant", "tool_calls": [call]}),
                    json!({"role": "tool", "tool_call_id": "a", "content": [result]}),
                ]
            }
        }
    }

    fn request(&mut self) -> Value {
        let mut said = Vec::new();
        for _ in 0..=self.dice.roll(4) {
            match self.dice.roll(3) {
                0 => said.push(json!({"role": "user", "content": self.parts()})),
                1 => said.push(self.stray()),
                _ => said.extend(self.called()),
            }
        }
        match self.format {
            Format::OpenaiResponses => json!({"input": said, "instructions": self.read()}),
            Format::AnthropicMessages => {
                json!({"messages": said, "system": [{"type": "text", "text": "x", "image_url": self.disguised()}]})
            }
            Format::OpenaiChat => json!({"messages": said}),
        }
    }
}

#[test]
fn threat_131_no_request_costs_more_than_its_bound() {
    for round in 0..60 {
        for (format, picture) in PICTURES {
            let (dice, charge) = (Dice(round), 0);
            let mut written = Written {
                dice,
                format,
                picture,
                charge,
            };
            let body = written.request().to_string();
            let request = match Foreign::parse(format, body.as_bytes()) {
                Ok(request) => request,
                Err(refusal) => panic!("{format:?}, round {round}: {refusal}"),
            };
            let (bound, charge) = (request.bound(), written.charge);
            assert!(
                bound >= charge,
                "{format:?}, round {round}: bound {bound}, charge {charge}"
            );
        }
    }
}

#[test]
fn pictures_count_by_formula_wherever_a_format_has_them() {
    let data = "A".repeat(400_000);
    let address = format!("data:image/png;base64,{data}");
    let block = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}});
    let result = json!({"type": "tool_result", "tool_use_id": "a", "content": [block]});
    let pages = json!({"type": "document", "source": {"type": "content", "content": [block]}});
    let image = json!({"type": "input_image", "image_url": address});
    let screenshot = json!({"type": "computer_screenshot", "image_url": address});
    let said = |part: &Value| json!([{"role": "user", "content": [part]}]);
    let requests = [
        (Format::AnthropicMessages, json!({"messages": said(&block)})),
        (Format::AnthropicMessages, json!({"messages": said(&result)})),
        (Format::AnthropicMessages, json!({"messages": said(&pages)})),
        (Format::OpenaiResponses, json!({"input": said(&image)})),
        (
            Format::OpenaiResponses,
            json!({"input": [{"type": "function_call_output", "call_id": "a", "output": [image]}]}),
        ),
        (
            Format::OpenaiResponses,
            json!({"input": [{"type": "computer_call_output", "call_id": "a", "output": screenshot}]}),
        ),
        (
            Format::OpenaiChat,
            json!({"messages": said(&json!({"type": "image_url", "image_url": {"url": address}}))}),
        ),
        (
            Format::OpenaiChat,
            json!({"messages": said(&json!({"type": "image_url", "image_url": address}))}),
        ),
    ];
    for (format, body) in requests {
        let body = body.to_string();
        let bound = Foreign::parse(format, body.as_bytes()).unwrap().bound();
        let (_, picture) = PICTURES.into_iter().find(|(known, _)| *known == format).unwrap();
        assert!((picture..picture + 3_000).contains(&bound), "{format:?}: {bound}");
    }
}

#[test]
fn tools_that_a_provider_explains_at_length_cost_more_than_their_names() {
    let bound = |tools: Value| {
        let body = json!({"messages": [{"role": "user", "content": "x"}], "tools": tools}).to_string();
        Foreign::parse(Format::AnthropicMessages, body.as_bytes())
            .unwrap()
            .bound()
    };
    let one = json!({"type": "computer_20250124", "name": "computer"});
    let other = json!({"type": "text_editor_20250728", "name": "editor"});
    let own = json!({"type": "custom", "name": "own", "input_schema": {}});
    assert!(bound(json!([one, other])) > 3_000);
    assert!(bound(json!([own])) < 2_000);
}
