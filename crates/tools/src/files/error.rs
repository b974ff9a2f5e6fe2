//! Why a file could not be had.

use std::io;
use std::path::PathBuf;

/// A file could not be had. The text is for the model that asked for it.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// One of the folders that everything happens in is not there.
    #[error("cannot open the folder {path}")]
    Root {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No file can be called this.
    #[error("{path:?} is no path: {reason}")]
    NotAPath {
        /// The text.
        path: String,
        /// Why.
        reason: &'static str,
    },
    /// It is beneath none of the folders.
    #[error("{path} is outside of the folders that tools reach ({reach}); a relative path begins at /workspace")]
    Outside {
        /// The path.
        path: String,
        /// The folders.
        reach: String,
    },
    /// It may be read only.
    #[error("{path} cannot be changed: {folder} is read only; write beneath /workspace")]
    ReadOnly {
        /// The path.
        path: String,
        /// The folder.
        folder: &'static str,
    },
    /// A link stands in the way.
    #[error(
        "{path} leads over the symbolic link {link} -> {target}, and links are not followed: give the path that is meant"
    )]
    Link {
        /// The path.
        path: String,
        /// The link on it.
        link: String,
        /// What the link says.
        target: String,
    },
    /// There is nothing.
    #[error("there is no {path}")]
    Missing {
        /// The path.
        path: String,
    },
    /// There is something else.
    #[error("{path} is {kind}, not a file")]
    NotAFile {
        /// The path.
        path: String,
        /// What it is.
        kind: &'static str,
    },
    /// There is something else.
    #[error("{path} is {kind}, not a folder")]
    NotAFolder {
        /// The path.
        path: String,
        /// What it is.
        kind: &'static str,
    },
    /// The file system said no.
    #[error("cannot {attempt} {path}")]
    Io {
        /// What was tried.
        attempt: &'static str,
        /// On what.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl FileError {
    pub(crate) fn io(attempt: &'static str, path: &str, source: impl Into<io::Error>) -> Self {
        Self::Io {
            attempt,
            path: path.to_owned(),
            source: source.into(),
        }
    }
}
