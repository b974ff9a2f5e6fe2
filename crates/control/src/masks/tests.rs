use std::sync::Arc;

use domain::ToolCallId;
use secret::{Reference, Source, Unresolved};
use serde_json::json;

use super::*;

const KEY: &str = "sk-live-\u{e9}4f+9/x\"y";

/// A secret that somebody changes.
struct Changing {
    now: Mutex<Option<String>>,
    looks: Mutex<u32>,
}

impl Source for Changing {
    fn secret(&self, reference: &Reference) -> Result<Secret, Unresolved> {
        *lock(&self.looks) += 1;
        let now = lock(&self.now).clone();
        now.map(Secret::new)
            .ok_or_else(|| Unresolved::absent(reference, "it was revoked", "set it"))
    }
}

fn secrecy(value: &str) -> (Secrecy, Arc<Changing>) {
    let source = Arc::new(Changing {
        now: Mutex::new(Some(value.to_owned())),
        looks: Mutex::default(),
    });
    let reference = "store:key".parse().unwrap();
    let credential = Credential::asked(reference, Arc::clone(&source) as Arc<dyn Source>);
    (Secrecy::new(vec![credential]), source)
}

fn masks() -> Masks {
    secrecy(KEY).0.masks()
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_changes_is_masked_within_a_second_and_the_one_before_stays_so() {
    let (secrecy, source) = secrecy("the-first-one");
    let first = secrecy.masks();
    assert_eq!(first.text("a the-first-one b".to_owned()), "a ************* b");
    *lock(&source.now) = Some("the-second-one".to_owned());
    assert_eq!(secrecy.masks(), first, "nobody looks at each turn");
    assert_eq!(*lock(&source.looks), 1);
    tokio::time::advance(LOOKED_EVERY).await;
    let second = secrecy.masks();
    assert_ne!(second, first);
    for value in ["the-first-one", "the-second-one"] {
        assert!(second.are_in(value.as_bytes()), "{value}");
    }
    *lock(&source.now) = None;
    tokio::time::advance(LOOKED_EVERY).await;
    assert_eq!(secrecy.masks(), second, "the search is made anew for a change alone");
    assert_eq!(*lock(&source.looks), 3);
}

#[tokio::test]
async fn what_is_too_short_to_be_meant_is_left_alone() {
    let (secrecy, _) = secrecy("ubuntu1");
    assert!(!secrecy.masks().are_in(b"runs on ubuntu1"));
}

#[tokio::test]
async fn threat_138_words_in_pieces_are_whole_texts_without_the_secret() {
    let masks = masks();
    let text = format!("before {KEY} after \u{e9}\u{1f512}");
    let letters: Vec<char> = text.chars().collect();
    for size in 1..letters.len() {
        let mut words = masks.words();
        let mut shown: String = letters
            .chunks(size)
            .map(|piece| words.push(piece.iter().collect()))
            .collect();
        shown.push_str(&words.finish());
        assert_eq!(shown, text.replace(KEY, &"*".repeat(KEY.len())), "by {size}");
        assert_eq!(shown, masks.text(text.clone()));
    }
}

#[tokio::test]
async fn threat_138_no_block_of_a_reply_keeps_a_secret() {
    let call = |input| {
        Block::ToolUse(ToolCall {
            id: ToolCallId("a".to_owned()),
            name: "exec".to_owned(),
            input,
        })
    };
    let thought = |text: &str, item| Block::Thinking {
        text: text.to_owned(),
        signature: Some("sig".to_owned()),
        item,
    };
    let stars = "*".repeat(KEY.len());
    // Within JSON it is spelled longer.
    let escaped = "*".repeat(KEY.len() + 1);
    let said = masks().said(vec![
        Block::Text {
            text: format!("it is {KEY}"),
        },
        call(json!({"code": format!("echo '{KEY}'"), "deep": [{"a": KEY}], "n": 1})),
        call(json!({"code": "harmless", "n": [1, null]})),
        thought(&format!("so {KEY}"), None),
        thought("", Some(json!({"type": "reasoning", "data": KEY}))),
        thought("harmless", Some(json!({"type": "reasoning"}))),
    ]);
    let unsigned = |text: &str| Block::Thinking {
        text: text.to_owned(),
        signature: None,
        item: None,
    };
    assert_eq!(
        said,
        [
            Block::Text {
                text: format!("it is {stars}")
            },
            call(json!({"code": format!("echo '{escaped}'"), "deep": [{"a": escaped}], "n": 1})),
            call(json!({"code": "harmless", "n": [1, null]})),
            unsigned(&format!("so {stars}")),
            unsigned(""),
            thought("harmless", Some(json!({"type": "reasoning"}))),
        ]
    );
}
