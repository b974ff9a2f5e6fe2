//! A file of SQLite.
//!
//! It is opened to be read only, and an authorizer lets nothing through but reading and functions that compute. The text
//! that SQLite gets is the one that the worker wrote down, never the caller's own.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lifecycle::Tasks;
use rusqlite::config::DbConfig;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, OpenFlags, ffi};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Asked;
use super::rows::{Cell, Rows};
use super::settings::Bound;
use crate::{Code, Failure};

/// Rows that wait to be taken.
const WAITING: usize = 64;
/// Bytes of the largest value.
const LARGEST: i32 = 16 << 20;
/// Instructions between two looks at the clock.
const STEPS: i32 = 1_000;

/// Functions that compute, and do nothing else.
const FUNCTIONS: &[&str] = &[
    "->",
    "->>",
    "abs",
    "avg",
    "ceil",
    "ceiling",
    "char",
    "coalesce",
    "concat",
    "concat_ws",
    "count",
    "cume_dist",
    "date",
    "datetime",
    "dense_rank",
    "first_value",
    "floor",
    "format",
    "glob",
    "group_concat",
    "hex",
    "iif",
    "ifnull",
    "instr",
    "json",
    "json_array",
    "json_array_length",
    "json_each",
    "json_extract",
    "json_group_array",
    "json_group_object",
    "json_object",
    "json_quote",
    "json_tree",
    "json_type",
    "json_valid",
    "julianday",
    "lag",
    "last_value",
    "lead",
    "length",
    "like",
    "likelihood",
    "likely",
    "lower",
    "ltrim",
    "max",
    "min",
    "nth_value",
    "ntile",
    "nullif",
    "octet_length",
    "percent_rank",
    "printf",
    "quote",
    "rank",
    "replace",
    "round",
    "row_number",
    "rtrim",
    "sign",
    "strftime",
    "string_agg",
    "substr",
    "substring",
    "sum",
    "time",
    "timediff",
    "total",
    "trim",
    "typeof",
    "unhex",
    "unicode",
    "unixepoch",
    "unlikely",
    "upper",
];

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
}

/// From the thread that reads.
enum Step {
    Columns(Vec<(String, String)>),
    Row(Vec<Cell>),
}

/// Stops the thread when nobody waits for it.
struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Sqlite {
    pub(super) fn new(bound: &Bound) -> Self {
        Self {
            service: bound.service.clone(),
            file: bound.file.clone(),
        }
    }

    pub(super) async fn run(&self, asked: &Asked, rows: &mut Rows, tasks: &Tasks) -> Result<(), Failure> {
        let (sender, mut steps) = mpsc::channel(WAITING);
        let stopped = Arc::new(AtomicBool::new(false));
        let _stop = Stop(Arc::clone(&stopped));
        let job = Job {
            file: self.file.clone(),
            text: asked.statement.text.clone(),
            parameters: asked.parameters.clone(),
            ours: asked.ours,
            deadline: asked.deadline,
            stopped,
        };
        let done = tasks.spawn(async move { tokio::task::spawn_blocking(move || job.run(&sender)).await });
        while let Some(step) = steps.recv().await {
            match step {
                Step::Columns(columns) => rows.columns(&columns),
                Step::Row(cells) => {
                    if !rows.row(cells).await? {
                        return Ok(());
                    }
                }
            }
        }
        match done.await {
            Ok(Ok(result)) => result.map_err(|error| self.failure(asked, &error)),
            _ => Err(Failure::new(
                Code::UpstreamFailed,
                format!("{}: the statement broke down", asked.what),
            )),
        }
    }

    fn failure(&self, asked: &Asked, error: &rusqlite::Error) -> Failure {
        let what = &asked.what;
        let said = crate::refusal::words(error.to_string().into());
        match error.sqlite_error_code() {
            Some(ffi::ErrorCode::OperationInterrupted) => asked.late(),
            Some(ffi::ErrorCode::AuthorizationForStatementDenied | ffi::ErrorCode::ReadOnly) => Failure::new(
                Code::Refused,
                format!("{what}: the statement does more than read, or uses a function that is not allowed: {said}"),
            )
            .remedy("write SELECT with functions that compute a value"),
            Some(ffi::ErrorCode::CannotOpen | ffi::ErrorCode::NotADatabase | ffi::ErrorCode::PermissionDenied) => {
                Failure::new(
                    Code::Unreachable,
                    format!("{}: the file of the database cannot be read: {said}", self.service),
                )
                .remedy(format!(
                    "an administrator looks at services.{}.database.file",
                    self.service
                ))
            }
            Some(ffi::ErrorCode::TooBig | ffi::ErrorCode::OutOfMemory) => {
                Failure::new(Code::AnswerTooLarge, format!("{what}: a value is too large: {said}"))
                    .remedy("take parts of long values, such as substr(body, 1, 1000)")
            }
            _ => Failure::new(Code::Refused, format!("{what}: the database says: {said}"))
                .remedy("tables() lists the tables, columns({table}) the columns of one"),
        }
    }
}

/// One statement on a thread of its own.
struct Job {
    file: PathBuf,
    text: String,
    parameters: Vec<Value>,
    ours: bool,
    deadline: Instant,
    stopped: Arc<AtomicBool>,
}

impl Job {
    fn run(self, out: &mpsc::Sender<Step>) -> rusqlite::Result<()> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(&self.file, flags)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
        for (limit, value) in [
            (Limit::SQLITE_LIMIT_LENGTH, LARGEST),
            (Limit::SQLITE_LIMIT_ATTACHED, 0),
            (Limit::SQLITE_LIMIT_EXPR_DEPTH, 200),
            (Limit::SQLITE_LIMIT_COMPOUND_SELECT, 100),
            (Limit::SQLITE_LIMIT_WORKER_THREADS, 0),
        ] {
            connection.set_limit(limit, value)?;
        }
        let (deadline, stopped) = (self.deadline, self.stopped);
        connection.progress_handler(
            STEPS,
            Some(move || stopped.load(Ordering::Relaxed) || Instant::now() >= deadline),
        )?;
        if !self.ours {
            connection.authorizer(Some(permit))?;
        }
        let mut statement = connection.prepare(&self.text)?;
        let names = statement.column_names().map(str::to_owned).collect::<Vec<_>>();
        for (index, value) in self.parameters.iter().enumerate() {
            statement.raw_bind_parameter(index + 1, Parameter(value))?;
        }
        let mut rows = statement.raw_query();
        let mut first = true;
        while let Some(row) = rows.next()? {
            let mut cells = Vec::with_capacity(names.len());
            let mut columns = Vec::new();
            for (index, name) in names.iter().enumerate() {
                let value = row.get_ref(index)?;
                columns.push((name.clone(), kind(value).to_owned()));
                cells.push(cell(value));
            }
            if first && out.blocking_send(Step::Columns(columns)).is_err() {
                return Ok(());
            }
            first = false;
            if out.blocking_send(Step::Row(cells)).is_err() {
                return Ok(());
            }
        }
        if first {
            // Nobody listens any more where it cannot be told.
            let _ = out.blocking_send(Step::Columns(
                names.into_iter().map(|name| (name, "null".to_owned())).collect(),
            ));
        }
        Ok(())
    }
}

/// Lets reading through, and what computes.
fn permit(context: AuthContext<'_>) -> Authorization {
    match context.action {
        AuthAction::Select | AuthAction::Recursive => Authorization::Allow,
        AuthAction::Read { table_name, .. } if !table_name.to_ascii_lowercase().starts_with("sqlite_") => {
            Authorization::Allow
        }
        AuthAction::Function { function_name } if FUNCTIONS.contains(&function_name.to_ascii_lowercase().as_str()) => {
            Authorization::Allow
        }
        _ => Authorization::Deny,
    }
}

struct Parameter<'v>(&'v Value);

impl rusqlite::ToSql for Parameter<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self.0 {
            Value::Null => ToSqlOutput::Borrowed(ValueRef::Null),
            Value::Bool(truth) => ToSqlOutput::from(*truth),
            Value::Number(number) => match number.as_i64() {
                Some(whole) => ToSqlOutput::from(whole),
                None => ToSqlOutput::from(number.as_f64().unwrap_or_default()),
            },
            Value::String(text) => ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())),
            other => ToSqlOutput::from(other.to_string()),
        })
    }
}

/// SQLite's types belong to values: a column's is that of its first.
fn kind(value: ValueRef<'_>) -> &'static str {
    match value {
        ValueRef::Null => "null",
        ValueRef::Integer(_) => "integer",
        ValueRef::Real(_) => "real",
        ValueRef::Text(_) => "text",
        ValueRef::Blob(_) => "blob",
    }
}

fn cell(value: ValueRef<'_>) -> Cell {
    match value {
        ValueRef::Null => Cell::null(),
        ValueRef::Integer(whole) => Cell::number(&whole.to_string()),
        ValueRef::Real(number) => Cell::float(&number.to_string()),
        ValueRef::Text(text) => Cell::text(&String::from_utf8_lossy(text)),
        ValueRef::Blob(bytes) => Cell::bytes(bytes),
    }
}
