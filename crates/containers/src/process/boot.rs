//! Which start of the machine it is.

use std::fs;
use std::num::ParseIntError;
use std::str::FromStr;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

/// What the kernel calls a start of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Boot(u128);

impl Boot {
    /// The one since which the machine runs; none where the kernel does not say.
    pub(crate) fn now() -> Option<Self> {
        static NOW: LazyLock<Option<Boot>> =
            LazyLock::new(|| fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.parse().ok());
        *NOW
    }
}

impl FromStr for Boot {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        u128::from_str_radix(&text.trim().replace('-', ""), 16).map(Self)
    }
}

impl TryFrom<String> for Boot {
    type Error = ParseIntError;

    fn try_from(text: String) -> Result<Self, ParseIntError> {
        text.parse()
    }
}

impl From<Boot> for String {
    fn from(boot: Boot) -> Self {
        format!("{:032x}", boot.0)
    }
}
