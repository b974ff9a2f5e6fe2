//! Runs: taken under a lease, renewed, ended.

mod last;
mod take;

use std::collections::HashSet;
use std::time::Duration;

use domain::{
    Delivery, Epoch, Event, NumberedEvent, RunId, RunState, SessionId, Timestamp, ToolResult, Trigger, UserId,
};
use serde_json::{Value, json};

use crate::batch::{binds, statement};
use crate::head::{HEAD, Head};
use crate::row::Row;
use crate::sessions::SESSION;
use crate::stored;
use crate::writer::Work;
use crate::{Asker, AuditEntry, LastTurn, Session, Store, StoreError, audit, closing};

pub use last::LastBegun;

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
    /// What it was caused by.
    pub trigger: Trigger,
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
    /// Milliseconds that it waited for people, up to `waiting_since`.
    pub waited: i64,
    /// Since when it waits for a person.
    pub waiting_since: Option<Timestamp>,
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
    /// Results of that turn's calls that were kept, where it has its reply.
    pub early: Vec<ToolResult>,
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

/// A run's columns, `r` being the runs.
pub(crate) const RUN: &str = "r.id AS r_id, r.session_id AS r_session, r.owner AS r_owner, r.state AS r_state, \
     r.epoch AS r_epoch, r.delivery, r.triggered_by, r.settings, r.attempts, r.created AS r_created, \
     r.started, r.ended, r.waited, r.waiting_since, r.reason, r.code, r.holder, r.lease_until, \
     (SELECT COALESCE(MAX(y.turn), 0) FROM turns y WHERE y.run_id = r.id AND y.state = 'done') AS r_turn";

impl Run {
    /// From a row with [`RUN`].
    pub(crate) fn of(row: &Row) -> Result<Self, StoreError> {
        let state = row.text("r_state")?;
        let holder = row.text_or_none("holder")?;
        let until = row.time("lease_until")?;
        Ok(Self {
            id: row.id("r_id")?,
            session: row.id("r_session")?,
            owner: row.id("r_owner")?,
            state: RunState::from_word(&state)
                .ok_or_else(|| stored::corrupt("run", format!("there is no state {state:?}")))?,
            epoch: Epoch(row.integer("r_epoch")?),
            delivery: delivery(&row.text("delivery")?)?,
            trigger: Trigger::stored(row.text("triggered_by")?),
            settings: stored::read("run's settings", row.text("settings")?.as_bytes())?,
            attempts: row.integer("attempts")?,
            turn: u32::try_from(row.integer("r_turn")?).map_err(|source| stored::corrupt("run", source))?,
            created: row.time("r_created")?,
            started: row.time_or_none("started")?,
            ended: row.time_or_none("ended")?,
            waited: row.integer("waited")?,
            waiting_since: row.time_or_none("waiting_since")?,
            reason: row.text_or_none("reason")?,
            code: row.text_or_none("code")?,
            lease: holder.map(|holder| Lease { holder, until }),
        })
    }

    /// Milliseconds that it has waited for people by `now`.
    #[must_use]
    pub fn waited_until(&self, now: Timestamp) -> i64 {
        let waits = self
            .waiting_since
            .map_or(0, |since| now.0.saturating_sub(since.0).max(0));
        self.waited.saturating_add(waits)
    }

    /// The error for whoever shows an epoch that does not count.
    pub(crate) const fn stale(&self, asked: Epoch) -> StoreError {
        StoreError::Stale {
            run: self.id,
            asked,
            epoch: self.epoch,
            state: self.state,
        }
    }

    /// Refuses whoever does not hold the run.
    pub(crate) fn check_hold(&self, epoch: Epoch) -> Result<(), StoreError> {
        if self.epoch != epoch || self.state.is_final() {
            return Err(self.stale(epoch));
        }
        Ok(())
    }
}

const DELIVERIES: [(Delivery, &str); 3] = [
    (Delivery::Restart, "restart"),
    (Delivery::Steer, "steer"),
    (Delivery::Queue, "queue"),
];

fn delivery(word: &str) -> Result<Delivery, StoreError> {
    let known = DELIVERIES.into_iter().find(|(_, known)| *known == word);
    known
        .map(|(delivery, _)| delivery)
        .ok_or_else(|| stored::corrupt("run", format!("there is no delivery {word:?}")))
}

/// Adds a run that waits to be taken, and tells watchers.
pub(crate) fn insert(
    work: &mut Work,
    head: &mut Head,
    id: RunId,
    delivery: Delivery,
    trigger: &Trigger,
    settings: &Value,
) -> Result<(), StoreError> {
    let word = DELIVERIES
        .into_iter()
        .find(|(known, _)| *known == delivery)
        .map_or("restart", |(_, word)| word);
    let settings = String::from_utf8(stored::write("run's settings", settings)?)
        .map_err(|source| stored::corrupt("run's settings", source))?;
    work.batch.add(
        "INSERT INTO runs (id, session_id, owner, state, epoch, delivery, settings, attempts, spent, reserved, created, lease_until, \
         triggered_by) VALUES ($1, $2, $3, 'queued', $4, $5, $6, 0, 0, 0, $7, 0, $8)",
        binds![
            id,
            head.session,
            head.owner,
            head.epoch.0,
            word,
            settings,
            work.now,
            trigger.as_str()
        ],
    );
    head.last_run = Some(id);
    head.open_runs += 1;
    head.event(
        work,
        Event::Run {
            run: id,
            epoch: head.epoch,
            state: RunState::Queued,
            delivery: Some(delivery),
            reason: None,
            code: None,
        },
    )
}

/// A run with its session's head.
pub(crate) fn read(work: &mut Work, asker: Asker, id: RunId) -> Result<(Run, Head, Row), StoreError> {
    let sql = statement!(
        "SELECT {RUN}, {HEAD}, {SESSION}, (SELECT x.id FROM runs x WHERE x.session_id = r.session_id \
         AND x.ended IS NULL AND x.id <> r.id ORDER BY x.id LIMIT 1) AS next_run \
         FROM runs r JOIN sessions s ON s.id = r.session_id WHERE r.id = $1"
    );
    let row = work.one(sql, binds![id])?.ok_or_else(|| not_found(id))?;
    let head = Head::of(&row)?;
    if !asker.may_see(head.session, head.owner) {
        return Err(not_found(id));
    }
    Ok((Run::of(&row)?, head, row))
}

pub(crate) fn not_found(run: RunId) -> StoreError {
    StoreError::NotFound {
        kind: "run",
        id: run.to_string(),
    }
}

impl Store {
    /// One run.
    ///
    /// # Errors
    /// There is none, for the one who asks.
    pub async fn run(&self, asker: Asker, id: RunId) -> Result<Run, StoreError> {
        let sql = statement!("SELECT {RUN} FROM runs r WHERE r.id = $1");
        let row = self.read_one("read a run", sql, binds![id]).await?;
        let run = row.as_ref().map(Run::of).transpose()?.ok_or_else(|| not_found(id))?;
        if !asker.may_see(run.session, run.owner) {
            return Err(not_found(id));
        }
        Ok(run)
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
        self.owner_of(asker, session).await?;
        let sql = statement!(
            "SELECT {RUN} FROM runs r WHERE r.session_id = $1 AND ($2 IS NULL OR r.id < $2) ORDER BY r.id DESC LIMIT $3"
        );
        let limit = i64::from(limit.min(Self::LONGEST_PAGE));
        let rows = self.read("read runs", sql, binds![session, before, limit]).await?;
        rows.iter().map(Run::of).collect()
    }

    /// The sessions of a user in which runs have not ended.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself.
    pub async fn open_sessions(&self, asker: Asker, owner: UserId) -> Result<Vec<SessionId>, StoreError> {
        const ATTEMPT: &str = "look for runs of a user";
        asker.must_be_system(ATTEMPT)?;
        let sql = "SELECT DISTINCT r.session_id FROM runs r WHERE r.owner = $1 AND r.ended IS NULL";
        let rows = self.read(ATTEMPT, sql, binds![owner]).await?;
        rows.iter().map(|row| row.id("session_id")).collect()
    }

    /// Runs that somebody should take: the first that waits in a session where none is under way, and those whose lease is over. They
    /// stand in the order in which places are to be given: whoever has the fewest runs under way comes first, then who waited longest.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself.
    pub async fn pending_runs(&self, asker: Asker, limit: u32) -> Result<Vec<RunId>, StoreError> {
        asker.must_be_system("look for runs to take")?;
        let sql = "WITH open AS (SELECT r.id, r.owner, r.session_id, r.state, r.lease_until FROM runs r WHERE r.ended IS NULL), \
                   held AS (SELECT owner, COUNT(*) AS runs FROM open WHERE state <> 'queued' AND lease_until > $1 GROUP BY owner), \
                   pending AS (SELECT r.id, r.owner FROM open r WHERE (r.state <> 'queued' AND r.lease_until <= $1) \
                   OR (r.state = 'queued' AND NOT EXISTS (SELECT 1 FROM runs x WHERE x.session_id = r.session_id \
                   AND x.ended IS NULL AND x.id <> r.id AND (x.state <> 'queued' OR x.id < r.id)))) \
                   SELECT p.id, COALESCE(h.runs, 0) + ROW_NUMBER() OVER (PARTITION BY p.owner ORDER BY p.id) AS place \
                   FROM pending p LEFT JOIN held h ON h.owner = p.owner ORDER BY place, p.id LIMIT $2";
        let limit = i64::from(limit.min(Self::LONGEST_PAGE));
        let rows = self
            .read("look for runs to take", sql, binds![self.now(), limit])
            .await?;
        rows.iter().map(|row| row.id("id")).collect()
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
        asker.must_be_system("take a run")?;
        let holder = holder.to_owned();
        self.write("take a run", move |work| take::take(work, asker, run, holder, lease))
            .await
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
        asker.must_be_system("renew a lease")?;
        let (holder, runs) = (holder.to_owned(), runs.to_vec());
        self.write("renew a lease", move |work| {
            let rows = work.all(
                "SELECT id FROM runs WHERE ended IS NULL AND holder = $1",
                binds![holder.as_str()],
            )?;
            let held = rows
                .iter()
                .map(|row| row.id("id"))
                .collect::<Result<HashSet<RunId>, _>>()?;
            let until = work.now.after(lease);
            let (kept, lost): (Vec<_>, Vec<_>) = runs.into_iter().partition(|run| held.contains(run));
            for run in kept {
                work.batch
                    .add("UPDATE runs SET lease_until = $2 WHERE id = $1", binds![run, until]);
            }
            Ok(lost)
        })
        .await
    }

    /// Gives up the holder's leases, so that another takes its runs at once.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself.
    pub async fn release_runs(&self, asker: Asker, holder: &str) -> Result<(), StoreError> {
        asker.must_be_system("give up a lease")?;
        let holder = holder.to_owned();
        self.write("give up a lease", move |work| {
            work.batch.add(
                "UPDATE runs SET lease_until = 0, holder = NULL WHERE ended IS NULL AND holder = $1",
                binds![holder],
            );
            Ok(())
        })
        .await
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
        asker.must_be_system("let a run wait")?;
        let state = if waiting { RunState::Waiting } else { RunState::Running };
        self.write("let a run wait", move |work| {
            let (found, mut head, _) = read(work, asker, run)?;
            found.check_hold(epoch)?;
            if found.state == state {
                return Ok(Vec::new());
            }
            if !found.state.may_become(state) {
                return Err(found.stale(epoch));
            }
            move_to(work, &mut head, &found, state)?;
            head.finish(work)
        })
        .await
    }

    /// Ends a run: what the model had said so far is kept as an interrupted message, calls without a result are answered as
    /// interrupted. Whoever still works on it is refused from then on. Prompts that had wanted to join it become the next run.
    /// A run that has ended stays as it is.
    ///
    /// # Errors
    /// There is no such run; the epoch is stale; the one who asks is not Belljar itself.
    pub async fn end_run(&self, asker: Asker, run: RunId, epoch: Epoch, end: End) -> Result<Ended, StoreError> {
        asker.must_be_system("end a run")?;
        self.write("end a run", move |work| {
            closing::end(work, asker, run, Some(epoch), end)
        })
        .await
    }

    /// Stops a run for a person, whoever holds it. Audited. To do it again, or too late, changes nothing.
    ///
    /// # Errors
    /// There is none, for the one who asks.
    pub async fn cancel_run(&self, asker: Asker, run: RunId, reason: &str) -> Result<Ended, StoreError> {
        let reason = reason.to_owned();
        self.write("cancel a run", move |work| {
            let (found, _, _) = read(work, asker, run)?;
            let ended = closing::end(work, asker, run, None, End::cancelled(reason.as_str()))?;
            if ended.now {
                let detail = json!({ "reason": reason });
                let entry = AuditEntry::new("run.cancelled", format!("run:{run}"), detail).of(found.session, Some(run));
                audit::append(work, asker, &[entry])?;
            }
            Ok(ended)
        })
        .await
    }
}

/// A run begins to wait for a person, or goes on; its clock stands meanwhile.
pub(crate) fn move_to(work: &mut Work, head: &mut Head, run: &Run, state: RunState) -> Result<(), StoreError> {
    let since = (state == RunState::Waiting).then_some(work.now);
    work.batch.add(
        "UPDATE runs SET state = $2, waited = $3, waiting_since = $4 WHERE id = $1",
        binds![run.id, state.as_str(), run.waited_until(work.now), since],
    );
    head.event(work, told(run, state))
}

/// The event of a run that changed its state.
fn told(run: &Run, state: RunState) -> Event {
    Event::Run {
        run: run.id,
        epoch: run.epoch,
        state,
        delivery: None,
        reason: None,
        code: None,
    }
}
