//! What a sandbox should be.

use std::fmt;
use std::str::FromStr;

use domain::{SandboxId, SessionId};
use serde::{Deserialize, Serialize};

use crate::ProviderError;

/// A sandbox that is wanted. It names things and holds numbers: no path, no mount, no command line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SandboxSpec {
    /// Its name; used once.
    pub id: SandboxId,
    /// Whose disk it has.
    pub session: SessionId,
    /// What it is made from.
    pub image: ImageDigest,
    /// What it may take.
    #[serde(default)]
    pub limits: Limits,
    /// It is made to build: what it has below [`crate::inside::KNOWLEDGE`] may become an image. It is never given away.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub builder: bool,
}

/// What a sandbox may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Thousandths of a processor.
    pub cpu_millis: u32,
    /// Memory, the kernel's on its behalf and its temporary files included. There is no swap.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub pids: u32,
    /// What it may write to disk: the workspace and every changed file of the image together.
    pub disk_bytes: u64,
}

/// What an installation gives that says nothing else; the program's own configuration says the same.
impl Default for Limits {
    fn default() -> Self {
        Self {
            cpu_millis: 2_000,
            memory_bytes: 2 << 30,
            pids: 1_024,
            disk_bytes: 10 << 30,
        }
    }
}

impl Limits {
    /// The least that a sandbox can live on.
    pub const LEAST: Self = Self {
        cpu_millis: 10,
        memory_bytes: 16 << 20,
        pids: 8,
        disk_bytes: 32 << 20,
    };

    /// The most that anybody can mean seriously.
    pub const MOST: Self = Self {
        cpu_millis: 1_024_000,
        memory_bytes: 16 << 40,
        pids: 1 << 20,
        disk_bytes: 64 << 40,
    };

    /// Refuses what makes no sense.
    ///
    /// # Errors
    /// [`ProviderError::Limit`], which names the limit and its bounds.
    pub fn check(&self) -> Result<(), ProviderError> {
        let within = |what: &str, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(ProviderError::Limit(format!(
                "{what} of a sandbox must be between {least} and {most}, not {value}"
            )))
        };
        let (least, most) = (Self::LEAST, Self::MOST);
        within(
            "cpu_millis",
            self.cpu_millis.into(),
            least.cpu_millis.into(),
            most.cpu_millis.into(),
        )?;
        within("memory_bytes", self.memory_bytes, least.memory_bytes, most.memory_bytes)?;
        within("pids", self.pids.into(), least.pids.into(), most.pids.into())?;
        within("disk_bytes", self.disk_bytes, least.disk_bytes, most.disk_bytes)
    }
}

/// Names an image by its content: 64 hexadecimal digits of SHA-256 in lower case. A plain word, good as the name of a folder.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ImageDigest(String);

impl ImageDigest {
    /// The digest of these 32 bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A text that should be an image's digest and is not.
#[derive(Debug, thiserror::Error)]
#[error("{text:?} is not the digest of an image: that is 64 hexadecimal digits in lower case")]
pub struct ParseDigestError {
    text: String,
}

impl FromStr for ImageDigest {
    type Err = ParseDigestError;

    fn from_str(text: &str) -> Result<Self, ParseDigestError> {
        if text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return Ok(Self(text.to_owned()));
        }
        Err(ParseDigestError {
            text: text.chars().take(100).collect(),
        })
    }
}

impl TryFrom<String> for ImageDigest {
    type Error = ParseDigestError;

    fn try_from(text: String) -> Result<Self, ParseDigestError> {
        text.parse()
    }
}

impl From<ImageDigest> for String {
    fn from(digest: ImageDigest) -> Self {
        digest.0
    }
}

impl fmt::Display for ImageDigest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl fmt::Debug for ImageDigest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_never_a_path() {
        let digest = ImageDigest::from_bytes([0xa5; 32]);
        assert_eq!(digest.as_str(), "a5".repeat(32));
        assert_eq!(digest.to_string().parse::<ImageDigest>().unwrap(), digest);
        for text in [
            "",
            "../../etc",
            &"A5".repeat(32),
            &"a5".repeat(33),
            &format!("sha256:{}", "a5".repeat(32)),
        ] {
            assert!(text.parse::<ImageDigest>().is_err(), "{text}");
        }
    }

    #[test]
    fn absurd_limits_are_refused_by_name() {
        Limits::default().check().unwrap();
        Limits::LEAST.check().unwrap();
        Limits::MOST.check().unwrap();
        let error = Limits {
            pids: 0,
            ..Limits::default()
        }
        .check()
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            "pids of a sandbox must be between 8 and 1048576, not 0"
        );
        for absurd in [
            Limits {
                cpu_millis: 0,
                ..Limits::default()
            },
            Limits {
                memory_bytes: 1,
                ..Limits::default()
            },
            Limits {
                disk_bytes: u64::MAX,
                ..Limits::default()
            },
        ] {
            assert!(matches!(absurd.check(), Err(ProviderError::Limit(_))), "{absurd:?}");
        }
    }
}
