//! A control plane with everything round it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use control::{Base, Config, Control, NewPrompt, Outside, Position, Watched};
use domain::{
    Author, Block, Delivery, Door, Event, Message, NumberedEvent, Placement, RunId, RunState, SessionId, Timestamp,
};
use futures::StreamExt;
use lifecycle::{DropGuard, Tasks};
use providers::{Model, ModelSettings, ProviderKind, Providers, RetryLimits, SettingsPrice, Timeouts};
use sandbox::{ImageDigest, SandboxProvider, Simulator};
use secret::Secret;
use serde_json::{Value, json};
use store::{
    Accepted, Asker, AuditFilter, AuditFrom, AuditRecord, Clock, LedgerEntry, Run, Store, StoreError, Target,
    UsageFilter, User,
};
use tempfile::TempDir;
use testkit::model_server::{Answer, ModelServer, Speech};
use testkit::within;

pub(crate) mod bucket;
pub(crate) mod crm;
mod host;
mod inside;
mod keeps;

use host::Host;
pub(crate) use inside::Inside;

/// $3 and $15 for a million tokens.
pub(crate) const PRICE: SettingsPrice = SettingsPrice {
    input: 3.0,
    output: 15.0,
    cache_read: Some(0.3),
    cache_write: Some(3.75),
    cache_write_hour: Some(6.0),
};

pub(crate) struct World {
    pub(crate) control: Control,
    pub(crate) store: Store,
    pub(crate) models: Arc<ModelServer>,
    pub(crate) sandboxes: Arc<Simulator>,
    pub(crate) inside: Arc<Inside>,
    pub(crate) host: Arc<Host>,
    pub(crate) user: User,
    pub(crate) asker: Asker,
    pub(crate) config: Config,
    providers: Providers,
    pub(crate) outside: MakeOutside,
    tasks: Tasks,
    folder: TempDir,
    /// Milliseconds by which the store's clock is ahead of the machine's.
    ahead: Arc<AtomicI64>,
    _end: DropGuard,
}

/// How a world differs from the usual one.
pub(crate) struct Differs {
    pub(crate) placement: Placement,
    pub(crate) config: fn(&mut Config),
    pub(crate) model: fn(&mut ModelSettings),
    /// The model that stands in for it.
    pub(crate) spare: fn(&mut ModelSettings),
    pub(crate) outside: MakeOutside,
}

/// Makes what lies outside, anew for each process; its files go into the folder.
pub(crate) type MakeOutside = Arc<dyn Fn(&std::path::Path, &Tasks) -> Outside + Send + Sync>;

impl Default for Differs {
    fn default() -> Self {
        Self {
            placement: Placement::Sandbox,
            config: |_| {},
            model: |_| {},
            spare: |_| {},
            outside: Arc::new(|_, _| Outside::default()),
        }
    }
}

/// The same test with the loop in the sandbox, and in the control plane.
pub(crate) async fn in_both_placements(test: impl AsyncFn(World)) {
    in_both_placements_with(Differs::default, test).await;
}

/// The same, in a world that differs.
pub(crate) async fn in_both_placements_with(differs: impl Fn() -> Differs, test: impl AsyncFn(World)) {
    for placement in [Placement::Sandbox, Placement::ControlPlane] {
        let differs = Differs { placement, ..differs() };
        test(World::new(differs).await).await;
    }
}

fn image() -> ImageDigest {
    "ab".repeat(32).parse().unwrap()
}

impl World {
    pub(crate) async fn new(differs: Differs) -> Self {
        let folder = TempDir::with_prefix("belljar-control-").unwrap();
        let models = Arc::new(ModelServer::start().await);
        let inside = Arc::new(Inside::default());
        let _ = inside.git.set(folder.path().join("git"));
        // Nothing is set yet.
        let _ = inside.keeps.set(keeps::keeps());
        let sandboxes = Arc::new(Simulator::new([image()], Arc::clone(&inside).program()).unwrap());
        let providers = providers(&models, differs.model, differs.spare);
        let mut config = Config::new("m", Base::new(image()));
        config.placement = differs.placement;
        config.drain = Duration::from_millis(50);
        config.run_snapshots = 0;
        config.system = Some("You are tested.".to_owned());
        config.tools = agent::definitions().to_vec();
        (differs.config)(&mut config);
        let host = Arc::new(Host::new(Arc::clone(&sandboxes)));
        let ahead = Arc::default();
        let (control, store, tasks, end) = start(&folder, &config, &providers, &host, &differs.outside, &ahead).await;
        let user = store.create_user(Asker::System, "ada", false).await.unwrap();
        let asker = Asker::User {
            id: user.id,
            admin: false,
            until: None,
        };
        Self {
            control,
            store,
            models,
            sandboxes,
            inside,
            host,
            user,
            asker,
            config,
            providers,
            outside: differs.outside,
            tasks,
            folder,
            ahead,
            _end: end,
        }
    }

    /// The machine's clock is set.
    pub(crate) fn set_clock_ahead(&self, by: Duration) {
        self.ahead
            .store(i64::try_from(by.as_millis()).unwrap(), Ordering::SeqCst);
    }

    /// The process dies without a word, and another begins on the same store and sandboxes.
    pub(crate) async fn restarted(self) -> Self {
        self.restarted_after(async || ()).await
    }

    /// The same; something happens while there is no process.
    pub(crate) async fn restarted_after(self, meanwhile: impl AsyncFnOnce()) -> Self {
        let Self {
            control, store, tasks, ..
        } = self;
        store.close().await;
        tasks.shut_down(Duration::from_secs(20)).await;
        drop((control, store));
        meanwhile().await;
        let (control, store, tasks, end) = start(
            &self.folder,
            &self.config,
            &self.providers,
            &self.host,
            &self.outside,
            &self.ahead,
        )
        .await;
        Self {
            control,
            store,
            tasks,
            _end: end,
            ..self
        }
    }

    /// The same; something is written to the store meanwhile of which no process is told.
    pub(crate) async fn restarted_when(self, written: impl AsyncFnOnce(&Store)) -> Self {
        let path = self.store_path();
        self.restarted_after(async || {
            let store = opened(|| store::Config::new(path.clone())).await;
            written(&store).await;
            store.close().await;
        })
        .await
    }

    /// Another control plane on the same store and sandboxes.
    pub(crate) async fn beside(&self) -> (Control, DropGuard) {
        let tasks = Tasks::new();
        let provider: Arc<dyn SandboxProvider> = self.host.clone();
        let control = Control::start(
            self.config.clone(),
            self.store.clone(),
            self.providers.clone(),
            provider,
            (self.outside)(self.folder.path(), &tasks),
            tasks.clone(),
        );
        (control.await.unwrap(), tasks.stop().drop_guard())
    }

    /// The store's file.
    pub(crate) fn store_path(&self) -> PathBuf {
        self.folder.path().join("store.db")
    }

    /// Where all is that outlives a process.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What signs this installation's URLs, where its files are kept.
    pub(crate) fn tickets(&self) -> objects::Tickets {
        objects::Tickets::open(&self.folder.path().join("objects.key")).unwrap()
    }

    pub(crate) fn target(&self) -> Target {
        Target::New { owner: self.user.id }
    }

    pub(crate) async fn prompt(&self, text: &str) -> Accepted {
        self.prompt_to(self.target(), text, Delivery::Restart).await
    }

    pub(crate) async fn prompt_to(&self, target: Target, text: &str, delivery: Delivery) -> Accepted {
        let prompt = NewPrompt {
            delivery,
            ..NewPrompt::words(target, Door::Api, text)
        };
        within("the prompt to be accepted", self.control.prompt(self.asker, prompt))
            .await
            .unwrap()
    }

    /// Lines up an answer in words.
    pub(crate) fn will_say(&self, text: &str) {
        self.models.next(Answer::text(text));
    }

    /// Lines up calls of the tool `exec`, which the inside understands by its `code`.
    pub(crate) fn will_call(&self, calls: &[(&str, &str)]) {
        self.models.next(Answer::Say(calling(calls)));
    }

    /// Waits until the run has ended.
    pub(crate) async fn ended(&self, session: SessionId, run: RunId) -> Run {
        let is_end =
            |event: &Event| matches!(event, Event::Run { run: ended, state, .. } if *ended == run && state.is_final());
        self.event(session, "the run to end", is_end).await;
        self.store.run(Asker::System, run).await.unwrap()
    }

    /// Waits until the run is done.
    pub(crate) async fn done(&self, accepted: &Accepted) -> Run {
        let run = self.ended(accepted.session, accepted.run).await;
        assert_eq!(run.state, RunState::Done, "{:?}: {:?}", run.code, run.reason);
        run
    }

    /// Waits for an event that is so, from the first on.
    pub(crate) async fn event(&self, session: SessionId, what: &str, is: impl Fn(&Event) -> bool) -> NumberedEvent {
        let events = self
            .control
            .watch(Asker::System, session, Position::default())
            .await
            .unwrap();
        let mut events = Box::pin(events);
        within(what, async {
            loop {
                match events.next().await.unwrap().unwrap().1 {
                    Watched::Event(event) if is(&event.event) => return event.as_ref().clone(),
                    _ => {}
                }
            }
        })
        .await
    }

    pub(crate) async fn messages(&self, session: SessionId) -> Vec<Message> {
        let messages = self.store.messages(Asker::System, session, 0, 1_000).await.unwrap();
        messages.into_iter().map(|positioned| positioned.message).collect()
    }

    pub(crate) async fn events(&self, session: SessionId) -> Vec<NumberedEvent> {
        self.store
            .events(Asker::System, session, 0, 1_000)
            .await
            .unwrap()
            .events
    }

    /// The entries of the audit log with this action, oldest first.
    pub(crate) async fn audited(&self, action: &str) -> Vec<AuditRecord> {
        let filter = AuditFilter {
            action: Some(action.to_owned()),
            ..AuditFilter::default()
        };
        let page = self.store.audit_page(Asker::System, filter, AuditFrom::After(0), 1_000);
        page.await.unwrap().records
    }

    /// Every call of a model that was paid.
    pub(crate) async fn ledger(&self) -> Vec<LedgerEntry> {
        let ledger = self.store.ledger(Asker::System, UsageFilter::default(), 0, 1_000);
        ledger.await.unwrap()
    }

    /// The history in short: `ada: go`, `m: words`, `m: exec(code)`, `result: words`.
    pub(crate) async fn said(&self, session: SessionId) -> Vec<String> {
        self.messages(session).await.iter().flat_map(in_short).collect()
    }

    /// No call without an end, no event number left out, no message opened that was not closed by the end of its run.
    pub(crate) async fn assert_whole(&self, session: SessionId) {
        let events = self.events(session).await;
        for (place, event) in events.iter().enumerate() {
            assert_eq!(event.number, place as i64 + 1, "{events:#?}");
        }
        let count = |is: &dyn Fn(&Event) -> bool| events.iter().filter(|event| is(&event.event)).count();
        for event in &events {
            if let Event::ToolStarted { call, .. } = &event.event {
                let ends = count(&|event| matches!(event, Event::ToolEnded { call: ended, .. } if ended == call));
                assert_eq!(ends, 1, "call {call}: {events:#?}");
            }
            if let Event::Message { message } = &event.event {
                let same = count(&|event| matches!(event, Event::Message { message: other } if other.id == message.id));
                assert_eq!(same, 1, "message {}: {events:#?}", message.id);
            }
        }
        self.models.assert_nothing_refused();
    }
}

/// What a process before this one was reading, and a program that another test is about to start, hold the file for a moment longer.
async fn opened(settings: impl Fn() -> store::Config) -> Store {
    testkit::eventually_async("the store to be free", async || match Store::open(settings()).await {
        Err(StoreError::InUse { .. }) => None,
        opened => Some(opened.unwrap()),
    })
    .await
}

async fn start(
    folder: &TempDir,
    config: &Config,
    providers: &Providers,
    host: &Arc<Host>,
    outside: &MakeOutside,
    ahead: &Arc<AtomicI64>,
) -> (Control, Store, Tasks, DropGuard) {
    let path = folder.path().join("store.db");
    let store = opened(|| {
        let ahead = Arc::clone(ahead);
        let clock = Clock::of(move || Timestamp(Timestamp::now().0 + ahead.load(Ordering::SeqCst)));
        store::Config {
            clock,
            ..store::Config::new(path.clone())
        }
    })
    .await;
    let tasks = Tasks::new();
    let provider: Arc<dyn SandboxProvider> = host.clone();
    let control = Control::start(
        config.clone(),
        store.clone(),
        providers.clone(),
        provider,
        outside(folder.path(), &tasks),
        tasks.clone(),
    );
    let end = tasks.stop().drop_guard();
    (control.await.unwrap(), store, tasks, end)
}

fn providers(models: &ModelServer, differs: fn(&mut ModelSettings), spare: fn(&mut ModelSettings)) -> Providers {
    let mut settings = ModelSettings::new(ProviderKind::Anthropic);
    settings.model = Some("fake".to_owned());
    settings.base_url = Some(models.base_url());
    settings.api_key = Some(Secret::new(models.key()).into());
    settings.price = Some(PRICE);
    settings.window = Some(200_000);
    settings.max_output = Some(8_000);
    // The other stands in for it where a test says so.
    let mut first = settings.clone();
    differs(&mut first);
    settings.price = first.price;
    let model = |name, settings| Model::new(name, settings).unwrap_or_else(|problems| panic!("{problems:?}"));
    let free = ModelSettings {
        price: None,
        ..settings.clone()
    };
    spare(&mut settings);
    let models = vec![model("m", first), model("spare", settings), model("free", free)];
    let retries = RetryLimits {
        retries: 1,
        first_delay: Duration::from_millis(1),
        ..RetryLimits::default()
    };
    Providers::new(models, Timeouts::default(), retries).unwrap()
}

/// Calls of the tool `exec`: id and code.
pub(crate) fn calling(calls: &[(&str, &str)]) -> Speech {
    let mut speech = Speech::text("Let me see. ");
    for (id, code) in calls {
        speech = speech.call(id, "exec", &json!({ "code": code }));
    }
    speech
}

/// More than is held back of what a model says, at once, and a piece more.
pub(crate) fn at_length(words: &str) -> Speech {
    Speech {
        text: vec![words.repeat(100), words.to_owned()],
        ..Speech::text("")
    }
}

fn in_short(message: &Message) -> Vec<String> {
    let who = match &message.author {
        Author::User { .. } => "ada",
        Author::Model { name } => name,
        Author::Sandbox => "sandbox",
        Author::ControlPlane => "belljar",
    };
    let cut = if message.interrupted { " [cut]" } else { "" };
    let block = |block: &Block| match block {
        Block::Text { text } => format!("{who}: {text}{cut}"),
        Block::ToolUse(call) => format!("{who}: {}({})", call.name, code(&call.input)),
        Block::ToolResult(result) => {
            let words = result.content.iter().map(|part| match part {
                domain::ResultPart::Text { text } => text.as_str(),
                domain::ResultPart::Image(_) => "[image]",
            });
            let words = words.collect::<String>();
            let failed = if result.is_error { " [error]" } else { "" };
            format!("{who}: {}{failed}", words.split('.').next().unwrap_or_default())
        }
        Block::Image(_) => format!("{who}: [image]"),
        Block::Thinking { .. } => format!("{who}: [thinking]"),
    };
    message.blocks.iter().map(block).collect()
}

fn code(input: &Value) -> &str {
    input["code"].as_str().unwrap_or("?")
}
