//! How a session is found.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The way by which a prompt came.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Door {
    /// The HTTP API and the web page.
    Api,
    /// The command line.
    Cli,
    /// Slack.
    Slack,
    /// An event from outside.
    Webhook,
    /// A time that came.
    Schedule,
}

impl Door {
    /// The word that stands in the store and in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Cli => "cli",
            Self::Slack => "slack",
            Self::Webhook => "webhook",
            Self::Schedule => "schedule",
        }
    }
}

/// What the outside calls a session: a Slack thread, a delivery's id, a name that a person chose. At most 200 bytes of
/// printable text; unique for its owner, whichever door it came by.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(value_type = String, max_length = 200))]
#[serde(try_from = "String", into = "String")]
pub struct ExternalKey(String);

impl ExternalKey {
    /// The longest key, in bytes.
    pub const LONGEST: usize = 200;

    /// The key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ExternalKey {
    type Error = String;

    fn try_from(key: String) -> Result<Self, String> {
        if key.is_empty() || key.len() > Self::LONGEST || key.chars().any(char::is_control) {
            return Err(format!(
                "a session's key is 1 to {} bytes of printable text",
                Self::LONGEST
            ));
        }
        Ok(Self(key))
    }
}

impl From<ExternalKey> for String {
    fn from(key: ExternalKey) -> Self {
        key.0
    }
}

impl fmt::Display for ExternalKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}
