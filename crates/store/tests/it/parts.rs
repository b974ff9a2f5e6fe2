//! What the tests are made of.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use domain::{
    Author, Block, Delivery, Door, Epoch, ExternalKey, Message, MessageId, Money, Role, RunId, SessionId, Timestamp,
    ToolCall, ToolCallId, ToolResult, Trigger, Usage, UserId,
};
use serde_json::json;
use serde_json::value::RawValue;
use store::{
    Accepted, Asker, AuditFilter, AuditFrom, AuditRecord, BeginTurn, Begun, Caps, Charge, Clock, Config, Dialect, End,
    FinishTurn, Finished, Prompt, Store, TakenRun, Target,
};
use tempfile::TempDir;

pub(crate) const SYSTEM: Asker = Asker::System;
pub(crate) const LEASE: Duration = Duration::from_secs(60);

/// Waits until nobody holds a store that was closed: a process that another test is about to start has what was open here until it
/// runs its program.
pub(crate) async fn until_free(path: &Path) {
    let lock = std::fs::File::open(path.with_extension("db.lock")).unwrap();
    let free = async {
        while lock.try_lock().is_err() {
            tokio::task::yield_now().await;
        }
    };
    soon(free).await;
}

/// A store in a folder of its own, with a clock that stands until it is moved, and a user.
pub(crate) struct Place {
    pub(crate) folder: TempDir,
    pub(crate) store: Store,
    pub(crate) user: UserId,
    time: Arc<AtomicI64>,
}

impl Place {
    pub(crate) async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let time = Arc::new(AtomicI64::new(1_000 * 86_400_000));
        let store = Store::open(config(folder.path().join("belljar.db"), &time))
            .await
            .unwrap();
        let user = store.create_user(SYSTEM, "ada", false).await.unwrap().id;
        Self {
            folder,
            store,
            user,
            time,
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("belljar.db")
    }

    /// Lets time pass.
    pub(crate) fn pass(&self, time: Duration) {
        self.time.fetch_add(time.as_millis() as i64, Ordering::SeqCst);
    }

    /// Sets the clock back.
    pub(crate) fn set_back(&self, time: Duration) {
        self.time.fetch_sub(time.as_millis() as i64, Ordering::SeqCst);
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp(self.time.load(Ordering::SeqCst))
    }

    /// Closes the store and opens it again, as a new process would.
    pub(crate) async fn reopen(&mut self) {
        self.store.close().await;
        // The lock is given back with the last clone.
        let parked = tempfile::tempdir().unwrap();
        let spare = Store::open(Config::new(parked.path().join("spare.db"))).await.unwrap();
        drop(std::mem::replace(&mut self.store, spare));
        until_free(&self.path()).await;
        self.store = Store::open(config(self.path(), &self.time)).await.unwrap();
    }

    pub(crate) fn asker(&self) -> Asker {
        user(self.user)
    }

    /// Runs SQL behind the store's back, as somebody with the file would.
    pub(crate) async fn tamper(&self, sql: &'static str) {
        let connection = rusqlite::Connection::open(self.path()).unwrap();
        connection.busy_timeout(Duration::from_secs(10)).unwrap();
        connection.execute_batch(sql).unwrap();
        connection.close().unwrap();
    }

    /// The newest entry of the audit log.
    pub(crate) async fn audited(&self) -> AuditRecord {
        let page = self
            .store
            .audit_page(SYSTEM, AuditFilter::default(), AuditFrom::Newest, 1);
        page.await.unwrap().records.remove(0)
    }

    /// What is spent and reserved under a name, as it stands in the file: `user:…:day`, `day:…`, `trigger:day:…`.
    pub(crate) fn spend(&self, name: &str) -> (Money, Money) {
        self.sums("SELECT spent, reserved FROM spend WHERE name = ?1", name)
    }

    /// The same of a run.
    pub(crate) fn run_spend(&self, run: RunId) -> (Money, Money) {
        self.sums("SELECT spent, reserved FROM runs WHERE id = ?1", &run.to_string())
    }

    fn sums(&self, sql: &str, name: &str) -> (Money, Money) {
        let connection = rusqlite::Connection::open(self.path()).unwrap();
        let sums = connection.query_row(sql, [name], |row| Ok((Money(row.get(0)?), Money(row.get(1)?))));
        match sums {
            Err(rusqlite::Error::QueryReturnedNoRows) => (Money::ZERO, Money::ZERO),
            sums => sums.unwrap(),
        }
    }

    pub(crate) async fn prompt(&self, target: Target, text: &str, delivery: Delivery) -> Accepted {
        let prompt = prompt(self.user, target, text, delivery);
        self.store.accept_prompt(self.asker(), prompt).await.unwrap()
    }

    pub(crate) async fn start(&self, text: &str) -> Accepted {
        self.prompt(Target::New { owner: self.user }, text, Delivery::Restart)
            .await
    }

    pub(crate) async fn take(&self, run: RunId) -> TakenRun {
        self.store
            .take_run(SYSTEM, run, "me", LEASE)
            .await
            .unwrap()
            .expect("the run can be taken")
    }

    /// A session with a run that was taken.
    pub(crate) async fn running(&self) -> (SessionId, TakenRun) {
        let accepted = self.start("count the words").await;
        (accepted.session, self.take(accepted.run).await)
    }

    /// Begins a turn that must be ours.
    pub(crate) async fn begin(&self, turn: BeginTurn) -> (domain::TurnId, MessageId) {
        let opens = turn.opens;
        match self.store.begin_turn(SYSTEM, turn).await.unwrap() {
            Begun::Yours { id, .. } => (id, opens),
            other => panic!("{other:?}"),
        }
    }

    /// One whole turn whose reply calls these tools.
    pub(crate) async fn turn(&self, turn: BeginTurn, calls: &[&str], end: Option<End>) -> Finished {
        let (id, opens) = self.begin(turn).await;
        self.store
            .finish_turn(SYSTEM, reply(id, opens, "so be it", calls, end))
            .await
            .unwrap()
    }
}

fn config(path: PathBuf, time: &Arc<AtomicI64>) -> Config {
    let time = Arc::clone(time);
    Config {
        clock: Clock::of(move || Timestamp(time.load(Ordering::SeqCst))),
        ..Config::new(path)
    }
}

pub(crate) fn user(id: UserId) -> Asker {
    Asker::User {
        id,
        admin: false,
        until: None,
    }
}

pub(crate) fn key(key: &str) -> ExternalKey {
    ExternalKey::try_from(key.to_owned()).unwrap()
}

pub(crate) fn text(text: &str) -> Vec<Block> {
    vec![Block::Text { text: text.to_owned() }]
}

pub(crate) fn message(role: Role, author: Author, blocks: Vec<Block>) -> Message {
    Message {
        id: MessageId::new(),
        role,
        author,
        blocks,
        interrupted: false,
        at: Timestamp::now(),
    }
}

pub(crate) fn prompt(user: UserId, target: Target, words: &str, delivery: Delivery) -> Prompt {
    Prompt {
        target,
        door: Door::Api,
        trigger: Trigger::new(Door::Api, Some("tests")),
        message: message(Role::User, Author::User { id: user }, text(words)),
        delivery,
        request_key: None,
        narrowing: None,
        settings: json!({ "model": "scripted" }),
    }
}

pub(crate) fn begin(run: RunId, epoch: Epoch, turn: u32) -> BeginTurn {
    BeginTurn {
        run,
        epoch,
        turn,
        results: Vec::new(),
        opens: MessageId::new(),
        model: "scripted".to_owned(),
        price_version: "1".to_owned(),
        reserve: Money(1_000),
        caps: Caps::default(),
        dialect: Some(dialect()),
    }
}

pub(crate) fn dialect() -> Dialect {
    Dialect {
        name: "plain".into(),
        render: Arc::new(|message| serde_json::to_vec(&message.blocks).unwrap()),
    }
}

pub(crate) fn charge(cost: i64) -> Charge {
    Charge {
        model: "scripted".to_owned(),
        price_version: "1".to_owned(),
        usage: Usage {
            input: 10,
            output: 5,
            ..Usage::default()
        },
        cost: Money(cost),
        estimated: false,
    }
}

pub(crate) fn reply(id: domain::TurnId, opens: MessageId, words: &str, calls: &[&str], end: Option<End>) -> FinishTurn {
    let author = Author::Model {
        name: "scripted".to_owned(),
    };
    let mut blocks = text(words);
    blocks.extend(calls.iter().map(|call| {
        Block::ToolUse(ToolCall {
            id: ToolCallId((*call).to_owned()),
            name: "read".to_owned(),
            input: json!({ "path": "a" }),
        })
    }));
    FinishTurn {
        id,
        message: Message {
            id: opens,
            ..message(Role::Assistant, author, blocks)
        },
        dialect: Some(dialect()),
        reply: RawValue::from_string(json!({ "message": opens }).to_string()).unwrap(),
        charges: vec![charge(700)],
        events: Vec::new(),
        end,
    }
}

pub(crate) fn result(call: &str) -> ToolResult {
    ToolResult::text(ToolCallId(call.to_owned()), format!("result of {call}"))
}

/// The texts of a session's history, each with its role and author in short.
pub(crate) async fn said(store: &Store, session: SessionId) -> Vec<String> {
    let messages = store.messages(SYSTEM, session, 0, 1_000).await.unwrap();
    messages
        .iter()
        .map(|positioned| in_short(&positioned.message))
        .collect()
}

fn in_short(message: &Message) -> String {
    let author = match &message.author {
        Author::User { .. } => "user",
        Author::Model { .. } => "model",
        Author::Sandbox => "sandbox",
        Author::ControlPlane => "belljar",
    };
    let blocks = message.blocks.iter().map(|block| match block {
        Block::Text { text } => text.clone(),
        Block::ToolUse(call) => format!("call {}", call.id),
        Block::ToolResult(result) if result.is_error => format!("error {}", result.id),
        Block::ToolResult(result) => format!("result {}", result.id),
        other => format!("{other:?}"),
    });
    let cut = if message.interrupted { "…" } else { "" };
    format!("{author}: {}{cut}", blocks.collect::<Vec<_>>().join(", "))
}

/// The events of a session in short, and that they are numbered from 1 without a gap.
pub(crate) async fn told(store: &Store, session: SessionId) -> Vec<String> {
    let events = store.events(SYSTEM, session, 0, 1_000).await.unwrap().events;
    for (number, event) in (1..).zip(&events) {
        assert_eq!(event.number, number);
    }
    let words = events.iter().map(|event| {
        let json = serde_json::to_value(&event.event).unwrap();
        match json["type"].as_str().unwrap() {
            "run" => format!("run {}", json["state"].as_str().unwrap()),
            "tool_ended" => format!("tool_ended {}", json["call"].as_str().unwrap()),
            other => other.to_owned(),
        }
    });
    words.collect()
}

/// Waits, but not for ever.
pub(crate) async fn soon<T>(wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), wait)
        .await
        .expect("it took more than a minute")
}
