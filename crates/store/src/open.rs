//! Opening and closing.

use std::fs::{File, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use domain::Timestamp;
use futures::TryStreamExt;
use futures::future::BoxFuture;
use lifecycle::Tasks;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteRow,
    SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection};
use tokio::sync::mpsc;

use crate::batch::{self, Bind};
use crate::error::database;
use crate::writer::{self, Job, QUEUE, Watchers, Work};
use crate::{StoreError, migrations};

/// What the store takes for the time.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    /// The machine's.
    #[must_use]
    pub fn machine() -> Self {
        Self::of(Timestamp::now)
    }

    /// Any other.
    #[must_use]
    pub fn of(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// What it says.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        (self.0)()
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Clock").field(&self.now()).finish()
    }
}

/// What the store needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// The database's file; its folder exists.
    pub path: PathBuf,
    /// Connections that read.
    pub readers: u32,
    /// The time.
    pub clock: Clock,
}

impl Config {
    /// A store in this file, as it is meant to be run.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            readers: 4,
            clock: Clock::machine(),
        }
    }
}

/// The store. Clones share it.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) path: PathBuf,
    pub(crate) clock: Clock,
    pub(crate) readers: SqlitePool,
    pub(crate) watchers: Arc<Watchers>,
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    tasks: Tasks,
    _lock: Lock,
}

/// How long closing waits for what was begun.
const CLOSING: Duration = Duration::from_secs(30);

impl Store {
    /// Opens the store and makes its file where there is none, readable by its owner alone. An older schema is backed up beside
    /// the file and migrated. Reservations that a dead process left are charged (their runs go on when they are taken again).
    ///
    /// # Errors
    /// The file is in use, is not a store, is of a newer release, or cannot be written.
    pub async fn open(config: Config) -> Result<Self, StoreError> {
        const ATTEMPT: &str = "open the store";
        let lock = Lock::take(&config.path)?;
        make_private(&config.path)?;
        let failed = |source| database(ATTEMPT, source);
        let options = options(&config.path);
        let mut connection = SqliteConnection::connect_with(&options)
            .await
            .map_err(|source| not_a_store(&config.path, source))?;
        migrations::check_and_run(&mut connection, &config.path, config.clock.now()).await?;
        let readers = SqlitePoolOptions::new()
            .max_connections(config.readers.max(1))
            .test_before_acquire(false)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_with(options.read_only(true))
            .await
            .map_err(failed)?;
        let (jobs, queue) = mpsc::channel(QUEUE);
        let watchers = Arc::new(Watchers::default());
        let tasks = Tasks::new();
        tasks.spawn(writer::run(
            connection,
            queue,
            Arc::clone(&watchers),
            config.clock.clone(),
        ));
        let store = Self {
            inner: Arc::new(Inner {
                path: config.path,
                clock: config.clock,
                readers,
                watchers,
                jobs: Mutex::new(Some(jobs)),
                tasks,
                _lock: lock,
            }),
        };
        store.charge_what_was_left().await?;
        Ok(store)
    }

    /// Lets what was begun end, then closes the file. Later calls fail with [`StoreError::Closed`].
    pub async fn close(&self) {
        let jobs = self.inner.jobs.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(jobs);
        self.inner.readers.close().await;
        if !self.inner.tasks.shut_down(CLOSING).await {
            tracing::warn!("the store still writes after {CLOSING:?}; what was acknowledged is on the disk");
        }
    }

    /// Brings the writer a job and waits until it is on the disk. Who stops waiting does not stop the job.
    pub(crate) async fn write<T, F>(&self, attempt: &'static str, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'w> FnOnce(&'w mut Work) -> BoxFuture<'w, Result<T, StoreError>> + Send + 'static,
    {
        let closed = || StoreError::Closed { attempt };
        let jobs = self.inner.jobs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (job, answer) = writer::job(attempt, work);
        jobs.ok_or_else(closed)?.send(job).await.map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }

    /// Every row that a statement gives, from a connection that only reads.
    pub(crate) async fn read(
        &self,
        attempt: &'static str,
        sql: impl Into<String>,
        binds: Vec<Bind>,
    ) -> Result<Vec<SqliteRow>, StoreError> {
        let failed = |source| database(attempt, source);
        let mut connection = self.inner.readers.acquire().await.map_err(failed)?;
        batch::rows(&mut connection, sql, binds).await.map_err(failed)
    }

    /// Hands on every row that a statement gives, while the next ones are read.
    pub(crate) async fn read_each(
        &self,
        attempt: &'static str,
        sql: &'static str,
        binds: Vec<Bind>,
        mut take: impl FnMut(SqliteRow) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let failed = |source| database(attempt, source);
        let mut connection = self.inner.readers.acquire().await.map_err(failed)?;
        let mut rows = batch::stream(&mut connection, sql, binds).map_err(failed)?;
        while let Some(row) = rows.try_next().await.map_err(failed)? {
            take(row)?;
        }
        Ok(())
    }

    /// The first row that a statement gives, if it gives any.
    pub(crate) async fn read_one(
        &self,
        attempt: &'static str,
        sql: impl Into<String>,
        binds: Vec<Bind>,
    ) -> Result<Option<SqliteRow>, StoreError> {
        let failed = |source| database(attempt, source);
        let mut connection = self.inner.readers.acquire().await.map_err(failed)?;
        batch::row(&mut connection, sql, binds).await.map_err(failed)
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.inner.clock.now()
    }
}

/// How every connection is opened.
pub(crate) fn options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .busy_timeout(Duration::from_secs(10))
        .statement_cache_capacity(256)
        .row_buffer_size(1_000)
        .pragma("cache_size", "-16000")
        .pragma("wal_autocheckpoint", "8000")
        .disable_statement_logging()
}

/// What opening something that is no database looks like.
pub(crate) fn not_a_store(path: &Path, source: sqlx::Error) -> StoreError {
    /// SQLITE_NOTADB, SQLITE_CORRUPT.
    const NOT: [&str; 2] = ["26", "11"];
    match &source {
        sqlx::Error::Database(error) if error.code().is_some_and(|code| NOT.contains(&&*code)) => {
            StoreError::NotAStore {
                path: path.to_owned(),
                reason: error.message().to_owned(),
            }
        }
        _ => database("open the store", source),
    }
}

/// Makes the file where there is none, so that it is never readable by others, not even for a moment.
fn make_private(path: &Path) -> Result<(), StoreError> {
    let mut options = std::fs::OpenOptions::new();
    options.create(true).append(true).mode(0o600);
    options.open(path).map(drop).map_err(|source| StoreError::File {
        attempt: "make",
        path: path.to_owned(),
        source,
    })
}

/// Keeps a second process away from the file, for as long as it lives.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    pub(crate) fn take(path: &Path) -> Result<Self, StoreError> {
        let name = beside(path, ".lock");
        let failed = |source| StoreError::File {
            attempt: "lock",
            path: name.clone(),
            source,
        };
        let mut options = std::fs::OpenOptions::new();
        options.create(true).append(true).mode(0o600);
        let file = options.open(&name).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(StoreError::InUse { path: path.to_owned() }),
            Err(TryLockError::Error(source)) => Err(failed(source)),
        }
    }
}

/// The file's own name with something added.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
