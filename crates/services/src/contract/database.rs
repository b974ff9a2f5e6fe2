//! The database that takes the place of a service's own.

use std::path::{Path, PathBuf};

use rusqlite::Connection;

use crate::DatabaseSettings;
use crate::definition::Engine;

/// A database of SQLite on this machine. It is removed when this is dropped.
pub(super) struct Example {
    folder: PathBuf,
}

/// There is no such database.
#[derive(Debug, thiserror::Error)]
pub enum ExampleError {
    /// A file could not be read or made.
    #[error("read the statements, or make a folder for the database")]
    File(#[source] std::io::Error),
    /// A statement is not one of SQLite's.
    #[error("run the statements")]
    Statement(#[source] rusqlite::Error),
}

impl Example {
    /// Makes the database that the statements of a file make.
    pub(super) fn new(statements: &Path) -> Result<Self, ExampleError> {
        let statements = std::fs::read_to_string(statements).map_err(ExampleError::File)?;
        let folder = std::env::temp_dir().join(format!("belljar-example-{}", hex::encode(rand::random::<[u8; 8]>())));
        std::fs::create_dir(&folder).map_err(ExampleError::File)?;
        let example = Self { folder };
        let connection = Connection::open(example.file()).map_err(ExampleError::Statement)?;
        connection.execute_batch(&statements).map_err(ExampleError::Statement)?;
        Ok(example)
    }

    fn file(&self) -> PathBuf {
        self.folder.join("example.db")
    }

    /// What leads a service there.
    pub(super) fn settings(&self) -> DatabaseSettings {
        DatabaseSettings {
            engine: Some(Engine::Sqlite),
            file: Some(self.file()),
            ..DatabaseSettings::default()
        }
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        // What cannot be removed lies among other temporary files.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
