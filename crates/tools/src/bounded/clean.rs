//! Bytes of a program become text without terminal codes.

/// Decodes an output piece by piece and takes out what would steer a terminal: escape sequences (colours, cursor, titles,
/// hyperlinks) and control characters. A bare carriage return becomes a line's end.
#[derive(Debug, Default)]
pub(crate) struct Cleaner {
    /// The bytes of a character whose end has not come yet.
    partial: Vec<u8>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    #[default]
    Text,
    /// After a carriage return.
    Return,
    /// After ESC.
    Escape,
    /// Within `ESC [`.
    Control,
    /// Within a string (OSC, DCS, SOS, PM, APC), that ends with BEL or `ESC \`.
    String,
    /// After ESC within a string.
    StringEscape,
}

impl Cleaner {
    /// Takes more; answers with what can be shown of it.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> String {
        let mut text = String::with_capacity(bytes.len());
        let mut pending = std::mem::take(&mut self.partial);
        pending.extend_from_slice(bytes);
        let mut chunks = pending.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            for c in chunk.valid().chars() {
                self.take(c, &mut text);
            }
            let invalid = chunk.invalid();
            if invalid.is_empty() {
                continue;
            }
            if chunks.peek().is_none() && may_go_on(invalid) {
                self.partial = invalid.to_vec();
            } else {
                self.take(char::REPLACEMENT_CHARACTER, &mut text);
            }
        }
        text
    }

    /// What was still open when the output ended.
    pub(crate) fn finish(&mut self) -> String {
        let mut text = String::new();
        if self.state == State::Return {
            text.push('\n');
        }
        if !self.partial.is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
        }
        *self = Self::default();
        text
    }

    fn take(&mut self, c: char, text: &mut String) {
        self.state = match (self.state, c) {
            (State::Text, '\x1b') => State::Escape,
            (State::Text, '\r') => State::Return,
            (State::Text, '\u{9b}') => State::Control,
            (State::Text, '\u{90}' | '\u{98}' | '\u{9d}' | '\u{9e}' | '\u{9f}') => State::String,
            (State::Text, c) => {
                if c == '\n' || c == '\t' || !c.is_control() {
                    text.push(c);
                }
                State::Text
            }
            (State::Return, '\r') => State::Return,
            (State::Return, c) => {
                text.push('\n');
                self.state = State::Text;
                if c != '\n' {
                    self.take(c, text);
                }
                self.state
            }
            (State::Escape, '[') => State::Control,
            (State::Escape, ']' | 'P' | 'X' | '^' | '_') => State::String,
            // Intermediate bytes, as in `ESC ( B`.
            (State::Escape, ' '..='/' | '\x1b') => State::Escape,
            (State::Control, ' '..='?') => State::Control,
            (State::String, '\x1b') => State::StringEscape,
            (State::StringEscape, '\x1b') => State::StringEscape,
            (State::String, '\x07' | '\u{9c}') | (State::StringEscape, '\\') => State::Text,
            // A sequence that is broken off swallows no line after it.
            (_, '\n') => {
                text.push('\n');
                State::Text
            }
            (State::String | State::StringEscape, _) => State::String,
            (State::Escape | State::Control, _) => State::Text,
        };
    }
}

/// Whether these bytes may be the beginning of a character.
fn may_go_on(bytes: &[u8]) -> bool {
    let length = match bytes[0] {
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => return false,
    };
    bytes.len() < length
}
