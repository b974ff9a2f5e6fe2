//! What was tried, on its way to the audit. Nobody waits for it, and each session has places of its own, so that none can
//! leave others unwritten.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::SessionId;
use tokio::sync::Notify;

use crate::Record;

/// Records of one session that may wait to be written; more are counted.
const WAITING: usize = 1_024;

/// What one session tried since it was last written down.
#[derive(Debug)]
pub struct Tried {
    /// Whose it is.
    pub session: SessionId,
    /// What, in the order in which it ended.
    pub records: Vec<Record>,
    /// How many more there were than have a place.
    pub left_out: u64,
}

/// Where the broker tells what was tried.
#[derive(Debug)]
pub struct AuditSender(Arc<Queue>);

/// Where it is heard, by one.
#[derive(Debug)]
pub struct AuditReceiver(Arc<Queue>);

#[derive(Debug, Default)]
struct Queue {
    open: Mutex<Open>,
    news: Notify,
}

#[derive(Debug, Default)]
struct Open {
    sessions: HashMap<SessionId, Tried>,
    /// Who waits, the longest first.
    order: VecDeque<SessionId>,
    closed: bool,
}

/// An empty queue: the end that is told, and the end that is heard.
#[must_use]
pub fn audit_queue() -> (AuditSender, AuditReceiver) {
    let queue = Arc::new(Queue::default());
    (AuditSender(Arc::clone(&queue)), AuditReceiver(queue))
}

impl Queue {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AuditSender {
    pub(crate) fn tell(&self, record: Record) {
        let session = record.session;
        let mut open = self.0.open();
        let Open { sessions, order, .. } = &mut *open;
        let tried = match sessions.entry(session) {
            Entry::Occupied(waits) => waits.into_mut(),
            Entry::Vacant(free) => {
                order.push_back(session);
                free.insert(Tried {
                    session,
                    records: Vec::new(),
                    left_out: 0,
                })
            }
        };
        if tried.records.len() < WAITING {
            tried.records.push(record);
        } else {
            tried.left_out += 1;
        }
        drop(open);
        self.0.news.notify_one();
    }
}

impl Drop for AuditSender {
    fn drop(&mut self) {
        self.0.open().closed = true;
        self.0.news.notify_one();
    }
}

impl AuditReceiver {
    /// What the session tried that has waited longest; none when nobody tells any more.
    pub async fn next(&mut self) -> Option<Tried> {
        loop {
            {
                let mut open = self.0.open();
                if let Some(session) = open.order.pop_front() {
                    return open.sessions.remove(&session);
                }
                if open.closed {
                    return None;
                }
            }
            self.0.news.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Outcome;

    fn record(session: SessionId, port: u16) -> Record {
        Record {
            session,
            host: "a.example".to_owned(),
            port,
            protocol: "tcp",
            rule: None,
            request: None,
            outcome: Outcome::Allowed,
            sent: 0,
            received: 0,
            took: Duration::ZERO,
        }
    }

    #[tokio::test]
    async fn threat_017_a_session_that_tries_without_end_leaves_others_their_places() {
        let (teller, mut told) = audit_queue();
        let (noisy, quiet) = (SessionId::new(), SessionId::new());
        for _ in 0..WAITING + 7 {
            teller.tell(record(noisy, 1));
        }
        teller.tell(record(quiet, 2));
        let first = told.next().await.unwrap();
        assert_eq!((first.session, first.records.len()), (noisy, WAITING));
        assert_eq!(first.left_out, 7, "what has no place is counted");
        teller.tell(record(noisy, 3));
        let second = told.next().await.unwrap();
        assert_eq!((second.session, second.left_out), (quiet, 0));
        assert_eq!(second.records, [record(quiet, 2)]);
        let third = told.next().await.unwrap();
        assert_eq!((third.left_out, third.records), (0, vec![record(noisy, 3)]));
        drop(teller);
        assert!(told.next().await.is_none());
    }

    #[tokio::test]
    async fn who_waits_hears_of_the_next_record() {
        let (teller, mut told) = audit_queue();
        let session = SessionId::new();
        let (tried, ()) = tokio::join!(told.next(), async { teller.tell(record(session, 1)) });
        assert_eq!(tried.unwrap().session, session);
    }
}
