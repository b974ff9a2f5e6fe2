//! The run that a session had last.

use std::time::Duration;

use domain::{RunState, SessionId};

use crate::batch::binds;
use crate::{Asker, Store, StoreError, stored};

/// A run that was begun, and none after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LastBegun {
    /// Where it stands.
    pub state: RunState,
    /// How long ago it ended; none while it is under way.
    pub over_for: Option<Duration>,
}

impl Store {
    /// The last run of a session that was begun. None: none was.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself; the store cannot be read.
    pub async fn last_begun(&self, asker: Asker, session: SessionId) -> Result<Option<LastBegun>, StoreError> {
        const ATTEMPT: &str = "look for a session's last run";
        asker.must_be_system(ATTEMPT)?;
        let sql =
            "SELECT state, ended FROM runs WHERE session_id = $1 AND started IS NOT NULL ORDER BY id DESC LIMIT 1";
        let Some(row) = self.read_one(ATTEMPT, sql, binds![session]).await? else {
            return Ok(None);
        };
        let state = row.text("state")?;
        let state = RunState::from_word(&state)
            .ok_or_else(|| stored::corrupt("run", format!("there is no state {state:?}")))?;
        let ended = row.time_or_none("ended")?;
        let over_for = ended.map(|ended| self.now().0.saturating_sub(ended.0));
        Ok(Some(LastBegun {
            state,
            // A clock that was set back makes it shorter, never less than nothing.
            over_for: over_for.map(|passed| Duration::from_millis(u64::try_from(passed).unwrap_or(0))),
        }))
    }
}
