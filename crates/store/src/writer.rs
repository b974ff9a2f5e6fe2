//! The one who writes: takes the jobs that have queued up, runs them in one transaction, commits once, answers all.
//!
//! A job reads on the writing connection, decides, and leaves its writes in a batch; the batch is executed after it, in one
//! trip, so a job that fails while it decides has written nothing. A job alone is `BEGIN … COMMIT` in one trip; in a
//! group each batch has a savepoint, so that one that fails takes nothing of the others along.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use domain::{EventNumber, SessionId, Timestamp};
use futures::future::BoxFuture;
use sqlx::Connection;
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use tokio::sync::{mpsc, oneshot, watch};

use crate::batch::{self, Batch, Bind};
use crate::error::database;
use crate::{Clock, StoreError};

/// Jobs that may wait; then whoever brings another waits.
pub(crate) const QUEUE: usize = 1_024;
/// Jobs in one transaction.
const GROUP: usize = 256;

/// Watched sessions, from which on those that nobody watches any more are looked for.
const SWEEP: usize = 1_024;

/// What a job works with.
pub(crate) struct Work {
    connection: SqliteConnection,
    /// What is going to be written.
    pub(crate) batch: Batch,
    /// Sessions that got events, and the number of the newest.
    pub(crate) told: Vec<(SessionId, EventNumber)>,
    /// When the job began.
    pub(crate) now: Timestamp,
    /// What is being tried, for errors.
    pub(crate) attempt: &'static str,
}

impl Work {
    /// Every row that a statement gives.
    pub(crate) async fn all(&mut self, sql: impl Into<String>, binds: Vec<Bind>) -> Result<Vec<SqliteRow>, StoreError> {
        batch::rows(&mut self.connection, sql, binds)
            .await
            .map_err(|source| database(self.attempt, source))
    }

    /// The one row that a statement gives, if it gives any.
    pub(crate) async fn one(
        &mut self,
        sql: impl Into<String>,
        binds: Vec<Bind>,
    ) -> Result<Option<SqliteRow>, StoreError> {
        Ok(self.all(sql, binds).await?.pop())
    }
}

type Verdict<'a> = Result<(), &'a Arc<sqlx::Error>>;
type Answer = Box<dyn FnOnce(Verdict<'_>) + Send>;
/// Runs the job; what comes back is told whether it was committed. None: the job failed and has been answered.
pub(crate) type Job = Box<dyn for<'w> FnOnce(&'w mut Work) -> BoxFuture<'w, Option<Answer>> + Send>;

/// Makes a job of a function, and the place where its answer arrives.
pub(crate) fn job<T, F>(attempt: &'static str, work: F) -> (Job, oneshot::Receiver<Result<T, StoreError>>)
where
    T: Send + 'static,
    F: for<'w> FnOnce(&'w mut Work) -> BoxFuture<'w, Result<T, StoreError>> + Send + 'static,
{
    let (reply, answer) = oneshot::channel();
    let job: Job = Box::new(move |writer| {
        Box::pin(async move {
            writer.attempt = attempt;
            // Whoever asked may have gone away; what was asked is done all the same.
            match work(writer).await {
                Ok(value) => Some(Box::new(move |verdict: Verdict<'_>| {
                    let _ = reply.send(verdict.map(|()| value).map_err(|source| shared(attempt, source)));
                }) as Answer),
                Err(error) => {
                    let _ = reply.send(Err(error));
                    None
                }
            }
        })
    });
    (job, answer)
}

fn shared(attempt: &'static str, source: &Arc<sqlx::Error>) -> StoreError {
    crate::error::database_shared(attempt, Arc::clone(source))
}

/// Who wants to know of a session's events.
#[derive(Default, Debug)]
pub(crate) struct Watchers(Mutex<HashMap<SessionId, watch::Sender<EventNumber>>>);

impl Watchers {
    /// Holds the newest number that was told. The caller says what is stored *after* this, so nothing falls between.
    pub(crate) fn watch(&self, session: SessionId) -> watch::Receiver<EventNumber> {
        let mut watchers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if watchers.len() >= SWEEP && watchers.len().is_power_of_two() {
            watchers.retain(|_, sender| sender.receiver_count() > 0);
        }
        watchers
            .entry(session)
            .or_insert_with(|| watch::Sender::new(0))
            .subscribe()
    }

    /// Says that a session has events up to this one.
    pub(crate) fn tell(&self, session: SessionId, number: EventNumber) {
        let mut watchers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(sender) = watchers.get(&session) else {
            return;
        };
        if sender.receiver_count() == 0 {
            watchers.remove(&session);
            return;
        }
        sender.send_if_modified(|last| {
            let newer = number > *last;
            *last = number.max(*last);
            newer
        });
    }
}

/// Writes until nobody can bring jobs any more.
pub(crate) async fn run(
    connection: SqliteConnection,
    mut jobs: mpsc::Receiver<Job>,
    watchers: Arc<Watchers>,
    clock: Clock,
) {
    let mut work = Work {
        connection,
        batch: Batch::default(),
        told: Vec::new(),
        now: clock.now(),
        attempt: "write",
    };
    let mut group = Vec::with_capacity(GROUP);
    while !group.is_empty() || jobs.recv_many(&mut group, GROUP).await > 0 {
        let written = match group.len() {
            1 => alone(&mut work, group.pop(), &clock).await,
            _ => together(&mut work, &mut group, &clock).await,
        };
        if written.verdict.is_ok() {
            for (session, number) in written.told {
                watchers.tell(session, number);
            }
        }
        for answer in written.answers {
            answer(written.verdict.as_ref().copied());
        }
    }
    if let Err(error) = work.connection.close().await {
        tracing::warn!(%error, "the store's file was not closed cleanly; what was acknowledged is on the disk");
    }
}

/// A transaction that is over, and those who wait to hear of it.
struct Written {
    answers: Vec<Answer>,
    told: Vec<(SessionId, EventNumber)>,
    verdict: Result<(), Arc<sqlx::Error>>,
}

async fn alone(work: &mut Work, job: Option<Job>, clock: &Clock) -> Written {
    let mut written = Written {
        answers: Vec::new(),
        told: Vec::new(),
        verdict: Ok(()),
    };
    let Some(job) = job else {
        return written;
    };
    written.answers.extend(decide(work, job, clock).await);
    if written.answers.is_empty() || work.batch.is_empty() {
        return written;
    }
    written.told = std::mem::take(&mut work.told);
    let (sql, binds) = work.batch.take("BEGIN IMMEDIATE;\n", "COMMIT");
    if let Err(error) = batch::execute(&mut work.connection, sql, binds).await {
        roll_back(work).await;
        written.verdict = Err(Arc::new(error));
    }
    written
}

/// Runs what it can of the group in one transaction; what is left stays in the group.
async fn together(work: &mut Work, group: &mut Vec<Job>, clock: &Clock) -> Written {
    let mut jobs = std::mem::take(group).into_iter();
    if plain(work, "BEGIN IMMEDIATE").await.is_err() {
        // The first one alone meets the same failure, and is told of it.
        roll_back(work).await;
        let written = alone(work, jobs.next(), clock).await;
        group.extend(jobs);
        return written;
    }
    let mut answers = Vec::with_capacity(jobs.len());
    let mut told = Vec::new();
    while let Some(job) = jobs.next() {
        let Some(answer) = decide(work, job, clock).await else {
            continue;
        };
        if !work.batch.is_empty() {
            let (sql, binds) = work.batch.take("SAVEPOINT job;\n", "RELEASE job");
            if let Err(error) = batch::execute(&mut work.connection, sql, binds).await {
                let error = Arc::new(error);
                answer(Err(&error));
                if plain(work, "ROLLBACK TO job; RELEASE job").await.is_ok() {
                    continue;
                }
                // The database gave up the whole transaction: nothing of it is kept, and nobody was told otherwise.
                roll_back(work).await;
                group.extend(jobs);
                return Written {
                    answers,
                    told: Vec::new(),
                    verdict: Err(error),
                };
            }
        }
        told.append(&mut work.told);
        answers.push(answer);
    }
    let verdict = plain(work, "COMMIT").await.map_err(Arc::new);
    if verdict.is_err() {
        roll_back(work).await;
    }
    Written { answers, told, verdict }
}

/// Lets a job decide what is written.
async fn decide(work: &mut Work, job: Job, clock: &Clock) -> Option<Answer> {
    work.batch.clear();
    work.told.clear();
    work.now = clock.now();
    job(work).await
}

async fn plain(work: &mut Work, sql: &str) -> Result<(), sqlx::Error> {
    batch::execute(&mut work.connection, sql.to_owned(), Vec::new()).await
}

async fn roll_back(work: &mut Work) {
    // It fails where the database has rolled back by itself, which is as well.
    let _ = plain(work, "ROLLBACK").await;
}
