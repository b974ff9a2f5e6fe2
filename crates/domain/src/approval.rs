//! Questions to a person: may this be done?

use serde::{Deserialize, Serialize};

/// What a person is asked about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ApprovalKind {
    /// A call of a service's method.
    Service,
    /// A call of a tool.
    Tool,
    /// Connections to a host.
    Egress,
}

impl ApprovalKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Service, Self::Tool, Self::Egress];

    /// The word that stands in the store and in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Tool => "tool",
            Self::Egress => "egress",
        }
    }

    /// The kind of that word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }
}

/// Where an approval stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ApprovalState {
    /// Nobody has answered yet.
    Pending,
    /// It may be done once, and was not yet.
    ApprovedOnce,
    /// Whatever has the same subject may be done in this session.
    ApprovedAlways,
    /// It may not.
    Denied,
    /// It was approved once, and that once is over.
    Used,
    /// Nobody answered in time, or what was approved was not done in time.
    Expired,
    /// What asked has ended.
    Withdrawn,
}

impl ApprovalState {
    /// Every state.
    pub const ALL: [Self; 7] = [
        Self::Pending,
        Self::ApprovedOnce,
        Self::ApprovedAlways,
        Self::Denied,
        Self::Used,
        Self::Expired,
        Self::Withdrawn,
    ];

    /// The word that stands in the store and in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::ApprovedOnce => "approved_once",
            Self::ApprovedAlways => "approved_always",
            Self::Denied => "denied",
            Self::Used => "used",
            Self::Expired => "expired",
            Self::Withdrawn => "withdrawn",
        }
    }

    /// The state of that word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }
}

/// What a person answers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ApprovalAnswer {
    /// Yes, this one time.
    Once,
    /// Yes, whenever the session asks for the same subject.
    Always,
    /// No.
    Deny,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_agree_with_the_store_and_the_api() {
        for state in ApprovalState::ALL {
            assert_eq!(ApprovalState::from_word(state.as_str()), Some(state));
            assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
        }
        for kind in ApprovalKind::ALL {
            assert_eq!(ApprovalKind::from_word(kind.as_str()), Some(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
    }
}
