//! Events: numbered per session from 1 without a gap, stored in the transaction of what they tell.

use domain::{Event, EventNumber, MessageId, NumberedEvent, RunId, SessionId, TurnId};
use tokio::sync::watch;

use crate::{Asker, Store, StoreError};

/// A message that a model is writing, as far as it is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenMessage {
    /// Which.
    pub message: MessageId,
    /// The run it belongs to.
    pub run: RunId,
    /// The model that writes it.
    pub model: String,
    /// The text so far.
    pub text: String,
    /// The thinking so far.
    pub thinking: String,
}

/// What a watcher who comes gets first, as of one moment.
#[derive(Clone, PartialEq, Debug)]
pub struct Tail {
    /// The events after the one that was named.
    pub events: Vec<NumberedEvent>,
    /// The open message; none also where `events` does not reach the newest one.
    pub open: Option<OpenMessage>,
}

impl Store {
    /// The events after `after` (0: from the first), at most `limit`, and the open message.
    ///
    /// # Errors
    /// The session does not exist, for the one who asks.
    pub async fn events(
        &self,
        asker: Asker,
        session: SessionId,
        after: EventNumber,
        limit: u32,
    ) -> Result<Tail, StoreError> {
        todo!()
    }

    /// Holds the number of the session's newest event, told after each commit. Who waits for it to change, reads `events` and
    /// waits again misses nothing.
    ///
    /// # Errors
    /// The session does not exist, for the one who asks.
    pub async fn watch(&self, asker: Asker, session: SessionId) -> Result<watch::Receiver<EventNumber>, StoreError> {
        todo!()
    }

    /// Stores events that tell of nothing else in the store: a tool that began, a model that is tried again, a refusal.
    ///
    /// # Errors
    /// There is no such session, or the one who asks is not Belljar itself.
    pub async fn record(
        &self,
        asker: Asker,
        session: SessionId,
        events: Vec<Event>,
    ) -> Result<Vec<NumberedEvent>, StoreError> {
        todo!()
    }

    /// Stores what the model of a claimed turn has said so far (each second or 4 kB); no event. False: the turn is over, nothing was stored.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself.
    pub async fn save_open(&self, asker: Asker, turn: TurnId, text: &str, thinking: &str) -> Result<bool, StoreError> {
        todo!()
    }
}
