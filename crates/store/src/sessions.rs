//! Sessions.

use std::fmt;
use std::str::FromStr;

use domain::{
    Door, Epoch, Event, EventNumber, ExternalKey, NumberedEvent, RunId, RunState, SandboxId, SessionId, SnapshotId,
    Timestamp, UserId,
};
use serde_json::Value;

use crate::batch::{Bind, binds, statement};
use crate::head::{Head, not_found};
use crate::row::Row;
use crate::stored;
use crate::{Asker, AuditEntry, Store, StoreError, Target, approvals, audit, narrowings, prompts, session_tokens};

mod among;

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
    /// The run under way or else the last one, and where it stands.
    pub run: Option<(RunId, RunState)>,
    /// Its sandbox and that one's state, as last told.
    pub sandbox: Option<(SandboxId, String)>,
    /// The session that it is a fork of.
    pub parent: Option<SessionId>,
    /// The snapshot that its disk is still to be made from.
    pub owed: Option<SnapshotId>,
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

/// A session's columns, `s` being the sessions.
pub(crate) const SESSION: &str = "s.id AS session_id, s.owner AS owner, s.name AS name, s.door, s.title, \
     s.created AS s_created, s.active, s.archived, s.epoch AS session_epoch, s.messages, s.events, \
     s.run_id AS last_run, (SELECT x.state FROM runs x WHERE x.id = s.run_id) AS last_state, s.sandbox, s.sandbox_state, \
     s.parent, s.owed";

impl Session {
    /// From a row with [`SESSION`].
    pub(crate) fn of(row: &Row) -> Result<Self, StoreError> {
        let name = row.text_or_none("name")?;
        let run = match (row.id_or_none("last_run")?, row.text_or_none("last_state")?) {
            (Some(run), Some(word)) => {
                let state = RunState::from_word(&word)
                    .ok_or_else(|| stored::corrupt("run", format!("there is no state {word:?}")))?;
                Some((run, state))
            }
            _ => None,
        };
        Ok(Self {
            id: row.id("session_id")?,
            owner: row.id("owner")?,
            key: name
                .map(ExternalKey::try_from)
                .transpose()
                .map_err(|reason| stored::corrupt("session's key", reason))?,
            door: door(&row.text("door")?)?,
            title: row.text("title")?,
            created: row.time("s_created")?,
            active: row.time("active")?,
            archived: row.time_or_none("archived")?,
            epoch: Epoch(row.integer("session_epoch")?),
            messages: row.integer("messages")?,
            events: row.integer("events")?,
            run,
            sandbox: row.id_or_none("sandbox")?.zip(row.text_or_none("sandbox_state")?),
            parent: row.id_or_none("parent")?,
            owed: row.id_or_none("owed")?,
        })
    }
}

const DOORS: [Door; 5] = [Door::Api, Door::Cli, Door::Slack, Door::Webhook, Door::Schedule];

pub(crate) fn door(word: &str) -> Result<Door, StoreError> {
    let known = DOORS.into_iter().find(|door| door.as_str() == word);
    known.ok_or_else(|| stored::corrupt("session", format!("there is no door {word:?}")))
}

impl Store {
    /// The most sessions, events, messages or entries that one call returns.
    pub const LONGEST_PAGE: u32 = 1_000;
    /// A page of events ends with the one that brings it to so many bytes.
    pub const PAGE_BYTES: usize = 1 << 20;

    /// One session.
    ///
    /// # Errors
    /// There is none, for the one who asks.
    pub async fn session(&self, asker: Asker, id: SessionId) -> Result<Session, StoreError> {
        let sql = statement!("SELECT {SESSION} FROM sessions s WHERE s.id = $1");
        let row = self.read_one("read a session", sql, binds![id]).await?;
        let session = row
            .as_ref()
            .map(Session::of)
            .transpose()?
            .ok_or_else(|| not_found(id))?;
        if !asker.may_see(id, session.owner) {
            return Err(not_found(id));
        }
        Ok(session)
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
        const ATTEMPT: &str = "list sessions";
        let owner = match (asker, filter.owner) {
            (Asker::Session(_), _) => {
                return Err(StoreError::Denied {
                    attempt: ATTEMPT,
                    whom: "a user",
                });
            }
            (Asker::User { id, admin: false, .. }, None) => Some(id),
            (Asker::User { id, admin: false, .. }, Some(owner)) if owner != id => {
                return Err(StoreError::NotFound {
                    kind: "user",
                    id: owner.to_string(),
                });
            }
            (_, owner) => owner,
        };
        let limit = limit.clamp(1, Self::LONGEST_PAGE) as usize;
        let archived = if filter.archived { "IS NOT NULL" } else { "IS NULL" };
        let mut sql = format!("SELECT {SESSION} FROM sessions s WHERE s.archived {archived}");
        let mut binds = binds![limit as i64 + 1];
        let mut also = |condition: &str, values: Vec<Bind>| {
            let numbered = values
                .iter()
                .enumerate()
                .fold(condition.to_owned(), |condition, (place, _)| {
                    condition.replace(&format!("#{place}"), &format!("${}", binds.len() + place + 1))
                });
            sql.push_str(&numbered);
            binds.extend(values);
        };
        if let Some(owner) = owner {
            also(" AND s.owner = #0", binds![owner]);
        }
        if let Some(key) = filter.key {
            also(" AND s.name = #0", binds![key.as_str()]);
        }
        if let Some(cursor) = after {
            also(
                " AND (s.active, s.id) < (#0, #1)",
                binds![cursor.active, cursor.session],
            );
        }
        sql.push_str(" ORDER BY s.active DESC, s.id DESC LIMIT $1");
        let rows = self.read(ATTEMPT, sql, binds).await?;
        let sessions = rows
            .iter()
            .take(limit)
            .map(Session::of)
            .collect::<Result<Vec<_>, _>>()?;
        let next = (rows.len() > limit)
            .then(|| {
                sessions.last().map(|last| Cursor {
                    active: last.active,
                    session: last.id,
                })
            })
            .flatten();
        Ok(Page { sessions, next })
    }

    /// Puts a session away: it is listed no more, its tokens are revoked, what it asked people for is withdrawn, and a prompt brings it
    /// back. Refused while a run is under way. Audited.
    ///
    /// # Errors
    /// There is none, for the one who asks; a run is under way.
    pub async fn archive_session(&self, asker: Asker, id: SessionId) -> Result<Vec<NumberedEvent>, StoreError> {
        self.write("archive a session", move |work| {
            let mut head = Head::read(work, id)?;
            if !asker.may_see(id, head.owner) || matches!(asker, Asker::Session(_)) {
                return Err(not_found(id));
            }
            if head.open_runs > 0 {
                return Err(StoreError::Conflict {
                    subject: "archiving the session",
                    reason: "a run is under way or waits: cancel it first".to_owned(),
                });
            }
            if head.archived {
                return Ok(Vec::new());
            }
            work.batch
                .add("UPDATE sessions SET archived = $2 WHERE id = $1", binds![id, work.now]);
            session_tokens::revoke(work, id);
            let entry = AuditEntry::about("session.archived", id, Value::Null);
            audit::append(work, asker, &[entry])?;
            approvals::withdraw_all(work, &mut head)?;
            head.finish(work)
        })
        .await
    }

    /// Tells what became of the session's sandbox (`starting`, `running`, `lost`, `frozen`, `suspended`, `hibernated`), with its event.
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
        asker.must_be_system("tell of a sandbox")?;
        let (state, reason) = (state.to_owned(), reason.map(str::to_owned));
        self.write("tell of a sandbox", move |work| {
            let mut head = Head::read(work, session)?;
            let same = "SELECT 1 AS same FROM sessions WHERE id = $1 AND sandbox = $2 AND sandbox_state = $3";
            if work.one(same, binds![session, sandbox, state.as_str()])?.is_some() {
                // It was told by a process before this one.
                return head.finish(work);
            }
            work.batch.add(
                "UPDATE sessions SET sandbox = $2, sandbox_state = $3 WHERE id = $1",
                binds![session, sandbox, state.as_str()],
            );
            head.event(work, Event::Sandbox { state, reason })?;
            head.finish(work)
        })
        .await
    }

    /// The sessions that were last said to have a sandbox (`starting`, `running`, `frozen`), each with it.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself; the store cannot be read.
    pub async fn housed_sessions(&self, asker: Asker) -> Result<Vec<(SessionId, SandboxId)>, StoreError> {
        const ATTEMPT: &str = "look for sessions with sandboxes";
        asker.must_be_system(ATTEMPT)?;
        let rows = self
            .read(
                ATTEMPT,
                "SELECT id, sandbox FROM sessions WHERE sandbox_state IN ('starting', 'running', 'frozen')",
                binds![],
            )
            .await?;
        rows.iter().map(|row| Ok((row.id("id")?, row.id("sandbox")?))).collect()
    }

    /// The sessions of a user that were last said to have processes: in a sandbox, or kept of one.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself; the store cannot be read.
    pub async fn sessions_with_processes(&self, asker: Asker, owner: UserId) -> Result<Vec<SessionId>, StoreError> {
        const ATTEMPT: &str = "look for a user's sessions with processes";
        asker.must_be_system(ATTEMPT)?;
        let sql = "SELECT id FROM sessions WHERE owner = $1 AND sandbox_state IN ('starting', 'running', 'frozen', 'suspended')";
        let rows = self.read(ATTEMPT, sql, binds![owner]).await?;
        rows.iter().map(|row| row.id("id")).collect()
    }

    /// Whose session this is; nobody's for a stranger.
    pub(crate) async fn owner_of(&self, asker: Asker, session: SessionId) -> Result<UserId, StoreError> {
        let row = self
            .read_one(
                "read a session",
                "SELECT owner FROM sessions WHERE id = $1",
                binds![session],
            )
            .await?;
        let owner = row
            .map(|row| row.id("owner"))
            .transpose()?
            .ok_or_else(|| not_found(session))?;
        if !asker.may_see(session, owner) {
            return Err(not_found(session));
        }
        Ok(owner)
    }

    /// Finds or makes a session without a prompt, so that files can be put there first, and narrows it. Made ones have the `title` until their first prompt. True: it was made.
    ///
    /// # Errors
    /// The session does not exist, for the one who asks.
    pub async fn open_session(
        &self,
        asker: Asker,
        target: Target,
        door: Door,
        title: &str,
        narrowing: Option<Value>,
    ) -> Result<(Session, bool), StoreError> {
        let title = title.to_owned();
        let (id, made) = self
            .write("open a session", move |work| {
                let (head, made) = prompts::find_or_make(work, asker, &target, door, &title)?;
                let id = head.session;
                if let Some(scope) = &narrowing {
                    narrowings::narrow(work, &head, scope)?;
                }
                if made {
                    head.finish(work)?;
                }
                Ok((id, made))
            })
            .await?;
        Ok((self.session(asker, id).await?, made))
    }
}
