//! PostgreSQL.
//!
//! A statement runs inside of another, `SELECT … FROM (…) LIMIT …`, so that the server itself stops at the cap, writes every
//! value as text, and takes nothing for a statement that is none. It is prepared and executed by the extended protocol, which
//! knows one statement at a time; what goes by the simple one is only what stands here.

mod catalogue;
mod connect;
mod frame;
mod values;

use std::sync::atomic::{AtomicBool, Ordering};

use futures::StreamExt;
use lifecycle::Tasks;
use tokio_postgres::error::SqlState;
use tokio_postgres::{CancelToken, Client, NoTls, Statement};
use worker::Worker;

use self::frame::{LARGEST, Overflow};
use self::values::{Parameter, Text, Wrapped};
use super::Asked;
use super::pool::{Login, Pool, Way};
use super::rows::Rows;
use super::settings::Bound;
use super::tls::{Encryption, certificate};
use crate::{Code, Failure};

/// What makes a connection as new: a setting, a temporary object and a snapshot end with the transaction, a lock does not.
const CLEAN: &str = "ROLLBACK; SELECT pg_catalog.pg_advisory_unlock_all()";

/// A server, and connections to it.
pub(super) struct Postgres {
    way: std::sync::Arc<Way>,
    name: String,
    encryption: Option<Encryption>,
    schemas: Vec<String>,
    functions: Vec<String>,
    max_cost: f64,
    worker: Worker,
    pool: Pool<Session>,
    warned: AtomicBool,
}

/// A connection of a role that was judged.
struct Session {
    client: Client,
    overflow: Overflow,
}

/// A statement that runs. Where it is not said to have ended, the server is told to stop.
struct Running<'a> {
    postgres: &'a Postgres,
    tasks: &'a Tasks,
    token: Option<CancelToken>,
}

impl Postgres {
    pub(super) fn new(bound: &Bound) -> Self {
        Self {
            way: std::sync::Arc::new(Way::new(bound)),
            name: bound.name.clone(),
            encryption: bound.encryption.clone(),
            schemas: bound.schemas.clone(),
            functions: bound.functions.clone(),
            max_cost: bound.max_cost,
            worker: bound.worker.clone(),
            pool: Pool::new(),
            warned: AtomicBool::new(false),
        }
    }

    pub(super) async fn run(&self, asked: &Asked, rows: &mut Rows, tasks: &Tasks) -> Result<(), Failure> {
        let login = self.way.login()?;
        let session = match self.pool.take(&login, |session| !session.client.is_closed()) {
            Some(session) => session,
            None => self.connect(&login, tasks).await?,
        };
        let client = &session.client;
        let mut running = Running {
            postgres: self,
            tasks,
            token: Some(client.cancel_token()),
        };
        let result = self.within(client, asked, rows).await;
        if session.overflow.happened() {
            return Err(Failure::new(
                Code::AnswerTooLarge,
                format!("{}: a row has more than {LARGEST} bytes", asked.what),
            )
            .remedy("name the columns you need, and take parts of long values, such as left(body, 1000)"));
        }
        let ended = match &result {
            // What is left of an answer would be read first.
            Ok(whole) => *whole,
            Err(failure) => !client.is_closed() && failure.code != Code::AnswerTooLarge,
        };
        if ended && client.batch_execute(CLEAN).await.is_ok() {
            running.token = None;
            self.pool.put(session, login, tasks);
        }
        result.map(|_| ())
    }

    /// Runs a statement in a transaction that only reads. Says whether its answer was read to the end.
    async fn within(&self, client: &Client, asked: &Asked, rows: &mut Rows) -> Result<bool, Failure> {
        let failed = |error| self.failure(asked, &error);
        let time = asked.time()?.as_millis();
        let path: Vec<String> = self.schemas.iter().map(|schema| identifier(schema)).collect();
        let begin = format!(
            "BEGIN READ ONLY; SET LOCAL statement_timeout = {time}; SET LOCAL lock_timeout = {time}; \
             SET LOCAL idle_in_transaction_session_timeout = {time}; SET LOCAL search_path = pg_catalog, {}, pg_temp; \
             SET LOCAL standard_conforming_strings = on; SET LOCAL timezone = 'UTC'; SET LOCAL datestyle = 'ISO'; \
             SET LOCAL intervalstyle = 'iso_8601'; SET LOCAL bytea_output = 'hex'; SET LOCAL jit = off",
            path.join(", ")
        );
        client.batch_execute(&begin).await.map_err(failed)?;
        if !asked.ours {
            self.resolve(client, asked).await?;
        }
        let text = &asked.statement.text;
        let inner = client.prepare(text).await.map_err(failed)?;
        let parameters: Vec<Parameter<'_>> = asked.parameters.iter().map(Parameter).collect();
        if parameters.len() != inner.params().len() {
            return Err(Failure::new(
                Code::InvalidArguments,
                format!(
                    "{}: the statement has {} parameters, {} were given",
                    asked.what,
                    inner.params().len(),
                    parameters.len()
                ),
            )
            .remedy("write $1, $2 in the statement, and a value for each in parameters"));
        }
        let wrapped = Wrapped::new(&asked.what, text, inner.columns(), rows.limit())?;
        if !asked.ours && wrapped.is_query {
            self.price(client, asked, &inner, &parameters).await?;
        }
        let outer = client
            .prepare_typed(&wrapped.text, inner.params())
            .await
            .map_err(failed)?;
        rows.columns(&wrapped.described());
        let answer = client.query_raw(&outer, &parameters).await.map_err(failed)?;
        let mut answer = std::pin::pin!(answer);
        while let Some(row) = answer.next().await {
            let row = row.map_err(failed)?;
            let mut cells = Vec::with_capacity(row.len());
            for index in 0..row.len() {
                let text: Option<Text<'_>> = row.try_get(index).map_err(failed)?;
                cells.push(wrapped.cell(index, text.map(|text| text.0)));
            }
            if !rows.row(cells).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Asks the server what the statement would cost, and refuses what costs too much.
    async fn price(
        &self,
        client: &Client,
        asked: &Asked,
        inner: &Statement,
        parameters: &[Parameter<'_>],
    ) -> Result<(), Failure> {
        let failed = |error| self.failure(asked, &error);
        let explain = format!("EXPLAIN (FORMAT JSON) {}", asked.statement.text);
        let explain = client.prepare_typed(&explain, inner.params()).await.map_err(failed)?;
        let answer = client.query_raw(&explain, parameters).await.map_err(failed)?;
        let mut answer = std::pin::pin!(answer);
        let mut cost = None;
        while let Some(row) = answer.next().await {
            let row = row.map_err(failed)?;
            let plan: Text<'_> = row.try_get(0).map_err(failed)?;
            let plan: serde_json::Value = serde_json::from_str(plan.0).unwrap_or_default();
            cost = plan[0]["Plan"]["Total Cost"].as_f64();
        }
        match cost {
            Some(cost) if cost <= self.max_cost => Ok(()),
            Some(cost) => Err(Failure::new(
                Code::Refused,
                format!(
                    "{}: the statement was refused before it ran: the server estimates its cost at {cost:.0}, at most {:.0} is allowed",
                    asked.what, self.max_cost
                ),
            )
            .remedy("join on keys, filter by an indexed column such as a date, or take a smaller range")),
            None => Err(Failure::new(
                Code::AnswerMalformed,
                format!("{}: the server does not say what the statement would cost", asked.what),
            )),
        }
    }

    /// Our own statements: one lists tables, one describes one.
    pub(super) fn catalogue(&self, tables: bool) -> String {
        let schemas: Vec<String> = self.schemas.iter().map(|schema| literal(schema)).collect();
        catalogue::ours(tables, &schemas.join(", "))
    }

    /// Why a statement has no answer.
    fn failure(&self, asked: &Asked, error: &tokio_postgres::Error) -> Failure {
        let what = &asked.what;
        if let Some(failure) = certificate(&self.way.service, &self.way.host, error) {
            return failure;
        }
        let Some(said) = error.as_db_error() else {
            return Failure::new(
                Code::AnswerCut,
                format!(
                    "{what}: the connection to the database broke: {}",
                    causes::with_causes(error)
                ),
            );
        };
        let words = |text: &str| crate::refusal::words(text.into());
        let code = match said.code() {
            &SqlState::QUERY_CANCELED => return asked.late(),
            &SqlState::INSUFFICIENT_PRIVILEGE | &SqlState::READ_ONLY_SQL_TRANSACTION => Code::Refused,
            &SqlState::TOO_MANY_CONNECTIONS | &SqlState::CONFIGURATION_LIMIT_EXCEEDED => Code::UpstreamRateLimited,
            &SqlState::UNDEFINED_TABLE => Code::NotFound,
            other if other.code().starts_with("57") || other.code().starts_with("XX") => Code::UpstreamFailed,
            _ => Code::Refused,
        };
        let failure = Failure::new(
            code,
            format!(
                "{what}: the database says {}: {}",
                said.code().code(),
                words(said.message())
            ),
        );
        match (said.hint(), said.code()) {
            (Some(hint), _) => failure.remedy(words(hint)),
            (None, &SqlState::UNDEFINED_TABLE | &SqlState::UNDEFINED_COLUMN) => {
                failure.remedy("tables() lists the tables, columns({table}) the columns of one")
            }
            _ => failure,
        }
    }

    /// Warns once of a role that could write.
    fn warn(&self, rights: &str) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                service = self.way.service,
                "the role of this database may {rights}; it only ever reads here, but give it a role that cannot do more"
            );
        }
    }
}

impl Drop for Running<'_> {
    /// Whoever waits no longer wants no answer; the server is told on a connection of its own.
    fn drop(&mut self) {
        let Some(token) = self.token.take() else { return };
        let (way, encryption) = (
            std::sync::Arc::clone(&self.postgres.way),
            self.postgres.encryption.clone(),
        );
        self.tasks.spawn_until_stopped(async move {
            // Without it the statement ends by its own timeout.
            let _ = tokio::time::timeout(super::CANCELS, async {
                let Ok(stream) = way.dial().await else { return };
                let _ = match encryption {
                    Some(encryption) => {
                        token
                            .cancel_query_raw(stream, connect::Tls(encryption, Overflow::default()))
                            .await
                    }
                    None => token.cancel_query_raw(stream, NoTls).await,
                };
            })
            .await;
        });
    }
}

/// A text as the server takes it.
fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A name as the server takes it.
fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
