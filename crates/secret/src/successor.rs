//! Secrets that somebody outside replaces.

use std::sync::Arc;

use crate::{Secret, Source};

/// Keeps what a service gives in place of a secret that it was shown, such as a refresh token that counts once. What
/// succeeds a secret is bound to that very secret: where the operator sets another, nothing succeeds it yet.
///
/// Everything here may wait for a disk, or for its turn: it is no work for an async task.
pub trait Successors: Send + Sync {
    /// Waits until nobody else, in this process or another, may be about to have the secret of this service replaced. What is
    /// returned keeps others away until it is dropped.
    ///
    /// # Errors
    /// Nobody can know whether there are others.
    fn turn(&self, service: &str) -> Result<Box<dyn Send>, Unkept>;

    /// What succeeds the secret of this service now, if anything does.
    ///
    /// # Errors
    /// What was kept cannot be read: the secret itself may be long dead.
    fn newest(&self, service: &str, secret: &Secret) -> Result<Option<Secret>, Unkept>;

    /// Keeps what succeeds the secret from now on. When this returns, it survives whatever happens to this process.
    ///
    /// # Errors
    /// It cannot be kept; what was kept before is as it was.
    fn keep(&self, service: &str, secret: &Secret, newest: &Secret) -> Result<(), Unkept>;
}

/// What succeeds a secret cannot be kept or read. Never says a value.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{why}; {remedy}")]
pub struct Unkept {
    /// The reason, in words that follow a colon.
    pub why: String,
    /// What to do, in words that follow a semicolon.
    pub remedy: String,
}

/// Where secrets come from, and where those go that succeed them; without the latter they are held in memory.
#[derive(Clone)]
pub struct Custody {
    /// Follows references.
    pub source: Arc<dyn Source>,
    /// Keeps what succeeds a secret.
    pub successors: Option<Arc<dyn Successors>>,
}

impl<S: Source + 'static> From<Arc<S>> for Custody {
    fn from(source: Arc<S>) -> Self {
        Self {
            source,
            successors: None,
        }
    }
}

impl From<Arc<dyn Source>> for Custody {
    fn from(source: Arc<dyn Source>) -> Self {
        Self {
            source,
            successors: None,
        }
    }
}
