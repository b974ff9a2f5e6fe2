//! Bounds of tokens.

use domain::{Block, Image, ResultPart, Role, ToolCallId, ToolResult};
use llm::{
    CacheMarks, ChatLimit, Format, Head, Opening, Thinking, Thoughts, count_text, encode_message, head_bound,
    message_bound,
};
use protocol::ToolChoice;

use crate::encode::{message, text};

#[test]
fn words_are_bounded_by_their_bytes() {
    let message = message(Role::User, vec![text("Grüße \"you\"")]);
    for format in Format::ALL {
        let encoded = encode_message(format, Thoughts::Drop, &message);
        let bound = message_bound(format, &message, &encoded);
        assert_eq!(bound, encoded.len() as u64);
        assert!(bound > "Grüße \"you\"".len() as u64);
    }
}

#[test]
fn a_picture_is_bounded_by_formula_and_not_by_its_bytes() {
    let image = Image {
        media_type: "image/png".to_owned(),
        data: "A".repeat(1_000_000),
    };
    let result = ToolResult {
        id: ToolCallId("call_1".to_owned()),
        content: vec![ResultPart::Image(image.clone())],
        is_error: false,
    };
    let message = message(Role::User, vec![Block::ToolResult(result), Block::Image(image)]);
    for format in Format::ALL {
        let encoded = encode_message(format, Thoughts::Drop, &message);
        let bound = message_bound(format, &message, &encoded);
        assert!((9_568..100_000).contains(&bound), "{format:?}: {bound}");
    }
}

/// 100,000 tokens that the cache knew hide behind a small request (dario PR#1378): what is bounded is what the model reads.
#[test]
fn threat_131_a_bound_covers_all_that_the_model_reads() {
    let system = "word ".repeat(100_000);
    for format in Format::ALL {
        let head = Head {
            opening: &Opening::new(format, "m", &system, &[], CacheMarks::Hour),
            tool_choice: &ToolChoice::Auto,
            max_tokens: 1,
            chat_limit: ChatLimit::MaxTokens,
            thinking: Thinking::Default,
        };
        assert!(head_bound(&head) >= system.len() as u64);
    }
}

#[test]
fn our_own_count_is_rather_too_high() {
    assert_eq!(count_text(""), 0);
    // Ten tokens by the tokenizers of the large providers.
    assert!(count_text("The quick brown fox jumps over the lazy dog.") >= 10);
    assert_eq!(count_text("日本語"), 3);
}
