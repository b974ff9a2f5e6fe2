//! Connections to upstreams that are kept for the next request of the same session under the same rules.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use domain::SessionId;
use hyper::client::conn::{http1, http2};
use lifecycle::Tasks;
use tokio::time::Instant;

use super::upload::Upload;
use super::{Decided, Matching};
use crate::Rule;

/// How long a connection is kept without a request.
const KEPT: Duration = Duration::from_secs(60);
/// Connections kept for one key, of those that carry one request at a time.
const MOST: usize = 16;
/// Requests at once on one connection: what RFC 9113, section 6.5.2, has every server take.
const AT_ONCE: usize = 100;

/// Whose connection it is: never another session's, another rule's or an older set of rules' (threat 12).
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    decided: Decided,
    rule: String,
    generation: u64,
}

impl Key {
    pub(super) fn new(decided: &Decided, rule: &Rule, matching: &Matching) -> Self {
        Self {
            decided: decided.clone(),
            rule: rule.name.clone(),
            generation: matching.generation,
        }
    }
}

#[derive(Default)]
struct Kept {
    one: Vec<(http1::SendRequest<Upload>, Instant)>,
    many: Vec<Many>,
}

/// A connection for many requests.
struct Many {
    line: http2::SendRequest<Upload>,
    /// Shared by every request under way.
    load: Load,
    used: Instant,
}

/// A share in a connection for many requests, held until an answer is over.
pub(super) type Load = Arc<()>;

/// The connections that are kept.
#[derive(Clone)]
pub(super) struct Pool {
    kept: Arc<Mutex<HashMap<Key, Kept>>>,
    /// A task waits to tidy.
    tidying: Arc<AtomicBool>,
    tasks: Tasks,
}

impl Pool {
    pub(super) fn new(tasks: Tasks) -> Self {
        Self {
            kept: Arc::default(),
            tidying: Arc::default(),
            tasks,
        }
    }

    /// A connection for many requests at once.
    pub(super) fn many(&self, key: &Key) -> Option<(http2::SendRequest<Upload>, Load)> {
        let mut all = self.lock();
        let kept = all.get_mut(key)?;
        kept.many.retain(|many| !many.line.is_closed());
        let free = kept.many.iter_mut().find(|many| {
            // One share is the pool's own.
            Arc::strong_count(&many.load) <= AT_ONCE
        })?;
        free.used = Instant::now();
        Some((free.line.clone(), Arc::clone(&free.load)))
    }

    /// A connection for one request.
    pub(super) fn one(&self, key: &Key) -> Option<http1::SendRequest<Upload>> {
        let mut all = self.lock();
        let kept = all.get_mut(key)?;
        while let Some((line, _)) = kept.one.pop() {
            if line.is_ready() {
                return Some(line);
            }
        }
        None
    }

    /// Keeps a connection for many requests.
    pub(super) fn keep_many(&self, key: Key, line: http2::SendRequest<Upload>, load: Load) {
        self.lock().entry(key).or_default().many.push(Many {
            line,
            load,
            used: Instant::now(),
        });
        self.tidy_later();
    }

    /// Keeps a connection for one request once its answer is over.
    pub(super) fn keep_one(&self, key: Key, mut line: http1::SendRequest<Upload>) {
        let pool = self.clone();
        self.tasks.spawn_until_stopped(async move {
            if line.ready().await.is_err() {
                return;
            }
            let mut all = pool.lock();
            let kept = all.entry(key).or_default();
            if kept.one.len() < MOST {
                kept.one.push((line, Instant::now()));
            }
            drop(all);
            pool.tidy_later();
        });
    }

    /// Closes a session's connections.
    pub(super) fn forget(&self, session: SessionId) {
        self.lock().retain(|key, _| key.decided.session != session);
    }

    /// Closes a session's connections of older sets of rules.
    pub(super) fn renew(&self, session: SessionId, generation: u64) {
        self.lock()
            .retain(|key, _| key.decided.session != session || key.generation == generation);
    }

    /// One task does it, for as long as anything is kept.
    fn tidy_later(&self) {
        if self.tidying.swap(true, Ordering::SeqCst) {
            return;
        }
        let pool = self.clone();
        self.tasks.spawn_until_stopped(async move {
            loop {
                tokio::time::sleep(KEPT).await;
                let mut all = pool.lock();
                Self::tidy(&mut all);
                if all.is_empty() {
                    // Under the lock, so that what is kept next has a task of its own.
                    pool.tidying.store(false, Ordering::SeqCst);
                    return;
                }
            }
        });
    }

    fn tidy(all: &mut HashMap<Key, Kept>) {
        all.retain(|_, kept| {
            kept.one.retain(|(line, used)| line.is_ready() && used.elapsed() < KEPT);
            kept.many.retain(|many| {
                let busy = Arc::strong_count(&many.load) > 1;
                !many.line.is_closed() && (busy || many.used.elapsed() < KEPT)
            });
            !kept.one.is_empty() || !kept.many.is_empty()
        });
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
