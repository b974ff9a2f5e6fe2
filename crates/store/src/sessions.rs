//! Sessions.

use std::fmt;
use std::str::FromStr;

use domain::{
    Door, Epoch, EventNumber, ExternalKey, NumberedEvent, RunId, RunState, SandboxId, SessionId, Timestamp, UserId,
};

use crate::{Asker, Store, StoreError};

/// A session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Session {
    /// Which.
    pub id: SessionId,
    /// Whose.
    pub owner: UserId,
    /// What the outside calls it.
    pub key: Option<ExternalKey>,
    /// The door by which its first prompt came.
    pub door: Door,
    /// The first words of its first prompt.
    pub title: String,
    /// When it was made.
    pub created: Timestamp,
    /// When it was last prompted.
    pub active: Timestamp,
    /// When it was archived; a prompt brings it back.
    pub archived: Option<Timestamp>,
    /// Whose hold on it counts.
    pub epoch: Epoch,
    /// How many messages its history has.
    pub messages: i64,
    /// The number of its last event.
    pub events: EventNumber,
    /// Its newest run, and where that stands.
    pub run: Option<(RunId, RunState)>,
    /// Its sandbox and that one's state, as last told.
    pub sandbox: Option<(SandboxId, String)>,
}

/// Where a page of sessions ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cursor {
    active: Timestamp,
    session: SessionId,
}

/// A text that should be a cursor and is none.
#[derive(Debug, thiserror::Error)]
#[error("{text:?} is no cursor of a list of sessions: take `next` of the page before")]
pub struct ParseCursorError {
    text: String,
}

impl fmt::Display for Cursor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}_{}", self.active.0, self.session)
    }
}

impl FromStr for Cursor {
    type Err = ParseCursorError;

    fn from_str(text: &str) -> Result<Self, ParseCursorError> {
        text.split_once('_')
            .and_then(|(active, session)| {
                Some(Self {
                    active: Timestamp(active.parse().ok()?),
                    session: session.parse().ok()?,
                })
            })
            .ok_or_else(|| ParseCursorError {
                text: text.chars().take(80).collect(),
            })
    }
}

/// Which sessions are wanted.
#[derive(Clone, Default, Debug)]
pub struct SessionFilter {
    /// Of this user; for a user who is no admin always themselves.
    pub owner: Option<UserId>,
    /// With this key.
    pub key: Option<ExternalKey>,
    /// The archived ones instead of the others.
    pub archived: bool,
}

/// A page of sessions, last prompted first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// The sessions.
    pub sessions: Vec<Session>,
    /// Where the next page begins; none: there is no more.
    pub next: Option<Cursor>,
}

impl Store {
    /// The most sessions, events, messages or entries that one call returns.
    pub const LONGEST_PAGE: u32 = 1_000;

    /// One session.
    ///
    /// # Errors
    /// There is none, for the one who asks.
    pub async fn session(&self, asker: Asker, id: SessionId) -> Result<Session, StoreError> {
        todo!()
    }

    /// A page of the sessions that the one who asks may see. As fast with a hundred thousand as with a hundred.
    ///
    /// # Errors
    /// The filter names another user, and the one who asks is no admin.
    pub async fn sessions(
        &self,
        asker: Asker,
        filter: SessionFilter,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Page, StoreError> {
        todo!()
    }

    /// Puts a session away: it is listed no more, its tokens are revoked, and a prompt brings it back. Refused while a run is under way. Audited.
    ///
    /// # Errors
    /// There is none, for the one who asks; a run is under way.
    pub async fn archive_session(&self, asker: Asker, id: SessionId) -> Result<(), StoreError> {
        todo!()
    }

    /// Tells what became of the session's sandbox (`starting`, `running`, `lost`, `removed`), with its event.
    ///
    /// # Errors
    /// There is no such session, or the one who asks is not Belljar itself.
    pub async fn set_sandbox(
        &self,
        asker: Asker,
        session: SessionId,
        sandbox: SandboxId,
        state: &str,
        reason: Option<&str>,
    ) -> Result<Vec<NumberedEvent>, StoreError> {
        todo!()
    }
}
