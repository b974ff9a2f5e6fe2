//! The one who writes: takes the jobs that have queued up, runs them in one transaction, commits once, answers all.
//!
//! It is a thread of its own, so that a job costs two changes of thread, however many statements it has. A job reads on the
//! writing connection, decides, and leaves its writes in a batch; the batch is executed after it, so a job that fails while
//! it decides has written nothing. Batches have no savepoints, which would cost all for the sake of the few that fail: should
//! one, the others are written anew.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use domain::{EventNumber, SessionId, Timestamp};
use lifecycle::Stop;
use tokio::sync::{mpsc, oneshot, watch};

use crate::audit::Audited;
use crate::batch::{Batch, Bind};
use crate::checkpoints::Checkpoints;
use crate::connection::Connection;
use crate::error::{database, database_shared};
use crate::row::Row;
use crate::{Clock, StoreError};

/// Jobs that may wait; then whoever brings another waits.
const QUEUE: usize = 1_024;
/// Jobs in one transaction.
const GROUP: usize = 256;

/// Watched sessions, from which on those that nobody watches any more are looked for.
const SWEEP: usize = 1_024;

/// What a job works with.
pub(crate) struct Work {
    connection: Connection,
    /// What is going to be written.
    pub(crate) batch: Batch,
    /// Sessions that got events, and the number of the newest.
    pub(crate) told: Vec<(SessionId, EventNumber)>,
    /// The newest entry of the audit log, where the job added some.
    pub(crate) audited: Option<Audited>,
    /// The job revokes tokens of sessions.
    pub(crate) revoked: bool,
    /// When the job began.
    pub(crate) now: Timestamp,
    /// The most that a session may store.
    pub(crate) session_bytes: Option<i64>,
    /// What is being tried, for errors.
    attempt: &'static str,
}

impl Work {
    /// Every row that a statement gives.
    pub(crate) fn all(&self, sql: &str, binds: Vec<Bind>) -> Result<Vec<Row>, StoreError> {
        let rows = self.connection.all(sql, &binds);
        rows.map_err(|source| database(self.attempt, source))
    }

    /// The first row that a statement gives, if it gives any.
    pub(crate) fn one(&self, sql: &str, binds: Vec<Bind>) -> Result<Option<Row>, StoreError> {
        let row = self.connection.one(sql, &binds);
        row.map_err(|source| database(self.attempt, source))
    }
}

type Verdict<'a> = Result<(), &'a Arc<rusqlite::Error>>;
type Answer = Box<dyn FnOnce(Verdict<'_>)>;
/// Runs the job; what comes back is told whether it was committed. None: the job failed and has been answered.
pub(crate) type Job = Box<dyn FnOnce(&mut Work) -> Option<Answer> + Send>;

/// Makes a job of a function, and the place where its answer arrives.
pub(crate) fn job<T, F>(attempt: &'static str, decide: F) -> (Job, oneshot::Receiver<Result<T, StoreError>>)
where
    T: Send + 'static,
    F: FnOnce(&mut Work) -> Result<T, StoreError> + Send + 'static,
{
    let (reply, answer) = oneshot::channel();
    let job: Job = Box::new(move |work| {
        work.attempt = attempt;
        // Whoever asked may have gone away; what was asked is done all the same.
        match decide(work) {
            Ok(value) => Some(Box::new(move |verdict: Verdict<'_>| {
                let failed = |source: &Arc<rusqlite::Error>| database_shared(attempt, Arc::clone(source));
                let _ = reply.send(verdict.map(|()| value).map_err(failed));
            })),
            Err(error) => {
                let _ = reply.send(Err(error));
                None
            }
        }
    });
    (job, answer)
}

/// Who wants to know of a session's events, of the audit log's entries, and that tokens were revoked.
#[derive(Default, Debug)]
pub(crate) struct Watchers {
    sessions: Mutex<HashMap<SessionId, watch::Sender<EventNumber>>>,
    audit: watch::Sender<i64>,
    revocations: AtomicU64,
}

impl Watchers {
    /// Holds the newest number that was told. The caller says what is stored *after* this, so nothing falls between.
    pub(crate) fn watch(&self, session: SessionId) -> watch::Receiver<EventNumber> {
        let mut watchers = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if watchers.len() >= SWEEP && watchers.len().is_power_of_two() {
            watchers.retain(|_, sender| sender.receiver_count() > 0);
        }
        watchers
            .entry(session)
            .or_insert_with(|| watch::Sender::new(0))
            .subscribe()
    }

    /// Holds the number of the audit log's newest entry that was told.
    pub(crate) fn watch_audit(&self) -> watch::Receiver<i64> {
        self.audit.subscribe()
    }

    /// How often tokens were revoked.
    pub(crate) fn revocations(&self) -> u64 {
        self.revocations.load(Ordering::SeqCst)
    }

    /// Says that the audit log has entries up to this one.
    fn tell_audit(&self, number: i64) {
        if number > 0 {
            self.audit.send_replace(number);
        }
    }

    /// Says that a session has events up to this one.
    pub(crate) fn tell(&self, session: SessionId, number: EventNumber) {
        let mut watchers = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
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

/// The one who writes.
pub(crate) struct Writer {
    work: Work,
    watchers: Arc<Watchers>,
    clock: Clock,
}

impl Writer {
    pub(crate) fn new(
        connection: Connection,
        watchers: Arc<Watchers>,
        clock: Clock,
        session_bytes: Option<u64>,
    ) -> Self {
        Self {
            work: Work {
                connection,
                batch: Batch::default(),
                told: Vec::new(),
                audited: None,
                revoked: false,
                now: clock.now(),
                session_bytes: session_bytes.map(|most| i64::try_from(most).unwrap_or(i64::MAX)),
                attempt: "write",
            },
            watchers,
            clock,
        }
    }

    /// Writes what is brought, in a thread of its own, until nobody can bring anything any more; then tells `ended`.
    pub(crate) fn start(self, checkpoints: Checkpoints, ended: Stop) -> std::io::Result<mpsc::Sender<Job>> {
        let (jobs, queue) = mpsc::channel(QUEUE);
        let thread = std::thread::Builder::new().name("store".to_owned());
        thread.spawn(move || {
            let _ended = ended.drop_guard();
            self.run(queue);
            checkpoints.join();
        })?;
        Ok(jobs)
    }

    fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        let mut group = Vec::with_capacity(GROUP);
        while !group.is_empty() || jobs.blocking_recv_many(&mut group, GROUP) > 0 {
            let written = self.write(&mut group);
            if written.revoked {
                // Even where it failed: who asks once too often loses nothing.
                self.watchers.revocations.fetch_add(1, Ordering::SeqCst);
            }
            if written.verdict.is_ok() {
                for (session, number) in written.told {
                    self.watchers.tell(session, number);
                }
                self.watchers.tell_audit(written.audited);
            }
            for answer in written.answers {
                answer(written.verdict.as_ref().copied());
            }
        }
        if let Err(error) = self.work.connection.close() {
            tracing::warn!(%error, "the store's file was not closed cleanly; what was acknowledged is on the disk");
        }
    }

    /// Runs a group in one transaction. A job whose writes fail is left out: the transaction is undone and the writes of those before it
    /// are made again. Jobs for which that fails too stay in the group.
    fn write(&mut self, group: &mut Vec<Job>) -> Written {
        let mut written = Written {
            answers: Vec::with_capacity(group.len()),
            told: Vec::new(),
            audited: 0,
            revoked: false,
            verdict: self.begin(),
        };
        let mut jobs = std::mem::take(group).into_iter();
        if written.verdict.is_err() {
            written.answers = jobs.filter_map(|job| self.decide(job)).collect();
            return written;
        }
        let mut batches = Vec::with_capacity(jobs.len());
        for job in jobs.by_ref() {
            let decided = self.decide(job);
            if !self.work.connection.in_transaction() {
                // What this job read may lack what those before it write: it is left out, and theirs is written anew.
                written.verdict = self.again(&batches);
                decided.into_iter().for_each(|answer| answer(Err(&undone())));
                if written.verdict.is_err() {
                    break;
                }
                continue;
            }
            let Some(answer) = decided else { continue };
            let batch = std::mem::take(&mut self.work.batch);
            if let Err(error) = batch.execute(&self.work.connection) {
                answer(Err(&Arc::new(error)));
                written.verdict = self.again(&batches);
                if written.verdict.is_err() {
                    break;
                }
                continue;
            }
            batches.push(batch);
            written.told.append(&mut self.work.told);
            written.audited = written
                .audited
                .max(self.work.audited.take().map_or(0, |last| last.number));
            written.revoked |= self.work.revoked;
            written.answers.push(answer);
        }
        group.extend(jobs);
        if written.verdict.is_ok() {
            written.verdict = self.work.connection.execute("COMMIT", &[]).map_err(Arc::new);
        }
        if written.verdict.is_err() {
            self.work.connection.roll_back();
        }
        written
    }

    fn begin(&self) -> Result<(), Arc<rusqlite::Error>> {
        self.work.connection.execute("BEGIN IMMEDIATE", &[]).map_err(Arc::new)
    }

    /// Undoes the transaction, and begins it anew with these writes.
    fn again(&self, batches: &[Batch]) -> Result<(), Arc<rusqlite::Error>> {
        self.work.connection.roll_back();
        self.begin()?;
        let mut batches = batches.iter();
        batches
            .try_for_each(|batch| batch.execute(&self.work.connection))
            .map_err(Arc::new)
    }

    /// Lets a job decide what is written. One that panics has written nothing, and whoever brought it is told that the store did not
    /// answer; the thread and the other jobs go on.
    fn decide(&mut self, job: Job) -> Option<Answer> {
        self.work.batch = Batch::default();
        self.work.told.clear();
        self.work.audited = None;
        self.work.revoked = false;
        self.work.now = self.clock.now();
        catch_unwind(AssertUnwindSafe(|| job(&mut self.work))).unwrap_or(None)
    }
}

/// What a job is told whose transaction the database undid while it read.
fn undone() -> Arc<rusqlite::Error> {
    let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_ABORT_ROLLBACK);
    Arc::new(rusqlite::Error::SqliteFailure(code, None))
}

/// A transaction that is over, and those who wait to hear of it.
struct Written {
    answers: Vec<Answer>,
    told: Vec<(SessionId, EventNumber)>,
    audited: i64,
    revoked: bool,
    verdict: Result<(), Arc<rusqlite::Error>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::binds;
    use crate::connection::Access;
    use crate::{Config, Store};

    const ADD: &str = "INSERT INTO spend (name, spent, reserved) VALUES ($1, 0, 0)";

    fn adds(names: &'static [&'static str]) -> (Job, oneshot::Receiver<Result<(), StoreError>>) {
        job("add names", move |work| {
            for name in names {
                work.batch.add(ADD, binds![*name]);
            }
            Ok(())
        })
    }

    /// Where the disk or memory fails a statement, SQLite undoes the whole transaction, also while a job only reads.
    #[tokio::test]
    async fn a_transaction_that_was_undone_under_a_job_takes_that_job_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db");
        Store::open(Config::new(&path)).await.unwrap().close().await;
        let connection = Connection::open(&path, Access::Write).unwrap();
        let mut writer = Writer::new(connection, Arc::default(), Clock::machine(), None);
        let (first, first_answer) = adds(&["a"]);
        let (fails, failed) = job("read", |work| -> Result<(), StoreError> {
            work.connection.roll_back();
            Err(database(work.attempt, rusqlite::Error::InvalidQuery))
        });
        let (goes_on, went_on) = job("read on", |work| {
            work.connection.roll_back();
            work.batch.add(ADD, binds!["never"]);
            Ok(())
        });
        let (half, half_answer) = adds(&["b", "b"]);
        let (last, last_answer) = adds(&["c"]);
        let mut group = vec![first, fails, goes_on, half, last];
        let written = writer.write(&mut group);
        assert!(group.is_empty() && written.verdict.is_ok());
        for answer in written.answers {
            answer(written.verdict.as_ref().copied());
        }
        first_answer.await.unwrap().unwrap();
        last_answer.await.unwrap().unwrap();
        for refused in [failed, went_on, half_answer] {
            assert!(refused.await.unwrap().is_err());
        }
        let names = writer
            .work
            .all("SELECT name FROM spend ORDER BY name", Vec::new())
            .unwrap();
        let names: Vec<String> = names.iter().map(|row| row.text("name").unwrap()).collect();
        assert_eq!(names, ["a", "c"], "whole jobs, and those that were told so");
    }

    #[tokio::test]
    async fn a_store_whose_writer_broke_says_that_it_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(Config::new(folder.path().join("store.db"))).await.unwrap();
        let broken: Job = Box::new(|_| Some(Box::new(|_| panic!("broken on purpose"))));
        store.bring(broken).await;
        store.ended().await;
        let refused = store.write("go on", |_| Ok(())).await;
        assert!(matches!(refused, Err(StoreError::Closed { .. })), "{refused:?}");
    }

    #[tokio::test]
    async fn a_job_that_panics_takes_nobody_along() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(Config::new(folder.path().join("store.db"))).await.unwrap();
        let broken = store.write("break", |_| -> Result<(), StoreError> { panic!("broken on purpose") });
        assert!(matches!(broken.await, Err(StoreError::Closed { .. })));
        store.write("go on", |_| Ok(())).await.unwrap();
    }
}
