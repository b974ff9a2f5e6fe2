//! Databases: a statement is read by a worker, and what the worker wrote down of it runs, in a transaction that only reads.
//!
//! Four things hold, each alone: the guard lets one statement through that reads ([`worker::Worker::check_sql`]); its names
//! are looked up in the database's own catalogue; the transaction only reads; and the role that the operator gave has no
//! right to write. Rows, bytes, time and cost are bounded besides.

mod mysql;
mod pool;
mod postgres;
mod rows;
mod settings;
mod snowflake;
mod sqlite;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lifecycle::Tasks;
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use tokio::time::Instant;
use worker::{Checked, Dialect, Worker, WorkerError};

pub use self::settings::{DatabaseSettings, TransportSecurity};

use self::rows::{Form, Rows};
use crate::definition::{Engine, Sql, Statement};
use crate::gate::{Caller, Gate, admit};
use crate::plan::{Problems, Shared};
use crate::settings::ServiceSettings;
use crate::{Code, Failure};

/// Rows of a query, where the call says nothing else.
const ROWS: u64 = 1_000;
/// Rows of an export.
const EXPORTED: u64 = 5_000_000;
/// Tables that are listed, and columns of one.
const LISTED: u64 = 5_000;
/// Pieces of an export that wait for whoever reads it.
const WAITING: usize = 8;
/// How long a server may take to be told that an answer is no longer wanted.
const CANCELS: Duration = Duration::from_secs(10);
/// What is left of the deadline for the way there and back, when a server is told how long a statement may take.
const MARGIN: Duration = Duration::from_millis(500);

/// What a call of a database gives.
pub(crate) enum Received {
    /// Everything, as JSON.
    Whole(Bytes),
    /// A file that is being written.
    Flowing {
        media_type: &'static str,
        pieces: mpsc::Receiver<Result<Bytes, Failure>>,
    },
}

/// A database, ready to be asked.
pub(crate) struct Database {
    engine: Engine,
    worker: Worker,
    /// Of which one user has half.
    checks: Arc<Gate>,
    driver: Arc<Driver>,
}

enum Driver {
    Postgres(postgres::Postgres),
    MySql(mysql::MySql),
    Sqlite(sqlite::Sqlite),
    Snowflake(snowflake::Snowflake),
}

/// What is asked of a driver.
pub(crate) struct Asked {
    /// The method, in words.
    pub(crate) what: String,
    /// What runs.
    pub(crate) statement: Checked,
    /// What its placeholders stand for.
    pub(crate) parameters: Vec<Value>,
    /// Whether the statement is our own, so that its names need no looking up.
    pub(crate) ours: bool,
    pub(crate) deadline: Instant,
}

impl Asked {
    /// How long the server may take.
    pub(crate) fn time(&self) -> Result<Duration, Failure> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        match left.checked_sub(MARGIN).filter(|left| left.as_millis() > 0) {
            Some(left) => Ok(left),
            None => Err(self.late()),
        }
    }

    pub(crate) fn late(&self) -> Failure {
        Failure::new(
            Code::Timeout,
            format!("{}: the statement did not end in time and was stopped", self.what),
        )
        .remedy("ask for less: a narrower WHERE, an indexed column, fewer joins, or a sum instead of rows")
    }
}

/// One call.
pub(crate) struct Calling<'a> {
    pub(crate) caller: Caller,
    pub(crate) what: &'a str,
    pub(crate) statement: &'a Statement,
    pub(crate) arguments: Map<String, Value>,
    pub(crate) deadline: Instant,
    /// The most bytes of the answer.
    pub(crate) bytes: u64,
}

/// A call whose statement was read.
pub(crate) struct Query {
    asked: Asked,
    answer: Wanted,
    bytes: u64,
}

/// How what a statement gives is wanted.
enum Wanted {
    Rows { form: Form, limit: u64 },
    File { csv: bool },
}

impl Database {
    /// Binds the definition of a database to what the operator says. Nothing where a problem was said.
    pub(crate) fn new(
        service: &str,
        definition: &Sql,
        settings: &ServiceSettings,
        shared: &Shared,
        problems: &mut Problems<'_>,
    ) -> Option<Self> {
        let bound = settings::Bound::new(service, definition, settings, shared, problems)?;
        let driver = match bound.engine {
            Engine::Postgres => Driver::Postgres(postgres::Postgres::new(&bound)),
            Engine::MySql | Engine::MariaDb => Driver::MySql(mysql::MySql::new(&bound)),
            Engine::Sqlite => Driver::Sqlite(sqlite::Sqlite::new(&bound)),
            Engine::Snowflake => Driver::Snowflake(snowflake::Snowflake::new(&bound, shared, problems)?),
        };
        Some(Self {
            engine: bound.engine,
            worker: shared.worker.clone(),
            checks: Arc::clone(&shared.checks),
            driver: Arc::new(driver),
        })
    }

    /// Takes up a place besides those of the service, as the kind of database wants it.
    pub(crate) fn files(&self) -> Option<&Gate> {
        match &*self.driver {
            Driver::Sqlite(sqlite) => Some(&sqlite.files),
            Driver::Postgres(_) | Driver::MySql(_) | Driver::Snowflake(_) => None,
        }
    }

    /// What a call asks of the database. Its statement is read by a worker.
    pub(crate) async fn read(&self, calling: Calling<'_>) -> Result<Query, Failure> {
        let Calling {
            caller,
            what,
            statement,
            mut arguments,
            deadline,
            bytes,
        } = calling;
        let mut form = Form::Rows;
        let mut limit = ROWS;
        let (text, parameters) = match statement {
            Statement::Query | Statement::Export => {
                let text = arguments
                    .get("sql")
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_owned();
                let parameters = match arguments.remove("parameters") {
                    Some(Value::Array(parameters)) => parameters,
                    _ => Vec::new(),
                };
                if let Some(said) = arguments.get("limit").and_then(Value::as_u64) {
                    limit = said;
                }
                (text, parameters)
            }
            Statement::Fixed { text, parameters } => {
                let bound = parameters.iter().map(|name| arguments.remove(name).unwrap_or_default());
                (text.clone(), bound.collect())
            }
            Statement::Tables => {
                form = Form::Tables(self.engine);
                (String::new(), vec![arguments.remove("schema").unwrap_or_default()])
            }
            Statement::Describe => {
                let table = arguments.get("table").and_then(Value::as_str).unwrap_or_default();
                form = Form::Described(table.to_owned());
                (String::new(), parts(table))
            }
        };
        let ours = matches!(statement, Statement::Tables | Statement::Describe);
        let checked = if ours {
            limit = LISTED;
            self.driver.catalogue(*statement == Statement::Tables)
        } else {
            let reading = async {
                let _place = admit([&*self.checks], caller, what)?.enter(what).await?;
                self.check(what, &text).await
            };
            let read = tokio::time::timeout_at(deadline, reading).await;
            read.unwrap_or_else(|_| Err(unread_in_time(what)))?
        };
        if !ours {
            self.counted(what, &checked, parameters.len())?;
        }
        let asked = Asked {
            what: what.to_owned(),
            statement: checked,
            parameters,
            ours,
            deadline,
        };
        let answer = if *statement == Statement::Export {
            let csv = arguments.get("format").is_some_and(|format| format == "csv");
            Wanted::File { csv }
        } else {
            Wanted::Rows { form, limit }
        };
        Ok(Query { asked, answer, bytes })
    }

    /// Has the database answer what was read.
    pub(crate) async fn run(&self, query: Query, tasks: &Tasks) -> Result<Received, Failure> {
        let Query { asked, answer, bytes } = query;
        let (what, deadline) = (asked.what.as_str(), asked.deadline);
        let (form, limit) = match answer {
            Wanted::Rows { form, limit } => (form, limit),
            Wanted::File { csv } => {
                let (sender, pieces) = mpsc::channel(WAITING);
                let (driver, own) = (Arc::clone(&self.driver), tasks.clone());
                let reader = sender.clone();
                let mut rows = Rows::flowing(what, csv, EXPORTED, bytes, sender);
                tasks.spawn_until_stopped(async move {
                    let run = tokio::time::timeout_at(deadline, driver.run(&asked, &mut rows, &own));
                    let result = tokio::select! {
                        run = run => run.unwrap_or_else(|_| Err(asked.late())),
                        // The places that the call had are free, so its statement ends, though it may never have given a row.
                        () = reader.closed() => return,
                    };
                    rows.end(result).await;
                });
                let media_type = if csv { "text/csv" } else { "application/jsonl" };
                return Ok(Received::Flowing { media_type, pieces });
            }
        };
        let is_one_table = matches!(form, Form::Described(_));
        let mut rows = Rows::whole(what, form, limit, bytes);
        match tokio::time::timeout_at(deadline, self.driver.run(&asked, &mut rows, tasks)).await {
            Ok(result) => result?,
            Err(_) => return Err(asked.late()),
        }
        if is_one_table && rows.is_empty() {
            return Err(Failure::new(
                Code::NotFound,
                format!("{what}: there is no such table, or it may not be read"),
            )
            .remedy("tables() lists those that there are"));
        }
        Ok(Received::Whole(rows.finish()))
    }

    /// Has a statement of the definition's own read, if it is one.
    pub(crate) async fn check_fixed(&self, what: &str, statement: &Statement) -> Result<(), Failure> {
        let Statement::Fixed { text, parameters } = statement else {
            return Ok(());
        };
        let checked = self.check(what, text).await?;
        self.counted(what, &checked, parameters.len())
    }

    /// Whether there is a value for each placeholder.
    fn counted(&self, what: &str, checked: &Checked, given: usize) -> Result<(), Failure> {
        if checked.parameters as usize == given {
            return Ok(());
        }
        Err(Failure::new(
            Code::InvalidArguments,
            format!(
                "{what}: the statement has {} parameters, {given} were given",
                checked.parameters
            ),
        )
        .remedy(format!(
            "write {} in the statement, and a value for each in parameters",
            self.engine.placeholders()
        )))
    }

    /// What may run of a text, or why nothing does.
    async fn check(&self, what: &str, text: &str) -> Result<Checked, Failure> {
        check(&self.worker, self.engine.dialect(), what, text).await
    }
}

/// Has a statement read by a worker.
async fn check(worker: &Worker, dialect: Dialect, what: &str, text: &str) -> Result<Checked, Failure> {
    worker.check_sql(dialect, text).await.map_err(|error| match error {
        WorkerError::Refused { why, remedy } => Failure::new(
            Code::InvalidArguments,
            format!("{what}: the statement was refused: {why}"),
        )
        .remedy(remedy),
        WorkerError::Limit { .. } => Failure::new(Code::InvalidArguments, format!("{what}: {error}"))
            .remedy("write a shorter statement, with values as parameters"),
        other => unread(what, &other),
    })
}

fn unread_in_time(what: &str) -> Failure {
    Failure::new(
        Code::Timeout,
        format!("{what}: the statement was not checked in time: others are"),
    )
    .remedy("make fewer calls at once")
}

/// A worker has not done with a statement what it is there for.
fn unread(what: &str, error: &WorkerError) -> Failure {
    if let WorkerError::Busy { .. } = error {
        return Failure::new(Code::Busy, format!("{what}: {error}"))
            .remedy("make fewer calls at once")
            .after(Some(Duration::from_secs(1)));
    }
    Failure::new(
        Code::Refused,
        format!(
            "{what}: the worker did not do its part, so there is no answer: {}",
            causes::with_causes(error)
        ),
    )
    .remedy("try a simpler statement; if that fails too, an administrator looks at `belljar doctor`")
}

impl Driver {
    async fn run(&self, asked: &Asked, rows: &mut Rows, tasks: &Tasks) -> Result<(), Failure> {
        match self {
            Self::Postgres(postgres) => postgres.run(asked, rows, tasks).await,
            Self::MySql(mysql) => mysql.run(asked, rows, tasks).await,
            Self::Sqlite(sqlite) => sqlite.run(asked, rows).await,
            Self::Snowflake(snowflake) => snowflake.run(asked, rows, tasks).await,
        }
    }

    /// Our own statement, which lists tables or describes one.
    fn catalogue(&self, tables: bool) -> Checked {
        let text = match self {
            Self::Postgres(postgres) => postgres.catalogue(tables),
            Self::MySql(mysql) => mysql.catalogue(tables),
            Self::Sqlite(_) => sqlite::catalogue(tables),
            Self::Snowflake(snowflake) => snowflake.catalogue(tables),
        };
        Checked {
            text,
            ..Checked::default()
        }
    }
}

/// `schema.table`, or `table` alone, as two parameters.
fn parts(table: &str) -> Vec<Value> {
    match table.rsplit_once('.') {
        Some((schema, name)) => vec![schema.into(), name.into()],
        None => vec![Value::Null, table.into()],
    }
}
