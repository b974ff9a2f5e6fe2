//! A prompt comes in.

use domain::{
    Author, Block, Delivery, Door, Event, ExternalKey, Message, NumberedEvent, Role, RunId, RunState, SessionId,
    Trigger, UserId,
};
use serde_json::{Value, json};

use crate::batch::{binds, statement};
use crate::head::{HEAD, Head, not_found};
use crate::stored;
use crate::writer::Work;
use crate::{Asker, AuditEntry, End, Store, StoreError, audit, chain, closing, narrowings, runs};

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
    /// What its run was caused by; a prompt that joins a run changes nothing of it.
    pub trigger: Trigger,
    /// What it says: role `user`, written by a user; where a user asks, by that user.
    pub message: Message,
    /// How it meets a run that is under way.
    pub delivery: Delivery,
    /// A repeat with the same key (of the same user) gets the first one's answer and changes nothing. At most 200 bytes.
    pub request_key: Option<String>,
    /// What the session may not do from now on (a scope), given back unread.
    pub narrowing: Option<Value>,
    /// What the run is to be done with (model, limits…), given back unread; a prompt that joins a run changes nothing of it.
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
    /// The session does not exist, for the one who asks, or its user was removed; the message is not a prompt of theirs; the request
    /// key was used for another prompt.
    pub async fn accept_prompt(&self, asker: Asker, prompt: Prompt) -> Result<Accepted, StoreError> {
        check(asker, &prompt)?;
        self.write("store a prompt", move |work| accept(work, asker, prompt))
            .await
    }
}

/// Prompts of one session that may wait. What ends them all does so in one step, and everybody who writes waits for it.
const MOST_WAITING: i64 = 200;

/// The longest request key, in bytes.
const LONGEST_KEY: usize = 200;

/// Refuses what is not a prompt of the one who asks.
fn check(asker: Asker, prompt: &Prompt) -> Result<(), StoreError> {
    let refuse = |reason: &str| {
        Err(StoreError::Invalid {
            subject: "the prompt",
            reason: reason.to_owned(),
        })
    };
    let message = &prompt.message;
    let written_by = match (&message.author, asker) {
        (Author::User { id }, Asker::User { id: asking, .. }) => *id == asking,
        (Author::User { .. }, Asker::System) => true,
        _ => false,
    };
    if message.role != Role::User || !written_by {
        return refuse("a prompt is a user's message, written by the one who asks");
    }
    if message.blocks.is_empty()
        || !message
            .blocks
            .iter()
            .all(|block| matches!(block, Block::Text { .. } | Block::Image(_)))
    {
        return refuse("a prompt holds text and images, at least one of them");
    }
    match &prompt.request_key {
        Some(key) if key.is_empty() || key.len() > LONGEST_KEY => refuse("its request key is 1 to 200 bytes"),
        _ => Ok(()),
    }
}

fn accept(work: &mut Work, asker: Asker, prompt: Prompt) -> Result<Accepted, StoreError> {
    let Author::User { id: author } = prompt.message.author else {
        return Err(stored::corrupt("prompt", "it has no author"));
    };
    let request = match prompt.request_key {
        None => None,
        Some(key) => {
            let digest = chain::digest(&stored::write("prompt", &prompt.message.blocks)?);
            if let Some(accepted) = repeated(work, asker, author, &key, digest)? {
                return Ok(accepted);
            }
            Some((key, digest))
        }
    };
    let title = title(&prompt.message);
    let (mut head, created) = find_or_make(work, asker, &prompt.target, prompt.door, &title)?;
    head.check_room(work)?;
    if !created {
        let sql = if head.messages == 0 && head.waiting == 0 {
            // A fork keeps its parent's door, and with it what that door may not do.
            "UPDATE sessions SET active = $2, archived = NULL, title = $3, \
             door = CASE WHEN parent IS NULL THEN $4 ELSE door END WHERE id = $1"
        } else {
            "UPDATE sessions SET active = $2, archived = NULL WHERE id = $1"
        };
        work.batch
            .add(sql, binds![head.session, work.now, title, prompt.door.as_str()]);
    }
    if let Some(scope) = &prompt.narrowing {
        narrowings::narrow(work, &head, scope)?;
    }
    let open = closing::open_runs(work, &head)?;
    if prompt.delivery != Delivery::Restart && !open.is_empty() && head.waiting >= MOST_WAITING {
        return Err(StoreError::Conflict {
            subject: "the prompt",
            reason: format!("{MOST_WAITING} prompts wait in this session already: let it come to them, or stop it"),
        });
    }
    let (run, joined, interrupted) = match (prompt.delivery, open.first()) {
        // What joins a run is paid by that run's trigger.
        (Delivery::Steer, Some(under_way)) if under_way.trigger.pays_as(&prompt.trigger) => {
            wait(work, &mut head, under_way.id, &prompt.message)?;
            let event = Event::Run {
                run: under_way.id,
                epoch: under_way.epoch,
                state: under_way.state,
                delivery: Some(Delivery::Steer),
                reason: None,
                code: None,
            };
            head.event(work, event)?;
            (under_way.id, Joined::Steered, Vec::new())
        }
        (Delivery::Steer | Delivery::Queue, Some(_)) => {
            let run = RunId::new();
            let last = head.last_run;
            runs::insert(work, &mut head, run, prompt.delivery, &prompt.trigger, &prompt.settings)?;
            head.last_run = last;
            wait(work, &mut head, run, &prompt.message)?;
            (run, Joined::Queued, Vec::new())
        }
        _ => {
            let end = End {
                state: RunState::Interrupted,
                reason: Some("a newer prompt took its place".to_owned()),
                code: None,
            };
            for run in &open {
                closing::close(work, &mut head, run, &end, None)?;
            }
            if !open.is_empty() {
                head.epoch.0 += 1;
            }
            head.message(work, prompt.message, None)?;
            let run = RunId::new();
            runs::insert(work, &mut head, run, prompt.delivery, &prompt.trigger, &prompt.settings)?;
            (run, Joined::Started, open.iter().map(|run| run.id).collect())
        }
    };
    let session = head.session;
    let detail = json!({ "trigger": prompt.trigger, "joined": joined.as_str() });
    let mut entry = AuditEntry::about("prompt.accepted", session, detail).of(session, Some(run));
    entry.facts.user = Some(author);
    audit::append(work, asker, [entry])?;
    if let Some((key, digest)) = request {
        work.batch.add(
            "INSERT INTO requests (asker, name, digest, session_id, run_id, joined, at) VALUES ($1, $2, $3, $4, $5, $6, $7)",
            binds![author, key, digest, session, run, joined.as_str(), work.now],
        );
    }
    Ok(Accepted {
        session,
        created,
        run,
        joined,
        interrupted,
        repeated: false,
        events: head.finish(work)?,
    })
}

/// The answer that the same request got before.
fn repeated(
    work: &mut Work,
    asker: Asker,
    author: UserId,
    key: &str,
    digest: crate::Hash,
) -> Result<Option<Accepted>, StoreError> {
    let sql = "SELECT q.digest, q.session_id, q.run_id, q.joined, s.owner FROM requests q \
               JOIN sessions s ON s.id = q.session_id WHERE q.asker = $1 AND q.name = $2";
    let Some(row) = work.one(sql, binds![author, key])? else {
        return Ok(None);
    };
    let session = row.id("session_id")?;
    if !asker.may_see(session, row.id("owner")?) {
        return Err(not_found(session));
    }
    if row.hash("digest")? != digest {
        return Err(StoreError::Conflict {
            subject: "the prompt",
            reason: "its request key was used for another prompt: give each prompt its own".to_owned(),
        });
    }
    Ok(Some(Accepted {
        session,
        created: false,
        run: row.id("run_id")?,
        joined: Joined::from_word(&row.text("joined")?)?,
        interrupted: Vec::new(),
        repeated: true,
        events: Vec::new(),
    }))
}

impl Joined {
    const ALL: [(Self, &'static str); 3] = [
        (Self::Started, "started"),
        (Self::Queued, "queued"),
        (Self::Steered, "steered"),
    ];

    /// The word that stands in the store and in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Queued => "queued",
            Self::Steered => "steered",
        }
    }

    fn from_word(word: &str) -> Result<Self, StoreError> {
        let known = Self::ALL.into_iter().find(|(_, known)| *known == word);
        known
            .map(|(joined, _)| joined)
            .ok_or_else(|| stored::corrupt("request", format!("there is no {word:?}")))
    }
}

/// The session's head; true: it is made with this job. Whoever makes one finishes its head.
pub(crate) fn find_or_make(
    work: &mut Work,
    asker: Asker,
    target: &Target,
    door: Door,
    title: &str,
) -> Result<(Head, bool), StoreError> {
    let (owner, key) = match target {
        Target::Session(id) => {
            let head = Head::read(work, *id)?;
            if !asker.may_see(*id, head.owner) || matches!(asker, Asker::Session(_)) {
                return Err(not_found(*id));
            }
            check_owner(work, &head)?;
            return Ok((head, false));
        }
        Target::Key { owner, key } => (*owner, Some(key)),
        Target::New { owner } => (*owner, None),
    };
    let no_user = || StoreError::NotFound {
        kind: "user",
        id: owner.to_string(),
    };
    if !asker.may_act_for(owner) {
        return Err(no_user());
    }
    if let Some(key) = key {
        let sql = statement!("SELECT {HEAD} FROM sessions s WHERE s.owner = $1 AND s.name = $2");
        if let Some(row) = work.one(sql, binds![owner, key.as_str()])? {
            let head = Head::of(&row)?;
            check_owner(work, &head)?;
            return Ok((head, false));
        }
    }
    let there = "SELECT id FROM users WHERE id = $1 AND removed IS NULL";
    if work.one(there, binds![owner])?.is_none() {
        return Err(no_user());
    }
    let head = Head::new(SessionId::new(), owner);
    work.batch.add(
        "INSERT INTO sessions (id, owner, name, door, title, created, active, epoch, messages, events, hash, open_calls, compacted, spent, reserved) \
         VALUES ($1, $2, $3, $4, $5, $6, $6, 0, 0, 0, $7, '', 0, 0, 0)",
        binds![
            head.session,
            owner,
            key.map(ExternalKey::as_str),
            door.as_str(),
            title,
            work.now,
            crate::Hash::default()
        ],
    );
    Ok((head, true))
}

/// Refuses to go on in a session whose user was removed.
fn check_owner(work: &mut Work, head: &Head) -> Result<(), StoreError> {
    let removed = "SELECT id FROM users WHERE id = $1 AND removed IS NOT NULL";
    match work.one(removed, binds![head.owner])? {
        None => Ok(()),
        Some(_) => Err(StoreError::Conflict {
            subject: "the request",
            reason: format!(
                "the user of session {} was removed, and nothing more is done in it: ask in a session of somebody who is there",
                head.session
            ),
        }),
    }
}

/// Keeps a prompt until its run takes it into the history.
fn wait(work: &mut Work, head: &mut Head, run: RunId, message: &Message) -> Result<(), StoreError> {
    head.waiting += 1;
    work.batch.add(
        "INSERT INTO waiting (session_id, run_id, body) VALUES ($1, $2, $3)",
        binds![head.session, run, stored::write("message", message)?],
    );
    Ok(())
}

/// The first words of a prompt.
fn title(message: &Message) -> String {
    const LONGEST: usize = 80;
    let text = message.blocks.iter().find_map(|block| match block {
        Block::Text { text } => text.lines().map(str::trim).find(|line| !line.is_empty()),
        _ => None,
    });
    text.unwrap_or("(a picture)").chars().take(LONGEST).collect()
}
