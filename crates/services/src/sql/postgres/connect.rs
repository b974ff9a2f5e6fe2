//! Connections, and whether the role behind one may be used.

use std::future::Future;
use std::io;
use std::pin::Pin;

use lifecycle::Tasks;
use tokio::net::TcpStream;
use tokio_postgres::config::SslMode;
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::TlsConnect;
use tokio_postgres::{Client, Config, NoTls};

use super::frame::{Measured, Overflow};
use super::{Encryption, Login, Postgres, Session, certificate};
use crate::{Code, Failure};

/// Roles that reach beyond the database, or write to all of it.
const FORBIDDEN: &str = "'pg_read_server_files', 'pg_write_server_files', 'pg_execute_server_program', \
                         'pg_signal_backend', 'pg_write_all_data', 'pg_checkpoint', 'pg_create_subscription', 'pg_maintain'";

/// Encrypts what the server agreed to encrypt.
pub(super) struct Tls(pub(super) Encryption, pub(super) Overflow);

impl TlsConnect<TcpStream> for Tls {
    type Stream = Measured<tokio_rustls::client::TlsStream<TcpStream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Stream>> + Send>>;

    fn connect(self, stream: TcpStream) -> Self::Future {
        Box::pin(async move {
            let stream = self.0.encrypt(stream).await?;
            Ok(Measured::new(stream, self.1))
        })
    }
}

impl Postgres {
    /// Opens a connection of a role that may be used.
    pub(super) async fn connect(&self, login: &Login, tasks: &Tasks) -> Result<Session, Failure> {
        let overflow = Overflow::default();
        let stream = self.way.dial().await?;
        let mut config = Config::new();
        config
            .user(login.user.expose())
            .dbname(&self.name)
            .application_name("belljar");
        if let Some(password) = &login.password {
            config.password(password.expose());
        }
        let client = match self.encryption.clone() {
            Some(encryption) => {
                config.ssl_mode(SslMode::Require);
                let opened = config.connect_raw(stream, Tls(encryption, overflow.clone())).await;
                let (client, connection) = opened.map_err(|error| self.unopened(&error))?;
                tasks.spawn_until_stopped(async move {
                    // What breaks it is told to whoever waits for an answer.
                    let _ = connection.await;
                });
                client
            }
            None => {
                config.ssl_mode(SslMode::Disable);
                let opened = config.connect_raw(Measured::new(stream, overflow.clone()), NoTls).await;
                let (client, connection) = opened.map_err(|error| self.unopened(&error))?;
                tasks.spawn_until_stopped(async move {
                    let _ = connection.await;
                });
                client
            }
        };
        self.judge(&client).await?;
        Ok(Session { client, overflow })
    }

    fn unopened(&self, error: &tokio_postgres::Error) -> Failure {
        let service = &self.way.service;
        if let Some(failure) = certificate(service, &self.way.host, error) {
            return failure;
        }
        let why = crate::refusal::words(causes::with_causes(error).into());
        match error.code() {
            Some(&SqlState::INVALID_PASSWORD | &SqlState::INVALID_AUTHORIZATION_SPECIFICATION) => {
                self.way.stranger(&why)
            }
            Some(&SqlState::TOO_MANY_CONNECTIONS) => Failure::new(
                Code::UpstreamRateLimited,
                format!("{service}: the database has no connection left: {why}"),
            ),
            _ => Failure::new(
                Code::Unreachable,
                format!("{service}: no connection to the database: {why}"),
            ),
        }
    }

    /// Refuses a role that a fault of ours would make the database's master, and warns of one that may write.
    async fn judge(&self, client: &Client) -> Result<(), Failure> {
        let question = format!(
            "SELECT r.rolname::text, r.rolsuper, r.rolreplication, r.rolbypassrls, r.rolcreaterole, \
             ARRAY(SELECT g.rolname::text FROM pg_catalog.pg_roles g WHERE g.rolname IN ({FORBIDDEN}) \
             AND pg_catalog.pg_has_role(r.oid, g.oid, 'MEMBER')), \
             EXISTS(SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema' AND c.relkind IN ('r', 'p', 'v', 'f') \
             AND pg_catalog.has_table_privilege(c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE')), \
             EXISTS(SELECT FROM pg_catalog.pg_namespace n WHERE n.nspname !~ '^pg_' \
             AND pg_catalog.has_schema_privilege(n.oid, 'CREATE')) \
             FROM pg_catalog.pg_roles r WHERE r.rolname = current_user"
        );
        let row = client
            .query_one(&question, &[])
            .await
            .map_err(|error| self.unopened(&error))?;
        let unread = |error: tokio_postgres::Error| self.unopened(&error);
        let role: String = row.try_get(0).map_err(unread)?;
        let mut rights = Vec::new();
        for (index, word) in [
            (1, "is a superuser"),
            (2, "may replicate"),
            (3, "passes row security by"),
            (4, "makes roles"),
        ] {
            if row.try_get(index).map_err(unread)? {
                rights.push(word.to_owned());
            }
        }
        let member: Vec<String> = row.try_get(5).map_err(unread)?;
        rights.extend(member.into_iter().map(|group| format!("belongs to {group}")));
        if !rights.is_empty() {
            return Err(Failure::new(
                Code::CredentialRefused,
                format!(
                    "{}: the role {role:?} is not used: it {}",
                    self.way.service,
                    rights.join(", ")
                ),
            )
            .remedy(
                "an administrator makes a role with LOGIN and GRANT SELECT on what may be read, and nothing else",
            ));
        }
        let (writes, creates): (bool, bool) = (row.try_get(6).map_err(unread)?, row.try_get(7).map_err(unread)?);
        match (writes, creates) {
            (true, _) => self.warn("write to tables"),
            (false, true) => self.warn("create objects in a schema"),
            (false, false) => {}
        }
        Ok(())
    }
}
