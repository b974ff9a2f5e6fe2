//! A key of a JSON body that asks for another method, as some frameworks take it from there too (threat 32).

/// The key, between its quotes.
const KEY: &[u8] = b"_method";

/// Looks for the key in JSON that comes in pieces, in whatever way its letters are written.
#[derive(Debug, Default)]
pub(super) struct MethodKey {
    place: Place,
}

/// How much of it has come.
#[derive(Clone, Copy, Default, Debug)]
enum Place {
    #[default]
    Outside,
    /// So many letters.
    Letters(usize),
    /// So many letters, and so much of one that is written by its number: the characters of the escape, and what they say.
    Escape(usize, usize, u32),
    /// The closing quote; what follows says whether it was a key.
    Closed,
}

impl MethodKey {
    /// Whether it has come.
    pub(super) fn found(&mut self, piece: &[u8]) -> bool {
        piece.iter().any(|byte| self.take(*byte))
    }

    fn take(&mut self, byte: u8) -> bool {
        let letter = |count: usize, letter: u32| match KEY.get(count) {
            Some(expected) if u32::from(*expected) == letter => Place::Letters(count + 1),
            _ => Place::Outside,
        };
        self.place = match (self.place, byte) {
            (Place::Closed, b' ' | b'\t' | b'\r' | b'\n') => Place::Closed,
            // UTF-16 and UTF-32 have such bytes between their letters, and JSON in UTF-8 has none.
            (place, 0) => place,
            // Some read over comments.
            (Place::Closed, b':' | b'/') => return true,
            (Place::Letters(count), b'"') if count == KEY.len() => Place::Closed,
            (_, b'"') => Place::Letters(0),
            (Place::Letters(count), b'\\') => Place::Escape(count, 0, 0),
            (Place::Letters(count), byte) => letter(count, byte.into()),
            (Place::Escape(count, 0, _), b'u') => Place::Escape(count, 1, 0),
            // Some read over a backslash that nothing needs.
            (Place::Escape(count, 0, _), byte) if !b"/bfnrt".contains(&byte) => letter(count, byte.into()),
            (Place::Escape(count, so_far @ 1..=4, said), byte) => match char::from(byte).to_digit(16) {
                Some(digit) if so_far == 4 => letter(count, said << 4 | digit),
                Some(digit) => Place::Escape(count, so_far + 1, said << 4 | digit),
                None => Place::Outside,
            },
            (Place::Outside | Place::Escape(..) | Place::Closed, _) => Place::Outside,
        };
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finds(text: &str) -> bool {
        let whole = MethodKey::default().found(text.as_bytes());
        let mut pieces = MethodKey::default();
        let in_pieces = text.as_bytes().chunks(1).any(|piece| pieces.found(piece));
        assert_eq!(whole, in_pieces, "{text}");
        whole
    }

    #[test]
    fn the_key_is_found_however_it_is_written_and_nothing_else_is() {
        for text in [
            r#"{"_method":"DELETE"}"#,
            "{\"a\": 1, \"_method\" \n: \"PUT\"}",
            r#"{"\u005fmethod":"DELETE"}"#,
            r#"{"_\u006D\u0065thod":"DELETE"}"#,
            r#"[{"a":{"_method":1}}]"#,
            r#"{"a":"\"","_method":1}"#,
            r#"{"_method"/**/:"DELETE"}"#,
            r#"{"\_method":"DELETE"}"#,
        ] {
            assert!(finds(text), "{text}");
            let utf16: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
            assert!(MethodKey::default().found(&utf16), "{text}");
        }
        for text in [
            r#"{"method":"DELETE"}"#,
            r#"{"a_method":1,"_methods":2,"_metho":3}"#,
            r#"{"a":"_method"}"#,
            r#"["_method","b"]"#,
            r#"{"a":"say \"_method\": x"}"#,
            r#"{"\u005emethod":1,"\n_method":2}"#,
            "_method=DELETE",
        ] {
            assert!(!finds(text), "{text}");
        }
    }
}
