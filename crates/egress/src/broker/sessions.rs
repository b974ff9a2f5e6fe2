//! The sessions that a broker knows, and what those used up that it forgot.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use domain::SessionId;

use crate::Limits;
use crate::session::{Session, Used};

/// Forgotten sessions of which it is kept what they used up: some 20 MB.
const KEPT: usize = 100_000;

pub(super) struct Sessions {
    limits: Limits,
    known: HashMap<SessionId, Arc<Session>>,
    forgotten: HashMap<SessionId, Forgotten>,
    /// The forgotten ones, the longest forgotten first.
    order: BTreeMap<u64, SessionId>,
    next: u64,
    kept: usize,
}

struct Forgotten {
    number: u64,
    used: Arc<Used>,
}

impl Sessions {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            known: HashMap::new(),
            forgotten: HashMap::new(),
            order: BTreeMap::new(),
            next: 0,
            kept: KEPT,
        }
    }

    pub(super) fn known(&self, id: SessionId) -> Option<Arc<Session>> {
        self.known.get(&id).cloned()
    }

    /// A session; one that was forgotten has used up what it had.
    pub(super) fn session(&mut self, id: SessionId) -> Arc<Session> {
        if let Some(session) = self.known(id) {
            return session;
        }
        let used = match self.forgotten.remove(&id) {
            Some(forgotten) => {
                self.order.remove(&forgotten.number);
                forgotten.used
            }
            None => Arc::new(Used::new(self.limits)),
        };
        let session = Arc::new(Session::new(self.limits, used));
        self.known.insert(id, Arc::clone(&session));
        session
    }

    /// Takes a session out, and keeps only what it used up.
    pub(super) fn forget(&mut self, id: SessionId) -> Option<Arc<Session>> {
        let session = self.known.remove(&id)?;
        let (number, used) = (self.next, session.used());
        self.next += 1;
        self.forgotten.insert(id, Forgotten { number, used });
        self.order.insert(number, id);
        if self.order.len() > self.kept
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.forgotten.remove(&oldest);
        }
        Some(session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_so_many_forgotten_ones_are_kept_and_the_longest_forgotten_goes_first() {
        let mut sessions = Sessions {
            kept: 2,
            ..Sessions::new(Limits::default())
        };
        let ids = [SessionId::new(), SessionId::new(), SessionId::new()];
        let used = ids.map(|id| sessions.session(id).used());
        sessions.forget(ids[0]);
        sessions.forget(ids[1]);
        // One that comes back is forgotten anew.
        sessions.session(ids[0]);
        sessions.forget(ids[0]);
        sessions.forget(ids[2]);
        assert_eq!((sessions.order.len(), sessions.forgotten.len()), (2, 2));
        let kept = [0, 1, 2].map(|at| Arc::ptr_eq(&sessions.session(ids[at]).used(), &used[at]));
        assert_eq!(kept, [true, false, true]);
        assert!(sessions.order.is_empty() && sessions.forgotten.is_empty());
    }
}
