//! Connections that wait for the next call, each with what it was opened with.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dial::DialError;
use lifecycle::Tasks;
use secret::Secret;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::settings::Bound;
use crate::credentials::Credentials;
use crate::{Code, Failure};

/// How long a connection that nobody uses is kept, and how many of them.
const IDLE: Duration = Duration::from_secs(60);
const IDLE_CONNECTIONS: usize = 4;

/// Who connects.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) user: Secret,
    pub(super) password: Option<Secret>,
}

/// Connections that wait. Clones share them.
pub(super) struct Pool<C>(Arc<Mutex<Vec<Idle<C>>>>);

struct Idle<C> {
    connection: C,
    login: Login,
    since: Instant,
}

impl<C> Clone for Pool<C> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<C: Send + 'static> Pool<C> {
    pub(super) fn new() -> Self {
        Self(Arc::default())
    }

    /// A connection of this login that is still good. Those of another login are closed: their secret has changed.
    pub(super) fn take(&self, login: &Login, is_good: impl Fn(&C) -> bool) -> Option<C> {
        let mut idle = self.lock();
        idle.retain(|idle| idle.login == *login && idle.since.elapsed() < IDLE && is_good(&idle.connection));
        idle.pop().map(|idle| idle.connection)
    }

    /// Keeps a connection for the next call, for a while.
    pub(super) fn put(&self, connection: C, login: Login, tasks: &Tasks) {
        let mut idle = self.lock();
        if idle.len() >= IDLE_CONNECTIONS {
            return;
        }
        idle.push(Idle {
            connection,
            login,
            since: Instant::now(),
        });
        let pool = self.clone();
        tasks.spawn_until_stopped(async move {
            tokio::time::sleep(IDLE).await;
            pool.lock().retain(|idle| idle.since.elapsed() < IDLE);
        });
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Idle<C>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The way to a server, and who goes it.
pub(super) struct Way {
    pub(super) service: String,
    pub(super) host: String,
    pub(super) port: u16,
    credentials: Arc<Credentials>,
    dialer: dial::Dialer,
    allow: dial::Allow,
}

impl Way {
    pub(super) fn new(bound: &Bound) -> Self {
        Self {
            service: bound.service.clone(),
            host: bound.host.clone(),
            port: bound.port,
            credentials: Arc::clone(&bound.credentials),
            dialer: bound.dialer.clone(),
            allow: bound.allow.clone(),
        }
    }

    /// Who connects, as the secrets are now.
    pub(super) fn login(&self) -> Result<Login, Failure> {
        Ok(Login {
            user: self.credentials.slot("user")?,
            password: self.credentials.optional("password")?,
        })
    }

    /// A connection to the server, or to nowhere.
    pub(super) async fn dial(&self) -> Result<TcpStream, Failure> {
        let Self {
            service, host, port, ..
        } = self;
        self.dialer.dial(host, *port, &self.allow, None).await.map_err(|error| match error {
            DialError::Refused { .. } => Failure::new(Code::AddressRefused, format!("{service}: {error}")).remedy(
                format!("if the database may be there, an administrator names the address in services.{service}.addresses"),
            ),
            other => Failure::new(
                Code::Unreachable,
                format!("{service}: no connection to the database: {}", causes::with_causes(&other)),
            ),
        })
    }

    /// The server does not know the login.
    pub(super) fn stranger(&self, why: &str) -> Failure {
        let service = &self.service;
        Failure::new(
            Code::CredentialRefused,
            format!("{service}: the database does not accept the user and password: {why}"),
        )
        .remedy(format!("an administrator sets services.{service}.auth anew"))
    }
}
