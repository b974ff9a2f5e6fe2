//! Why the encrypted store cannot be used.

use std::io;
use std::path::{Path, PathBuf};

use causes::with_causes;
use secret::{Reference, Unresolved};

/// Why the encrypted store cannot be used. Never says a value.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file cannot be used.
    #[error("cannot {attempt} {}", path.display())]
    File {
        /// What was tried.
        attempt: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The file is no store of secrets.
    #[error("{} is no store of secrets, or was cut short: bring back a copy of it", .0.display())]
    NoStore(PathBuf),
    /// A later release wrote it.
    #[error("{} has version {found}, which this release cannot read: use the release that wrote it", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// It was sealed with another key.
    #[error("the key does not fit {}: bring back the key or the passphrase it was sealed with", .0.display())]
    WrongKey(PathBuf),
    /// The key fits and the content does not.
    #[error("{} was altered or damaged since it was sealed: bring back a copy of it, and find out who could write it", .0.display())]
    Altered(PathBuf),
    /// An older file was put back.
    #[error(
        "{} was put back in time: it is of generation {found}, and generation {newest} was read before; start Belljar again if you brought back a copy on purpose",
        path.display()
    )]
    Older {
        /// The file.
        path: PathBuf,
        /// Its generation.
        found: u64,
        /// The newest that was read.
        newest: u64,
    },
    /// There is no key file.
    #[error("there is no key file {}, and {} cannot be opened without it: bring it back from where you keep a copy", key.display(), path.display())]
    NoKey {
        /// The key file.
        key: PathBuf,
        /// The store.
        path: PathBuf,
    },
    /// The key file is open to others, or holds no key.
    #[error("{} cannot be used as key file: {why}", path.display())]
    KeyFile {
        /// The key file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        why: &'static str,
    },
    /// The store wants the other kind of key.
    #[error("{} was sealed with {was}: set that in [secrets]", path.display())]
    OtherKind {
        /// The store.
        path: PathBuf,
        /// What it was sealed with.
        was: &'static str,
    },
    /// The passphrase cannot be had.
    #[error("cannot open the store of secrets")]
    Passphrase(#[source] Unresolved),
    /// The passphrase is too short.
    #[error("the passphrase of the store has fewer than {0} bytes: choose a longer one")]
    ShortPassphrase(usize),
    /// The parameters that stand in the file are not ours.
    #[error("{} asks for more than a key may cost: it was altered", .0.display())]
    Cost(PathBuf),
    /// A value cannot be kept.
    #[error("the value is {0}")]
    Value(&'static str),
    /// The store cannot be put into words.
    #[error("cannot write the store of secrets as JSON")]
    Json(#[from] serde_json::Error),
    /// The machine gives no random numbers.
    #[error("this machine gives no random numbers")]
    Random,
}

impl StoreError {
    pub(crate) fn file(attempt: &'static str, path: &Path, source: io::Error) -> Self {
        Self::File {
            attempt,
            path: path.to_owned(),
            source,
        }
    }

    /// The same for whoever follows a reference.
    pub(crate) fn unresolved(&self, reference: &Reference) -> Unresolved {
        Unresolved::unusable(
            reference,
            with_causes(self),
            "`belljar secret list` says when it is mended",
        )
    }
}
