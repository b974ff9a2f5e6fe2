//! Too much output is cut from the middle: the beginning says what it is, the end how it went.

use domain::{ResultPart, ToolResult};

/// Cuts the words of a result so that they fill at most `limit` bytes together, and says how much is missing and where.
/// Pictures are left alone. What already fits is not touched, so cutting twice changes nothing.
pub fn cut_result(result: &mut ToolResult, limit: usize) {
    let mut left = limit;
    for part in &mut result.content {
        if let ResultPart::Text { text } = part {
            if text.len() > left {
                *text = cut_middle(text, left);
            }
            left = left.saturating_sub(text.len());
        }
    }
}

/// The text in at most `limit` bytes: its beginning, a line that says how many bytes were left out, its end.
#[must_use]
pub fn cut_middle(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let note = |missing: usize| format!("\n[… {missing} bytes left out …]\n");
    // The note for the whole text is the longest there can be.
    let Some(room) = limit.checked_sub(note(text.len()).len()) else {
        return text[..text.floor_char_boundary(limit)].to_owned();
    };
    let head = &text[..text.floor_char_boundary(room / 2)];
    let tail = &text[text.ceil_char_boundary(text.len() - (room - room / 2))..];
    let missing = text.len() - head.len() - tail.len();
    format!("{head}{}{tail}", note(missing))
}

#[cfg(test)]
mod tests {
    use domain::ToolCallId;

    use super::*;

    #[test]
    fn both_ends_stay_and_the_cut_is_told() {
        let text = format!("begin {} end", "x".repeat(1_000));
        let cut = cut_middle(&text, 100);
        assert!(cut.len() <= 100, "{}", cut.len());
        assert!(cut.starts_with("begin x") && cut.ends_with("x end"), "{cut}");
        assert!(cut.contains("bytes left out"), "{cut}");
    }

    #[test]
    fn a_letter_is_never_parted() {
        let text = "ä".repeat(500);
        for limit in 0..200 {
            let cut = cut_middle(&text, limit);
            assert!(cut.len() <= limit, "{limit}: {}", cut.len());
        }
    }

    #[test]
    fn all_parts_share_one_limit_and_cutting_twice_changes_nothing() {
        let part = |text: String| ResultPart::Text { text };
        let mut result = ToolResult {
            id: ToolCallId("c".into()),
            content: vec![part("a".repeat(60)), part("b".repeat(500)), part("c".repeat(9))],
            is_error: false,
        };
        cut_result(&mut result, 200);
        let length = |part: &ResultPart| match part {
            ResultPart::Text { text } => text.len(),
            ResultPart::Image(_) => 0,
        };
        assert!(result.content.iter().map(length).sum::<usize>() <= 200);
        let once = result.clone();
        cut_result(&mut result, 200);
        assert_eq!(result, once);
    }
}
