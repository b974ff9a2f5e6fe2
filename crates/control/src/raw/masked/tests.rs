#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use secret::Secret;
use serde_json::json;

use super::*;
use crate::masks::Secrecy;

/// Its first letter is the last of `text_delta`; in JSON within JSON it is spelled in another way.
const KEY: &str = "a-live-4f9+\"x\n";

fn masked(route: ModelRoute) -> Masked {
    Masked::new(route, Secrecy::new(vec![Secret::new(KEY).into()]).masks())
}

fn pushed(masked: &mut Masked, data: &Value) -> Vec<Value> {
    let is_within = masked.push(RelayEvent {
        name: String::new(),
        data: data.to_string(),
        said: Vec::new(),
    });
    assert!(is_within);
    ready(masked)
}

fn ready(masked: &mut Masked) -> Vec<Value> {
    let events = std::iter::from_fn(|| masked.pop());
    events.map(|event| serde_json::from_str(&event.data).unwrap()).collect()
}

fn text(index: u64, text: &str) -> Value {
    json!({"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": text}})
}

fn chunk(delta: &Value) -> Value {
    json!({"choices": [{"index": 0, "delta": delta}]})
}

/// Makes an event of a piece of a text.
type Language<'a> = &'a dyn Fn(&str) -> Value;

#[test]
fn threat_138_a_secret_is_found_across_events_in_each_language() {
    let call = |piece: &str| {
        chunk(&json!({"tool_calls": [{"index": 2, "type": "function", "function": {"arguments": piece}}]}))
    };
    let chat = |piece: &str| chunk(&json!({"role": "assistant", "content": piece}));
    let input = |piece: &str| {
        let delta = json!({"type": "input_json_delta", "partial_json": piece});
        json!({"type": "content_block_delta", "index": 1, "delta": delta})
    };
    let response = |piece: &str| json!({"type": "response.output_text.delta", "output_index": 1, "delta": piece});
    let said = |piece: &str| text(3, piece);
    let beside = [
        json!({"type": "ping"}),
        json!({"choices": [], "object": "chat.completion.chunk"}),
        json!({"type": "response.output_text.annotation.added", "annotation": {"title": "a"}}),
    ];
    let languages: [(ModelRoute, Language, &str, &Value); 5] = [
        (
            ModelRoute::ChatCompletions,
            &call,
            "/choices/0/delta/tool_calls/0/function/arguments",
            &beside[1],
        ),
        (
            ModelRoute::ChatCompletions,
            &chat,
            "/choices/0/delta/content",
            &beside[1],
        ),
        (ModelRoute::Messages, &said, "/delta/text", &beside[0]),
        (ModelRoute::Messages, &input, "/delta/partial_json", &beside[0]),
        (ModelRoute::Responses, &response, "/delta", &beside[2]),
    ];
    for (route, event, pointer, beside) in languages {
        let mut masked = masked(route);
        let spoken = format!("it is {KEY}, and a-li");
        let mut events = Vec::new();
        for letter in spoken.chars() {
            events.extend(pushed(&mut masked, &event(&letter.to_string())));
            events.extend(pushed(&mut masked, beside));
        }
        masked.finish();
        events.extend(ready(&mut masked));
        let joined: String = events
            .iter()
            .filter_map(|event| event.pointer(pointer)?.as_str())
            .collect();
        assert_eq!(joined, spoken.replace(KEY, &"*".repeat(KEY.len())), "{pointer}");
        // All else is as it was, in its place.
        for (number, letter) in spoken.chars().enumerate() {
            let mut expected = event(&letter.to_string());
            let is = &mut events[2 * number];
            *is.pointer_mut(pointer).unwrap() = Value::Null;
            *expected.pointer_mut(pointer).unwrap() = Value::Null;
            assert_eq!(*is, expected);
            assert_eq!(events[2 * number + 1], *beside);
        }
    }
}

#[test]
fn threat_138_when_an_event_comes_says_nothing_of_a_secret() {
    let come = |guess: &str| {
        let mut masked = masked(ModelRoute::Messages);
        let letters: Vec<String> = guess.chars().map(String::from).collect();
        let words = letters.into_iter().chain(vec!["word ".to_owned(); 20]);
        let counts = words.map(|word| pushed(&mut masked, &text(0, &word)).len());
        counts.collect::<Vec<_>>()
    };
    assert_eq!(come("a-live-4"), come("a-live-5"));
    assert_eq!(come("a-live-4"), come("12345678"));
}

#[test]
fn threat_138_what_is_whole_in_one_event_is_masked_wherever_it_stands() {
    let mut masked = masked(ModelRoute::Responses);
    let arguments = json!({ "code": format!("say '{KEY}'") }).to_string();
    let done = json!({"type": "response.function_call_arguments.done", "arguments": arguments, KEY: 1});
    let come = pushed(&mut masked, &done).pop().unwrap().to_string();
    assert!(!come.contains("live"), "{come}");
    let named = RelayEvent {
        name: format!("it is {KEY}"),
        data: format!("no JSON: {KEY}"),
        said: Vec::new(),
    };
    assert!(masked.push(named));
    let come = masked.pop().unwrap();
    assert!(!come.name.contains("live") && !come.data.contains("live"), "{come:?}");
}

#[test]
fn a_text_comes_when_it_is_over() {
    let mut masked = masked(ModelRoute::Messages);
    assert!(pushed(&mut masked, &text(0, "it is a-")).is_empty());
    let stop = json!({"type": "content_block_stop", "index": 0});
    assert_eq!(pushed(&mut masked, &stop), [text(0, "it is a-"), stop]);
    assert!(pushed(&mut masked, &text(1, "more")).is_empty());
    assert!(
        pushed(&mut masked, &text(2, "and more")).len() == 1,
        "a later one has begun"
    );

    let mut masked = self::masked(ModelRoute::ChatCompletions);
    assert!(pushed(&mut masked, &chunk(&json!({"content": "it is"}))).is_empty());
    let end = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
    assert_eq!(pushed(&mut masked, &end).len(), 2);
}

#[test]
fn what_waits_has_an_end() {
    let mut masked = masked(ModelRoute::Messages);
    assert!(pushed(&mut masked, &text(0, "it is")).is_empty());
    let large = RelayEvent {
        name: String::new(),
        data: json!({"type": "ping", "with": "x".repeat(WAITING)}).to_string(),
        said: Vec::new(),
    };
    assert!(!masked.push(large));
}

#[test]
fn where_there_is_no_secret_nothing_waits_or_changes() {
    let mut masked = Masked::new(ModelRoute::Messages, Secrecy::new(Vec::new()).masks());
    let spoken = "{\"type\":\"content_block_delta\", \"delta\":{\"text\":\"a\"} }";
    assert!(masked.push(RelayEvent {
        name: "content_block_delta".to_owned(),
        data: spoken.to_owned(),
        said: Vec::new(),
    }));
    assert_eq!(masked.pop().unwrap().data, spoken);
}
