//! A prompt comes in.

use domain::{Delivery, Door, ExternalKey, Message, NumberedEvent, RunId, SessionId, UserId};
use serde_json::Value;

use crate::{Asker, Store, StoreError};

/// The session that a prompt is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// One that exists.
    Session(SessionId),
    /// The one with this key, made where there is none.
    Key {
        /// Whose.
        owner: UserId,
        /// The key.
        key: ExternalKey,
    },
    /// A new one without a key.
    New {
        /// Whose.
        owner: UserId,
    },
}

/// A prompt as a door hands it in.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// For which session.
    pub target: Target,
    /// By which door it came.
    pub door: Door,
    /// What it says: role `user`, written by a user; where a user asks, by that user.
    pub message: Message,
    /// How it meets a run that is under way.
    pub delivery: Delivery,
    /// A repeat with the same key (of the same user) gets the first one's answer and changes nothing. At most 200 bytes.
    pub request_key: Option<String>,
    /// What the run is to be done with (model, scope, limits…), given back unread; a prompt that joins a run changes nothing of it.
    pub settings: Value,
}

/// How a prompt was met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Joined {
    /// It stands in the history; its run is the next one.
    Started,
    /// Its run waits for the one under way; its message enters the history when the run is taken.
    Queued,
    /// Its message enters the history of the run under way, before the next model call.
    Steered,
}

/// A prompt that is stored.
#[derive(Clone, PartialEq, Debug)]
pub struct Accepted {
    /// The session.
    pub session: SessionId,
    /// It was made for this prompt.
    pub created: bool,
    /// The run that answers: a new one, or the one it joined.
    pub run: RunId,
    /// How it was met.
    pub joined: Joined,
    /// Runs that it interrupted.
    pub interrupted: Vec<RunId>,
    /// This was a repeat: nothing was stored now.
    pub repeated: bool,
    /// What watchers see of it; empty for a repeat.
    pub events: Vec<NumberedEvent>,
}

impl Store {
    /// Stores a prompt: finds or makes its session, brings back an archived one, and begins, joins or queues a run.
    ///
    /// `restart` interrupts the run under way and those that wait: the epoch grows, what the model had said so far is kept as an
    /// interrupted message, calls without a result are answered as interrupted, prompts that waited enter the history
    /// before this one. `steer` and `queue` leave the run alone; where none is under way they are as `restart`.
    ///
    /// # Errors
    /// The session does not exist, for the one who asks; the message is not a prompt of theirs; the request key was used for another prompt.
    pub async fn accept_prompt(&self, asker: Asker, prompt: Prompt) -> Result<Accepted, StoreError> {
        todo!()
    }
}
