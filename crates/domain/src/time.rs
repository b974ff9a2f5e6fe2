//! Moments.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A moment in UTC, in milliseconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(value_type = i64))]
#[serde(transparent)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// What the machine's clock says.
    #[must_use]
    pub fn now() -> Self {
        SystemTime::now().into()
    }

    /// The moment `duration` later.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(
            self.0
                .saturating_add(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)),
        )
    }

    /// The moment `duration` earlier.
    #[must_use]
    pub fn before(self, duration: Duration) -> Self {
        Self(
            self.0
                .saturating_sub(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)),
        )
    }

    /// The UTC day it falls on, counted from 1970-01-01.
    #[must_use]
    pub fn day(self) -> i64 {
        self.0.div_euclid(86_400_000)
    }
}

/// A clock that nobody can set: it begins with the machine's and goes on by itself. For what this process gives out and takes
/// back within a time.
#[derive(Clone, Copy, Debug)]
pub struct SteadyClock {
    began: Timestamp,
    since: Instant,
}

impl SteadyClock {
    /// One that begins now.
    #[must_use]
    pub fn begin() -> Self {
        Self {
            began: Timestamp::now(),
            since: Instant::now(),
        }
    }

    /// What it says.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.began.after(self.since.elapsed())
    }
}

impl From<SystemTime> for Timestamp {
    /// What is before 1970 becomes 1970.
    fn from(moment: SystemTime) -> Self {
        let since = moment.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }
}
