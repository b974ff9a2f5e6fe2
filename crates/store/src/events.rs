//! Events: numbered per session from 1 without a gap, stored in the transaction of what they tell.

use domain::{Event, EventNumber, MessageId, NumberedEvent, RunId, SessionId, TurnId};
use tokio::sync::watch;

use crate::batch::binds;
use crate::error::database;
use crate::head::{Head, not_found};
use crate::row::Row;
use crate::stored;
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
    /// The events after `after` (0: from the first), at most `limit` and, but for the last of them, [`Store::PAGE_BYTES`]; and the
    /// open message.
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
        const ATTEMPT: &str = "read events";
        self.read_with(ATTEMPT, move |connection| {
            let failed = |source| database(ATTEMPT, source);
            let sql =
                "SELECT owner, events, open_message, open_run, open_model, said, thought FROM sessions WHERE id = $1";
            let row = connection.one(sql, &[session.into()]).map_err(failed)?;
            let row = row.ok_or_else(|| not_found(session))?;
            if !asker.may_see(session, row.id("owner")?) {
                return Err(not_found(session));
            }
            // What was stored since then is left out: all of it is as of one moment.
            let newest = row.integer("events")?;
            let sql = "SELECT e.number, e.at, e.message, COALESCE(e.body, m.body) AS body \
                       FROM events e LEFT JOIN messages m ON m.session_id = e.session_id AND m.position = e.message \
                       WHERE e.session_id = $1 AND e.number > $2 AND e.number <= $3 ORDER BY e.number LIMIT $4";
            let limit = i64::from(limit.min(Self::LONGEST_PAGE));
            let binds = binds![session, after.max(0), newest, limit];
            let events = connection.page(sql, &binds, Self::PAGE_BYTES).map_err(failed)?;
            let events = events.iter().map(numbered).collect::<Result<Vec<_>, _>>()?;
            let reached = events.last().map_or(after, |event| event.number);
            let open = match row.id_or_none("open_message")? {
                Some(message) if reached >= newest => Some(OpenMessage {
                    message,
                    run: row.id("open_run")?,
                    model: row.text("open_model")?,
                    text: row.text("said")?,
                    thinking: row.text("thought")?,
                }),
                _ => None,
            };
            Ok(Tail { events, open })
        })
        .await
    }

    /// Holds the number of the session's newest event, told after each commit. Who waits for it to change, reads `events` and
    /// waits again misses nothing.
    ///
    /// # Errors
    /// The session does not exist, for the one who asks.
    pub async fn watch(&self, asker: Asker, session: SessionId) -> Result<watch::Receiver<EventNumber>, StoreError> {
        // First the ear, then the look: what is stored in between is heard.
        let receiver = self.inner.watchers.watch(session);
        let number = self.session(asker, session).await?.events;
        self.inner.watchers.tell(session, number);
        Ok(receiver)
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
        asker.must_be_system("tell watchers")?;
        self.write("tell watchers", move |work| {
            let mut head = Head::read(work, session)?;
            for event in events {
                if matches!(event, Event::Message { .. }) {
                    return Err(StoreError::Invalid {
                        subject: "the event",
                        reason: "a message is told of by what stores it".to_owned(),
                    });
                }
                head.event(work, event)?;
            }
            head.finish(work)
        })
        .await
    }

    /// Stores what the model of a claimed turn has said so far (each second or 4 kB); no event. False: the turn is over, nothing was stored.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself.
    pub async fn save_open(&self, asker: Asker, turn: TurnId, text: &str, thinking: &str) -> Result<bool, StoreError> {
        asker.must_be_system("keep what a model has said so far")?;
        let (text, thinking) = (text.to_owned(), thinking.to_owned());
        self.write("keep what a model has said so far", move |work| {
            let sql = "SELECT s.id FROM turns t JOIN runs r ON r.id = t.run_id \
                       JOIN sessions s ON s.id = r.session_id AND s.open_turn = t.id WHERE t.id = $1";
            let Some(row) = work.one(sql, binds![turn])? else {
                return Ok(false);
            };
            work.batch.add(
                "UPDATE sessions SET said = $2, thought = $3 WHERE id = $1",
                binds![row.text("id")?, text, thinking],
            );
            Ok(true)
        })
        .await
    }
}

fn numbered(row: &Row) -> Result<NumberedEvent, StoreError> {
    let body = row.bytes("body")?;
    let event = match row.integer_or_none("message")? {
        Some(_) => Event::Message {
            message: stored::read("message", body)?,
        },
        None => stored::read("event", body)?,
    };
    Ok(NumberedEvent {
        number: row.integer("number")?,
        at: row.time("at")?,
        event,
    })
}
