//! Statements that read a file of SQLite: what a worker that was given one file does with it.
//!
//! The file is opened to be read, and an authorizer lets nothing through but reading and functions that compute. Nothing is
//! written to a temporary file: what a statement sorts or collects stays in memory, of which it gets so much and no more. The
//! process around it, `belljar worker`, is held to that file by the kernel.
//!
//! * [`read`]: one statement, row by row
//! * [`warm_up`]: what must be read of the machine before a process gives up its rights

mod functions;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use base64::Engine as _;
use rusqlite::config::DbConfig;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, OpenFlags, ffi};
use serde_json::Value;
use worker::{FileCell, FileFailure, FileFault, FileQuery, FileSink};

use self::functions::FUNCTIONS;

/// Bytes of the largest value.
const LARGEST: i32 = 16 << 20;
/// Bytes that a statement may use, its temporary tables among them.
const MEMORY: u64 = 256 << 20;
/// Instructions between two looks at the clock.
const STEPS: i32 = 1_000;
/// The byte of a file's head that says how it is written, and what it says of a log that is written ahead:
/// <https://www.sqlite.org/fileformat2.html#file_format_version_numbers>.
const WRITE_VERSION: usize = 18;
const AHEAD: u8 = 2;

/// What an error of SQLite means.
fn fault(error: &rusqlite::Error) -> FileFault {
    let said = error.to_string();
    match error.sqlite_error_code() {
        Some(ffi::ErrorCode::OperationInterrupted) => FileFault::Late,
        Some(ffi::ErrorCode::AuthorizationForStatementDenied) => FileFault::Denied(said),
        // A statement that writes is one thing, a file that would have to be mended first another.
        Some(ffi::ErrorCode::ReadOnly) if is_plain(error) => FileFault::Denied(said),
        Some(
            ffi::ErrorCode::CannotOpen
            | ffi::ErrorCode::DatabaseCorrupt
            | ffi::ErrorCode::NotADatabase
            | ffi::ErrorCode::PermissionDenied
            | ffi::ErrorCode::ReadOnly
            | ffi::ErrorCode::SystemIoFailure,
        ) => FileFault::Unreadable(said),
        Some(ffi::ErrorCode::TooBig | ffi::ErrorCode::OutOfMemory) => FileFault::TooLarge(said),
        _ => FileFault::Refused(said),
    }
}

/// Whether SQLite says no more than that a file is only read.
fn is_plain(error: &rusqlite::Error) -> bool {
    matches!(error, rusqlite::Error::SqliteFailure(inner, _) if inner.extended_code == ffi::SQLITE_READONLY)
}

/// The files that reading a database opens: itself, and what is beside it of a log or journal.
///
/// # Errors
/// It is not there.
pub fn files(database: &Path) -> io::Result<Vec<PathBuf>> {
    // What lies beside it lies beside the file itself, not beside a link to it.
    let database = database.canonicalize()?;
    let beside = ["-journal", "-wal", "-shm"].map(|end| {
        let mut path = database.clone().into_os_string();
        path.push(end);
        PathBuf::from(path)
    });
    let mut files = vec![database];
    files.extend(beside.into_iter().filter(|path| path.exists()));
    Ok(files)
}

/// Has SQLite, and what it uses of the system's library, read what they read once, such as the time zone.
pub fn warm_up() {
    // A machine without any has none to be warmed.
    if let Ok(connection) = Connection::open_in_memory() {
        let _ = connection.query_row("SELECT datetime('now', 'localtime'), random()", [], |_| Ok(()));
    }
}

/// Runs a statement that reads `database`, to its end or to that of its time.
///
/// # Errors
/// [`FileFailure`]; rows may have been handed on before.
pub fn read(database: &Path, query: &FileQuery, out: &mut dyn FileSink) -> Result<(), FileFailure> {
    let deadline = Instant::now() + query.time;
    let connection = open(database)?;
    // Rows that were handed on stay so; an error of SQLite's ends the statement wherever it comes.
    match rows(connection, deadline, query, out) {
        Ok(done) => done,
        Err(error) => Err(fault(&error).into()),
    }
}

/// Runs the statement. The outer error is SQLite's.
fn rows(
    mut connection: Connection,
    deadline: Instant,
    query: &FileQuery,
    out: &mut dyn FileSink,
) -> rusqlite::Result<Result<(), FileFailure>> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    // It answers with what it was set to.
    connection.query_row(&format!("PRAGMA hard_heap_limit = {MEMORY}"), [], |_| Ok(()))?;
    for (limit, value) in [
        (Limit::SQLITE_LIMIT_LENGTH, LARGEST),
        (Limit::SQLITE_LIMIT_ATTACHED, 0),
        (Limit::SQLITE_LIMIT_EXPR_DEPTH, 200),
        (Limit::SQLITE_LIMIT_COMPOUND_SELECT, 100),
        (Limit::SQLITE_LIMIT_WORKER_THREADS, 0),
    ] {
        connection.set_limit(limit, value)?;
    }
    connection.progress_handler(STEPS, Some(move || Instant::now() >= deadline))?;
    if !query.ours {
        connection.authorizer(Some(permit))?;
    }
    let mut statement = connection.prepare(&query.text)?;
    let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
    for (index, value) in query.parameters.iter().enumerate() {
        statement.raw_bind_parameter(index + 1, Parameter(value))?;
    }
    let mut rows = statement.raw_query();
    let mut first = true;
    while let Some(row) = rows.next()? {
        let mut cells = Vec::with_capacity(names.len());
        let mut columns = Vec::new();
        for (index, name) in names.iter().enumerate() {
            let value = row.get_ref(index)?;
            if first {
                columns.push((name.clone(), kind(value).to_owned()));
            }
            cells.push(cell(value));
        }
        if first && let Err(gone) = out.columns(columns) {
            return Ok(Err(FileFailure::Abandoned(gone)));
        }
        first = false;
        if let Err(failure) = out.row(cells) {
            return Ok(Err(failure));
        }
    }
    if first {
        let columns = names.into_iter().map(|name| (name, "null".to_owned())).collect();
        return Ok(out.columns(columns).map_err(FileFailure::Abandoned));
    }
    Ok(Ok(()))
}

fn open(database: &Path) -> Result<Connection, FileFault> {
    let unreadable = |error: io::Error| FileFault::Unreadable(error.to_string());
    let files = files(database).map_err(unreadable)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let mut uri = String::from("file:");
    for byte in files[0].as_os_str().as_encoded_bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'.' | b'_' | b'-') {
            uri.push(char::from(*byte));
        } else {
            uri.push_str(&format!("%{byte:02x}"));
        }
    }
    // A log that nobody has open would have to be made, which takes a right to write. Without one the file is all there is.
    if files.len() == 1 && is_written_ahead(&files[0]).map_err(unreadable)? {
        uri.push_str("?immutable=1");
    }
    Connection::open_with_flags(uri, flags).map_err(|error| fault(&error))
}

fn is_written_ahead(database: &Path) -> io::Result<bool> {
    use io::Read as _;
    let mut head = Vec::new();
    std::fs::File::open(database)?
        .take(WRITE_VERSION as u64 + 1)
        .read_to_end(&mut head)?;
    Ok(head.get(WRITE_VERSION) == Some(&AHEAD))
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

fn cell(value: ValueRef<'_>) -> FileCell {
    match value {
        ValueRef::Null => FileCell::Null,
        ValueRef::Integer(whole) => FileCell::Integer(whole),
        ValueRef::Real(number) => FileCell::Real(number.to_string()),
        ValueRef::Text(text) => FileCell::Text(String::from_utf8_lossy(text).into_owned()),
        ValueRef::Blob(bytes) => FileCell::Bytes(base64::engine::general_purpose::STANDARD.encode(bytes)),
    }
}
