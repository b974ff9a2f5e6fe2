//! Which of its tools the agent has.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Outcome;
use crate::rules::Verdict;

/// A tool of the agent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tool {
    /// Reads files.
    Read,
    /// Makes files.
    Write,
    /// Changes files.
    Edit,
    /// Runs code, with the services.
    Exec,
    /// Runs programs of a list, without a shell.
    Safebash,
    /// Loads skills.
    Skill,
}

impl Tool {
    /// Every tool.
    pub const ALL: [Self; 6] = [
        Self::Read,
        Self::Write,
        Self::Edit,
        Self::Exec,
        Self::Safebash,
        Self::Skill,
    ];

    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Edit => "edit",
            Self::Exec => "exec",
            Self::Safebash => "safebash",
            Self::Skill => "skill",
        }
    }
}

impl fmt::Display for Tool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl FromStr for Tool {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|tool| tool.as_str() == name).ok_or(())
    }
}

/// The tools that a scope names: `true` and `"allow"`, `"ask"`, `false` and `"deny"`. Where it allows any, or names none,
/// the ones it does not name are denied; where it only asks or denies, they are left to the other layers.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Tools(pub BTreeMap<Tool, Outcome>);

impl Tools {
    /// Every tool.
    #[must_use]
    pub fn all() -> Self {
        Self(Tool::ALL.map(|tool| (tool, Outcome::Allow)).into())
    }

    fn is_list(&self) -> bool {
        self.0.is_empty() || self.0.values().any(|outcome| *outcome == Outcome::Allow)
    }

    pub(crate) fn verdict(&self, name: &str) -> Verdict {
        match name.parse().ok().and_then(|tool: Tool| self.0.get(&tool)) {
            Some(outcome) => Verdict::Ruled(*outcome, name.to_owned()),
            None if self.is_list() => Verdict::Unlisted,
            None => Verdict::Silent,
        }
    }
}

/// What stands behind a tool's name.
#[derive(Deserialize)]
#[serde(untagged, expecting = "write true, false, \"allow\", \"ask\" or \"deny\" for a tool")]
enum Said {
    Flag(bool),
    Word(Outcome),
}

impl Serialize for Tools {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Tools {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let said = BTreeMap::<Tool, Said>::deserialize(deserializer)?;
        let outcome = |said| match said {
            Said::Flag(true) => Outcome::Allow,
            Said::Flag(false) => Outcome::Deny,
            Said::Word(outcome) => outcome,
        };
        Ok(Self(
            said.into_iter().map(|(tool, said)| (tool, outcome(said))).collect(),
        ))
    }
}
