//! What may be used up. Of several limits the lowest counts.

use domain::{Money, RunLimits};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An amount of dollars as people write it, `2.5`, to a billionth.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Dollars(pub Money);

/// The limits of a scope. What is left out is left to the other layers, and to the configuration.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Model calls of a run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u32>,
    /// Seconds of a run, waiting not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_seconds: Option<u64>,
    /// Seconds of one tool call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_seconds: Option<u64>,
    /// Bytes of one tool result that the model is shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<usize>,
    /// What a run may cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_dollars: Option<Dollars>,
    /// What a session may cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_dollars: Option<Dollars>,
    /// What the session's user may spend in a day (UTC).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_dollars: Option<Dollars>,
}

impl Limits {
    /// The lower of each two.
    #[must_use]
    pub fn lowest(self, other: Self) -> Self {
        Self {
            steps: lower(self.steps, other.steps),
            wall_seconds: lower(self.wall_seconds, other.wall_seconds),
            tool_seconds: lower(self.tool_seconds, other.tool_seconds),
            output_bytes: lower(self.output_bytes, other.output_bytes),
            run_dollars: lower(self.run_dollars, other.run_dollars),
            session_dollars: lower(self.session_dollars, other.session_dollars),
            user_dollars: lower(self.user_dollars, other.user_dollars),
        }
    }

    /// The limits of a run whose configuration gives it `limits`.
    #[must_use]
    pub fn of_run(&self, limits: RunLimits) -> RunLimits {
        RunLimits {
            steps: self.steps.map_or(limits.steps, |steps| steps.min(limits.steps)),
            wall_seconds: self
                .wall_seconds
                .map_or(limits.wall_seconds, |seconds| seconds.min(limits.wall_seconds)),
            tool_seconds: self
                .tool_seconds
                .map_or(limits.tool_seconds, |seconds| seconds.min(limits.tool_seconds)),
            output_bytes: self
                .output_bytes
                .map_or(limits.output_bytes, |bytes| bytes.min(limits.output_bytes)),
        }
    }
}

/// The lower of two, where nothing is no limit.
fn lower<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

impl Serialize for Dollars {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[allow(
            clippy::cast_precision_loss,
            reason = "a double holds nine million dollars to a billionth"
        )]
        let dollars = self.0.0 as f64 / 1e9;
        serializer.serialize_f64(dollars)
    }
}

impl<'de> Deserialize<'de> for Dollars {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let dollars = f64::deserialize(deserializer)?;
        if !(0.0..=9e6).contains(&dollars) {
            return Err(serde::de::Error::custom(
                "an amount is 0 to 9000000 dollars, such as 2.50",
            ));
        }
        #[allow(clippy::cast_possible_truncation, reason = "the amount was just compared")]
        Ok(Self(Money((dollars * 1e9).round() as i64)))
    }
}
