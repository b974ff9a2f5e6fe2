//! Events of an answer as it is written, without a secret that lies in one of them or across some.
//!
//! What a model says comes in pieces: strings that stand in few places of each language. Those of one place are one text, and each
//! event waits until its pieces are known to be part of no secret, or their text is over; whatever comes after it waits too. How
//! long that is depends on no secret: who has a model repeat what may be the beginning of one learns nothing from it.
//!
//! A provider that goes back and forth between texts is not followed: a text is over when a later one of the answer begins.

use std::collections::{BTreeMap, VecDeque};

use protocol::ModelRoute;
use providers::RelayEvent;
use serde_json::Value;

use crate::masks::{Masks, Words};

/// The most that waits, in bytes. No provider says so much beside a text.
const WAITING: usize = 4 << 20;

/// What Anthropic calls pieces of text.
const MEMBERS: [&str; 3] = ["text", "thinking", "partial_json"];
/// What servers that speak Chat call what comes before tools are called, with its place among them.
const SPOKEN: [(&str, u64); 4] = [
    ("reasoning_content", 0),
    ("reasoning", 0),
    ("content", 1),
    ("refusal", 1),
];
/// The place of the first call of a tool.
const CALLS: u64 = 2;

/// Events that are masked, in order.
pub(super) struct Masked {
    route: ModelRoute,
    masks: Masks,
    waiting: VecDeque<Waiting>,
    /// Bytes of their data.
    bytes: usize,
    /// How many went before the first that waits.
    gone: usize,
    texts: BTreeMap<Place, Text>,
}

struct Waiting {
    event: RelayEvent,
    /// So many of its pieces are not known to be harmless yet.
    open: usize,
    /// Pieces that are said otherwise, by where they stand.
    masked: Vec<(String, String)>,
}

/// Where a text stands in an answer: the later is the greater.
type Place = (u64, &'static str);

/// One of the texts of an answer.
struct Text {
    words: Words,
    /// Harmless, and not cut into pieces yet.
    clear: String,
    pieces: VecDeque<Waited>,
}

/// A piece that waits.
struct Waited {
    /// The number of its event.
    event: usize,
    /// Where in that event, as a JSON pointer.
    pointer: String,
    said: String,
}

/// A piece as it comes.
struct Piece {
    place: Place,
    pointer: String,
    said: String,
}

impl Masked {
    pub(super) fn new(route: ModelRoute, masks: Masks) -> Self {
        Self {
            route,
            masks,
            waiting: VecDeque::new(),
            bytes: 0,
            gone: 0,
            texts: BTreeMap::new(),
        }
    }

    /// Takes the next event: whether it may wait, too.
    #[must_use]
    pub(super) fn push(&mut self, mut event: RelayEvent) -> bool {
        let (mut pieces, mut is_over) = (Vec::new(), false);
        if !self.masks.is_nothing() {
            event.name = self.masks.text(event.name);
            event.data = self.masks.json(event.data);
            // One that is no JSON says nothing, such as that the stream is over.
            if let Ok(data) = serde_json::from_str::<Value>(&event.data) {
                pieces = pieces_of(self.route, &data);
                is_over = is_end(self.route, &data);
            }
        }
        let number = self.gone + self.waiting.len();
        self.bytes += event.data.len();
        self.waiting.push_back(Waiting {
            event,
            open: pieces.len(),
            masked: Vec::new(),
        });
        for Piece { place, pointer, said } in pieces {
            self.finish_before(place);
            let text = self.texts.entry(place).or_insert_with(|| Text {
                words: self.masks.words(),
                clear: String::new(),
                pieces: VecDeque::new(),
            });
            text.clear.push_str(&text.words.push(said.clone()));
            text.pieces.push_back(Waited {
                event: number,
                pointer,
                said,
            });
            text.settle(&mut self.waiting, self.gone);
        }
        if is_over {
            self.finish();
        }
        self.bytes <= WAITING
    }

    /// The next event that need not wait.
    pub(super) fn pop(&mut self) -> Option<RelayEvent> {
        let Waiting { mut event, masked, .. } = self.waiting.pop_front_if(|first| first.open == 0)?;
        self.gone += 1;
        self.bytes -= event.data.len();
        if !masked.is_empty()
            && let Ok(mut data) = serde_json::from_str::<Value>(&event.data)
        {
            for (pointer, said) in masked {
                if let Some(piece) = data.pointer_mut(&pointer) {
                    *piece = said.into();
                }
            }
            event.data = data.to_string();
        }
        Some(event)
    }

    /// No text goes on: none waits for it any more.
    pub(super) fn finish(&mut self) {
        for mut text in std::mem::take(&mut self.texts).into_values() {
            text.finish(&mut self.waiting, self.gone);
        }
    }

    /// The same for what stands before this place.
    fn finish_before(&mut self, place: Place) {
        while let Some(first) = self.texts.first_entry()
            && first.key().0 < place.0
        {
            first.remove().finish(&mut self.waiting, self.gone);
        }
    }
}

impl Text {
    /// Hands its pieces what is clear of them.
    fn settle(&mut self, waiting: &mut VecDeque<Waiting>, gone: usize) {
        while let Some(piece) = self.pieces.pop_front_if(|piece| piece.said.len() <= self.clear.len()) {
            let rest = self.clear.split_off(piece.said.len());
            let clear = std::mem::replace(&mut self.clear, rest);
            let Some(its) = waiting.get_mut(piece.event - gone) else {
                continue;
            };
            its.open -= 1;
            if clear != piece.said {
                its.masked.push((piece.pointer, clear));
            }
        }
    }

    fn finish(&mut self, waiting: &mut VecDeque<Waiting>, gone: usize) {
        self.clear.push_str(&self.words.finish());
        self.settle(waiting, gone);
    }
}

/// The pieces of text in an event.
fn pieces_of(route: ModelRoute, data: &Value) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut find = |place: u64, name: &'static str, pointer: String| {
        if let Some(said) = data
            .pointer(&pointer)
            .and_then(Value::as_str)
            .filter(|said| !said.is_empty())
        {
            let said = said.to_owned();
            let place = (place, name);
            pieces.push(Piece { place, pointer, said });
        }
    };
    let number = |value: &Value, name: &str| value[name].as_u64().unwrap_or_default();
    match route {
        ModelRoute::Messages | ModelRoute::CountTokens => {
            for name in MEMBERS {
                for begin in ["content_block", "delta"] {
                    find(number(data, "index"), name, format!("/{begin}/{name}"));
                }
            }
        }
        ModelRoute::Responses => find(number(data, "output_index"), "", "/delta".to_owned()),
        ModelRoute::ChatCompletions => {
            for (at, choice) in data["choices"].as_array().into_iter().flatten().enumerate() {
                let delta = format!("/choices/{at}/delta");
                for (name, place) in SPOKEN {
                    find(place, name, format!("{delta}/{name}"));
                }
                find(CALLS, "", format!("{delta}/function_call/arguments"));
                let calls = choice["delta"]["tool_calls"].as_array();
                for (at, call) in calls.into_iter().flatten().enumerate() {
                    let place = CALLS.saturating_add(number(call, "index"));
                    find(place, "", format!("{delta}/tool_calls/{at}/function/arguments"));
                }
            }
        }
    }
    pieces
}

/// Whether an event says that what came before it is whole.
fn is_end(route: ModelRoute, data: &Value) -> bool {
    let kind = data["type"].as_str().unwrap_or_default();
    match route {
        ModelRoute::Messages | ModelRoute::CountTokens => {
            matches!(kind, "content_block_stop" | "message_delta" | "message_stop")
        }
        ModelRoute::Responses => {
            kind.ends_with(".done") || matches!(kind, "response.completed" | "response.failed" | "response.incomplete")
        }
        ModelRoute::ChatCompletions => {
            let choices = data["choices"].as_array();
            let mut choices = choices.into_iter().flatten();
            choices.any(|choice| choice["finish_reason"].is_string())
        }
    }
}

#[cfg(test)]
mod tests;
