//! Events of an answer as it is written, without a secret that lies in one of them or across some.
//!
//! In each language what a model says stands in strings below `delta`; those of one place are one text. An event whose text ends
//! as a secret begins waits until that text goes on or its part of the answer is over, and whatever comes after it waits too.

use std::collections::{BTreeMap, VecDeque};

use providers::RelayEvent;
use serde_json::Value;

use crate::masks::{Masks, Words};

/// So many events wait for a text to go on. A provider that says more beside it is not waited for.
const WAITING: usize = 64;

/// Members by which an event says which part of an answer it belongs to.
const INDEXES: [&str; 4] = ["index", "output_index", "content_index", "summary_index"];

/// Events that are masked, in order.
pub(super) struct Masked {
    masks: Masks,
    waiting: VecDeque<RelayEvent>,
    /// How many went before the first that waits.
    gone: usize,
    /// Texts of which an end is held back, by their places.
    open: BTreeMap<String, Open>,
}

/// A text of which an end is held back.
struct Open {
    words: Words,
    /// The number of the event that it is held back from.
    event: usize,
    /// Where in that event, as a JSON pointer.
    pointer: String,
}

/// A string below `delta`.
struct Piece<'a> {
    place: String,
    pointer: String,
    text: &'a mut String,
}

impl Masked {
    pub(super) fn new(masks: Masks) -> Self {
        Self {
            masks,
            waiting: VecDeque::new(),
            gone: 0,
            open: BTreeMap::new(),
        }
    }

    /// Takes the next event.
    pub(super) fn push(&mut self, mut event: RelayEvent) {
        if !self.masks.is_nothing() {
            self.mask(&mut event);
        }
        self.waiting.push_back(event);
        if self.waiting.len() > WAITING {
            self.finish();
        }
    }

    /// The next event that need not wait.
    pub(super) fn pop(&mut self) -> Option<RelayEvent> {
        if self.open.values().any(|open| open.event == self.gone) {
            return None;
        }
        let event = self.waiting.pop_front()?;
        self.gone += 1;
        Some(event)
    }

    /// No text goes on: none waits for it any more.
    pub(super) fn finish(&mut self) {
        for (_, mut open) in std::mem::take(&mut self.open) {
            let event = &mut self.waiting[open.event - self.gone];
            // It was read before.
            let Ok(mut data) = serde_json::from_str::<Value>(&event.data) else {
                continue;
            };
            if let Some(Value::String(text)) = data.pointer_mut(&open.pointer) {
                text.push_str(&open.words.finish());
                event.data = self.masks.text(data.to_string());
            }
        }
    }

    fn mask(&mut self, event: &mut RelayEvent) {
        let number = self.gone + self.waiting.len();
        let mut pieces = Vec::new();
        // One that is no JSON says nothing, such as that the stream is over.
        let mut data = serde_json::from_str(&event.data).unwrap_or(Value::Null);
        let keeps_alive = data["type"] == "ping";
        find(&mut data, false, String::new(), String::new(), &mut pieces);
        if pieces.is_empty() && !keeps_alive {
            self.finish();
        }
        let mut changed = false;
        for Piece { place, pointer, text } in pieces {
            let open = self.open.remove(&place);
            let mut words = open.map_or_else(|| self.masks.words(), |open| open.words);
            let clean = words.push(text.clone());
            if clean != *text {
                changed = true;
                *text = clean;
            }
            if words.is_holding() {
                let event = number;
                self.open.insert(place, Open { words, event, pointer });
            }
        }
        if changed {
            event.data = data.to_string();
        }
        event.data = self.masks.text(std::mem::take(&mut event.data));
    }
}

/// Finds the strings below `delta`.
fn find<'a>(value: &'a mut Value, is_below: bool, mut place: String, pointer: String, pieces: &mut Vec<Piece<'a>>) {
    match value {
        Value::String(text) if is_below => pieces.push(Piece { place, pointer, text }),
        Value::Object(members) => {
            for index in INDEXES.iter().filter_map(|index| members.get(*index)?.as_u64()) {
                place.push_str(&format!("#{index}"));
            }
            if pointer.is_empty() {
                place.push_str(members.get("type").and_then(Value::as_str).unwrap_or_default());
            }
            for (name, member) in members {
                let is_below = is_below || name == "delta";
                let pointer = format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"));
                find(member, is_below, format!("{place}/{name}"), pointer, pieces);
            }
        }
        Value::Array(members) => {
            for (number, member) in members.iter_mut().enumerate() {
                // Which it is, its own index says where it has one.
                let own = if member.get("index").is_some() {
                    String::new()
                } else {
                    number.to_string()
                };
                let pointer = format!("{pointer}/{number}");
                find(member, is_below, format!("{place}/{own}"), pointer, pieces);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use secret::Secret;
    use serde_json::json;

    use super::*;
    use crate::masks::Secrecy;

    /// Makes an event of a piece of a text.
    type Language<'a> = &'a dyn Fn(&str) -> Value;

    const KEY: &str = "sk-live-4f9+\"x";
    const MASK: &str = "**************";

    fn masked() -> Masked {
        Masked::new(Secrecy::new(vec![Secret::new(KEY).into()]).masks())
    }

    fn pushed(masked: &mut Masked, data: &Value) -> Vec<Value> {
        masked.push(RelayEvent {
            name: String::new(),
            data: data.to_string(),
            said: Vec::new(),
        });
        ready(masked)
    }

    fn ready(masked: &mut Masked) -> Vec<Value> {
        let events = std::iter::from_fn(|| masked.pop());
        events.map(|event| serde_json::from_str(&event.data).unwrap()).collect()
    }

    fn text(index: u64, text: &str) -> Value {
        json!({"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": text}})
    }

    fn chunk(index: u64, delta: &Value) -> Value {
        json!({"choices": [{"index": index, "delta": delta}]})
    }

    #[test]
    fn a_secret_is_found_across_events_in_each_language() {
        let tool = |piece: &str| {
            chunk(
                1,
                &json!({"tool_calls": [{"index": 2, "function": {"arguments": piece}}]}),
            )
        };
        let chat = |piece: &str| chunk(0, &json!({"content": piece}));
        let said = |piece: &str| text(3, piece);
        let json = |piece: &str| json!({"type": "content_block_delta", "index": 1, "delta": {"partial_json": piece}});
        let response = |piece: &str| json!({"type": "response.output_text.delta", "output_index": 1, "delta": piece});
        let languages: [(Language, &str); 5] = [
            (&tool, "/choices/0/delta/tool_calls/0/function/arguments"),
            (&chat, "/choices/0/delta/content"),
            (&said, "/delta/text"),
            (&json, "/delta/partial_json"),
            (&response, "/delta"),
        ];
        for (event, pointer) in languages {
            let mut masked = masked();
            let letters = format!("it is {KEY}, and sk-li");
            let mut events = Vec::new();
            for letter in letters.chars() {
                // Another text comes between, and what says nothing.
                events.extend(pushed(&mut masked, &text(9, "x")));
                events.extend(pushed(&mut masked, &event(&letter.to_string())));
                events.extend(pushed(&mut masked, &json!({"type": "ping"})));
            }
            masked.finish();
            events.extend(ready(&mut masked));
            let kept = events.iter().filter(|event| event["index"] != 9);
            let joined: String = kept.filter_map(|event| event.pointer(pointer)?.as_str()).collect();
            assert_eq!(joined, format!("it is {MASK}, and sk-li"), "{pointer}");
            assert_eq!(events.len(), 3 * letters.chars().count());
        }
    }

    #[test]
    fn what_is_no_secret_goes_on_as_it_was_when_that_is_clear() {
        let mut masked = masked();
        let spoken = [text(0, "a word"), text(0, "it is s"), text(1, "other"), text(0, "o")];
        assert_eq!(pushed(&mut masked, &spoken[0]), spoken[..1]);
        assert!(pushed(&mut masked, &spoken[1]).is_empty());
        assert!(pushed(&mut masked, &spoken[2]).is_empty(), "in order");
        let clear = pushed(&mut masked, &spoken[3]);
        assert_eq!(clear, [text(0, "it is "), text(1, "other"), text(0, "so")]);
    }

    #[test]
    fn what_is_held_back_comes_when_its_part_is_over() {
        let mut masked = masked();
        assert!(pushed(&mut masked, &text(0, "it is sk-")).is_empty());
        let stop = json!({"type": "content_block_stop", "index": 0});
        assert_eq!(pushed(&mut masked, &stop), [text(0, "it is sk-"), stop]);
        masked.push(RelayEvent {
            name: String::new(),
            data: "[DONE]".to_owned(),
            said: Vec::new(),
        });
        assert_eq!(masked.pop().unwrap().data, "[DONE]");
    }

    #[test]
    fn no_more_than_some_events_wait() {
        let mut masked = masked();
        assert!(pushed(&mut masked, &text(0, "sk")).is_empty());
        let beside: usize = (0..WAITING).map(|_| pushed(&mut masked, &text(1, "x")).len()).sum();
        assert_eq!(beside, WAITING + 1);
    }

    #[test]
    fn two_secrets_that_begin_in_one_event_are_both_found() {
        let mut masked = masked();
        let both = |one: &str, other: &str| {
            json!({"choices": [
                {"index": 0, "delta": {"content": one}},
                {"index": 1, "delta": {"content": other}},
            ]})
        };
        assert!(pushed(&mut masked, &both("sk-live", "and sk-live-4f9")).is_empty());
        // Another order.
        let swapped = json!({"choices": [
            {"index": 1, "delta": {"content": "+\"x"}},
            {"index": 0, "delta": {"content": "-4f9+\"x"}},
        ]});
        let events = pushed(&mut masked, &swapped);
        assert_eq!(events[0], both("", "and "));
        assert_eq!(events[1].pointer("/choices/0/delta/content").unwrap(), MASK);
        assert_eq!(events[1].pointer("/choices/1/delta/content").unwrap(), MASK);
    }
}
