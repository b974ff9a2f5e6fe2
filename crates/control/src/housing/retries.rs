//! What did not go well with some sessions is tried again less and less often: it starts a sandbox.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use domain::SessionId;
use tokio::time::Instant;

/// It is tried this often, at last.
const RARELY: Duration = Duration::from_secs(24 * 3_600);

/// Sessions with which something did not go well, and when that is tried again.
#[derive(Default)]
pub(super) struct Retries(HashMap<SessionId, (Instant, Duration)>);

impl Retries {
    /// Of these, those whose time has come. The others are forgotten.
    pub(super) fn due(&mut self, sessions: &HashSet<SessionId>) -> Vec<SessionId> {
        self.0.retain(|session, _| sessions.contains(session));
        let now = Instant::now();
        let due = sessions.iter().copied();
        due.filter(|session| self.0.get(session).is_none_or(|(next, _)| *next <= now))
            .collect()
    }

    /// Each time it is waited twice as long.
    pub(super) fn tried(&mut self, session: SessionId, first: Duration) {
        let wait = self.0.get(&session).map_or(first, |(_, wait)| (*wait * 2).min(RARELY));
        self.0.insert(session, (Instant::now() + wait, wait));
    }
}
