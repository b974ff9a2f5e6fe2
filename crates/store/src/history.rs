//! The history: append-only messages in a chain of hashes, stored ready for a model, and verified whenever they are read.

use std::fmt;
use std::sync::Arc;

use domain::{Author, Block, Epoch, Event, Message, MessageId, NumberedEvent, Role, RunId, SessionId};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use crate::batch::binds;
use crate::head::{message_link, not_found};
use crate::stored::{self, Columns};
use crate::writer::Work;
use crate::{Asker, Store, StoreError, chain, runs};

/// A link of a session's chain: it stands for the message and every one before it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Hash(pub [u8; 32]);

impl fmt::Debug for Hash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&hex::encode(self.0))
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
        const ATTEMPT: &str = "read a history";
        let sql = "SELECT s.owner, s.hash AS head, s.messages, s.compacted, c.summary, \
                   (SELECT m.hash FROM messages m WHERE m.session_id = s.id AND m.position = MAX($2, s.compacted)) AS hash \
                   FROM sessions s LEFT JOIN compactions c ON c.session_id = s.id AND c.through = s.compacted WHERE s.id = $1";
        let row = self.read_one(ATTEMPT, sql, binds![session, after]).await?;
        let row = row.ok_or_else(|| not_found(session))?;
        if !asker.may_see(session, row.id("owner")?) {
            return Err(not_found(session));
        }
        let through = row.integer("compacted")?;
        let compaction = match row.blob_or_none("summary")? {
            None => None,
            Some(summary) => Some(Compaction {
                through,
                summary: stored::read("summary", &summary)?,
            }),
        };
        let mut chain = Chain::from(session, through.max(after), &row)?;
        let mut entries = Vec::with_capacity(usize::try_from(chain.last - chain.position).unwrap_or(0));
        let binds = binds![session, chain.position, chain.last, &*dialect.name];
        self.read_each(ATTEMPT, BLOCKS, binds, |row| {
            let mut rest = block_of(&row)?;
            while !rest.is_empty() {
                let read = chain.follow(&mut rest, Some(&dialect.name))?;
                let ready = if read.ready {
                    read.said.to_vec()
                } else {
                    (dialect.render)(&stored::read("message", read.said)?)
                };
                entries.push(Entry {
                    position: chain.position,
                    id: read.id,
                    role: read.role,
                    ready,
                    hash: chain.hash,
                });
            }
            Ok(())
        })
        .await?;
        chain.end()?;
        Ok(History { compaction, entries })
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
        const ATTEMPT: &str = "read messages";
        let sql = "SELECT s.owner, s.hash AS head, s.messages, \
                   (SELECT m.hash FROM messages m WHERE m.session_id = s.id AND m.position = $2) AS hash \
                   FROM sessions s WHERE s.id = $1";
        let row = self.read_one(ATTEMPT, sql, binds![session, after]).await?;
        let row = row.ok_or_else(|| not_found(session))?;
        if !asker.may_see(session, row.id("owner")?) {
            return Err(not_found(session));
        }
        let mut chain = Chain::from(session, after, &row)?;
        let until = chain
            .last
            .min(after.saturating_add(i64::from(limit.min(Self::LONGEST_PAGE))));
        let whole = until == chain.last;
        let mut messages = Vec::new();
        let binds = binds![session, after.max(0), until, None::<&str>];
        self.read_each(ATTEMPT, BLOCKS, binds, |row| {
            let mut rest = block_of(&row)?;
            while !rest.is_empty() {
                let read = chain.follow(&mut rest, None)?;
                messages.push(Positioned {
                    position: chain.position,
                    message: stored::read("message", read.said)?,
                });
            }
            Ok(())
        })
        .await?;
        if whole {
            chain.end()?;
        }
        Ok(messages)
    }

    /// Stores a summary. It never parts a call from its result: `through` with an unanswered call is refused.
    ///
    /// # Errors
    /// The epoch is stale; there is no such message, it is older than the newest summary, or its calls' results come after it.
    pub async fn compact(&self, asker: Asker, compaction: NewCompaction) -> Result<Vec<NumberedEvent>, StoreError> {
        asker.must_be_system("store a summary")?;
        self.write("store a summary", move |work| {
            Box::pin(async move { store_summary(work, asker, compaction).await })
        })
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

/// The messages after one and up to another, in blocks of fifty, since a row costs more than a message does; ready for a model where they
/// are stored in the dialect that is named, else as they were said. Of each: its three hashes, its id, a line with the lengths of
/// the name of its dialect and of its bytes and with its role, that name, and its bytes.
const BLOCKS: &str = "WITH RECURSIVE blocks (first) AS \
     (SELECT $2 UNION ALL SELECT first + 50 FROM blocks WHERE first + 50 < $3) \
     SELECT (SELECT GROUP_CONCAT(head || OCTET_LENGTH(said) || ' ' || role || '\n' || dialect || said, '') FROM \
     (SELECT body_digest || ready_digest || hash || id || OCTET_LENGTH(dialect) || ' ' AS head, role, dialect, \
     CASE WHEN dialect = $4 THEN ready ELSE body END AS said FROM messages \
     WHERE session_id = $1 AND position > first AND position <= MIN(first + 50, $3) ORDER BY position)) AS block FROM blocks";

fn block_of(row: &SqliteRow) -> Result<&[u8], StoreError> {
    let block: Option<&[u8]> = row
        .try_get("block")
        .map_err(|source| stored::corrupt("block of messages", source))?;
    Ok(block.unwrap_or_default())
}

/// A message out of a block.
struct Read<'a> {
    id: MessageId,
    role: Role,
    body_digest: Hash,
    ready_digest: Hash,
    hash: Hash,
    dialect: &'a str,
    /// It is what a model is told, and not what was said.
    ready: bool,
    said: &'a [u8],
}

impl<'a> Read<'a> {
    /// Takes one off a block. None: that is not how messages are stored.
    fn take(rest: &mut &'a [u8], dialect: Option<&str>) -> Option<Self> {
        let text = |bytes| std::str::from_utf8(bytes).ok();
        let mut hash = || rest.split_off(..32)?.try_into().ok().map(Hash);
        let (body_digest, ready_digest, hash) = (hash()?, hash()?, hash()?);
        let id = text(rest.split_off(..36)?)?.parse().ok()?;
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        let mut words = text(rest.split_off(..end)?)?.split(' ');
        rest.split_off_first()?;
        let stored = rest.split_off(..words.next()?.parse().ok()?)?;
        let said = rest.split_off(..words.next()?.parse().ok()?)?;
        let role = match words.next()? {
            "user" => Role::User,
            "assistant" => Role::Assistant,
            _ => return None,
        };
        let stored = text(stored)?;
        Some(Self {
            id,
            role,
            body_digest,
            ready_digest,
            hash,
            dialect: stored,
            ready: dialect == Some(stored),
            said,
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
    fn from(session: SessionId, after: i64, row: &SqliteRow) -> Result<Self, StoreError> {
        let last = row.integer("messages")?;
        let hash = match row.blob_or_none("hash")? {
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

    /// Goes on to the next message of a block, and makes sure that it is the one that was stored.
    fn follow<'a>(&mut self, rest: &mut &'a [u8], dialect: Option<&str>) -> Result<Read<'a>, StoreError> {
        self.position += 1;
        let tampered = StoreError::Tampered {
            session: self.session,
            position: self.position,
        };
        let Some(read) = Read::take(rest, dialect) else {
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
            read.dialect,
            read.ready_digest,
        );
        if chain::digest(read.said) != digest || read.hash != self.hash {
            return Err(tampered);
        }
        Ok(read)
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

async fn store_summary(work: &mut Work, asker: Asker, wanted: NewCompaction) -> Result<Vec<NumberedEvent>, StoreError> {
    let (run, mut head, _) = runs::read(work, asker, wanted.run).await?;
    run.check_hold(wanted.epoch)?;
    let refuse = |reason: &str| StoreError::Invalid {
        subject: "the summary",
        reason: reason.to_owned(),
    };
    let sql = "SELECT m.id, m.role, m.body, s.compacted FROM messages m JOIN sessions s ON s.id = m.session_id \
               WHERE m.session_id = $1 AND m.position = $2";
    let row = work.one(sql, binds![head.session, wanted.through]).await?;
    let row = row.ok_or_else(|| refuse("there is no such message"))?;
    if wanted.through <= row.integer("compacted")? {
        return Err(refuse("a newer summary stands for these messages already"));
    }
    let last: Message = stored::read("message", &row.blob("body")?)?;
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
        "INSERT INTO compactions (session_id, through, summary, at) VALUES ($1, $2, $3, $4)",
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
    head.event(work.now, event)?;
    head.finish(work)
}
