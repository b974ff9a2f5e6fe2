//! Untrusted text made harmless.
//!
//! A model, a tool or a web page may have written it. What would command a terminal (escape sequences, links, titles) or
//! turn the reading direction is made visible, character by character, so that nothing depends on where a stream was cut.

use std::borrow::Cow;

/// The text as it may be written to a terminal: line feeds and tabs stay, every other control character becomes its picture
/// (`␛`), and characters that hide or reorder others become `�`.
#[must_use]
pub fn harmless(text: &str) -> Cow<'_, str> {
    if text.chars().all(|letter| shown(letter) == letter) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().map(shown).collect())
}

/// The first line of a text, harmless, at most `most` characters long.
pub(crate) fn one_line(text: &str, most: usize) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    let mut shortened: String = harmless(line).replace('\t', " ");
    if shortened.chars().count() > most {
        shortened = shortened.chars().take(most.saturating_sub(1)).collect();
        shortened.push('…');
    }
    shortened
}

fn shown(letter: char) -> char {
    match letter {
        '\n' | '\t' => letter,
        '\0'..='\u{1f}' => char::from_u32(0x2400 + u32::from(letter)).unwrap_or('\u{fffd}'),
        '\u{7f}' => '\u{2421}',
        // C1 controls; marks, embeddings and isolates of the reading direction; separators; invisible operators and tags.
        '\u{80}'..='\u{9f}'
        | '\u{61c}'
        | '\u{200e}'
        | '\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e007f}' => '\u{fffd}',
        _ => letter,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threat_115_escapes_and_terminal_links_become_visible() {
        let attacks = [
            "\u{1b}[31mred\u{1b}[0m",
            "\u{1b}]8;;http://evil.example/?d=1\u{1b}\\click\u{1b}]8;;\u{7}",
            "\u{1b}]0;title\u{7}",
            "\u{9b}2J",
            "safe\rover",
            "back\u{8}\u{8}",
            "\u{202e}txt.exe",
            "\u{2066}a\u{2069}",
            "\u{e0041}",
        ];
        for attack in attacks {
            let shown = harmless(attack);
            assert!(!shown.chars().any(char::is_control), "{attack:?} became {shown:?}");
            assert!(
                !shown.contains(['\u{202e}', '\u{2066}', '\u{2069}', '\u{e0041}']),
                "{attack:?} became {shown:?}"
            );
        }
        assert_eq!(
            harmless(attacks[1]).matches("http://evil.example/?d=1").count(),
            1,
            "where a link leads is shown"
        );
    }

    #[test]
    fn honest_text_stays_as_it_is() {
        for text in [
            "two\nlines\twith a tab",
            "Grüße, 世界, 🙂, e\u{301}",
            "👨\u{200d}👩\u{200d}👧",
        ] {
            assert!(matches!(harmless(text), Cow::Borrowed(same) if same == text));
        }
    }

    #[test]
    fn a_line_is_short_and_single() {
        assert_eq!(one_line("  first\tline\nsecond", 40), "first line");
        assert_eq!(one_line("0123456789", 5), "0123…");
    }
}
