//! What comes of a question.

use serde::{Deserialize, Serialize};

/// What is to happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It may.
    Allow,
    /// A person is asked first.
    Ask,
    /// It may not.
    Deny,
}

impl Outcome {
    /// The word that stands in configurations, events and the audit log.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Ask => "ask",
            Self::Deny => "deny",
        }
    }
}

/// The answer to a question, and why.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Decision {
    /// What is to happen.
    pub outcome: Outcome,
    /// Why, in words for a person.
    pub reason: String,
    /// The layer that decided; empty where none said anything.
    pub layer: String,
    /// The rule in it, for programs and the audit log: `services.deny:crm.delete*`, `services.unlisted`, `services.ungranted`.
    pub rule: String,
}

impl Decision {
    /// Whether it is allowed without asking anybody.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        matches!(self.outcome, Outcome::Allow)
    }
}

/// What each layer said to a question, and what came of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Explanation {
    /// The question, as it is written.
    pub question: String,
    /// Layer by layer, in their order.
    pub layers: Vec<Seen>,
    /// What came of it.
    pub decision: Decision,
}

/// What one layer said.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Seen {
    /// The layer.
    pub layer: String,
    /// What it said; nothing where it leaves the question to the others.
    pub outcome: Option<Outcome>,
    /// Why, in words for a person.
    pub reason: String,
}
