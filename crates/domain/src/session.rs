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

impl Door {
    /// Every door.
    pub const ALL: [Self; 5] = [Self::Api, Self::Cli, Self::Slack, Self::Webhook, Self::Schedule];
}

/// What caused a run: the door by which its prompt came, and a name where the door has one (a token's label, a webhook, a
/// schedule). As a text `api:nightly`, or the door alone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Trigger(String);

impl Trigger {
    /// A prompt that came by this door, under this name.
    #[must_use]
    pub fn new(door: Door, name: Option<&str>) -> Self {
        Self(match name {
            Some(name) => format!("{}:{name}", door.as_str()),
            None => door.as_str().to_owned(),
        })
    }

    /// As it was stored.
    #[must_use]
    pub const fn stored(text: String) -> Self {
        Self(text)
    }

    /// The trigger as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a pattern means it: `*` stands for anything, and a pattern without a colon for every name at its door. Whoever
    /// comes over HTTP says themselves whether they are a program or the command line, so what is said of one means the other.
    #[must_use]
    pub fn is(&self, pattern: &str) -> bool {
        let (door, name) = self.parts();
        let doors: &[&str] = if CLIENTS.contains(&door) { &CLIENTS } else { &[door] };
        doors.iter().any(|door| match name {
            Some(name) if pattern.contains(':') => means(pattern, &format!("{door}:{name}")),
            _ => means(pattern, door),
        })
    }

    /// Whether every cap means both or neither.
    #[must_use]
    pub fn pays_as(&self, other: &Self) -> bool {
        let ((door, name), (other, named)) = (self.parts(), other.parts());
        name == named && (door == other || [door, other].iter().all(|door| CLIENTS.contains(door)))
    }

    fn parts(&self) -> (&str, Option<&str>) {
        match self.0.split_once(':') {
            Some((door, name)) => (door, Some(name)),
            None => (&self.0, None),
        }
    }
}

/// The doors among which whoever comes over HTTP chooses.
const CLIENTS: [&str; 2] = [Door::Api.as_str(), Door::Cli.as_str()];

/// Whether a pattern, in which each `*` stands for any characters, means all of a text.
#[must_use]
pub fn means(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, between)) = parts.split_last() else {
        return rest.is_empty();
    };
    for part in between {
        match rest.find(part) {
            Some(place) => rest = &rest[place + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

impl fmt::Display for Trigger {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_means_a_trigger_by_its_door_and_name() {
        let nightly = Trigger::new(Door::Api, Some("nightly"));
        assert_eq!(nightly.as_str(), "api:nightly");
        for pattern in [
            "api",
            "api:nightly",
            "api:*",
            "*",
            "*:nightly",
            "a*:n*y",
            "*:*",
            "a*",
            "api:*night*",
        ] {
            assert!(nightly.is(pattern), "{pattern}");
        }
        for pattern in [
            "",
            "ap",
            "slack",
            "api:",
            "api:night",
            "nightly",
            "*:night",
            "api:x*",
            "*x*",
            "api:nightly*y",
        ] {
            assert!(!nightly.is(pattern), "{pattern}");
        }
        for door in [Door::Api, Door::Cli] {
            let trigger = Trigger::new(door, Some("nightly"));
            for pattern in ["api", "cli", "api:nightly", "cli:nightly", "cli:*"] {
                assert!(
                    trigger.is(pattern),
                    "{trigger}: {pattern}: who comes over HTTP says which of them it is"
                );
            }
            assert!(trigger.pays_as(&nightly) && nightly.pays_as(&trigger));
        }
        for other in [
            Trigger::new(Door::Api, Some("other")),
            Trigger::new(Door::Api, None),
            Trigger::new(Door::Slack, Some("nightly")),
        ] {
            assert!(!other.pays_as(&nightly), "{other}");
        }
        let alone = Trigger::new(Door::Cli, None);
        assert!(alone.is("cli") && alone.is("*") && !alone.is("cli:*"));
        let odd = Trigger::new(Door::Webhook, Some("a:b"));
        assert!(odd.is("webhook") && odd.is("webhook:a:b") && odd.is("webhook:*") && !odd.is("webhook:a"));
    }
}
