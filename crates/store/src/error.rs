//! What can go wrong, in words for people.

use std::path::PathBuf;
use std::sync::Arc;

use domain::{Epoch, RunId, RunState, SessionId};

use crate::OverCap;

/// Why the store did not do what was asked. Nothing of it was stored.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It does not exist, or not for the one who asks.
    #[error("there is no {kind} {id}")]
    NotFound {
        /// What was looked for: `session`, `run`, `user`, `token`, `turn`…
        kind: &'static str,
        /// Its name.
        id: String,
    },
    /// The one who asks exists, and may not do this.
    #[error("only {whom} may {attempt}")]
    Denied {
        /// What was tried.
        attempt: &'static str,
        /// Who could.
        whom: &'static str,
    },
    /// A token that opens nothing: unknown, expired, revoked or spent.
    #[error("the token is not valid: {reason}")]
    Unauthorized {
        /// Which of these.
        reason: &'static str,
    },
    /// What was handed in cannot be.
    #[error("{subject} was refused: {reason}")]
    Invalid {
        /// What.
        subject: &'static str,
        /// Why, and what would be right.
        reason: String,
    },
    /// It exists already, or stands in the way of what was asked.
    #[error("{subject} was refused: {reason}")]
    Conflict {
        /// What.
        subject: &'static str,
        /// With what.
        reason: String,
    },
    /// The run was taken over or has ended: whoever asks with this epoch stops.
    #[error("run {run} is no longer held under epoch {}: it is {} under epoch {}", asked.0, state.as_str(), epoch.0)]
    Stale {
        /// The run.
        run: RunId,
        /// The epoch that was shown.
        asked: Epoch,
        /// The one that counts.
        epoch: Epoch,
        /// Where the run stands.
        state: RunState,
    },
    /// A cap would be exceeded.
    #[error(transparent)]
    OverCap(#[from] OverCap),
    /// A session has stored as much as one may.
    #[error(
        "session {session} has stored {stored} of the {most} bytes of messages and events that one may: begin another, or raise \
         server.history"
    )]
    SessionFull {
        /// Which.
        session: SessionId,
        /// So much.
        stored: i64,
        /// Of so much.
        most: i64,
    },
    /// A stored history is not what was stored.
    #[error(
        "message {position} of session {session} was altered in the store: its hash does not follow from the one before; \
         restore a backup, or look into the audit log"
    )]
    Tampered {
        /// Whose.
        session: SessionId,
        /// Which message.
        position: i64,
    },
    /// The file is held by another process.
    #[error(
        "{path} is in use by another process of Belljar: stop that one first, or give this one its own data directory"
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file was written by a newer release.
    #[error(
        "{path} has schema {found}, and this release knows up to {known}: run the newer release, or restore a backup made by this one"
    )]
    NewerSchema {
        /// The file.
        path: PathBuf,
        /// What it has.
        found: i64,
        /// What this build knows.
        known: i64,
    },
    /// A stored value was written by a newer release.
    #[error("a stored {kind} has version {found}, and this release knows {known}: run the newer release")]
    NewerValue {
        /// What it is.
        kind: &'static str,
        /// What it has.
        found: u32,
        /// What this build knows.
        known: u32,
    },
    /// The file is something else.
    #[error("{path} is not a store of Belljar: {reason}")]
    NotAStore {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file stands where one should be made.
    #[error("{path} exists already: name another file, or move this one away")]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Something with a file failed.
    #[error("cannot {attempt} {path}")]
    File {
        /// What was tried.
        attempt: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The disk is full.
    #[error(
        "cannot {attempt}: the disk of the store is full; everything acknowledged before is kept, and writing goes on once there is space"
    )]
    DiskFull {
        /// What was tried.
        attempt: &'static str,
    },
    /// The database refused.
    #[error("cannot {attempt}: the database failed")]
    Database {
        /// What was tried.
        attempt: &'static str,
        /// Why.
        #[source]
        source: Arc<rusqlite::Error>,
    },
    /// A stored value cannot be read.
    #[error("a stored {kind} cannot be read")]
    Corrupt {
        /// What it is.
        kind: &'static str,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The store was closed.
    #[error("cannot {attempt}: the store is closed")]
    Closed {
        /// What was tried.
        attempt: &'static str,
    },
}

/// What a failure of the database means.
pub(crate) fn database(attempt: &'static str, source: rusqlite::Error) -> StoreError {
    database_shared(attempt, Arc::new(source))
}

/// The same, of a failure that hit several.
pub(crate) fn database_shared(attempt: &'static str, source: Arc<rusqlite::Error>) -> StoreError {
    /// `SQLITE_FULL`; and `SQLITE_IOERR_SHMSIZE`, when there is no room for the index of the write-ahead log.
    const FULL: [i32; 2] = [13, 4874];
    let code = source.sqlite_error().map(|error| error.extended_code);
    if code.is_some_and(|code| FULL.contains(&code)) {
        return StoreError::DiskFull { attempt };
    }
    StoreError::Database { attempt, source }
}
