//! What the broker remembers of one session: its open connections, the names it knows, and what it has used up.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lifecycle::Stop;
use policy::Destination;

use crate::authority::Leaves;
use crate::{Code, Denied, Limits};

mod bucket;
mod meter;
mod names;
mod used;

pub(crate) use bucket::Bucket;
pub(crate) use meter::{Meter, Metered};
use names::Names;
pub(crate) use used::Used;

pub(crate) struct Session {
    limits: Limits,
    /// Rises whenever what it may has changed.
    generation: AtomicU64,
    open: Mutex<Open>,
    names: Mutex<Names>,
    pub(crate) leaves: Leaves,
    used: Arc<Used>,
}

struct Open {
    next: u64,
    bucket: Bucket,
    connections: HashMap<u64, Connection>,
}

/// An open connection, as a change of the policy finds it.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) destination: Destination,
    pub(crate) port: u16,
    pub(crate) close: Stop,
}

/// A place among a session's connections, given back when dropped.
pub(crate) struct Place {
    session: Arc<Session>,
    number: u64,
    pub(crate) close: Stop,
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.session.open).connections.remove(&self.number);
    }
}

impl Session {
    /// A session that goes on from what it used up before.
    pub(crate) fn new(limits: Limits, used: Arc<Used>) -> Self {
        let per_second = f64::from(limits.new_connections);
        Self {
            limits,
            generation: AtomicU64::new(0),
            open: Mutex::new(Open {
                next: 0,
                bucket: Bucket::new(limits.new_connections.saturating_mul(4), per_second),
                connections: HashMap::new(),
            }),
            names: Mutex::default(),
            leaves: Leaves::default(),
            used,
        }
    }

    /// What it used up; still counted by connections that are being closed.
    pub(crate) fn used(&self) -> Arc<Used> {
        Arc::clone(&self.used)
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(crate) fn change(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether it may use a name that only stars allow.
    pub(crate) fn may_name(&self, name: &policy::Host, pattern: &policy::HostPattern) -> Result<(), Denied> {
        lock(&self.names).admit(name, pattern, &mut lock(&self.used.names))
    }

    /// A place for one more connection.
    pub(crate) fn enter(self: &Arc<Self>, destination: &Destination, port: u16) -> Result<Place, Denied> {
        if self.is_spent() {
            return Err(spent());
        }
        let mut open = lock(&self.open);
        let many = usize::try_from(self.limits.connections).unwrap_or(usize::MAX);
        if open.connections.len() >= many {
            return Err(Denied::new(
                Code::TooManyConnections,
                format!("{destination}:{port} is not connected: this session has {many} connections open"),
                "close some, or ask whoever runs this installation to raise egress.connections",
            ));
        }
        if !open.bucket.take() {
            return Err(Denied::new(
                Code::TooManyConnections,
                format!("{destination}:{port} is not connected: this session opens connections too fast"),
                "wait a second, and keep connections open instead of making new ones",
            ));
        }
        let (number, close) = (open.next, Stop::new());
        open.next += 1;
        open.connections.insert(
            number,
            Connection {
                destination: destination.clone(),
                port,
                close: close.clone(),
            },
        );
        Ok(Place {
            session: Arc::clone(self),
            number,
            close,
        })
    }

    /// The connections that are open now.
    pub(crate) fn connections(&self) -> Vec<Connection> {
        lock(&self.open).connections.values().cloned().collect()
    }

    fn is_spent(&self) -> bool {
        self.used.sent.load(Ordering::Relaxed) >= self.limits.upload
            || self.used.received.load(Ordering::Relaxed) >= self.limits.download
    }
}

pub(crate) fn spent() -> Denied {
    Denied::new(
        Code::BytesSpent,
        "this session has used up the bytes that it may send or receive",
        "ask whoever runs this installation to raise egress.upload or egress.download, or begin a new session",
    )
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
