//! A connection to the file: statements that are prepared once, and rows that stand by themselves.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use rusqlite::config::DbConfig;
use rusqlite::hooks::Wal;
use rusqlite::types::{FromSql, ToSql, ToSqlOutput, ValueRef};
use rusqlite::wal::CheckpointMode;
use rusqlite::{CachedStatement, MAIN_DB, OpenFlags, OptionalExtension, Statement};

use crate::StoreError;
use crate::batch::Bind;
use crate::error::database;
use crate::row::{Columns, Row};

/// Statements that are kept prepared: more than there are, save those that name any number of things.
const PREPARED: usize = 256;

/// How long a statement waits for another process, which only a copy of the store ever is.
const BUSY: Duration = Duration::from_secs(10);

/// What a connection may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    Write,
    Read,
}

impl Access {
    /// What is kept of the file in memory; negative, and so in KiB. A commit that split a page looks through all that whoever writes
    /// has kept: no more of it than what is written again and again.
    const fn pages_kept(self) -> i64 {
        match self {
            Self::Write => -2_000,
            Self::Read => -16_000,
        }
    }
}

/// One connection, for one thread at a time.
#[derive(Debug)]
pub(crate) struct Connection {
    sqlite: rusqlite::Connection,
    /// What is known of each statement.
    forms: RefCell<HashMap<String, Arc<Form>>>,
}

/// What a statement wants and gives: the same each time.
#[derive(Debug)]
struct Form {
    /// For each of its places the value that belongs there.
    values: Vec<usize>,
    /// Where the columns of its rows stand.
    columns: Arc<Columns>,
}

impl Form {
    /// `$2` is the second value wherever it stands, as in Postgres; SQLite itself counts the places.
    fn of(statement: &Statement<'_>) -> rusqlite::Result<Self> {
        let places = 1..=statement.parameter_count();
        let values = places.clone().map(|place| {
            let name = statement.parameter_name(place).and_then(|name| name.strip_prefix('$'));
            let number = name.and_then(|number| number.parse::<usize>().ok());
            let value = number.and_then(|number| number.checked_sub(1));
            value.ok_or(rusqlite::Error::InvalidParameterCount(0, *places.end()))
        });
        Ok(Self {
            values: values.collect::<rusqlite::Result<_>>()?,
            columns: Arc::new(Columns::of(statement)?),
        })
    }
}

impl Connection {
    /// Opens a file that exists.
    pub(crate) fn open(path: &Path, access: Access) -> rusqlite::Result<Self> {
        let access_flag = match access {
            Access::Write => OpenFlags::SQLITE_OPEN_READ_WRITE,
            Access::Read => OpenFlags::SQLITE_OPEN_READ_ONLY,
        };
        let sqlite = rusqlite::Connection::open_with_flags(path, access_flag | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
        sqlite.busy_timeout(BUSY)?;
        sqlite.set_prepared_statement_cache_capacity(PREPARED);
        // Else a statement is prepared anew whenever a value is another one that a better plan might follow from.
        sqlite.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
        sqlite.execute_batch("PRAGMA foreign_keys = ON")?;
        sqlite.pragma_update(None, "cache_size", access.pages_kept())?;
        if access == Access::Write {
            sqlite.execute_batch(
                "PRAGMA page_size = 2048; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0",
            )?;
        }
        Ok(Self {
            sqlite,
            forms: RefCell::default(),
        })
    }

    /// Every row that a statement gives.
    pub(crate) fn all(&self, sql: &str, binds: &[Bind]) -> rusqlite::Result<Vec<Row>> {
        let (mut statement, form) = self.prepared(sql, binds)?;
        let rows = statement.raw_query();
        rows.mapped(|row| Row::of(row, &form.columns)).collect()
    }

    /// The rows that a statement gives, up to the one with which they have so many bytes.
    pub(crate) fn page(&self, sql: &str, binds: &[Bind], bytes: usize) -> rusqlite::Result<Vec<Row>> {
        let (mut statement, form) = self.prepared(sql, binds)?;
        let mut rows = statement.raw_query();
        let (mut page, mut size) = (Vec::new(), 0);
        while size < bytes
            && let Some(row) = rows.next()?
        {
            let row = Row::of(row, &form.columns)?;
            size += row.size();
            page.push(row);
        }
        Ok(page)
    }

    /// Hands on every row that a statement gives, until one is refused.
    pub(crate) fn each(
        &self,
        attempt: &'static str,
        sql: &str,
        binds: &[Bind],
        mut take: impl FnMut(Row) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let failed = |source| database(attempt, source);
        let (mut statement, form) = self.prepared(sql, binds).map_err(failed)?;
        let mut rows = statement.raw_query();
        while let Some(row) = rows.next().map_err(failed)? {
            take(Row::of(row, &form.columns).map_err(failed)?)?;
        }
        Ok(())
    }

    /// The first row that a statement gives, if it gives any.
    pub(crate) fn one(&self, sql: &str, binds: &[Bind]) -> rusqlite::Result<Option<Row>> {
        let (mut statement, form) = self.prepared(sql, binds)?;
        let mut rows = statement.raw_query();
        rows.next()?.map(|row| Row::of(row, &form.columns)).transpose()
    }

    /// The first value of the first row, if there is one.
    pub(crate) fn first<T: FromSql>(&self, sql: &str) -> rusqlite::Result<Option<T>> {
        self.sqlite.query_row(sql, [], |row| row.get(0)).optional()
    }

    /// Runs a statement that gives no rows.
    pub(crate) fn execute(&self, sql: &str, binds: &[Bind]) -> rusqlite::Result<()> {
        self.prepared(sql, binds)?.0.raw_execute().map(|_| ())
    }

    /// Runs statements without values, one after the other.
    pub(crate) fn script(&self, sql: &str) -> rusqlite::Result<()> {
        self.sqlite.execute_batch(sql)
    }

    /// Whether a transaction was begun and stands: the database undoes one by itself where the disk or memory fails it.
    pub(crate) fn in_transaction(&self) -> bool {
        !self.sqlite.is_autocommit()
    }

    /// Undoes the transaction that was begun, if the database has not done so by itself.
    pub(crate) fn roll_back(&self) {
        if self.in_transaction()
            && let Err(error) = self.script("ROLLBACK")
        {
            tracing::error!(%error, "a transaction of the store could not be undone");
        }
    }

    /// Has the connection wait no longer than this for another.
    pub(crate) fn wait_at_most(&self, most: Duration) -> rusqlite::Result<()> {
        self.sqlite.busy_timeout(most)
    }

    /// Says after each commit how many pages stand in the log.
    pub(crate) fn after_commits(&mut self, tell: impl Fn(i32) + Send + 'static) -> rusqlite::Result<()> {
        self.sqlite.wal_hook(Some(move |_: &mut Wal, pages| {
            tell(pages);
            Ok(())
        }))
    }

    /// Brings the log into the file, as far as this way of doing it goes.
    pub(crate) fn checkpoint(&self, mode: CheckpointMode) -> rusqlite::Result<()> {
        self.sqlite.wal_checkpoint_v2(Some(MAIN_DB), mode).map(drop)
    }

    /// Closes the file, and says what stands in the way.
    pub(crate) fn close(self) -> rusqlite::Result<()> {
        self.sqlite.close().map_err(|(_, error)| error)
    }

    /// A statement with its values.
    fn prepared(&self, sql: &str, binds: &[Bind]) -> rusqlite::Result<(CachedStatement<'_>, Arc<Form>)> {
        let mut statement = self.sqlite.prepare_cached(sql)?;
        let form = self.form(sql, &statement)?;
        for (place, value) in form.values.iter().enumerate() {
            let missing = || rusqlite::Error::InvalidParameterCount(binds.len(), form.values.len());
            statement.raw_bind_parameter(place + 1, binds.get(*value).ok_or_else(missing)?)?;
        }
        Ok((statement, form))
    }

    fn form(&self, sql: &str, statement: &Statement<'_>) -> rusqlite::Result<Arc<Form>> {
        if let Some(known) = self.forms.borrow().get(sql) {
            return Ok(Arc::clone(known));
        }
        let form = Arc::new(Form::of(statement)?);
        let mut forms = self.forms.borrow_mut();
        if forms.len() >= PREPARED {
            forms.clear();
        }
        forms.insert(sql.to_owned(), Arc::clone(&form));
        Ok(form)
    }
}

impl ToSql for Bind {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Integer(value) => ValueRef::Integer(*value),
            Self::Text(value) => ValueRef::Text(value.as_bytes()),
            Self::Blob(value) => ValueRef::Blob(value),
        }))
    }
}
