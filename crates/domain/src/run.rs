//! A run's states, and how a prompt meets a run that is under way.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Counts the times a session's work was taken over. Who holds an older one is refused.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(transparent)]
pub struct Epoch(pub i64);

/// Where a run stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// Stored, and not begun.
    Queued,
    /// The agent works.
    Running,
    /// The agent waits for a person: an approval, an answer.
    Waiting,
    /// The model stopped of itself.
    Done,
    /// It could not go on; the reason is stored with it.
    Failed,
    /// A person stopped it.
    Cancelled,
    /// A newer prompt took its place.
    Interrupted,
}

impl RunState {
    /// Every state.
    pub const ALL: [Self; 7] = [
        Self::Queued,
        Self::Running,
        Self::Waiting,
        Self::Done,
        Self::Failed,
        Self::Cancelled,
        Self::Interrupted,
    ];

    /// Whether nothing follows.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Cancelled | Self::Interrupted)
    }

    /// Whether a run may go from here to `next`.
    #[must_use]
    pub const fn may_become(self, next: Self) -> bool {
        match self {
            Self::Queued => matches!(next, Self::Running | Self::Failed | Self::Cancelled | Self::Interrupted),
            Self::Running => !matches!(next, Self::Queued | Self::Running),
            Self::Waiting => !matches!(next, Self::Queued | Self::Waiting | Self::Done),
            Self::Done | Self::Failed | Self::Cancelled | Self::Interrupted => false,
        }
    }

    /// The word that stands in the store and in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Interrupted => "interrupted",
        }
    }

    /// The state of that word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }
}

/// How a prompt meets a run that is under way.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Delivery {
    /// The run is interrupted and a new one begins.
    #[default]
    Restart,
    /// The prompt joins the run before its next model call.
    Steer,
    /// The prompt waits until the run has ended.
    Queue,
}

/// Where the agent loop runs.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// In the sandbox: the whole agent is isolated.
    #[default]
    Sandbox,
    /// In the control plane: only the tools are isolated.
    ControlPlane,
}

/// What a run may use up before it is stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct RunLimits {
    /// Model calls.
    pub steps: u32,
    /// Seconds from its start, waiting not counted.
    pub wall_seconds: u64,
    /// Seconds that one tool call may take.
    pub tool_seconds: u64,
    /// Bytes of one tool result that the model is shown; the rest is cut from the middle.
    pub output_bytes: usize,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self {
            steps: 100,
            wall_seconds: 3_600,
            tool_seconds: 300,
            output_bytes: 30_000,
        }
    }
}

impl RunLimits {
    /// `wall_seconds` as a duration.
    #[must_use]
    pub const fn wall(&self) -> Duration {
        Duration::from_secs(self.wall_seconds)
    }

    /// `tool_seconds` as a duration.
    #[must_use]
    pub const fn tool(&self) -> Duration {
        Duration::from_secs(self.tool_seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_final_state_is_never_left() {
        for state in RunState::ALL {
            assert_eq!(
                state.is_final(),
                RunState::ALL.into_iter().all(|next| !state.may_become(next)),
                "{state:?}"
            );
            assert!(!state.may_become(state), "{state:?}");
            assert!(!state.may_become(RunState::Queued), "{state:?}");
        }
    }

    #[test]
    fn words_and_states_agree() {
        for state in RunState::ALL {
            assert_eq!(RunState::from_word(state.as_str()), Some(state));
            assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
        }
    }
}
