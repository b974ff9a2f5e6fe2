//! The one who writes: takes the jobs that have queued up, runs them in one transaction, commits once, answers all.
//!
//! A job reads on the writing connection, decides, and leaves its writes in a batch; the batch is executed after it, in one
//! trip, so a job that fails while it decides has written nothing. `BEGIN` travels with a group's first batch and `COMMIT` with its
//! last. Batches have no savepoints, which would cost more than all they write: should one fail, the others are written anew.

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
const BEGIN: &str = "BEGIN IMMEDIATE;\n";
const COMMIT: &str = "COMMIT";

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

    /// The first row that a statement gives, if it gives any.
    pub(crate) async fn one(
        &mut self,
        sql: impl Into<String>,
        binds: Vec<Bind>,
    ) -> Result<Option<SqliteRow>, StoreError> {
        batch::row(&mut self.connection, sql, binds)
            .await
            .map_err(|source| database(self.attempt, source))
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
        let written = together(&mut work, &mut group, &clock).await;
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

/// Runs a group in one transaction, which begins with its first write and ends with its last one. A job whose writes fail is left out: the
/// transaction is undone and the writes of those before it are made again. Jobs for which that fails too stay in the group.
async fn together(work: &mut Work, group: &mut Vec<Job>, clock: &Clock) -> Written {
    let mut jobs = std::mem::take(group).into_iter();
    let mut written = Written {
        answers: Vec::with_capacity(jobs.len()),
        told: Vec::new(),
        verdict: Ok(()),
    };
    let mut batches = Vec::new();
    let mut begun = false;
    while let Some(job) = jobs.next() {
        let Some(answer) = decide(work, job, clock).await else {
            continue;
        };
        if !work.batch.is_empty() {
            let batch = std::mem::take(&mut work.batch);
            let last = jobs.len() == 0;
            let (before, after) = (if begun { "" } else { BEGIN }, if last { COMMIT } else { "" });
            if let Err(error) = batch.execute(&mut work.connection, before, after).await {
                answer(Err(&Arc::new(error)));
                written.verdict = again(work, &batches).await;
                if written.verdict.is_err() {
                    group.extend(jobs);
                    return written;
                }
                begun = !batches.is_empty();
                continue;
            }
            begun = !last;
            batches.push(batch);
        }
        written.told.append(&mut work.told);
        written.answers.push(answer);
    }
    if begun && let Err(error) = plain(work, COMMIT).await {
        roll_back(work).await;
        written.verdict = Err(Arc::new(error));
    }
    written
}

/// Undoes the transaction, and begins it anew with these writes.
async fn again(work: &mut Work, batches: &[Batch]) -> Result<(), Arc<sqlx::Error>> {
    roll_back(work).await;
    for (place, batch) in batches.iter().enumerate() {
        let before = if place == 0 { BEGIN } else { "" };
        if let Err(error) = batch.execute(&mut work.connection, before, "").await {
            roll_back(work).await;
            return Err(Arc::new(error));
        }
    }
    Ok(())
}

/// Lets a job decide what is written.
async fn decide(work: &mut Work, job: Job, clock: &Clock) -> Option<Answer> {
    work.batch = Batch::default();
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
