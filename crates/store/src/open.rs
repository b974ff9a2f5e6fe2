//! Opening and closing.

use std::borrow::Cow;
use std::fs::{File, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use domain::Timestamp;
use lifecycle::Stop;
use rusqlite::ErrorCode;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::batch::Bind;
use crate::checkpoints::Checkpoints;
use crate::connection::{Access, Connection};
use crate::error::database;
use crate::readers::Readers;
use crate::row::Row;
use crate::writer::{self, Job, Watchers, Work, Writer};
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
    /// The most that the messages and events of one session may take, in bytes: a prompt or a turn beyond it is refused.
    pub session_bytes: Option<u64>,
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
            session_bytes: None,
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
    pub(crate) watchers: Arc<Watchers>,
    readers: Readers,
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    /// Told when the writer has ended.
    ended: Stop,
    _lock: Lock,
}

/// How long closing waits for what was begun.
const CLOSING: Duration = Duration::from_secs(30);

impl Store {
    /// Opens the store and makes its file where there is none, readable by its owner alone. An older schema is backed up beside
    /// the file and migrated. Reservations that a dead process left are charged (their runs go on when they are taken again), and of the writes that it left nobody knows what came.
    ///
    /// # Errors
    /// The file is in use, is not a store, is of a newer release, or cannot be written.
    pub async fn open(config: Config) -> Result<Self, StoreError> {
        let store = apart("open the store", move || Self::open_file(config)).await?;
        store.charge_what_was_left().await?;
        store.give_up_writes().await?;
        Ok(store)
    }

    fn open_file(config: Config) -> Result<Self, StoreError> {
        let lock = Lock::take(&config.path)?;
        make_private(&config.path)?;
        let mut connection =
            Connection::open(&config.path, Access::Write).map_err(|source| not_a_store(&config.path, source))?;
        migrations::check_and_run(&connection, &config.path, config.clock.now())?;
        let checkpoints = Checkpoints::start(&config.path, &mut connection)?;
        let readers = Readers::open(&config.path, config.readers.max(1))?;
        let watchers = Arc::new(Watchers::default());
        let ended = Stop::new();
        let writer = Writer::new(
            connection,
            Arc::clone(&watchers),
            config.clock.clone(),
            config.session_bytes,
        );
        let jobs = writer
            .start(checkpoints, ended.clone())
            .map_err(|source| StoreError::File {
                attempt: "start the writer of",
                path: config.path.clone(),
                source,
            })?;
        Ok(Self {
            inner: Arc::new(Inner {
                path: config.path,
                clock: config.clock,
                readers,
                watchers,
                jobs: Mutex::new(Some(jobs)),
                ended,
                _lock: lock,
            }),
        })
    }

    /// Lets what was begun end, then closes the file. Later calls fail with [`StoreError::Closed`].
    pub async fn close(&self) {
        let jobs = self.inner.jobs.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(jobs);
        let closing = async {
            self.inner.readers.close().await;
            self.inner.ended.cancelled().await;
        };
        if timeout(CLOSING, closing).await.is_err() {
            tracing::warn!("the store still works after {CLOSING:?}; what was acknowledged is on the disk");
        }
    }

    /// Returns when nothing can be written any more: the store was closed, or what writes broke down and only a new process
    /// helps. What was acknowledged is on the disk.
    pub async fn ended(&self) {
        self.inner.ended.cancelled().await;
    }

    /// Brings the writer a job as it is.
    #[cfg(test)]
    pub(crate) async fn bring(&self, job: Job) {
        let jobs = self.inner.jobs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        jobs.unwrap()
            .send(job)
            .await
            .unwrap_or_else(|_| panic!("the writer is there"));
    }

    /// Brings the writer a job and waits until it is on the disk. Who stops waiting does not stop the job.
    pub(crate) async fn write<T, F>(&self, attempt: &'static str, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Work) -> Result<T, StoreError> + Send + 'static,
    {
        let closed = || StoreError::Closed { attempt };
        let jobs = self.inner.jobs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (job, answer) = writer::job(attempt, work);
        jobs.ok_or_else(closed)?.send(job).await.map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }

    /// Reads on a connection that only reads.
    pub(crate) async fn read_with<T, F>(&self, attempt: &'static str, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    {
        self.inner.readers.read(attempt, work).await
    }

    /// Every row that a statement gives, from a connection that only reads.
    pub(crate) async fn read(
        &self,
        attempt: &'static str,
        sql: impl Into<Cow<'static, str>>,
        binds: Vec<Bind>,
    ) -> Result<Vec<Row>, StoreError> {
        let sql = sql.into();
        self.read_with(attempt, move |connection| {
            let rows = connection.all(&sql, &binds);
            rows.map_err(|source| database(attempt, source))
        })
        .await
    }

    /// The first row that a statement gives, if it gives any.
    pub(crate) async fn read_one(
        &self,
        attempt: &'static str,
        sql: &'static str,
        binds: Vec<Bind>,
    ) -> Result<Option<Row>, StoreError> {
        self.read_with(attempt, move |connection| {
            let row = connection.one(sql, &binds);
            row.map_err(|source| database(attempt, source))
        })
        .await
    }

    /// What it takes for the time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.inner.clock.now()
    }
}

/// Does what takes long where it keeps nobody else from going on.
pub(crate) async fn apart<T, F>(attempt: &'static str, work: F) -> Result<T, StoreError>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, StoreError> + Send + 'static,
{
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| StoreError::Closed { attempt })?
}

/// What opening something that is no database looks like.
pub(crate) fn not_a_store(path: &Path, source: rusqlite::Error) -> StoreError {
    match source.sqlite_error_code() {
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => StoreError::NotAStore {
            path: path.to_owned(),
            reason: source.to_string(),
        },
        _ => database("open the store", source),
    }
}

/// Makes the file where there is none, so that it is never readable by others, not even for a moment.
pub(crate) fn make_private(path: &Path) -> Result<(), StoreError> {
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
