//! The history: append-only messages in a chain of hashes, stored ready for a model, and verified whenever they are read.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use domain::{Author, Block, Epoch, Event, Message, MessageId, NumberedEvent, Role, RunId, SessionId};

use crate::batch::binds;
use crate::connection::Connection;
use crate::error::database;
use crate::head::{message_link, not_found};
use crate::row::Row;
use crate::skipped::Skipped;
use crate::stored;
use crate::writer::Work;
use crate::{Asker, Store, StoreError, chain, runs};

/// A link of a session's chain: it stands for the message and every one before it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Hash(pub [u8; 32]);

impl fmt::Debug for Hash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&hex::encode(self.0))
    }
}

/// A text is no link of a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a hash is 64 hexadecimal digits, as `belljar audit --verify` prints it")]
pub struct ParseHashError;

impl FromStr for Hash {
    type Err = ParseHashError;

    fn from_str(text: &str) -> Result<Self, ParseHashError> {
        let mut hash = [0; 32];
        hex::decode_to_slice(text, &mut hash).map_err(|_| ParseHashError)?;
        Ok(Self(hash))
    }
}

/// Gives a message's bytes.
pub type Render = Arc<dyn Fn(&Message) -> Vec<u8> + Send + Sync>;

/// How a kind of model wants to be told a message. The same name always renders the same bytes.
#[derive(Clone)]
pub struct Dialect {
    /// Its name, as it stands beside the bytes.
    pub name: Arc<str>,
    /// The bytes of one message.
    pub render: Render,
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
    /// Which.
    pub id: MessageId,
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
    /// The place of the newest message, whether it is told or not.
    pub last: i64,
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
        let dialect = dialect.clone();
        self.read_with("read a history", move |connection| {
            let sql = "SELECT s.owner, s.hash AS head, s.messages, s.compacted, s.skipped, c.summary, \
                       (SELECT m.hash FROM messages m WHERE m.session_id = s.id AND m.position = MAX($2, s.compacted)) AS hash \
                       FROM sessions s LEFT JOIN compactions c ON c.session_id = s.id AND c.through = s.compacted WHERE s.id = $1";
            let row = seen(connection, asker, session, sql, after)?;
            let through = row.integer("compacted")?;
            let skipped = Skipped::of(&row)?;
            let summary = row.bytes_or_none("summary")?;
            let compaction = summary
                .map(|summary| stored::read("summary", summary).map(|summary| Compaction { through, summary }))
                .transpose()?;
            let mut chain = Chain::from(session, through.max(after), &row)?;
            let mut entries = Vec::with_capacity(usize::try_from(chain.last - chain.position).unwrap_or(0));
            chain.follow(connection, chain.last, Some(&dialect.name), |position, read| {
                if skipped.contains(position) {
                    return Ok(());
                }
                let ready = if read.ready {
                    read.said
                } else {
                    (dialect.render)(&stored::read("message", &read.said)?)
                };
                entries.push(Entry {
                    position,
                    id: read.id,
                    role: read.role,
                    ready,
                    hash: read.hash,
                });
                Ok(())
            })?;
            chain.end()?;
            Ok(History {
                compaction,
                entries,
                last: chain.last,
            })
        })
        .await
    }

    /// The messages after `after`, as they were said; at most `limit`. Those that the session was rewound from are left out.
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
        self.read_with("read messages", move |connection| {
            let sql = "SELECT s.owner, s.hash AS head, s.messages, s.skipped, \
                       (SELECT m.hash FROM messages m WHERE m.session_id = s.id AND m.position = $2) AS hash \
                       FROM sessions s WHERE s.id = $1";
            let row = seen(connection, asker, session, sql, after)?;
            let skipped = Skipped::of(&row)?;
            let mut chain = Chain::from(session, after, &row)?;
            let wanted = limit.min(Self::LONGEST_PAGE) as usize;
            let mut messages = Vec::new();
            while messages.len() < wanted && chain.position < chain.last {
                let until = chain.position.saturating_add((wanted - messages.len()) as i64);
                let until = until.min(chain.last);
                chain.follow(connection, until, None, |position, read| {
                    if !skipped.contains(position) {
                        let message = stored::read("message", &read.said)?;
                        messages.push(Positioned { position, message });
                    }
                    Ok(())
                })?;
                if chain.position < until {
                    // There is no end to come to: some are missing.
                    chain.end()?;
                }
            }
            if chain.position >= chain.last {
                chain.end()?;
            }
            Ok(messages)
        })
        .await
    }

    /// Stores a summary. It never parts a call from its result: `through` with an unanswered call is refused.
    ///
    /// # Errors
    /// The epoch is stale; there is no such message, it is older than the newest summary, or its calls' results come after it.
    pub async fn compact(&self, asker: Asker, compaction: NewCompaction) -> Result<Vec<NumberedEvent>, StoreError> {
        asker.must_be_system("store a summary")?;
        self.write("store a summary", move |work| store_summary(work, asker, compaction))
            .await
    }

    /// Where a message stands in a session's history.
    ///
    /// # Errors
    /// There is none, for the one who asks.
    pub async fn position(&self, asker: Asker, session: SessionId, message: MessageId) -> Result<i64, StoreError> {
        self.owner_of(asker, session).await?;
        let sql = "SELECT position FROM messages WHERE session_id = $1 AND id = $2";
        let row = self.read_one("find a message", sql, binds![session, message]).await?;
        let row = row.ok_or_else(|| StoreError::NotFound {
            kind: "message",
            id: message.to_string(),
        })?;
        row.integer("position")
    }
}

/// A session's row with its `owner`, where the one who asks may see it.
fn seen(connection: &Connection, asker: Asker, session: SessionId, sql: &str, after: i64) -> Result<Row, StoreError> {
    let row = connection.one(sql, &[session.into(), after.into()]);
    let row = row.map_err(|source| database("read a session", source))?;
    let row = row.ok_or_else(|| not_found(session))?;
    if !asker.may_see(session, row.id("owner")?) {
        return Err(not_found(session));
    }
    Ok(row)
}

/// The messages after one and up to another; ready for a model where they are stored in the dialect that is named, else as they
/// were said.
const MESSAGES: &str = "SELECT id, role, body_digest, dialect, ready_digest, hash, dialect = $4 AS is_ready, \
     CASE WHEN dialect = $4 THEN ready ELSE body END AS said FROM messages \
     WHERE session_id = $1 AND position > $2 AND position <= $3 ORDER BY position";

/// A message as it is stored.
struct Read {
    id: MessageId,
    role: Role,
    body_digest: Hash,
    dialect: String,
    ready_digest: Hash,
    hash: Hash,
    /// It is what a model is told, and not what was said.
    ready: bool,
    said: Vec<u8>,
}

impl Read {
    /// From a row of [`MESSAGES`].
    fn of(row: Row) -> Result<Self, StoreError> {
        Ok(Self {
            id: row.id("id")?,
            role: match row.str("role")? {
                "user" => Role::User,
                "assistant" => Role::Assistant,
                word => return Err(stored::corrupt("message", format!("there is no role {word:?}"))),
            },
            body_digest: row.hash("body_digest")?,
            dialect: row.text("dialect")?,
            ready_digest: row.hash("ready_digest")?,
            hash: row.hash("hash")?,
            ready: row.integer_or_none("is_ready")? == Some(1),
            said: row.into_bytes("said")?,
        })
    }
}

/// Follows a session's chain from one message to the next.
struct Chain {
    session: SessionId,
    position: i64,
    hash: Hash,
    last: i64,
    head: Hash,
}

impl Chain {
    /// After the message at `after`, of which the row holds the `hash`; with the session's `head` and number of `messages`.
    fn from(session: SessionId, after: i64, row: &Row) -> Result<Self, StoreError> {
        let last = row.integer("messages")?;
        let hash = match row.bytes_or_none("hash")? {
            Some(_) => row.hash("hash")?,
            None if after <= 0 => Hash::default(),
            None if after > last => {
                return Err(StoreError::NotFound {
                    kind: "message",
                    id: after.to_string(),
                });
            }
            None => {
                return Err(StoreError::Tampered {
                    session,
                    position: after,
                });
            }
        };
        Ok(Self {
            session,
            position: after.max(0),
            hash,
            last,
            head: row.hash("head")?,
        })
    }

    /// Goes on to the message at `until`, makes sure that each is the one that was stored, and hands it on with its place.
    fn follow(
        &mut self,
        connection: &Connection,
        until: i64,
        dialect: Option<&str>,
        mut take: impl FnMut(i64, Read) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let binds = binds![self.session, self.position, until, dialect];
        connection.each("read messages", MESSAGES, &binds, |row| {
            self.position += 1;
            let tampered = StoreError::Tampered {
                session: self.session,
                position: self.position,
            };
            let Ok(read) = Read::of(row) else {
                return Err(tampered);
            };
            let digest = if read.ready {
                read.ready_digest
            } else {
                read.body_digest
            };
            self.hash = message_link(
                self.hash,
                self.position,
                read.id,
                read.role,
                read.body_digest,
                &read.dialect,
                read.ready_digest,
            );
            if chain::digest(&read.said) != digest || read.hash != self.hash {
                return Err(tampered);
            }
            take(self.position, read)
        })
    }

    /// Makes sure that nothing is missing at the end.
    fn end(&self) -> Result<(), StoreError> {
        if self.position == self.last && self.hash == self.head {
            return Ok(());
        }
        Err(StoreError::Tampered {
            session: self.session,
            position: self.position + 1,
        })
    }
}

fn store_summary(work: &mut Work, asker: Asker, wanted: NewCompaction) -> Result<Vec<NumberedEvent>, StoreError> {
    let (run, mut head, _) = runs::read(work, asker, wanted.run)?;
    run.check_hold(wanted.epoch)?;
    let refuse = |reason: &str| StoreError::Invalid {
        subject: "the summary",
        reason: reason.to_owned(),
    };
    let sql = "SELECT m.id, m.role, m.body, s.compacted FROM messages m JOIN sessions s ON s.id = m.session_id \
               WHERE m.session_id = $1 AND m.position = $2";
    let row = work.one(sql, binds![head.session, wanted.through])?;
    let row = row.ok_or_else(|| refuse("there is no such message"))?;
    if wanted.through <= row.integer("compacted")? {
        return Err(refuse("a newer summary stands for these messages already"));
    }
    let last: Message = stored::read("message", row.bytes("body")?)?;
    if last.blocks.iter().any(|block| matches!(block, Block::ToolUse(_))) {
        return Err(refuse(
            "it would part tool calls from their results, which come after it",
        ));
    }
    if wanted.summary.role != Role::User || wanted.summary.author != Author::ControlPlane {
        return Err(refuse(
            "it is told to the model by Belljar: role user, author control_plane",
        ));
    }
    let summary = stored::write("summary", &wanted.summary)?;
    work.batch.add(
        // After going back there may be one of these messages already, which counts no longer.
        "INSERT INTO compactions (session_id, through, summary, at) VALUES ($1, $2, $3, $4) \
         ON CONFLICT (session_id, through) DO UPDATE SET summary = excluded.summary, at = excluded.at",
        binds![head.session, wanted.through, summary, work.now],
    );
    work.batch.add(
        "UPDATE sessions SET compacted = $2 WHERE id = $1",
        binds![head.session, wanted.through],
    );
    let words = wanted.summary.blocks.into_iter().filter_map(|block| match block {
        Block::Text { text } => Some(text),
        _ => None,
    });
    let event = Event::Compacted {
        through: last.id,
        summary: words.collect::<Vec<_>>().join("\n"),
    };
    head.event(work, event)?;
    head.finish(work)
}
