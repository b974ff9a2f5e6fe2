//! The processes, seen from the control plane.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::error::WorkerError;
use crate::file::{FileQuery, FileReading};
use crate::process::{Process, READING, SCRIPT, STATEMENT, within};
use crate::script::{Fetch, ScriptJob, ScriptResult};
use crate::sql::{Checked, Dialect};

/// The longest statement, in bytes.
const LONGEST_STATEMENT: usize = 256 << 10;

/// What a script may take to say that it met its time, before its process is killed.
const GRACE: Duration = Duration::from_millis(500);

/// How workers are run.
#[derive(Clone, Debug)]
pub struct Config {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// How many statements are checked at once, each by a process that stays.
    pub checkers: usize,
    /// How many statements a process checks before another takes its place.
    pub checks_each: u32,
    /// How many scripts run at once, each in a process of its own.
    pub scripts: usize,
    /// How many files are read at once, each by a process of its own.
    pub files: usize,
    /// How many statements, how many scripts, and how many that read files may wait.
    pub waiting: usize,
    /// How long a process may take until it is confined.
    pub start: Duration,
    /// How long the check of a statement may take.
    pub check: Duration,
}

impl Default for Config {
    /// This same program, as `worker`.
    fn default() -> Self {
        Self {
            program: "/proc/self/exe".into(),
            arguments: vec!["worker".into()],
            checkers: 2,
            checks_each: 500,
            scripts: 8,
            files: 4,
            waiting: 64,
            start: Duration::from_secs(10),
            check: Duration::from_secs(5),
        }
    }
}

/// Has statements checked and scripts run, in processes that hold nothing and may do nothing. Clones share them; they end
/// with the last clone.
#[derive(Clone, Debug)]
pub struct Worker(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    config: Config,
    checks: Queue,
    scripts: Queue,
    files: Queue,
    /// Processes between two statements.
    idle: Mutex<Vec<Process>>,
}

impl Worker {
    /// Starts nothing yet: the first job does.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self(Arc::new(Shared {
            checks: Queue::new(config.checkers, config.waiting),
            scripts: Queue::new(config.scripts, config.waiting),
            files: Queue::new(config.files, config.waiting),
            idle: Mutex::default(),
            config,
        }))
    }

    /// Says what a statement does, if all it does is read.
    ///
    /// # Errors
    /// [`WorkerError::Refused`] where it does more or is not understood whole; anything else is no verdict, and the statement
    /// must not run either.
    pub async fn check_sql(&self, dialect: Dialect, text: &str) -> Result<Checked, WorkerError> {
        if text.len() > LONGEST_STATEMENT {
            return Err(WorkerError::Limit {
                what: STATEMENT,
                why: format!("has {} bytes, and may have {LONGEST_STATEMENT}", text.len()),
            });
        }
        let config = &self.0.config;
        let _place = self.0.checks.enter().await?;
        let mut process = match self.idle() {
            Some(process) => process,
            None => Process::start(config, &[], STATEMENT).await?,
        };
        let verdict = within(config.check, STATEMENT, process.check(dialect, text)).await;
        // What one left behind, be it garbage or a foothold, does not stay for long.
        if let Ok(_) | Err(WorkerError::Refused { .. }) = &verdict
            && process.checked < config.checks_each
        {
            self.lock().push(process);
        }
        verdict
    }

    /// Runs a script. Its calls are answered by `fetch`, here.
    ///
    /// # Errors
    /// [`WorkerError`]: it has no result. What it has called so far has happened.
    pub async fn run_script(&self, job: ScriptJob, fetch: &dyn Fetch) -> Result<ScriptResult, WorkerError> {
        let _place = self.0.scripts.enter().await?;
        let process = Process::start(&self.0.config, &[], SCRIPT).await?;
        let deadline = job.limits.time.saturating_add(GRACE);
        within(deadline, SCRIPT, process.run(job, fetch)).await
    }

    /// How many statements are checked at once.
    #[must_use]
    pub fn checkers(&self) -> usize {
        self.0.config.checkers
    }

    /// How many scripts run at once.
    #[must_use]
    pub fn scripts(&self) -> usize {
        self.0.config.scripts
    }

    /// How many files are read at once.
    #[must_use]
    pub fn files(&self) -> usize {
        self.0.config.files
    }

    /// Has a statement read a file of SQLite, by a process that can open nothing else and ends with the statement.
    ///
    /// # Errors
    /// [`WorkerError`]: no process reads it.
    pub async fn read_file(&self, database: &Path, query: FileQuery) -> Result<FileReading<'_>, WorkerError> {
        let place = self.0.files.enter().await?;
        let seconds = query.time.as_secs().saturating_add(1).to_string();
        let own: [&OsStr; 4] = [
            "--database".as_ref(),
            database.as_ref(),
            "--seconds".as_ref(),
            seconds.as_ref(),
        ];
        let mut process = Process::start(&self.0.config, &own, READING).await?;
        process.query(query).await?;
        Ok(FileReading {
            process,
            columns: None,
            _place: place,
        })
    }

    /// A process between two statements that has not ended meanwhile.
    fn idle(&self) -> Option<Process> {
        let mut idle = self.lock();
        while let Some(mut process) = idle.pop() {
            if process.lives() {
                return Some(process);
            }
        }
        None
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Process>> {
        self.0.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// So many at work, so many waiting, and no more.
#[derive(Debug)]
struct Queue {
    places: Semaphore,
    waiting: AtomicUsize,
    most: usize,
}

impl Queue {
    fn new(places: usize, most: usize) -> Self {
        Self {
            places: Semaphore::new(places.max(1)),
            waiting: AtomicUsize::new(0),
            most,
        }
    }

    async fn enter(&self) -> Result<SemaphorePermit<'_>, WorkerError> {
        if let Ok(place) = self.places.try_acquire() {
            return Ok(place);
        }
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waits = Waits(&self.waiting);
        if before >= self.most {
            return Err(WorkerError::Busy { waiting: before });
        }
        // It is never closed.
        self.places
            .acquire()
            .await
            .map_err(|_| WorkerError::Busy { waiting: before })
    }
}

/// Counts out whoever waited, also where the wait was given up.
struct Waits<'a>(&'a AtomicUsize);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
