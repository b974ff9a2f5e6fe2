//! How far a watcher has seen.

use std::fmt;
use std::str::FromStr;

use domain::EventNumber;

/// How far a watcher has seen: every durable event up to `number`, and of the message that is open behind it so many bytes.
///
/// As text, which is the id of a server-sent event, `number`, `number:text` or `number:text:thinking`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Position {
    /// The last durable event that was seen; 0 for none.
    pub number: EventNumber,
    /// Bytes of the open message's text that were seen.
    pub text: u64,
    /// Bytes of the open message's thinking that were seen.
    pub thinking: u64,
}

/// A text that is no position.
#[derive(Debug, thiserror::Error)]
#[error("{text:?} is not the id of an event: that looks like 17 or 17:250")]
pub struct ParsePositionError {
    text: String,
}

impl From<EventNumber> for Position {
    fn from(number: EventNumber) -> Self {
        Self {
            number,
            ..Self::default()
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self {
                number,
                text: 0,
                thinking: 0,
            } => write!(formatter, "{number}"),
            Self {
                number,
                text,
                thinking: 0,
            } => write!(formatter, "{number}:{text}"),
            Self { number, text, thinking } => write!(formatter, "{number}:{text}:{thinking}"),
        }
    }
}

impl FromStr for Position {
    type Err = ParsePositionError;

    fn from_str(text: &str) -> Result<Self, ParsePositionError> {
        let mut parts = text.split(':');
        let mut next = || parts.next().map(|part| part.parse::<u32>().map(u64::from));
        let parsed = (|| {
            let number = next()?.ok()?;
            let text = next().unwrap_or(Ok(0)).ok()?;
            let thinking = next().unwrap_or(Ok(0)).ok()?;
            next().is_none().then_some(Self {
                number: i64::try_from(number).ok()?,
                text,
                thinking,
            })
        })();
        parsed.ok_or_else(|| ParsePositionError {
            text: text.chars().take(80).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_survive_text() {
        for text in ["0", "17", "17:250", "17:0:9", "17:250:9"] {
            assert_eq!(text.parse::<Position>().unwrap().to_string(), text);
        }
        for text in ["", "-1", "1:", "1:2:3:4", "x", "1:-2", "99999999999999"] {
            assert!(text.parse::<Position>().is_err(), "{text}");
        }
    }
}
