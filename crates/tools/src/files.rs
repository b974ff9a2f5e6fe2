//! The only way to files.

use std::fs::File;
use std::path::PathBuf;
use std::io;

use protocol::FileEntry;

use crate::Settings;

/// A file could not be had.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The folder that everything happens in.
    #[error("cannot open the folder {path}")]
    Root {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// The folders that tools reach, and nothing beside them.
#[derive(Debug)]
pub struct Files {}

/// A new file that has not taken its place yet. Dropped without [`Created::commit`], it is removed.
#[derive(Debug)]
pub struct Created {}

impl Files {
    /// Opens the folders.
    pub(crate) fn open(_settings: &Settings) -> Result<Self, FileError> {
        Ok(Self {})
    }

    /// Opens a regular file to read.
    ///
    /// # Errors
    /// In words for the model, when it is not a regular file beneath one of the folders.
    pub fn read(&self, path: &str) -> Result<File, FileError> {
        Err(FileError::Root { path: path.into(), source: io::ErrorKind::Other.into() })
    }

    /// Makes a new file beside the place that it will take; folders on the way are made.
    ///
    /// # Errors
    /// In words for the model, when the place is not beneath a folder that may be written.
    pub fn create(&self, path: &str) -> Result<Created, FileError> {
        Err(FileError::Root { path: path.into(), source: io::ErrorKind::Other.into() })
    }

    /// What is beneath a folder of the workspace, deepest last, at most `most` entries; true where there is more. Links are
    /// listed, never followed.
    ///
    /// # Errors
    /// In words, when there is no such folder.
    pub fn list(&self, path: &str, most: usize) -> Result<(Vec<FileEntry>, bool), FileError> {
        let _ = most;
        Err(FileError::Root { path: path.into(), source: io::ErrorKind::Other.into() })
    }
}
