//! Both sides say first what they speak.

use serde::{Deserialize, Serialize};

/// The protocol that this build speaks; it also understands the one before.
pub const PROTOCOL: u32 = 3;

/// The first line of each side.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// The protocol's number.
    pub protocol: u32,
    /// The program's version, for people.
    pub build: String,
}

/// The two sides cannot understand each other.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the other side (build {build}) speaks protocol {theirs}, this one speaks {PROTOCOL} and the one before: \
     run the same release of Belljar on both sides"
)]
pub struct VersionError {
    build: String,
    theirs: u32,
}

impl Hello {
    /// What this build says of itself.
    #[must_use]
    pub fn ours() -> Self {
        Self {
            protocol: PROTOCOL,
            build: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// What this build says to a side that said this: an older one is answered in what it understands. A runtime whose control
    /// plane answers with less than it said comes again, and says that.
    #[must_use]
    pub fn answering(other: &Self) -> Self {
        Self {
            protocol: PROTOCOL.min(other.protocol),
            ..Self::ours()
        }
    }

    /// Whether this build understands a side that said this.
    ///
    /// # Errors
    /// When the other side is older than the protocol before ours, or newer than ours.
    pub fn check(&self) -> Result<(), VersionError> {
        if self.protocol <= PROTOCOL && self.protocol + 1 >= PROTOCOL {
            return Ok(());
        }
        Err(VersionError {
            build: self.build.chars().take(40).collect(),
            theirs: self.protocol,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_protocol_before_is_understood_and_no_other() {
        let hello = |protocol| Hello {
            protocol,
            build: "x".into(),
        };
        let speaks = |protocol| hello(protocol).check().is_ok();
        assert!(speaks(PROTOCOL) && speaks(PROTOCOL - 1));
        assert!(!speaks(PROTOCOL + 1));
        let answered = |protocol| Hello::answering(&hello(protocol)).protocol;
        assert_eq!(answered(PROTOCOL - 1), PROTOCOL - 1);
        assert_eq!(answered(PROTOCOL + 1), PROTOCOL);
    }
}
