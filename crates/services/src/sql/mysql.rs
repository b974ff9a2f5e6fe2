//! MySQL and MariaDB.
//!
//! The client is ours, and small, because what it does *not* negotiate is what matters: several statements at once
//! (`CLIENT_MULTI_STATEMENTS`), several results, and files of this machine (`CLIENT_LOCAL_FILES`). The caller's statement is
//! prepared and executed by the binary protocol; what goes by the text protocol is only what stands here.

mod catalogue;
mod connection;
mod handshake;
mod packet;
mod values;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lifecycle::Tasks;
use worker::Worker;

use self::connection::Connection;
use super::pool::{Login, Pool, Way};
use super::rows::Rows;
use super::settings::Bound;
use super::tls::{Encryption, certificate};
use super::{Asked, CANCELS};
use crate::{Code, Failure};

/// Rows that a join may look at, as the server estimates it.
const EXAMINED: u64 = 1_000_000_000;

/// A server, and connections to it.
pub(super) struct MySql {
    server: Arc<Server>,
    schemas: Vec<String>,
    worker: Worker,
    pool: Pool<Connection>,
    warned: AtomicBool,
}

/// Where it is.
struct Server {
    way: Way,
    name: String,
    encryption: Option<Encryption>,
}

/// A statement that runs. Where it is not said to have ended, the server is told to stop.
struct Running<'a> {
    server: &'a Arc<Server>,
    tasks: &'a Tasks,
    /// Whose, and the connection's number.
    under_way: Option<(Login, u32)>,
}

/// Why an exchange with a server has no answer.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("the connection broke")]
    Stream(#[source] std::io::Error),
    #[error("the server says {code}: {message}")]
    Said { code: u16, message: String },
    #[error("a row has more than {0} bytes")]
    TooLarge(usize),
    #[error("the server's answer makes no sense: {0}")]
    Nonsense(&'static str),
    #[error("the server cannot encrypt, and tls = \"verify\" is asked for")]
    Plain,
    #[error("{0}")]
    Login(String),
}

impl MySql {
    pub(super) fn new(bound: &Bound) -> Self {
        Self {
            server: Arc::new(Server {
                way: Way::new(bound),
                name: bound.name.clone(),
                encryption: bound.encryption.clone(),
            }),
            schemas: bound.schemas.clone(),
            worker: bound.worker.clone(),
            pool: Pool::new(),
            warned: AtomicBool::new(false),
        }
    }

    pub(super) async fn run(&self, asked: &Asked, rows: &mut Rows, tasks: &Tasks) -> Result<(), Failure> {
        let login = self.server.way.login()?;
        let mut connection = match self.pool.take(&login, |_| true) {
            Some(connection) => connection,
            None => {
                let mut connection = self.server.connect(&login).await?;
                self.judge(&mut connection).await?;
                connection
            }
        };
        let under_way = Some((login.clone(), connection.number));
        let mut running = Running {
            server: &self.server,
            tasks,
            under_way,
        };
        let result = self.within(&mut connection, asked, rows).await;
        if !matches!(result, Ok(false)) && connection.is_quiet() && connection.reset().await.is_ok() {
            running.under_way = None;
            self.pool.put(connection, login, tasks);
        }
        result.map(|_| ())
    }

    /// Runs a statement in a transaction that only reads. Says whether its answer was read to the end.
    async fn within(&self, connection: &mut Connection, asked: &Asked, rows: &mut Rows) -> Result<bool, Failure> {
        let failed = |broken| self.server.failure(asked, broken);
        let time = asked.time()?;
        let timeout = if connection.is_mariadb {
            format!("max_statement_time = {:.3}", time.as_secs_f64())
        } else {
            format!("max_execution_time = {}", time.as_millis())
        };
        let limit = rows.limit().saturating_add(1);
        let (waits, join) = (time.as_secs().max(1), if asked.ours { u64::MAX } else { EXAMINED });
        for ours in [
            // The server reads texts as the guard did: no other quotes, backslashes that escape.
            "SET NAMES utf8mb4".to_owned(),
            format!(
                "SET SESSION sql_mode = 'NO_ENGINE_SUBSTITUTION', SESSION {timeout}, SESSION sql_select_limit = {limit}, \
                 SESSION lock_wait_timeout = {waits}, SESSION sql_big_selects = 0, SESSION max_join_size = {join}, \
                 SESSION time_zone = '+00:00', SESSION group_concat_max_len = 65536"
            ),
            // A statement that commits by itself would find itself in a transaction that writes.
            "SET SESSION TRANSACTION READ ONLY".to_owned(),
            "START TRANSACTION READ ONLY".to_owned(),
        ] {
            connection.command(&ours).await.map_err(failed)?;
        }
        if !asked.ours {
            self.resolve(connection, asked).await?;
        }
        let statement = connection.prepare(&asked.statement.text).await.map_err(failed)?;
        if usize::from(statement.parameters) != asked.parameters.len() {
            return Err(Failure::new(
                Code::InvalidArguments,
                format!(
                    "{}: the statement has {} parameters, {} were given",
                    asked.what,
                    statement.parameters,
                    asked.parameters.len()
                ),
            )
            .remedy("write ? in the statement, and a value for each in parameters"));
        }
        if statement.columns == 0 {
            return Err(Failure::new(
                Code::InvalidArguments,
                format!("{}: the statement gives no columns, so it was not run", asked.what),
            )
            .remedy("write SELECT with at least one column"));
        }
        let columns = connection
            .execute(&statement, &asked.parameters)
            .await
            .map_err(failed)?;
        rows.columns(
            &columns
                .iter()
                .map(|column| (column.name.clone(), column.kind()))
                .collect::<Vec<_>>(),
        );
        while let Some(cells) = connection.row(&columns).await.map_err(failed)? {
            if !rows.row(cells).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Warns once of a user that could write.
    fn warn(&self, rights: &str) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                service = self.server.way.service,
                "the user of this database has more rights than SELECT ({rights}); it only ever reads here, but give it a user that cannot do more"
            );
        }
    }
}

impl Server {
    async fn connect(&self, login: &Login) -> Result<Connection, Failure> {
        let stream = self.way.dial().await?;
        let opened = handshake::open(stream, self.encryption.clone(), &self.name, login).await;
        opened.map_err(|broken| {
            let service = &self.way.service;
            if let Some(failure) = certificate(service, &self.way.host, &broken) {
                return failure;
            }
            let why = crate::refusal::words(causes::with_causes(&broken).into());
            match broken {
                Broken::Login(_)
                | Broken::Said {
                    code: 1045 | 1044 | 1698 | 1862,
                    ..
                } => self.way.stranger(&why),
                Broken::Said { code: 1040 | 1203, .. } => Failure::new(
                    Code::UpstreamRateLimited,
                    format!("{service}: the database has no connection left: {why}"),
                ),
                _ => Failure::new(
                    Code::Unreachable,
                    format!("{service}: no connection to the database: {why}"),
                ),
            }
        })
    }

    /// Why a statement has no answer.
    fn failure(&self, asked: &Asked, broken: Broken) -> Failure {
        let what = &asked.what;
        let why = crate::refusal::words(causes::with_causes(&broken).into());
        match broken {
            Broken::Said {
                code: 1969 | 3024 | 1317 | 1205,
                ..
            } => asked.late(),
            Broken::Said {
                code: 1146 | 1049 | 1054,
                ..
            } => Failure::new(
                Code::NotFound,
                format!("{what}: the database refuses the statement: {why}"),
            )
            .remedy("tables() lists the tables, columns({table}) the columns of one"),
            Broken::Said { code: 1104, .. } => Failure::new(
                Code::Refused,
                format!("{what}: the statement was refused before it ran: it would look at more than {EXAMINED} rows"),
            )
            .remedy("join on keys, filter by an indexed column such as a date, or take a smaller range"),
            Broken::Said { .. } => Failure::new(
                Code::Refused,
                format!("{what}: the database refuses the statement: {why}"),
            ),
            Broken::TooLarge(_) => Failure::new(Code::AnswerTooLarge, format!("{what}: {why}"))
                .remedy("name the columns you need, and take parts of long values, such as LEFT(body, 1000)"),
            _ => Failure::new(
                Code::AnswerCut,
                format!("{what}: the exchange with the database broke off: {why}"),
            ),
        }
    }
}

impl Drop for Running<'_> {
    /// Whoever waits no longer wants no answer; the server is told on a connection of its own.
    fn drop(&mut self) {
        let Some((login, number)) = self.under_way.take() else {
            return;
        };
        let server = Arc::clone(self.server);
        self.tasks.spawn_until_stopped(async move {
            // Without it the statement ends by its own timeout.
            let _ = tokio::time::timeout(CANCELS, async {
                if let Ok(mut connection) = server.connect(&login).await {
                    let _ = connection.command(&format!("KILL QUERY {number}")).await;
                }
            })
            .await;
        });
    }
}
