//! Turns: one call of a model, claimed and paid for before it is made, repeatable ever after.

use domain::{Epoch, Event, Message, MessageId, Money, NumberedEvent, RunId, ToolResult, TurnId};
use serde_json::value::RawValue;

use crate::{Asker, Caps, Charge, Dialect, End, OverCap, Store, StoreError};

/// A turn that is to begin.
#[derive(Clone, Debug)]
pub struct BeginTurn {
    /// Of which run.
    pub run: RunId,
    /// Under which hold.
    pub epoch: Epoch,
    /// Counts the run's turns, from 1.
    pub turn: u32,
    /// Results of the calls that the turn before asked for. Others are refused; those that are missing are answered as interrupted.
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
    /// More to tell watchers, after the messages and before the model speaks (`tool_ended`).
    pub events: Vec<Event>,
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
        todo!()
    }

    /// Stores a turn's reply, charges its cost, frees its reservation, and ends the run where it says so, all in one transaction.
    ///
    /// # Errors
    /// There is no such claim (it was finished, failed, or charged after a crash); the message is not a model's.
    pub async fn finish_turn(&self, asker: Asker, turn: FinishTurn) -> Result<Finished, StoreError> {
        todo!()
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
        todo!()
    }
}
