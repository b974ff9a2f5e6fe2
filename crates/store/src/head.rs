//! A session's head: the counters and the chain that every write to a session moves on.

use domain::{
    Author, Block, Epoch, Event, EventNumber, Message, MessageId, Money, NumberedEvent, Role, RunId, SessionId,
    ToolCallId, TurnId, UserId,
};

use crate::batch::{binds, statement};
use crate::row::Row;
use crate::stored;
use crate::writer::Work;
use crate::{Dialect, Hash, OpenMessage, StoreError, chain};

/// What a job reads of a session before it writes to it, `s` being the sessions.
pub(crate) const HEAD: &str = "s.id AS session_id, s.owner AS owner, s.epoch AS session_epoch, s.messages, s.events, \
     s.hash, s.stored, s.open_calls, s.archived, s.run_id AS last_run, \
     (SELECT COUNT(*) FROM waiting w WHERE w.session_id = s.id) AS waiting, \
     (SELECT COUNT(*) FROM results e WHERE e.session_id = s.id) AS early, \
     (SELECT COUNT(*) FROM runs x WHERE x.session_id = s.id AND x.ended IS NULL) AS open_runs, \
     s.open_turn, s.open_run, s.open_message, s.open_model, s.said, s.thought";

/// A session's head, and what a job adds to the session.
pub(crate) struct Head {
    pub(crate) session: SessionId,
    pub(crate) owner: UserId,
    pub(crate) epoch: Epoch,
    pub(crate) messages: i64,
    pub(crate) events: EventNumber,
    hash: Hash,
    /// Bytes of messages and events, those that are added included.
    stored: i64,
    /// Calls of the last message that have no result.
    pub(crate) open_calls: Vec<ToolCallId>,
    /// How many of those have a result all the same, which was kept until their message is written.
    pub(crate) early: i64,
    pub(crate) last_run: Option<RunId>,
    /// Prompts that wait.
    pub(crate) waiting: i64,
    /// Runs that have not ended.
    pub(crate) open_runs: i64,
    /// The message that a model is writing, and the turn of it.
    pub(crate) open: Option<(TurnId, OpenMessage)>,
    pub(crate) archived: bool,
    written: Vec<NumberedEvent>,
    /// What is added to the session's sums.
    spent: Money,
    reserved: Money,
}

impl Head {
    /// Of a session that is made now.
    pub(crate) fn new(session: SessionId, owner: UserId) -> Self {
        Self {
            session,
            owner,
            epoch: Epoch(0),
            messages: 0,
            events: 0,
            hash: Hash::default(),
            stored: 0,
            open_calls: Vec::new(),
            early: 0,
            last_run: None,
            waiting: 0,
            open_runs: 0,
            open: None,
            archived: false,
            written: Vec::new(),
            spent: Money::ZERO,
            reserved: Money::ZERO,
        }
    }

    /// From a row with [`HEAD`].
    pub(crate) fn of(row: &Row) -> Result<Self, StoreError> {
        let open = match row.id_or_none("open_turn")? {
            None => None,
            Some(turn) => Some((
                turn,
                OpenMessage {
                    message: row.id("open_message")?,
                    run: row.id("open_run")?,
                    model: row.text("open_model")?,
                    text: row.text("said")?,
                    thinking: row.text("thought")?,
                },
            )),
        };
        Ok(Self {
            session: row.id("session_id")?,
            owner: row.id("owner")?,
            epoch: Epoch(row.integer("session_epoch")?),
            messages: row.integer("messages")?,
            events: row.integer("events")?,
            hash: row.hash("hash")?,
            stored: row.integer("stored")?,
            open_calls: open_calls(row)?,
            early: row.integer("early")?,
            last_run: row.id_or_none("last_run")?,
            waiting: row.integer("waiting")?,
            open_runs: row.integer("open_runs")?,
            open,
            archived: row.integer_or_none("archived")?.is_some(),
            written: Vec::new(),
            spent: Money::ZERO,
            reserved: Money::ZERO,
        })
    }

    /// Reads one by its session's id.
    pub(crate) fn read(work: &mut Work, session: SessionId) -> Result<Self, StoreError> {
        let sql = statement!("SELECT {HEAD} FROM sessions s WHERE s.id = $1");
        match work.one(sql, binds![session])? {
            Some(row) => Self::of(&row),
            None => Err(not_found(session)),
        }
    }

    /// Refuses to go on in a session that has stored as much as one may. What was begun is ended all the same.
    pub(crate) fn check_room(&self, work: &Work) -> Result<(), StoreError> {
        match work.session_bytes {
            Some(most) if self.stored >= most => Err(StoreError::SessionFull {
                session: self.session,
                stored: self.stored,
                most,
            }),
            _ => Ok(()),
        }
    }

    /// Appends a message to the history and tells watchers.
    pub(crate) fn message(
        &mut self,
        work: &mut Work,
        message: Message,
        dialect: Option<&Dialect>,
    ) -> Result<(), StoreError> {
        self.messages += 1;
        let body = stored::write("message", &message)?;
        let body_digest = chain::digest(&body);
        let (name, ready) = dialect.map_or(("", Vec::new()), |dialect| (&*dialect.name, (dialect.render)(&message)));
        let ready_digest = chain::digest(&ready);
        self.stored += (body.len() + ready.len()) as i64;
        self.hash = message_link(
            self.hash,
            self.messages,
            message.id,
            message.role,
            body_digest,
            name,
            ready_digest,
        );
        work.batch.add(
            "INSERT INTO messages (session_id, position, id, role, body, body_digest, dialect, ready, ready_digest, hash) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
            binds![
                self.session,
                self.messages,
                message.id,
                role_word(message.role),
                body,
                body_digest,
                name,
                ready,
                ready_digest,
                self.hash
            ],
        );
        self.open_calls = match message.role {
            Role::User => Vec::new(),
            Role::Assistant => calls_of(&message),
        };
        self.tell(work, Event::Message { message }, Some(self.messages), None);
        Ok(())
    }

    /// Appends a message of another session, as it stands there.
    pub(crate) fn copy(&mut self, work: &mut Work, from: SessionId, row: &Row) -> Result<(), StoreError> {
        let role = match row.str("role")? {
            "assistant" => Role::Assistant,
            _ => Role::User,
        };
        self.messages += 1;
        self.events += 1;
        self.stored += row.integer("bytes")?;
        self.hash = message_link(
            self.hash,
            self.messages,
            row.id("id")?,
            role,
            row.hash("body_digest")?,
            row.str("dialect")?,
            row.hash("ready_digest")?,
        );
        work.batch.add(
            "INSERT INTO messages (session_id, position, id, role, dialect, body_digest, ready_digest, hash, ready, body) \
             SELECT $1, $2, m.id, m.role, m.dialect, m.body_digest, m.ready_digest, $3, m.ready, m.body FROM messages m \
             WHERE m.session_id = $4 AND m.position = $5",
            binds![self.session, self.messages, self.hash, from, row.integer("position")?],
        );
        work.batch.add(
            "INSERT INTO events (session_id, number, at, message) VALUES ($1, $2, $3, $4)",
            binds![self.session, self.events, work.now, self.messages],
        );
        Ok(())
    }

    /// Stores an event.
    pub(crate) fn event(&mut self, work: &mut Work, event: Event) -> Result<(), StoreError> {
        let body = stored::write("event", &event)?;
        self.stored += body.len() as i64;
        self.tell(work, event, None, Some(body));
        Ok(())
    }

    /// Adds an event as it stands in the database: with the position of a message, or itself.
    fn tell(&mut self, work: &mut Work, event: Event, message: Option<i64>, body: Option<Vec<u8>>) {
        self.events += 1;
        work.batch.add(
            "INSERT INTO events (session_id, number, at, message, body) VALUES ($1, $2, $3, $4, $5)",
            binds![self.session, self.events, work.now, message, body],
        );
        self.written.push(NumberedEvent {
            number: self.events,
            at: work.now,
            event,
        });
    }

    /// Adds to what the session has spent and reserved.
    pub(crate) fn pay(&mut self, spent: Money, reserved: Money) {
        self.spent = self.spent.plus(spent);
        self.reserved = self.reserved.plus(reserved);
    }

    /// What the job charges.
    pub(crate) const fn paid(&self) -> Money {
        self.spent
    }

    /// Writes the head itself, and gives what watchers see.
    pub(crate) fn finish(self, work: &mut Work) -> Result<Vec<NumberedEvent>, StoreError> {
        let calls = if self.open_calls.is_empty() {
            String::new()
        } else {
            serde_json::to_string(&self.open_calls).map_err(|source| stored::corrupt("list of calls", source))?
        };
        let (turn, run, message, model, said, thought) = match self.open {
            None => (None, None, None, None, String::new(), String::new()),
            Some((turn, open)) => {
                let (run, message) = (Some(open.run), Some(open.message));
                (Some(turn), run, message, Some(open.model), open.text, open.thinking)
            }
        };
        work.batch.add(
            "UPDATE sessions SET epoch = $2, messages = $3, events = $4, hash = $5, open_calls = $6, run_id = $7, \
             spent = spent + $8, reserved = reserved + $9, open_turn = $10, open_run = $11, open_message = $12, \
             open_model = $13, said = $14, thought = $15, stored = $16 WHERE id = $1",
            binds![
                self.session,
                self.epoch.0,
                self.messages,
                self.events,
                self.hash,
                calls,
                self.last_run,
                self.spent.0,
                self.reserved.0,
                turn,
                run,
                message,
                model,
                said,
                thought,
                self.stored
            ],
        );
        if !self.written.is_empty() {
            work.told.push((self.session, self.events));
        }
        Ok(self.written)
    }
}

/// The link of a message; everything that is stored of it counts.
pub(crate) fn message_link(
    before: Hash,
    position: i64,
    id: MessageId,
    role: Role,
    body: Hash,
    dialect: &str,
    ready: Hash,
) -> Hash {
    let id = id.to_string();
    chain::link(
        before,
        position,
        &[
            id.as_bytes(),
            role_word(role).as_bytes(),
            &body.0,
            dialect.as_bytes(),
            &ready.0,
        ],
    )
}

pub(crate) const fn role_word(role: Role) -> &'static str {
    match role {
        Role::User => "user",
        Role::Assistant => "assistant",
    }
}

fn calls_of(message: &Message) -> Vec<ToolCallId> {
    let calls = message.blocks.iter().filter_map(|block| match block {
        Block::ToolUse(call) => Some(call.id.clone()),
        _ => None,
    });
    calls.collect()
}

/// A message that Belljar or a sandbox adds to a history.
pub(crate) fn composed(author: Author, role: Role, blocks: Vec<Block>, now: domain::Timestamp) -> Message {
    Message {
        id: MessageId::new(),
        role,
        author,
        blocks,
        interrupted: false,
        at: now,
    }
}

/// Whose a session is; none where it does not exist.
pub(crate) fn owner(work: &mut Work, session: SessionId) -> Result<Option<UserId>, StoreError> {
    let row = work.one("SELECT owner FROM sessions WHERE id = $1", binds![session])?;
    row.map(|row| row.id("owner")).transpose()
}

pub(crate) fn not_found(session: SessionId) -> StoreError {
    StoreError::NotFound {
        kind: "session",
        id: session.to_string(),
    }
}

/// The calls of a session's last message that have no result in the history.
pub(crate) fn open_calls(row: &Row) -> Result<Vec<ToolCallId>, StoreError> {
    let calls = row.text("open_calls")?;
    if calls.is_empty() {
        return Ok(Vec::new());
    }
    serde_json::from_str(&calls).map_err(|source| stored::corrupt("list of calls", source))
}
