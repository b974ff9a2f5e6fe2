//! What an operator says of a database.

use std::path::PathBuf;
use std::sync::Arc;

use dial::{Allow, Dialer};
use serde::Deserialize;
use worker::Worker;

use super::tls::Encryption;
use crate::credentials::Credentials;
use crate::definition::{Auth, Engine, Sql};
use crate::gate::Gate;
use crate::plan::{Problems, Shared};
use crate::settings::ServiceSettings;

/// The most that a statement may cost, as Postgres estimates it, where nothing else is said.
const COST: f64 = 10_000_000.0;

/// `[services.NAME.database]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DatabaseSettings {
    /// Which of the definition's engines it is.
    pub engine: Option<Engine>,
    /// The host's name or address. Of Snowflake, the account's host.
    pub host: Option<String>,
    /// The port, where it is not the engine's usual one.
    pub port: Option<u16>,
    /// The database's name.
    pub name: Option<String>,
    /// The file, of SQLite.
    pub file: Option<PathBuf>,
    /// Schemas whose tables may be read; `public` of Postgres, `PUBLIC` of Snowflake, the database itself of MySQL and MariaDB, where
    /// it is left out.
    pub schemas: Vec<String>,
    /// Functions of the database's own that statements may use, as `schema.name`. Of Postgres.
    pub functions: Vec<String>,
    /// Whether the connection is encrypted.
    pub tls: TransportSecurity,
    /// The most that a statement may cost, as Postgres estimates it.
    pub max_cost: Option<f64>,
    /// The warehouse that computes, of Snowflake.
    pub warehouse: Option<String>,
    /// The role, of Snowflake.
    pub role: Option<String>,
}

/// Whether a connection is encrypted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TransportSecurity {
    /// It is, and the server's certificate and name are verified.
    #[default]
    Verify,
    /// It is not: for a server on this machine, or behind a tunnel.
    Off,
}

/// A database, bound.
pub(super) struct Bound {
    pub(super) service: String,
    pub(super) engine: Engine,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) name: String,
    pub(super) file: PathBuf,
    pub(super) schemas: Vec<String>,
    pub(super) functions: Vec<String>,
    /// None: what is sent goes as it is.
    pub(super) encryption: Option<Encryption>,
    pub(super) max_cost: f64,
    pub(super) warehouse: Option<String>,
    pub(super) role: Option<String>,
    pub(super) credentials: Arc<Credentials>,
    pub(super) dialer: Dialer,
    pub(super) allow: Allow,
    pub(super) worker: Worker,
    pub(super) files: Arc<Gate>,
}

impl Bound {
    pub(super) fn new(
        service: &str,
        definition: &Sql,
        settings: &ServiceSettings,
        shared: &Shared,
        problems: &mut Problems<'_>,
    ) -> Option<Self> {
        // A database of which nothing is said is none that anybody has.
        let database = settings.database.as_ref()?;
        let known: Vec<&str> = definition.engines.iter().map(|engine| engine.as_str()).collect();
        let engine = match (database.engine, &definition.engines[..]) {
            (Some(engine), engines) if engines.contains(&engine) => engine,
            (None, [engine]) => *engine,
            _ => {
                problems.say(
                    "database.engine",
                    "it is not said which database it is",
                    format!("write engine = one of {}", known.join(", ")),
                );
                return None;
            }
        };
        let mut complete = true;
        let mut required = |key: &str, value: &Option<String>, needed: bool| {
            let value = value.clone().unwrap_or_default();
            if needed && value.is_empty() {
                complete = false;
                problems.say(
                    &format!("database.{key}"),
                    format!("{} cannot be reached without it", engine.as_str()),
                    format!("write it as {key} = \"…\" in [services.{service}.database]"),
                );
            }
            value
        };
        let is_file = engine == Engine::Sqlite;
        let host = required("host", &database.host, !is_file);
        let name = required("name", &database.name, !is_file);
        let file = database.file.as_ref().and_then(|file| file.to_str()).map(str::to_owned);
        let file = required("file", &file, is_file).into();
        if database.tls == TransportSecurity::Off && !is_file && settings.addresses.is_empty() {
            complete = false;
            problems.say(
                "database.tls",
                "the password and the rows would go unencrypted to the public network",
                "take tls = \"off\" away, or name the address of an inner server in `addresses`",
            );
        }
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let encryption = match database.tls {
            TransportSecurity::Verify if !is_file => Encryption::new(shared.tls.clone(), &host),
            _ => None,
        };
        if encryption.is_none() && database.tls == TransportSecurity::Verify && !is_file && complete {
            complete = false;
            problems.say(
                "database.host",
                format!("{host:?} is no name or address that a certificate could be for"),
                "write the server's name",
            );
        }
        let way = if engine == Engine::Snowflake {
            Auth::KeyPair
        } else {
            Auth::Basic
        };
        if !complete {
            return None;
        }
        Some(Self {
            service: service.to_owned(),
            engine,
            host,
            port: database.port.unwrap_or(match engine {
                Engine::Postgres => 5432,
                Engine::Snowflake => 443,
                _ => 3306,
            }),
            schemas: match (&database.schemas[..], engine) {
                ([], Engine::Postgres) => vec!["public".to_owned()],
                ([], Engine::Snowflake) => vec!["PUBLIC".to_owned()],
                ([], Engine::MySql | Engine::MariaDb) => vec![name.clone()],
                (schemas, _) => schemas.to_vec(),
            },
            name,
            file,
            functions: database.functions.clone(),
            encryption,
            max_cost: database.max_cost.unwrap_or(COST),
            warehouse: database.warehouse.clone(),
            role: database.role.clone(),
            credentials: Arc::new(Credentials::new(
                service,
                &[way],
                settings.auth.clone(),
                shared.secrets.clone(),
            )),
            dialer: shared.dialer.clone(),
            allow: Allow {
                networks: settings.addresses.clone(),
            },
            worker: shared.worker.clone(),
            files: Arc::clone(&shared.files),
        })
    }
}
