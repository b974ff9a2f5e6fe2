//! Opening and closing.

use std::path::PathBuf;
use std::sync::Arc;

use domain::Timestamp;

use crate::StoreError;

/// What the store takes for the time.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    /// The machine's.
    #[must_use]
    pub fn machine() -> Self {
        Self::of(Timestamp::now)
    }

    /// Any other.
    #[must_use]
    pub fn of(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// What it says.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        (self.0)()
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Clock").field(&self.now()).finish()
    }
}

/// What the store needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// The database's file; its folder exists.
    pub path: PathBuf,
    /// Connections that read.
    pub readers: u32,
    /// The time.
    pub clock: Clock,
}

impl Config {
    /// A store in this file, as it is meant to be run.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            readers: 4,
            clock: Clock::machine(),
        }
    }
}

/// The store. Clones share it.
#[derive(Clone, Debug)]
pub struct Store {}

impl Store {
    /// Opens the store and makes its file where there is none, readable by its owner alone. An older schema is backed up beside
    /// the file and migrated. Reservations that a dead process left are charged (their runs go on when they are taken again).
    ///
    /// # Errors
    /// The file is in use, is not a store, is of a newer release, or cannot be written.
    pub async fn open(config: Config) -> Result<Self, StoreError> {
        let _ = config;
        todo!()
    }

    /// Lets what was begun end, then closes the file. Later calls fail with [`StoreError::Closed`].
    pub async fn close(&self) {
        todo!()
    }
}
