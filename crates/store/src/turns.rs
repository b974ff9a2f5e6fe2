//! Turns: one call of a model, claimed and paid for before it is made, repeatable ever after.

use domain::{
    Author, Block, Epoch, Event, Message, MessageId, Money, NumberedEvent, Role, RunId, RunState, ToolResult, TurnId,
};
use serde_json::value::RawValue;

use crate::batch::{binds, statement};
use crate::caps::{DAYS, SUMS, Sums};
use crate::head::{HEAD, Head};
use crate::money::{Account, RESERVATION, Reservation, charge_left, no_claim};
use crate::row::Row;
use crate::runs::{self, RUN, not_found};
use crate::stored;
use crate::writer::Work;
use crate::{Asker, Caps, Charge, Dialect, End, OpenMessage, OverCap, Run, Store, StoreError, closing, results};

/// A turn that is to begin.
#[derive(Clone, Debug)]
pub struct BeginTurn {
    /// Of which run.
    pub run: RunId,
    /// Under which hold.
    pub epoch: Epoch,
    /// Counts the run's turns, from 1.
    pub turn: u32,
    /// Results of the calls that the turn before asked for. Others are refused; one that was kept before counts and this one does
    /// not; those that are missing are answered as interrupted.
    pub results: Vec<ToolResult>,
    /// The message that the model is going to write.
    pub opens: MessageId,
    /// The model that is asked.
    pub model: String,
    /// The version of its price.
    pub price_version: String,
    /// The most that the call can cost.
    pub reserve: Money,
    /// What may be spent.
    pub caps: Caps,
    /// How messages are stored ready for the model.
    pub dialect: Option<Dialect>,
}

/// What came of beginning a turn.
#[derive(Clone, Debug)]
pub enum Begun {
    /// It is yours: call the model, then finish it. The results and the prompts that waited stand in the history.
    Yours {
        /// Names the claim and its reservation.
        id: TurnId,
        /// What watchers see of it.
        events: Vec<NumberedEvent>,
    },
    /// Somebody of this process is at it already, under the same epoch.
    Held {
        /// Their claim.
        id: TurnId,
        /// The message that is being written.
        message: MessageId,
    },
    /// It was done before: its reply, as it was handed in.
    Done {
        /// The reply.
        reply: Box<RawValue>,
    },
    /// A cap says no. The results and the prompts that waited stand in the history all the same; the same turn may be begun again.
    OverCap {
        /// Which, and why.
        over: OverCap,
        /// What watchers see of it.
        events: Vec<NumberedEvent>,
    },
}

/// A turn that has its reply.
#[derive(Clone, Debug)]
pub struct FinishTurn {
    /// The claim.
    pub id: TurnId,
    /// What the model said: role `assistant`, with the id that the turn opened. Its calls are the ones whose results the next turn may bring.
    pub message: Message,
    /// How messages are stored ready for the model.
    pub dialect: Option<Dialect>,
    /// What is handed out when the turn is repeated.
    pub reply: Box<RawValue>,
    /// What it cost, call by call.
    pub charges: Vec<Charge>,
    /// More to tell watchers, after the message (`tool_started`).
    pub events: Vec<Event>,
    /// The run ends with it. Where prompts wait to join the run it does not: see [`Finished::goes_on`].
    pub end: Option<End>,
}

/// What finishing a turn did.
#[derive(Clone, PartialEq, Debug)]
pub struct Finished {
    /// Whether the reply counts.
    pub outcome: TurnOutcome,
    /// The run was to end, and prompts wait to join it: begin the next turn.
    pub goes_on: bool,
    /// Where the run ended: the run that is to be taken next.
    pub next: Option<RunId>,
    /// What watchers see of it.
    pub events: Vec<NumberedEvent>,
}

/// Whether a reply counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TurnOutcome {
    /// It stands in the history.
    Stored,
    /// The run was taken over or has ended meanwhile: only the cost was charged.
    Stale,
}

/// Where a run's last turn stands.
#[derive(Clone, Debug)]
pub struct LastTurn {
    /// Its number.
    pub turn: u32,
    /// Its claim.
    pub id: TurnId,
    /// Its reply; none: it never got one, and is to be begun again.
    pub reply: Option<Box<RawValue>>,
}

impl PartialEq for LastTurn {
    fn eq(&self, other: &Self) -> bool {
        (self.turn, self.id, self.reply.as_ref().map(|reply| reply.get()))
            == (other.turn, other.id, other.reply.as_ref().map(|reply| reply.get()))
    }
}

impl Store {
    /// Begins a turn: checks hold, number and caps, appends the results and the prompts that wait to join, reserves the cost and
    /// claims the turn for this process, all in one transaction. What is spent plus what is reserved never exceeds a cap.
    ///
    /// # Errors
    /// [`StoreError::Stale`] where the run was taken over or has ended; [`StoreError::Invalid`] for a result of a call that was not asked for, and a turn out of order.
    pub async fn begin_turn(&self, asker: Asker, turn: BeginTurn) -> Result<Begun, StoreError> {
        if matches!(asker, Asker::User { .. }) {
            asker.must_be_system("begin a turn")?;
        }
        self.write("begin a turn", move |work| begin(work, asker, turn)).await
    }

    /// Stores a turn's reply, charges its cost, frees its reservation, and ends the run where it says so, all in one transaction.
    ///
    /// # Errors
    /// There is no such claim (it was finished, failed, or charged after a crash); the message is not a model's.
    pub async fn finish_turn(&self, asker: Asker, turn: FinishTurn) -> Result<Finished, StoreError> {
        asker.must_be_system("finish a turn")?;
        self.write("finish a turn", move |work| finish(work, turn)).await
    }

    /// Gives up a turn: charges what it cost, frees its reservation, and ends the run where it says so. It can be begun again
    /// otherwise. What the model had said so far is kept as an interrupted message if the run ends, and forgotten otherwise.
    ///
    /// # Errors
    /// There is no such claim.
    pub async fn fail_turn(
        &self,
        asker: Asker,
        id: TurnId,
        charges: Vec<Charge>,
        end: Option<End>,
    ) -> Result<Finished, StoreError> {
        asker.must_be_system("give up a turn")?;
        self.write("give up a turn", move |work| fail(work, id, &charges, end))
            .await
    }
}

const TURN: &str =
    "t.id AS t_id, t.turn AS t_turn, t.state AS t_state, t.epoch AS t_epoch, t.message_id AS t_message, t.reply";

fn refused(reason: impl Into<String>) -> StoreError {
    StoreError::Invalid {
        subject: "the turn",
        reason: reason.into(),
    }
}

fn reply_of(row: &Row) -> Result<Option<Box<RawValue>>, StoreError> {
    row.text_or_none("reply")?
        .map(|reply| RawValue::from_string(reply).map_err(|source| stored::corrupt("reply", source)))
        .transpose()
}

fn begin(work: &mut Work, asker: Asker, wanted: BeginTurn) -> Result<Begun, StoreError> {
    let sql = statement!(
        "SELECT {RUN}, {HEAD}, {TURN}, {SUMS} FROM runs r JOIN sessions s ON s.id = r.session_id {DAYS} \
         LEFT JOIN turns t ON t.run_id = r.id AND t.turn = $3 WHERE r.id = $1"
    );
    let day = work.now.day();
    let row = work
        .one(sql, binds![wanted.run, day, i64::from(wanted.turn)])?
        .ok_or_else(|| not_found(wanted.run))?;
    let (run, mut head) = (Run::of(&row)?, Head::of(&row)?);
    if !asker.may_see(head.session, head.owner) {
        return Err(not_found(wanted.run));
    }
    let state = row.text_or_none("t_state")?;
    if run.epoch != wanted.epoch {
        return Err(run.stale(wanted.epoch));
    }
    if state.as_deref() == Some("done") {
        let reply = reply_of(&row)?.ok_or_else(|| stored::corrupt("turn", "it has no reply"))?;
        return Ok(Begun::Done { reply });
    }
    run.check_hold(wanted.epoch)?;
    head.check_room(work)?;
    if run.state == RunState::Queued {
        return Err(refused(format!("the run is {}", run.state.as_str())));
    }
    if wanted.turn != run.turn + 1 {
        return Err(refused(format!(
            "turn {} does not follow turn {}",
            wanted.turn, run.turn
        )));
    }
    let mut changed = false;
    if run.state == RunState::Waiting {
        // Whoever waited for a person has its answer, or nobody waits any more.
        runs::move_to(work, &mut head, &run, RunState::Running)?;
        changed = true;
    }
    if state.as_deref() == Some("claimed") {
        if row.integer("t_epoch")? == wanted.epoch.0 {
            return Ok(Begun::Held {
                id: row.id("t_id")?,
                message: row.id("t_message")?,
            });
        }
        charge_left(work, &mut head, run.id)?;
        changed = true;
    }
    if state.is_none() {
        results::check(&head, &wanted.results)?;
        changed |= results::answer(work, &mut head, run.id, &wanted.results, wanted.dialect.as_ref())?;
    }
    for message in closing::take_waiting(work, &mut head, Some(run.id))? {
        head.message(work, message, wanted.dialect.as_ref())?;
        changed = true;
    }
    if let Some(over) = Sums::of(&row)?.check(work, &run.trigger, wanted.reserve, &wanted.caps)? {
        // Its row says that the results stand in the history; once is enough.
        if state.is_none() {
            write_turn(work, &wanted, TurnId::new(), "refused");
        }
        let events = if changed { head.finish(work)? } else { Vec::new() };
        return Ok(Begun::OverCap { over, events });
    }
    let id = TurnId::new();
    write_turn(work, &wanted, id, "claimed");
    let account = Account::of(&head, &run, day);
    account.reserve(
        work,
        &mut head,
        id,
        &wanted.model,
        &wanted.price_version,
        wanted.reserve,
    );
    head.open = Some((
        id,
        OpenMessage {
            message: wanted.opens,
            run: run.id,
            model: wanted.model,
            text: String::new(),
            thinking: String::new(),
        },
    ));
    let opened = Event::MessageOpened {
        message: wanted.opens,
        run: run.id,
    };
    head.event(work, opened)?;
    Ok(Begun::Yours {
        id,
        events: head.finish(work)?,
    })
}

fn write_turn(work: &mut Work, wanted: &BeginTurn, id: TurnId, state: &str) {
    work.batch.add(
        "INSERT INTO turns (run_id, turn, id, state, epoch, message_id) VALUES ($1, $2, $3, $4, $5, $6) \
         ON CONFLICT (run_id, turn) DO UPDATE SET id = excluded.id, state = excluded.state, epoch = excluded.epoch, \
         message_id = excluded.message_id, reply = NULL",
        binds![
            wanted.run,
            i64::from(wanted.turn),
            id,
            state,
            wanted.epoch.0,
            wanted.opens
        ],
    );
}

/// A claim, with what it hangs on.
struct Claim {
    id: TurnId,
    message: MessageId,
    run: Run,
    head: Head,
    reservation: Reservation,
    /// Prompts that wait to join the run.
    joining: i64,
    waits: Option<RunId>,
    /// The run is still held as it was when the turn was claimed.
    holds: bool,
}

impl Claim {
    fn read(work: &mut Work, id: TurnId) -> Result<Self, StoreError> {
        let sql = statement!(
            "SELECT {RUN}, {HEAD}, {TURN}, {RESERVATION}, \
             (SELECT COUNT(*) FROM waiting w WHERE w.session_id = s.id AND w.run_id = r.id) AS joining, \
             (SELECT x.id FROM runs x WHERE x.session_id = s.id AND x.ended IS NULL AND x.id <> r.id ORDER BY x.id LIMIT 1) AS next_run \
             FROM turns t JOIN runs r ON r.id = t.run_id JOIN sessions s ON s.id = r.session_id \
             JOIN reservations v ON v.id = t.id WHERE t.id = $1 AND t.state = 'claimed'"
        );
        let row = work.one(sql, binds![id])?.ok_or_else(|| no_claim(id))?;
        let run = Run::of(&row)?;
        let holds = !run.state.is_final() && run.epoch.0 == row.integer("t_epoch")?;
        Ok(Self {
            id,
            message: row.id("t_message")?,
            head: Head::of(&row)?,
            reservation: Reservation::of(&row)?,
            joining: row.integer("joining")?,
            waits: row.id_or_none("next_run")?,
            run,
            holds,
        })
    }

    /// Ends the run, if it is to end.
    fn end(
        &mut self,
        work: &mut Work,
        end: Option<End>,
        dialect: Option<&Dialect>,
    ) -> Result<Option<RunId>, StoreError> {
        let Some(end) = end else {
            return Ok(None);
        };
        // A call that a user's process made may wait for a person while the model speaks; its run ends all the same.
        let may_end = self.run.state.may_become(end.state) || self.run.state == RunState::Waiting;
        if !end.state.is_final() || !may_end {
            return Err(refused(format!(
                "a run that is {} cannot end as {}",
                self.run.state.as_str(),
                end.state.as_str()
            )));
        }
        let next = closing::close(work, &mut self.head, &self.run, &end, dialect)?;
        Ok(next.or(self.waits))
    }

    /// What is left to do for a reply that does not count any more: the cost is charged.
    fn stale(mut self, work: &mut Work, charges: &[Charge]) -> Result<Finished, StoreError> {
        self.reservation.settle(work, &mut self.head, charges)?;
        self.set(work, "failed", None);
        self.head.open.take_if(|(turn, _)| *turn == self.id);
        Ok(Finished {
            outcome: TurnOutcome::Stale,
            goes_on: false,
            next: None,
            events: self.head.finish(work)?,
        })
    }

    fn set(&self, work: &mut Work, state: &str, reply: Option<&RawValue>) {
        work.batch.add(
            "UPDATE turns SET state = $2, reply = $3 WHERE id = $1",
            binds![self.id, state, reply.map(RawValue::get)],
        );
    }
}

fn finish(work: &mut Work, wanted: FinishTurn) -> Result<Finished, StoreError> {
    let mut claim = Claim::read(work, wanted.id)?;
    if !claim.holds {
        return claim.stale(work, &wanted.charges);
    }
    let message = wanted.message;
    let said_by_model = message.role == Role::Assistant && matches!(message.author, Author::Model { .. });
    let says = |block: &Block| {
        matches!(
            block,
            Block::Text { .. } | Block::Thinking { .. } | Block::ToolUse(_) | Block::Image(_)
        )
    };
    if !said_by_model || message.id != claim.message || !message.blocks.iter().all(says) {
        return Err(refused("its reply is not the message of a model that it opened"));
    }
    let dialect = wanted.dialect.as_ref();
    claim.head.message(work, message, dialect)?;
    for event in wanted.events {
        claim.head.event(work, event)?;
    }
    claim.reservation.settle(work, &mut claim.head, &wanted.charges)?;
    claim.set(work, "done", Some(&wanted.reply));
    claim.head.open = None;
    let ends_well = wanted.end.as_ref().is_some_and(|end| end.state == RunState::Done);
    let goes_on = ends_well && claim.joining > 0;
    let end = wanted.end.filter(|_| !goes_on);
    Ok(Finished {
        outcome: TurnOutcome::Stored,
        goes_on,
        next: claim.end(work, end, dialect)?,
        events: claim.head.finish(work)?,
    })
}

fn fail(work: &mut Work, id: TurnId, charges: &[Charge], end: Option<End>) -> Result<Finished, StoreError> {
    let mut claim = Claim::read(work, id)?;
    if !claim.holds {
        return claim.stale(work, charges);
    }
    claim.reservation.settle(work, &mut claim.head, charges)?;
    claim.set(work, "failed", None);
    if end.is_none() {
        claim.head.open.take_if(|(turn, _)| *turn == id);
    }
    Ok(Finished {
        outcome: TurnOutcome::Stored,
        goes_on: false,
        next: claim.end(work, end, None)?,
        events: claim.head.finish(work)?,
    })
}

/// A run's last turn.
pub(crate) fn last(work: &mut Work, run: RunId) -> Result<Option<LastTurn>, StoreError> {
    let sql = statement!("SELECT {TURN} FROM turns t WHERE t.run_id = $1 ORDER BY t.turn DESC LIMIT 1");
    let Some(row) = work.one(sql, binds![run])? else {
        return Ok(None);
    };
    Ok(Some(LastTurn {
        turn: u32::try_from(row.integer("t_turn")?).map_err(|source| stored::corrupt("turn", source))?,
        id: row.id("t_id")?,
        reply: reply_of(&row)?,
    }))
}
