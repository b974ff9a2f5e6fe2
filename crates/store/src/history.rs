//! The history: append-only messages in a chain of hashes, stored ready for a model, and verified whenever they are read.

use std::fmt;
use std::sync::Arc;

use domain::{Epoch, Message, MessageId, NumberedEvent, Role, RunId, SessionId};

use crate::{Asker, Store, StoreError};

/// A link of a session's chain: it stands for the message and every one before it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Hash(pub [u8; 32]);

impl fmt::Debug for Hash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&hex::encode(self.0))
    }
}

/// How a kind of model wants to be told a message. The same name always renders the same bytes.
#[derive(Clone)]
pub struct Dialect {
    /// Its name, as it stands beside the bytes.
    pub name: Arc<str>,
    /// The bytes of one message.
    pub render: Arc<dyn Fn(&Message) -> Vec<u8> + Send + Sync>,
}

impl fmt::Debug for Dialect {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Dialect").field(&self.name).finish()
    }
}

/// A message as a model is told of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its place in the history, from 1.
    pub position: i64,
    /// Whose turn it is.
    pub role: Role,
    /// The bytes in the dialect that was asked for.
    pub ready: Vec<u8>,
    /// Its link of the chain.
    pub hash: Hash,
}

/// What a model is told, from the newest summary on.
#[derive(Clone, PartialEq, Debug)]
pub struct History {
    /// The summary that stands for everything before the entries.
    pub compaction: Option<Compaction>,
    /// The messages after it, in order.
    pub entries: Vec<Entry>,
}

/// A summary that stands for the older part of a history. The originals stay.
#[derive(Clone, PartialEq, Debug)]
pub struct Compaction {
    /// The last message that it stands for.
    pub through: i64,
    /// The summary, as a message.
    pub summary: Message,
}

/// A summary that is to be stored.
#[derive(Clone, Debug)]
pub struct NewCompaction {
    /// Of which run.
    pub run: RunId,
    /// Under which hold.
    pub epoch: Epoch,
    /// The last message that it stands for.
    pub through: i64,
    /// The summary, as a message.
    pub summary: Message,
}

/// A message and its place.
#[derive(Clone, PartialEq, Debug)]
pub struct Positioned {
    /// Its place in the history, from 1.
    pub position: i64,
    /// The message.
    pub message: Message,
}

impl Store {
    /// What a model is to be told: the newest summary, if there is one, and the messages after it or after `after`, whichever
    /// is later (a reader who has the part before asks for what is new). Messages that were stored in another dialect are rendered anew.
    ///
    /// # Errors
    /// The session does not exist, for the one who asks; [`StoreError::Tampered`].
    pub async fn history(
        &self,
        asker: Asker,
        session: SessionId,
        after: i64,
        dialect: &Dialect,
    ) -> Result<History, StoreError> {
        todo!()
    }

    /// The messages after `after`, as they were said; at most `limit`.
    ///
    /// # Errors
    /// The session does not exist, for the one who asks; [`StoreError::Tampered`].
    pub async fn messages(
        &self,
        asker: Asker,
        session: SessionId,
        after: i64,
        limit: u32,
    ) -> Result<Vec<Positioned>, StoreError> {
        todo!()
    }

    /// Stores a summary. It never parts a call from its result: `through` with an unanswered call is refused.
    ///
    /// # Errors
    /// The epoch is stale; there is no such message, it is older than the newest summary, or its calls' results come after it.
    pub async fn compact(&self, asker: Asker, compaction: NewCompaction) -> Result<Vec<NumberedEvent>, StoreError> {
        todo!()
    }

    /// Where a message stands in a session's history.
    ///
    /// # Errors
    /// There is none, for the one who asks.
    pub async fn position(&self, asker: Asker, session: SessionId, message: MessageId) -> Result<i64, StoreError> {
        todo!()
    }
}
