//! Databases: what gets through, and that nothing that does changes anything.
//!
//! Every attack goes through `Services::call` thrice: as it would be; with the guard open and a role that only reads; with the
//! guard open and a role that may write, so that the transaction alone holds. Before and after, all that the server keeps is
//! written down by its superuser, and must be the same.

mod mariadb;
mod postgres;
mod server;
mod snowflake;
mod sqlite;
mod tls;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dial::{Dialer, SystemResolver};
use domain::{SessionId, UserId};
use lifecycle::Tasks;
use secret::{Reference, Secret};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use services::{
    Answer, Bound, Call, Catalogue, DatabaseSettings, Engine, Failure, ServiceSettings, Services, TransportSecurity,
    Trust,
};
use worker::Worker;

use crate::rig::guard;

const DEFINITION: &str = r#"
name = "warehouse"
summary = "Numbers"
kind = "sql"
engines = ["postgres", "mysql", "mariadb", "sqlite", "snowflake"]
[limits]
timeout = "TIMEOUT"
[methods.query]
summary = "Rows"
request = "query"
[methods.export]
summary = "A file"
request = "export"
limits = { response = "1MiB" }
[methods.tables]
summary = "Tables"
request = "tables"
[methods.columns]
summary = "Columns"
request = "columns"
"#;

/// Passwords of every user.
pub(crate) const PASSWORD: &str = "canary-4711-password";

/// What stands between a statement and the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fence {
    /// All of it.
    Whole,
    /// A role that only reads, and the transaction.
    Role,
    /// The transaction.
    Transaction,
}

impl Fence {
    pub(crate) const ALL: [Self; 3] = [Self::Whole, Self::Role, Self::Transaction];

    pub(crate) fn user(self) -> &'static str {
        if self == Self::Transaction { "writer" } else { "reader" }
    }

    fn worker(self) -> Worker {
        if self == Self::Whole {
            return guard();
        }
        guard_as("open")
    }
}

/// A guard of that kind, which has a minute for a statement.
pub(crate) fn guard_as(kind: &str) -> Worker {
    let tests = std::env::current_exe().unwrap();
    Worker::new(worker::Config {
        program: tests.parent().unwrap().parent().unwrap().join("examples/guard"),
        arguments: vec![kind.into()],
        check: Duration::from_secs(60),
        ..worker::Config::default()
    })
}

/// A database as a session sees it.
pub(crate) struct Database {
    services: Services,
    session: SessionId,
    user: UserId,
}

impl Database {
    pub(crate) fn new(fence: Fence, engine: Engine, port: u16) -> Self {
        let database = DatabaseSettings {
            engine: Some(engine),
            host: Some("127.0.0.1".to_owned()),
            port: Some(port),
            name: Some("shop".to_owned()),
            tls: TransportSecurity::Off,
            ..DatabaseSettings::default()
        };
        Self::of(fence, fence.user(), database)
    }

    pub(crate) fn of(fence: Fence, user: &str, database: DatabaseSettings) -> Self {
        Self::patient(fence, user, database, "4s")
    }

    /// One whose statements have that much time.
    pub(crate) fn patient(fence: Fence, user: &str, database: DatabaseSettings, timeout: &str) -> Self {
        Self::read_by(fence.worker(), user, database, timeout)
    }

    /// One whose statements are read by that worker.
    pub(crate) fn read_by(worker: Worker, user: &str, database: DatabaseSettings, timeout: &str) -> Self {
        let catalogue = catalogue(timeout);
        let settings = ServiceSettings {
            auth: [
                ("user".to_owned(), Bound::from(user)),
                ("password".to_owned(), Bound::from("store:password")),
            ]
            .into(),
            addresses: vec!["127.0.0.0/8".parse().unwrap()],
            database: Some(database),
            ..ServiceSettings::default()
        };
        let password: Reference = "store:password".parse().unwrap();
        let secrets = BTreeMap::from([(password, Secret::new(PASSWORD))]);
        Self::with(&catalogue, settings, Arc::new(secrets), worker)
    }

    pub(crate) fn with(
        catalogue: &Catalogue,
        settings: ServiceSettings,
        secrets: Arc<dyn secret::Source>,
        worker: Worker,
    ) -> Self {
        Self::trusting(catalogue, settings, secrets, worker, Trust::only(b"").unwrap())
    }

    pub(crate) fn trusting(
        catalogue: &Catalogue,
        settings: ServiceSettings,
        secrets: Arc<dyn secret::Source>,
        worker: Worker,
        trust: Trust,
    ) -> Self {
        let dialer = Dialer::new(Arc::new(SystemResolver::default()), dial::Settings::default());
        let settings = BTreeMap::from([("warehouse".to_owned(), settings)]);
        let made = Services::new(catalogue, &settings, secrets, dialer, trust, Tasks::new(), worker);
        let (services, problems) = made.unwrap();
        assert!(problems.is_empty(), "{problems:?}");
        Self {
            services,
            session: SessionId::new(),
            user: UserId::new(),
        }
    }

    /// The same as another user sees it.
    pub(crate) fn neighbour(&self) -> Self {
        Self {
            user: UserId::new(),
            ..self.elsewhere()
        }
    }

    /// The same as the same user sees it in another session.
    pub(crate) fn elsewhere(&self) -> Self {
        Self {
            services: self.services.clone(),
            session: SessionId::new(),
            user: self.user,
        }
    }

    /// Begins an export, and goes away.
    pub(crate) async fn abandon(&self, sql: &str) {
        drop(self.ask("export", json!({ "sql": sql })).await.unwrap());
    }

    async fn ask(&self, method: &str, arguments: Value) -> Result<Answer, Failure> {
        let arguments = RawValue::from_string(arguments.to_string()).unwrap();
        let call = Call {
            session: self.session,
            user: self.user,
            service: "warehouse",
            method,
            arguments: &arguments,
            idempotency_key: None,
        };
        self.services.call(call).await
    }

    pub(crate) async fn call(&self, method: &str, arguments: Value) -> Result<Vec<u8>, Failure> {
        let result = match self.ask(method, arguments).await {
            Ok(answer) => answer.whole().await,
            Err(failure) => Err(failure),
        };
        if let Err(failure) = &result {
            assert!(!format!("{failure:?}").contains(PASSWORD), "{failure:?}");
        }
        result.map(|bytes| bytes.to_vec())
    }

    pub(crate) async fn query(&self, sql: &str) -> Result<Value, Failure> {
        let answer = self.call("query", json!({ "sql": sql })).await?;
        Ok(serde_json::from_slice(&answer).unwrap())
    }

    /// The rows of a query that succeeds.
    pub(crate) async fn rows(&self, sql: &str) -> Value {
        match self.query(sql).await {
            Ok(answer) => answer["rows"].clone(),
            Err(failure) => panic!("{sql}: {failure:?}"),
        }
    }
}

/// The definition.
pub(crate) fn catalogue(timeout: &str) -> Catalogue {
    let folder = tempfile::tempdir().unwrap();
    let warehouse = folder.path().join("warehouse");
    std::fs::create_dir(&warehouse).unwrap();
    std::fs::write(warehouse.join("service.toml"), DEFINITION.replace("TIMEOUT", timeout)).unwrap();
    let (catalogue, mistakes) = Catalogue::load(&[folder.path()]);
    assert!(mistakes.is_empty(), "{mistakes:?}");
    catalogue
}

/// Sends attacks through every fence. With all of it each is refused; with less of it nothing changes either.
pub(crate) async fn withstands(attacks: &[&str], open: impl Fn(Fence) -> Database, state: impl Fn() -> String) {
    let before = state();
    for fence in Fence::ALL {
        let database = open(fence);
        for attack in attacks {
            let result = database.query(attack).await;
            if fence == Fence::Whole {
                let failure = result.expect_err(attack);
                assert!(!failure.message.is_empty(), "{attack}");
            }
        }
        assert_eq!(state(), before, "{fence:?}: {attacks:?}");
    }
}
