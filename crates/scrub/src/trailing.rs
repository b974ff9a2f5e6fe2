//! A text in pieces, and whoever hears it chooses what is said.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::{MASK, Spellings};

/// Masks secrets in a text that comes in pieces. Each letter is given when as many have come after it as a spelling has, whatever
/// they are: to hold back only what a secret begins with would tell, letter by letter, how it goes on.
pub struct Trailing {
    spellings: Option<Arc<Spellings>>,
    held: BytesMut,
}

impl Trailing {
    pub(crate) fn new(spellings: Option<Arc<Spellings>>) -> Self {
        Self {
            spellings,
            held: BytesMut::new(),
        }
    }

    /// Takes a piece of text and gives what has waited for long enough; whole letters.
    pub fn push(&mut self, piece: Bytes) -> Bytes {
        let Some(spellings) = self.spellings.clone() else {
            return piece;
        };
        self.held.extend_from_slice(&piece);
        let mut certain = (self.held.len() + 1).saturating_sub(spellings.longest);
        while certain > 0 && is_within_letter(&self.held, certain) {
            certain -= 1;
        }
        mask(&spellings, &mut self.held, certain);
        self.held.split_to(certain).freeze()
    }

    /// Gives what is left at the text's end. After it this is as new.
    pub fn finish(&mut self) -> Bytes {
        let mut rest = std::mem::take(&mut self.held);
        if let Some(spellings) = &self.spellings {
            let end = rest.len();
            mask(spellings, &mut rest, end);
        }
        rest.freeze()
    }
}

/// Whether a letter of more than one byte has begun before this place and goes on there.
fn is_within_letter(text: &[u8], place: usize) -> bool {
    text.get(place).is_some_and(|byte| byte & 0b1100_0000 == 0b1000_0000)
}

/// Masks what begins before `end`: all of it has come.
fn mask(spellings: &Spellings, text: &mut [u8], end: usize) {
    let mut place = 0;
    while let Some(found) = spellings.find(text, place)
        && found.start < end
    {
        text[found.start..found.end].fill(MASK);
        place = found.end;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use secret::Secret;

    use super::*;
    use crate::{PART, Scrub};

    /// What is given after each letter, and at the end.
    fn given(scrub: &Scrub, text: &str) -> Vec<String> {
        let mut trailing = scrub.trailing();
        let letters = text.chars().map(|letter| Bytes::from(letter.to_string()));
        let mut given: Vec<Bytes> = letters.map(|letter| trailing.push(letter)).collect();
        given.push(trailing.finish());
        given
            .iter()
            .map(|bytes| String::from_utf8(bytes.to_vec()).unwrap())
            .collect()
    }

    #[test]
    fn a_secret_in_pieces_is_masked_and_all_else_is_given() {
        let secrets = [
            Secret::new("sk-live-4f9"),
            Secret::new("sk-live-4f9-and-more"),
            Secret::new("\u{e9}\u{e9}-key-1"),
        ];
        let scrub = Scrub::of_parts(&secrets);
        for (text, expected) in [
            ("it is sk-live-4f9.", "it is ***********."),
            ("sk-live-4f9-and-more \u{e9}", "******************** \u{e9}"),
            ("sk-live-4f9-and-sk-live-4f9", "***********-and-***********"),
            ("\u{e9}\u{e9}\u{e9}-key-1\u{e9}", "\u{e9}**********\u{e9}"),
            ("sk-live-4f", "sk-live-4f"),
        ] {
            assert_eq!(given(&scrub, text).concat(), expected, "{text}");
        }
    }

    #[test]
    fn when_a_letter_is_given_says_nothing_of_a_secret() {
        let scrub = Scrub::of_parts(&[Secret::new("sk-live-4f9+x/y")]);
        let padding = ".".repeat(100);
        let lengths = |text: &str| -> Vec<usize> {
            let given = given(&scrub, &format!("{padding}{text}{padding}"));
            given.iter().map(String::len).collect()
        };
        let wrong = lengths("sk-live-0");
        assert_eq!(lengths("sk-live-4"), wrong);
        assert_eq!(lengths("........."), wrong);
    }

    #[test]
    fn of_a_long_secret_no_part_is_given_and_little_is_held_back() {
        let mut number = 7_u32;
        let letter = |_| {
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            char::from(b'A' + (number >> 24) as u8 % 26)
        };
        let long: String = (0..3_000).map(letter).collect();
        let scrub = Scrub::of_parts(&[Secret::new(long.as_str())]);
        let given = given(&scrub, &format!("it is {long}, said I{}", ".".repeat(1_000)));
        assert!(
            given
                .concat()
                .starts_with(&format!("it is {}, said I..", "*".repeat(long.len())))
        );
        assert!(given.last().unwrap().len() < 4 * PART);
    }
}
