//! Statements that read a file of SQLite, and what comes of them.

use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::SemaphorePermit;

use crate::error::WorkerError;
use crate::process::{Process, READING};
use crate::wire::Report;

/// A statement for a file, as the guard wrote it down.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FileQuery {
    /// What runs.
    pub text: String,
    /// What its placeholders stand for.
    pub parameters: Vec<Value>,
    /// Whether it is one of our own, which may read the schema.
    pub ours: bool,
    /// How long it may take.
    pub time: Duration,
}

/// A value as SQLite keeps it. Fractions and bytes are texts, as JSON has no words for all of them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileCell {
    /// Nothing.
    Null,
    /// A whole number.
    Integer(i64),
    /// A floating-point number.
    Real(String),
    /// A text. What is no UTF-8 in it is replaced.
    Text(String),
    /// Bytes, in base64.
    Bytes(String),
}

impl FileCell {
    /// About as many bytes as it takes on the way.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Null | Self::Integer(_) => 32,
            Self::Real(text) | Self::Text(text) | Self::Bytes(text) => text.len() + 16,
        }
    }
}

/// Why a statement did not end well. What SQLite says of it is what the owner of a file, or of the statement, wrote.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileFault {
    /// Its time is over.
    #[error("the statement did not end in time")]
    Late,
    /// It does more than read, or calls what it may not.
    #[error("the statement does more than read: {0}")]
    Denied(String),
    /// The file cannot be read, or is no database.
    #[error("the file of the database cannot be read: {0}")]
    Unreadable(String),
    /// A row is too large, or what the statement keeps in memory.
    #[error("the statement takes too much at once: {0}")]
    TooLarge(String),
    /// SQLite says something else.
    #[error("the database says: {0}")]
    Refused(String),
}

/// What a statement gives, piece by piece.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FilePart {
    /// The columns, names and types: the first piece, and once.
    Columns(Vec<(String, String)>),
    /// Rows, each with a cell for each column.
    Rows(Vec<Vec<FileCell>>),
}

/// Takes what a statement gives, in the worker.
pub trait FileSink {
    /// The columns, names and types, before any row.
    ///
    /// # Errors
    /// Nobody listens any more.
    fn columns(&mut self, columns: Vec<(String, String)>) -> io::Result<()>;

    /// A row.
    ///
    /// # Errors
    /// Nobody listens any more, or it is larger than any may be.
    fn row(&mut self, cells: Vec<FileCell>) -> Result<(), FileFailure>;
}

/// Why a worker has no more of a file.
#[derive(Debug)]
pub enum FileFailure {
    /// The statement, or the file.
    Fault(FileFault),
    /// The parent is gone.
    Abandoned(io::Error),
}

impl From<FileFault> for FileFailure {
    fn from(fault: FileFault) -> Self {
        Self::Fault(fault)
    }
}

/// A statement under way. Its process is killed when this is dropped.
#[derive(Debug)]
pub struct FileReading<'w> {
    pub(crate) process: Process,
    /// How many columns there are, once they were told.
    pub(crate) columns: Option<usize>,
    pub(crate) _place: SemaphorePermit<'w>,
}

impl FileReading<'_> {
    /// The next piece; none after the last. It takes as long as the statement does: whoever waits has the clock.
    ///
    /// # Errors
    /// [`WorkerError::File`] where the statement has failed; anything else is the process's fault. There is no more after either.
    pub async fn next(&mut self) -> Result<Option<FilePart>, WorkerError> {
        let nonsense = |why: &str| WorkerError::Nonsense {
            what: READING,
            why: why.to_owned(),
        };
        match (self.process.hear_rows().await?, self.columns) {
            (Report::Columns { columns }, None) => {
                self.columns = Some(columns.len());
                Ok(Some(FilePart::Columns(columns)))
            }
            (Report::Rows { rows }, Some(columns)) => {
                if rows.iter().any(|row| row.len() != columns) {
                    return Err(nonsense("a row has not as many values as there are columns"));
                }
                Ok(Some(FilePart::Rows(rows)))
            }
            (Report::Read, Some(_)) => Ok(None),
            (Report::Fault { fault }, _) => Err(WorkerError::File(fault)),
            _ => Err(nonsense("it does not say what was agreed of a table")),
        }
    }
}
