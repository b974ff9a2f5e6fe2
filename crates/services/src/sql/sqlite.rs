//! A file of SQLite.
//!
//! No process that knows a secret opens it: each statement is run by a worker that can read that file and nothing else, has
//! so much memory and time, and is killed when nobody waits for it. The text that it gets is the one that the guard wrote
//! down, never the caller's own.

use std::path::PathBuf;
use std::sync::Arc;

use worker::{FileCell, FileFault, FilePart, FileQuery, Worker, WorkerError};

use super::Asked;
use super::rows::{Cell, Rows};
use super::settings::Bound;
use crate::gate::Gate;
use crate::{Code, Failure};

/// What lists tables, and what describes one.
pub(super) fn catalogue(tables: bool) -> String {
    let text = if tables {
        "SELECT 'main' AS schema, name, type AS kind, NULL AS rows, NULL AS comment FROM sqlite_schema \
         WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND COALESCE(?1, 'main') = 'main' ORDER BY name"
    } else {
        "SELECT name, type, \"notnull\" = 0 AS nullable, pk > 0 AS key, NULL AS comment FROM pragma_table_info(?2) \
         WHERE COALESCE(?1, 'main') = 'main' ORDER BY cid"
    };
    text.to_owned()
}

/// A file.
pub(super) struct Sqlite {
    service: String,
    file: PathBuf,
    worker: Worker,
    /// Of which one user has half. Who runs a statement has a place.
    pub(super) files: Arc<Gate>,
}

impl Sqlite {
    pub(super) fn new(bound: &Bound) -> Self {
        Self {
            service: bound.service.clone(),
            // A worker stands elsewhere.
            file: std::path::absolute(&bound.file).unwrap_or_else(|_| bound.file.clone()),
            worker: bound.worker.clone(),
            files: Arc::clone(&bound.files),
        }
    }

    pub(super) async fn run(&self, asked: &Asked, rows: &mut Rows) -> Result<(), Failure> {
        let query = FileQuery {
            text: asked.statement.text.clone(),
            parameters: asked.parameters.clone(),
            ours: asked.ours,
            time: asked.time()?,
        };
        let failed = |error| self.failure(asked, error);
        let mut reading = self.worker.read_file(&self.file, query).await.map_err(failed)?;
        while let Some(part) = reading.next().await.map_err(failed)? {
            match part {
                FilePart::Columns(columns) => rows.columns(&columns),
                FilePart::Rows(taken) => {
                    for cells in taken {
                        if !rows.row(cells.into_iter().map(cell).collect()).await? {
                            return Ok(());
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn failure(&self, asked: &Asked, error: WorkerError) -> Failure {
        let what = &asked.what;
        let said = |said: &str| crate::refusal::words(said.to_owned().into());
        match error {
            WorkerError::File(FileFault::Late) => asked.late(),
            WorkerError::File(FileFault::Denied(why)) => Failure::new(
                Code::Refused,
                format!(
                    "{what}: the statement does more than read, or uses a function that is not allowed: {}",
                    said(&why)
                ),
            )
            .remedy("write SELECT with functions that compute a value"),
            WorkerError::File(FileFault::Unreadable(why)) => Failure::new(
                Code::Unreachable,
                format!(
                    "{}: the file of the database cannot be read: {}",
                    self.service,
                    said(&why)
                ),
            )
            .remedy(format!(
                "an administrator looks at services.{}.database.file",
                self.service
            )),
            WorkerError::File(FileFault::TooLarge(why)) => Failure::new(
                Code::AnswerTooLarge,
                format!(
                    "{what}: a value, or what is sorted and collected, is too large: {}",
                    said(&why)
                ),
            )
            .remedy("take parts of long values, such as substr(body, 1, 1000), and filter before you sort"),
            WorkerError::File(FileFault::Refused(why)) => {
                Failure::new(Code::Refused, format!("{what}: the database says: {}", said(&why)))
                    .remedy("tables() lists the tables, columns({table}) the columns of one")
            }
            other => super::unread(what, &other),
        }
    }
}

fn cell(cell: FileCell) -> Cell {
    match cell {
        FileCell::Null => Cell::null(),
        FileCell::Integer(whole) => Cell::number(&whole.to_string()),
        FileCell::Real(number) => Cell::float(&number),
        FileCell::Text(text) | FileCell::Bytes(text) => Cell::text(&text),
    }
}
