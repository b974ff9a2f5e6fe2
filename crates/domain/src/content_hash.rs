//! What names a piece of a file.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Names bytes by their SHA-256: 64 hexadecimal digits in lower case. A plain word, good as the name of a file or an object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ContentHash(pub [u8; 32]);

/// A text that should be the hash of a content and is not.
#[derive(Debug, thiserror::Error)]
#[error("{text:?} is not the hash of a content: that is 64 hexadecimal digits in lower case")]
pub struct ParseContentHashError {
    text: String,
}

impl fmt::Display for ContentHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self}")
    }
}

impl FromStr for ContentHash {
    type Err = ParseContentHashError;

    fn from_str(text: &str) -> Result<Self, ParseContentHashError> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let parse = || {
            let mut hash = [0; 32];
            if text.len() != 64 {
                return None;
            }
            for (byte, pair) in hash.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
                *byte = digit(pair[0])? << 4 | digit(pair[1])?;
            }
            Some(Self(hash))
        };
        parse().ok_or_else(|| ParseContentHashError {
            text: text.chars().take(100).collect(),
        })
    }
}

impl TryFrom<String> for ContentHash {
    type Error = ParseContentHashError;

    fn try_from(text: String) -> Result<Self, ParseContentHashError> {
        text.parse()
    }
}

impl From<ContentHash> for String {
    fn from(hash: ContentHash) -> Self {
        hash.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_never_a_path() {
        let hash = ContentHash([0xa5; 32]);
        assert_eq!(hash.to_string(), "a5".repeat(32));
        assert_eq!(hash.to_string().parse::<ContentHash>().expect("it is one"), hash);
        for text in ["", "../../etc", &"A5".repeat(32), &"a5".repeat(33), &"é".repeat(32)] {
            assert!(text.parse::<ContentHash>().is_err(), "{text}");
        }
    }
}
