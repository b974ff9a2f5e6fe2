//! Runs: taken under a lease, renewed, ended.

use std::time::Duration;

use domain::{Delivery, Epoch, NumberedEvent, RunId, RunState, SessionId, Timestamp, UserId};
use serde_json::Value;

use crate::{Asker, LastTurn, Session, Store, StoreError};

/// Who works on a run, and until when without a word.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lease {
    /// Who.
    pub holder: String,
    /// Until when.
    pub until: Timestamp,
}

/// A run.
#[derive(Clone, PartialEq, Debug)]
pub struct Run {
    /// Which.
    pub id: RunId,
    /// Of which session.
    pub session: SessionId,
    /// Whose session that is, and who pays.
    pub owner: UserId,
    /// Where it stands.
    pub state: RunState,
    /// Whose hold on it counts.
    pub epoch: Epoch,
    /// How its prompt was delivered.
    pub delivery: Delivery,
    /// As the prompt said.
    pub settings: Value,
    /// How often it was taken.
    pub attempts: i64,
    /// Its last turn that is done; 0: none.
    pub turn: u32,
    /// When it was stored.
    pub created: Timestamp,
    /// When it was first taken.
    pub started: Option<Timestamp>,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// Why, in words.
    pub reason: Option<String>,
    /// Why, in one word.
    pub code: Option<String>,
    /// Who works on it.
    pub lease: Option<Lease>,
}

/// A run that was just taken.
#[derive(Clone, PartialEq, Debug)]
pub struct TakenRun {
    /// The run, under its new epoch.
    pub run: Run,
    /// Its session.
    pub session: Session,
    /// Its last turn, where it had one.
    pub last_turn: Option<LastTurn>,
    /// What watchers see of it.
    pub events: Vec<NumberedEvent>,
}

/// How a run ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct End {
    /// `done`, `failed`, `cancelled` or `interrupted`.
    pub state: RunState,
    /// Why, in words for a person.
    pub reason: Option<String>,
    /// Why, in one word for a program.
    pub code: Option<String>,
}

impl End {
    /// The model has finished.
    #[must_use]
    pub const fn done() -> Self {
        Self {
            state: RunState::Done,
            reason: None,
            code: None,
        }
    }

    /// It could not go on.
    #[must_use]
    pub fn failed(code: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            state: RunState::Failed,
            reason: Some(reason.into()),
            code: Some(code.into()),
        }
    }

    /// Somebody stopped it.
    #[must_use]
    pub fn cancelled(reason: impl Into<String>) -> Self {
        Self {
            state: RunState::Cancelled,
            reason: Some(reason.into()),
            code: None,
        }
    }
}

/// What ending a run did.
#[derive(Clone, PartialEq, Debug)]
pub struct Ended {
    /// Where the run stands now; not what was asked where it had ended before.
    pub state: RunState,
    /// It ended now, by this call.
    pub now: bool,
    /// A run that is to be taken next: prompts that had wanted to join this one, or the next that waited.
    pub next: Option<RunId>,
    /// What watchers see of it.
    pub events: Vec<NumberedEvent>,
}

impl Store {
    /// One run.
    ///
    /// # Errors
    /// There is none, for the one who asks.
    pub async fn run(&self, asker: Asker, id: RunId) -> Result<Run, StoreError> {
        todo!()
    }

    /// A session's runs, newest first, those before `before`.
    ///
    /// # Errors
    /// The session does not exist, for the one who asks.
    pub async fn runs(
        &self,
        asker: Asker,
        session: SessionId,
        before: Option<RunId>,
        limit: u32,
    ) -> Result<Vec<Run>, StoreError> {
        todo!()
    }

    /// Runs that somebody should take: the first that waits in a session where none is under way, and those whose lease is over; oldest first.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself.
    pub async fn pending_runs(&self, asker: Asker, limit: u32) -> Result<Vec<RunId>, StoreError> {
        todo!()
    }

    /// Takes a run: a new epoch, a lease, state `running` (a run that was `waiting` stays so), and its waiting prompts enter the history. A turn that
    /// the holder before left claimed is charged its reservation and can be begun anew; what its model had said so far is forgotten.
    /// None: somebody else works on it or on its session, or it has ended.
    ///
    /// # Errors
    /// There is no such run, or the one who asks is not Belljar itself.
    pub async fn take_run(
        &self,
        asker: Asker,
        run: RunId,
        holder: &str,
        lease: Duration,
    ) -> Result<Option<TakenRun>, StoreError> {
        todo!()
    }

    /// Lengthens the holder's leases on these runs. Returns those that are lost: taken over, or ended.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself.
    pub async fn renew_runs(
        &self,
        asker: Asker,
        holder: &str,
        runs: &[RunId],
        lease: Duration,
    ) -> Result<Vec<RunId>, StoreError> {
        todo!()
    }

    /// Gives up the holder's leases, so that another takes its runs at once.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself.
    pub async fn release_runs(&self, asker: Asker, holder: &str) -> Result<(), StoreError> {
        todo!()
    }

    /// The run waits for a person (`waiting`), or goes on.
    ///
    /// # Errors
    /// The epoch is stale, or the run has ended.
    pub async fn set_waiting(
        &self,
        asker: Asker,
        run: RunId,
        epoch: Epoch,
        waiting: bool,
    ) -> Result<Vec<NumberedEvent>, StoreError> {
        todo!()
    }

    /// Ends a run: what the model had said so far is kept as an interrupted message, calls without a result are answered as
    /// interrupted, and the epoch grows, so that whoever still works on it is refused. Prompts that had wanted to join it become the next run.
    /// A run that has ended stays as it is.
    ///
    /// # Errors
    /// There is no such run; the epoch is stale; the one who asks is not Belljar itself.
    pub async fn end_run(&self, asker: Asker, run: RunId, epoch: Epoch, end: End) -> Result<Ended, StoreError> {
        todo!()
    }

    /// Stops a run for a person, whoever holds it. Audited. To do it again, or too late, changes nothing.
    ///
    /// # Errors
    /// There is none, for the one who asks.
    pub async fn cancel_run(&self, asker: Asker, run: RunId, reason: &str) -> Result<Ended, StoreError> {
        todo!()
    }
}
