//! Snowflake, by its SQL API, version 2: <https://docs.snowflake.com/en/developer-guide/sql-api/reference>.
//!
//! It knows no transaction that only reads: what holds there besides the guard is the role, which is judged before it is used.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use lifecycle::Tasks;
use scrub::Scrub;
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use url::Url;
use worker::Checked;

use super::Asked;
use super::rows::{Cell, Rows};
use super::settings::Bound;
use crate::body::{Bounds, Incoming};
use crate::client::Client;
use crate::credentials::{Credentials, Means};
use crate::plan::{Problems, Shared};
use crate::request::Outgoing;
use crate::retry::retry_after;
use crate::{Code, Failure};

/// How long is waited before it is asked again whether a statement has ended; doubled each time, up to the second.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// Roles that rule an account, or all that is in it.
const RULING: [&str; 6] = [
    "ACCOUNTADMIN",
    "SECURITYADMIN",
    "SYSADMIN",
    "USERADMIN",
    "ORGADMIN",
    "GLOBALORGADMIN",
];
/// How long a judgement of the role counts, of which nobody says that it changed.
const JUDGED: Duration = Duration::from_secs(60);
/// The most bytes of what is said of it.
const ROLE_BYTES: u64 = 1 << 20;

/// An account.
pub(super) struct Snowflake {
    api: Arc<Api>,
    database: String,
    schemas: Vec<String>,
    warehouse: Option<String>,
    role: Option<String>,
    /// When the role was found to be good.
    judged: Mutex<Option<Instant>>,
}

struct Api {
    service: String,
    base: Url,
    client: Client,
    credentials: Arc<Credentials>,
}

/// A statement that runs. Where it is not said to have ended, the server is told to stop.
struct Running<'a> {
    api: &'a Arc<Api>,
    tasks: &'a Tasks,
    handle: Option<String>,
}

impl Snowflake {
    pub(super) fn new(bound: &Bound, shared: &Shared, problems: &mut Problems<'_>) -> Option<Self> {
        let scheme = if bound.encryption.is_some() { "https" } else { "http" };
        let base = Url::parse(&format!("{scheme}://{}:{}", bound.host, bound.port));
        let client = Client::new(
            &bound.service,
            shared.tls.clone(),
            shared.dialer.clone(),
            bound.allow.clone(),
        );
        let (Ok(base), Ok(client)) = (base, client) else {
            problems.say(
                "database.host",
                format!("{:?} is no host of an account", bound.host),
                "write one such as xy12345.eu-central-1.snowflakecomputing.com",
            );
            return None;
        };
        Some(Self {
            api: Arc::new(Api {
                service: bound.service.clone(),
                base,
                client,
                credentials: Arc::clone(&bound.credentials),
            }),
            database: bound.name.clone(),
            schemas: bound.schemas.clone(),
            warehouse: bound.warehouse.clone(),
            role: bound.role.clone(),
            judged: Mutex::default(),
        })
    }

    /// Our own statements: one lists tables, one describes one.
    pub(super) fn catalogue(&self, tables: bool) -> String {
        let schemas: Vec<String> = self
            .schemas
            .iter()
            .map(|schema| literal(&schema.to_uppercase()))
            .collect();
        let listed = format!("UPPER(TABLE_SCHEMA) IN ({})", schemas.join(", "));
        if tables {
            format!(
                "SELECT TABLE_SCHEMA AS \"schema\", TABLE_NAME AS \"name\", LOWER(TABLE_TYPE) AS \"kind\", ROW_COUNT AS \"rows\", \
                 COMMENT AS \"comment\" FROM INFORMATION_SCHEMA.TABLES WHERE {listed} \
                 AND COALESCE(?, TABLE_SCHEMA) = TABLE_SCHEMA ORDER BY 1, 2"
            )
        } else {
            format!(
                "SELECT COLUMN_NAME AS \"name\", DATA_TYPE AS \"type\", IS_NULLABLE = 'YES' AS \"nullable\", FALSE AS \"key\", \
                 COMMENT AS \"comment\" FROM INFORMATION_SCHEMA.COLUMNS WHERE {listed} \
                 AND COALESCE(?, TABLE_SCHEMA) = TABLE_SCHEMA AND TABLE_NAME = ? ORDER BY ORDINAL_POSITION"
            )
        }
    }

    /// Refuses a role that rules: by itself, or beside it, as a user's other roles do where they count as well.
    async fn judge(&self, asked: &Asked, tasks: &Tasks) -> Result<(), Failure> {
        let judged = || self.judged.lock().unwrap_or_else(PoisonError::into_inner);
        if judged().is_some_and(|at| at.elapsed() < JUDGED) {
            return Ok(());
        }
        let question = Asked {
            what: asked.what.clone(),
            statement: Checked {
                text: "SELECT CURRENT_ROLE(), CURRENT_SECONDARY_ROLES()".to_owned(),
                ..Checked::default()
            },
            parameters: Vec::new(),
            ours: true,
            deadline: asked.deadline,
        };
        let body = self.body(&question, 1)?;
        let answer = self.finished(&question, &body, ROLE_BYTES, tasks).await?;
        let Some([Value::String(role), beside]) = answer["data"][0].as_array().map(Vec::as_slice) else {
            return Err(malformed(asked, "it does not say which role there is"));
        };
        // `{"roles":"A,B","value":"ALL"}`
        let beside = beside.as_str().unwrap_or_default().to_ascii_uppercase();
        let beside = beside.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
        let role = role.to_ascii_uppercase();
        if let Some(rules) = [role.as_str()]
            .into_iter()
            .chain(beside)
            .find(|role| RULING.contains(role))
        {
            let service = &self.api.service;
            return Err(Failure::new(
                Code::CredentialRefused,
                format!("{}: the role {rules} may do everything in the account, and is not used", asked.what),
            )
            .remedy(format!(
                "an administrator makes a role that only reads, says it in services.{service}.database.role, and takes the user's \
                 secondary roles away: ALTER USER … SET DEFAULT_SECONDARY_ROLES = ()"
            )));
        }
        *judged() = Some(Instant::now());
        Ok(())
    }

    pub(super) async fn run(&self, asked: &Asked, rows: &mut Rows, tasks: &Tasks) -> Result<(), Failure> {
        self.resolve(asked)?;
        self.judge(asked, tasks).await?;
        let body = self.body(asked, rows.limit())?;
        let first = self.finished(asked, &body, rows.bytes(), tasks).await?;
        self.take(asked, first, rows, tasks).await
    }

    /// Has a statement run, and waits for its end: its first partition.
    async fn finished(&self, asked: &Asked, body: &Value, bytes: u64, tasks: &Tasks) -> Result<Value, Failure> {
        let mut running = Running {
            api: &self.api,
            tasks,
            handle: None,
        };
        let id = hex::encode(rand::random::<[u8; 16]>());
        let id = format!(
            "{}-{}-{}-{}-{}",
            &id[..8],
            &id[8..12],
            &id[12..16],
            &id[16..20],
            &id[20..]
        );
        let target = format!("/api/v2/statements?requestId={id}");
        let mut answer = self.api.ask(Method::POST, &target, body, asked, bytes, tasks).await?;
        let mut wait = FIRST_WAIT;
        while answer.0 == StatusCode::ACCEPTED {
            let handle = handle(asked, &answer.1)?;
            running.handle = Some(handle.clone());
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LONGEST_WAIT);
            let target = format!("/api/v2/statements/{handle}");
            answer = self
                .api
                .ask(Method::GET, &target, &Value::Null, asked, bytes, tasks)
                .await?;
        }
        running.handle = None;
        Ok(answer.1)
    }

    /// Takes the rows of every partition.
    async fn take(&self, asked: &Asked, first: Value, rows: &mut Rows, tasks: &Tasks) -> Result<(), Failure> {
        let described = &first["resultSetMetaData"];
        let Some(columns) = described["rowType"].as_array() else {
            return Err(malformed(asked, "there are no columns in it"));
        };
        let columns: Vec<(String, String)> = columns
            .iter()
            .map(|column| {
                let text = |key: &str| column[key].as_str().unwrap_or_default().to_owned();
                (text("name"), text("type").to_ascii_lowercase())
            })
            .collect();
        rows.columns(&columns);
        let partitions = described["partitionInfo"].as_array().map_or(1, Vec::len);
        let statement = if partitions > 1 {
            handle(asked, &first)?
        } else {
            String::new()
        };
        let mut page = first;
        for partition in 0..partitions {
            if partition > 0 {
                let target = format!("/api/v2/statements/{statement}?partition={partition}");
                page = self
                    .api
                    .ask(Method::GET, &target, &Value::Null, asked, rows.bytes(), tasks)
                    .await?
                    .1;
            }
            for row in page["data"].as_array().into_iter().flatten() {
                let values = row.as_array().filter(|values| values.len() == columns.len());
                let values =
                    values.ok_or_else(|| malformed(asked, "a row has not as many values as there are columns"))?;
                let cells = values
                    .iter()
                    .zip(&columns)
                    .map(|(value, (_, kind))| cell(value, kind))
                    .collect();
                if !rows.row(cells).await? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Refuses a statement that reads outside of what is listed.
    fn resolve(&self, asked: &Asked) -> Result<(), Failure> {
        for named in &asked.statement.relations {
            let schema = named.schema.clone().unwrap_or_default();
            if schema.is_empty() && !self.reads_public() {
                return Err(Failure::new(
                    Code::Refused,
                    format!("{}: {named} does not say its schema", asked.what),
                )
                .remedy(format!("write SCHEMA.{named}, one of {}", self.schemas.join(", "))));
            }
            let is_listed = schema.is_empty()
                || self.schemas.iter().any(|listed| {
                    listed.eq_ignore_ascii_case(&schema)
                        || schema.eq_ignore_ascii_case(&format!("{}.{listed}", self.database))
                });
            if !is_listed {
                return Err(Failure::new(
                    Code::Refused,
                    format!("{}: {named} is in a schema that may not be read", asked.what),
                )
                .remedy(format!(
                    "an administrator adds schemas in services.{}.database.schemas",
                    self.api.service
                )));
            }
        }
        Ok(())
    }

    /// Whether names without a schema may be read: those that are not in the session's are looked for in PUBLIC, as the parameter
    /// SEARCH_PATH says where nobody changed it.
    fn reads_public(&self) -> bool {
        self.schemas.iter().any(|listed| listed.eq_ignore_ascii_case("PUBLIC"))
    }

    fn body(&self, asked: &Asked, limit: u64) -> Result<Value, Failure> {
        let mut bindings = Map::new();
        for (index, value) in asked.parameters.iter().enumerate() {
            let kind = match value {
                Value::Bool(_) => "BOOLEAN",
                Value::Number(number) if number.is_i64() || number.is_u64() => "FIXED",
                Value::Number(_) => "REAL",
                _ => "TEXT",
            };
            let text = match value {
                Value::Null => Value::Null,
                Value::String(text) => Value::from(text.as_str()),
                other => Value::from(other.to_string()),
            };
            bindings.insert((index + 1).to_string(), json!({ "type": kind, "value": text }));
        }
        let mut body = json!({
            "statement": asked.statement.text,
            "timeout": asked.time()?.as_secs().max(1),
            "database": self.database,
            "bindings": bindings,
            // One statement, and no more rows than are wanted.
            "parameters": {
                "multi_statement_count": "1",
                "rows_per_resultset": limit.saturating_add(1).to_string(),
                "timezone": "UTC",
                "binary_output_format": "HEX",
            },
        });
        for (key, value) in [
            ("schema", self.schemas.first()),
            ("warehouse", self.warehouse.as_ref()),
            ("role", self.role.as_ref()),
        ] {
            if let Some(value) = value {
                body[key] = Value::from(value.as_str());
            }
        }
        Ok(body)
    }
}

impl Api {
    /// Makes one request. A token that has ended is made anew.
    async fn ask(
        &self,
        verb: Method,
        target: &str,
        body: &Value,
        asked: &Asked,
        bytes: u64,
        tasks: &Tasks,
    ) -> Result<(StatusCode, Value), Failure> {
        let mut renewed = false;
        loop {
            let url = self
                .base
                .join(target)
                .map_err(|_| malformed(asked, "it names a statement that is none"))?;
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            let body = if body.is_null() {
                bytes::Bytes::new()
            } else {
                body.to_string().into()
            };
            let mut request = Outgoing {
                verb: verb.clone(),
                url,
                headers,
                body,
            };
            let means = Means {
                client: &self.client,
                base: &self.base,
                tasks,
                deadline: asked.deadline,
            };
            let given = self.credentials.give(&mut request, &means).await?;
            let response = self.client.send(request, asked.deadline).await?;
            let status = response.status();
            let wait = retry_after(response.headers(), jiff::Timestamp::now());
            let bounds = Bounds {
                what: asked.what.clone(),
                host: self.base.host_str().unwrap_or_default().to_owned(),
                bytes,
                deadline: asked.deadline,
            };
            let incoming = Incoming::new(response, self.client.clone(), &Scrub::of(&given.secrets), bounds)?;
            let answer = incoming.whole().await?;
            let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
            if status == StatusCode::OK || status == StatusCode::ACCEPTED {
                return Ok((status, answer));
            }
            if status == StatusCode::UNAUTHORIZED && !renewed && self.credentials.discard(&given).await {
                renewed = true;
                continue;
            }
            let code = match status.as_u16() {
                401 | 403 => Code::CredentialRefused,
                408 => return Err(asked.late()),
                429 => Code::UpstreamRateLimited,
                500.. => Code::UpstreamFailed,
                _ => Code::Refused,
            };
            let said = answer["message"].as_str().unwrap_or("nothing more");
            // A statement that met its time has ended with this state.
            if answer["sqlState"] == "57014" {
                return Err(asked.late());
            }
            return Err(Failure::new(
                code,
                format!(
                    "{}: Snowflake answers {status}: {}",
                    asked.what,
                    crate::refusal::words(said.into())
                ),
            )
            .remedy("tables() lists the tables, columns({table}) the columns of one")
            .after(wait));
        }
    }
}

impl Drop for Running<'_> {
    /// Whoever waits no longer wants no answer.
    fn drop(&mut self) {
        let Some(handle) = self.handle.take() else { return };
        let (api, tasks) = (Arc::clone(self.api), self.tasks.clone());
        let own = tasks.clone();
        tasks.spawn_until_stopped(async move {
            let asked = Asked {
                what: api.service.clone(),
                statement: Checked::default(),
                parameters: Vec::new(),
                ours: true,
                deadline: tokio::time::Instant::now() + LONGEST_WAIT,
            };
            // Without it the statement ends by its own timeout.
            let target = format!("/api/v2/statements/{handle}/cancel");
            let _ = api
                .ask(Method::POST, &target, &Value::Null, &asked, 1 << 16, &own)
                .await;
        });
    }
}

/// A text in a statement of ours.
fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

/// The statement's name, which becomes part of a path.
fn handle(asked: &Asked, answer: &Value) -> Result<String, Failure> {
    let handle = answer["statementHandle"].as_str().unwrap_or_default();
    let is_name = !handle.is_empty()
        && handle
            .bytes()
            .all(|letter| letter.is_ascii_alphanumeric() || letter == b'-');
    is_name
        .then(|| handle.to_owned())
        .ok_or_else(|| malformed(asked, "it names no statement"))
}

fn malformed(asked: &Asked, why: &str) -> Failure {
    Failure::new(
        Code::AnswerMalformed,
        format!("{}: Snowflake's answer makes no sense: {why}", asked.what),
    )
}

/// Every value comes as a text.
fn cell(value: &Value, kind: &str) -> Cell {
    let Some(text) = value.as_str() else {
        return Cell::null();
    };
    match kind {
        "fixed" => Cell::number(text),
        "real" => Cell::float(text),
        "boolean" => Cell::truth(text.eq_ignore_ascii_case("true") || text == "1"),
        "date" => Cell::text(&date(text).unwrap_or_else(|| text.to_owned())),
        "timestamp_ntz" | "timestamp_ltz" | "timestamp_tz" => {
            Cell::text(&moment(text, kind == "timestamp_ntz").unwrap_or_else(|| text.to_owned()))
        }
        "variant" | "object" | "array" => Cell::json(text),
        "binary" => hex::decode(text).map_or_else(|_| Cell::text(text), |bytes| Cell::bytes(&bytes)),
        _ => Cell::text(text),
    }
}

/// Days since 1970.
fn date(text: &str) -> Option<String> {
    let days = text.parse::<i64>().ok()?;
    let first = jiff::civil::date(1970, 1, 1);
    first
        .checked_add(jiff::Span::new().try_days(days).ok()?)
        .ok()
        .map(|date| date.to_string())
}

/// Seconds since 1970, with a fraction; of a time zone's, minutes from UTC and 1440 stand behind.
fn moment(text: &str, is_local: bool) -> Option<String> {
    let seconds = text.split(' ').next()?;
    let (whole, fraction) = seconds.split_once('.').unwrap_or((seconds, ""));
    let whole = whole.parse::<i64>().ok()?;
    let nanos = format!("{fraction:0<9}").get(..9)?.parse::<i32>().ok()?;
    let signed = if seconds.starts_with('-') { -nanos } else { nanos };
    let moment = jiff::Timestamp::new(whole, signed).ok()?.to_string();
    Some(if is_local {
        moment.trim_end_matches('Z').to_owned()
    } else {
        moment
    })
}
