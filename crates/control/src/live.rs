//! What is known of a session while something happens in it. All of it can be had from the store again.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use domain::{
    Door, Epoch, Event, NumberedEvent, RunId, RunLimits, SessionId, SnapshotId, Timestamp, ToolCallId, UserId,
};
use lifecycle::Stop;
use policy::Layers;
use protocol::TurnReply;
use providers::Model;
use store::Asker;
use telemetry::Place;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::approvals::Waits;
use crate::files::Keeping;
use crate::history::Cached;
use crate::housing::Seat;
use crate::memory::{Memory, Share};
use crate::offer::Offer;
use crate::rights::Rights;
use crate::turns::Speaking;
use crate::watch::Feed;
use crate::{Control, ControlError};

/// Sessions that are kept in memory though nothing happens in them.
const IDLE_KEPT: usize = 1_024;
/// Different things that were refused to a session of Belljar's own, and are told with what became of it.
const REFUSED_KEPT: usize = 5;

/// A session in memory.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) session: SessionId,
    pub(crate) owner: UserId,
    pub(crate) feed: Feed,
    pub(crate) seat: Seat,
    /// Held while something of the session is written to the store and told to those who watch, so that both have one order.
    pub(crate) writing: tokio::sync::Mutex<Writing>,
    /// Held by the turn under way.
    pub(crate) turns: Arc<tokio::sync::Mutex<()>>,
    /// Held by the run under way.
    pub(crate) driving: tokio::sync::Mutex<()>,
    pub(crate) rights: Mutex<Rights>,
    pub(crate) files: Keeping,
    /// By how many tokens a model's provider, at most, counted more than the bytes of a program's request.
    pub(crate) beyond: Mutex<HashMap<String, u64>>,
    /// The snapshot that its disk is still to be made from.
    owed: Mutex<Option<SnapshotId>>,
    /// Held while its files are kept or brought: one order for the host at a time.
    pub(crate) copying: Arc<tokio::sync::Mutex<()>>,
    active: Mutex<Option<Arc<Active>>>,
    speaking: Mutex<Option<Arc<Speaking>>>,
    /// What was refused to a session that is Belljar's own, of which no row of the store tells.
    refused: Option<Mutex<Vec<String>>>,
    /// Those in memory, of which it is one.
    lives: Weak<Lives>,
    /// When it was used last, in the order of all uses.
    used: AtomicU64,
}

/// What only the writer of a session knows.
#[derive(Debug)]
pub(crate) struct Writing {
    /// The history as models are told of it, where it was needed.
    history: Option<Cached>,
    share: Share,
    /// Places of messages whose pictures a provider refused: models are told a line of words in their stead.
    pub(crate) unseen: BTreeSet<i64>,
    /// The most tokens that prompts which wait to join the run will add.
    pub(crate) joining: u64,
}

impl Writing {
    fn new(share: Share) -> Self {
        Self {
            history: None,
            share,
            unseen: BTreeSet::new(),
            joining: 0,
        }
    }

    /// The history, where it is in memory.
    pub(crate) fn history(&mut self) -> Option<&mut Cached> {
        self.history.as_mut()
    }

    /// Takes the history, which is put back or read anew.
    pub(crate) fn take_history(&mut self) -> Option<Cached> {
        self.share.set(0);
        self.history.take()
    }

    /// Puts a history in its place.
    pub(crate) fn put_history(&mut self, history: Cached) -> &mut Cached {
        self.share.set(history.bytes());
        self.history.insert(history)
    }

    /// The history is read anew when it is needed.
    pub(crate) fn forget_history(&mut self) {
        self.take_history();
    }
}

/// The run under way.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) run: RunId,
    pub(crate) epoch: Epoch,
    pub(crate) model: Arc<Model>,
    pub(crate) limits: RunLimits,
    /// The door by which its prompt came.
    pub(crate) door: Option<Door>,
    /// What it was given.
    pub(crate) offer: Offer,
    /// Where it stands in its trace.
    pub(crate) place: Place,
    /// The last turn whose calls were told there.
    pub(crate) traced: AtomicU32,
    /// When it was taken here.
    pub(crate) began: Instant,
    /// When it was first taken.
    pub(crate) started: Timestamp,
    /// How often it was taken.
    pub(crate) taken: i64,
    /// The last turn that has its reply.
    pub(crate) done: AtomicU32,
    /// Told when the run has ended in the store, however it did.
    pub(crate) over: Stop,
    /// It was cancelled: its programs in the background end with it.
    pub(crate) cancelled: AtomicBool,
    /// Who cancelled it and why, where that could not be stored yet.
    pub(crate) cancel: Mutex<Option<(Asker, String)>>,
    /// The end of the loop as a sandbox told it: its words, or none.
    pub(crate) loop_ended: watch::Sender<Option<Option<String>>>,
    /// The calls of the last reply, and the tools that they are of.
    pub(crate) calls: Mutex<HashMap<ToolCallId, String>>,
    /// Those of them that a person denied, and what the model is told of it.
    pub(crate) denied: Mutex<HashMap<ToolCallId, String>>,
    /// Those of them whose results are kept until the next turn, and the most tokens of each.
    pub(crate) early: Mutex<HashMap<ToolCallId, u64>>,
    /// Its times of waiting for people.
    pub(crate) waits: Waits,
    /// How long it had waited for people before it was taken.
    pub(crate) waited: Duration,
}

impl Active {
    /// The turn that a loop which begins now asks for first. The calls of a turn that has its reply are not made again.
    pub(crate) fn next_turn(&self) -> u32 {
        self.done.load(Ordering::SeqCst) + 1
    }
}

impl Live {
    fn new(session: &store::Session, lives: &Arc<Lives>) -> Self {
        Self {
            session: session.id,
            owner: session.owner,
            feed: Feed::new(session.events, lives.memory.share()),
            seat: Seat::new(session.sandbox.is_some()),
            writing: tokio::sync::Mutex::new(Writing::new(lives.memory.share())),
            turns: Arc::default(),
            driving: tokio::sync::Mutex::default(),
            rights: Mutex::default(),
            files: Keeping::default(),
            beyond: Mutex::default(),
            owed: Mutex::new(session.owed),
            copying: Arc::default(),
            active: Mutex::default(),
            speaking: Mutex::default(),
            refused: None,
            lives: Arc::downgrade(lives),
            used: AtomicU64::default(),
        }
    }

    /// Belljar's own, which may do what these layers say, for ever.
    fn own(session: SessionId, layers: Layers, lives: &Arc<Lives>) -> Self {
        Self {
            session,
            owner: UserId::new(),
            feed: Feed::new(0, lives.memory.share()),
            seat: Seat::new(false),
            writing: tokio::sync::Mutex::new(Writing::new(lives.memory.share())),
            turns: Arc::default(),
            driving: tokio::sync::Mutex::default(),
            rights: Mutex::new(Rights::fixed(layers)),
            files: Keeping::default(),
            beyond: Mutex::default(),
            owed: Mutex::default(),
            copying: Arc::default(),
            active: Mutex::default(),
            speaking: Mutex::default(),
            refused: Some(Mutex::default()),
            lives: Arc::downgrade(lives),
            used: AtomicU64::default(),
        }
    }

    /// Whether it is Belljar's own: no row of the store tells of it.
    pub(crate) fn is_own(&self) -> bool {
        self.refused.is_some()
    }

    /// Takes note of what was refused to a session of Belljar's own; others have events for it.
    pub(crate) fn note_refused(&self, words: impl FnOnce() -> String) {
        let Some(refused) = &self.refused else { return };
        let mut refused = lock(refused);
        if refused.len() < REFUSED_KEPT {
            let words = words();
            if !refused.contains(&words) {
                refused.push(words);
            }
        }
    }

    /// What was refused to a session of Belljar's own, in words.
    pub(crate) fn refused(&self) -> Vec<String> {
        self.refused
            .as_ref()
            .map(|refused| lock(refused).clone())
            .unwrap_or_default()
    }

    /// The snapshot that its disk is still to be made from.
    pub(crate) fn owed(&self) -> Option<SnapshotId> {
        *lock(&self.owed)
    }

    pub(crate) fn owe(&self, snapshot: Option<SnapshotId>) {
        *lock(&self.owed) = snapshot;
    }

    /// The run under way.
    pub(crate) fn active(&self) -> Option<Arc<Active>> {
        lock(&self.active).clone()
    }

    pub(crate) fn set_active(&self, active: Option<Arc<Active>>) {
        *lock(&self.active) = active;
    }

    /// The turn under way.
    pub(crate) fn speaking(&self) -> Option<Arc<Speaking>> {
        lock(&self.speaking).clone()
    }

    pub(crate) fn set_speaking(&self, speaking: Option<Arc<Speaking>>) {
        *lock(&self.speaking) = speaking;
    }

    /// Takes note of events that were stored: they go into the cached history and to those who watch.
    pub(crate) fn note(&self, writing: &mut Writing, events: Vec<NumberedEvent>) {
        if !self.feed.follows(&events) {
            // Somebody else wrote in between.
            writing.forget_history();
        }
        if let Some(mut history) = writing.take_history() {
            for event in &events {
                if let Event::Message { message } = &event.event {
                    history.push(message);
                }
            }
            writing.put_history(history);
        }
        self.feed.publish(events);
        self.keep_within_bounds();
    }

    /// It was used: where all keep more than they may, those that were used before it let go of theirs first.
    pub(crate) fn keep_within_bounds(&self) {
        if let Some(lives) = self.lives.upgrade() {
            self.used
                .store(lives.uses.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
            lives.keep_within_bounds();
        }
    }

    /// Lets go of what the store can bring back, unless it is in use.
    fn let_go(&self) {
        self.feed.let_go();
        if let Ok(mut writing) = self.writing.try_lock() {
            writing.forget_history();
        }
    }
}

/// The sessions in memory.
#[derive(Debug)]
pub(crate) struct Lives {
    all: Mutex<HashMap<SessionId, Arc<Live>>>,
    memory: Memory,
    /// The most bytes that they may keep.
    most: usize,
    uses: AtomicU64,
}

impl Lives {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            all: Mutex::default(),
            memory: Memory::default(),
            most,
            uses: AtomicU64::default(),
        }
    }

    /// Bytes that they keep for speed alone.
    pub(crate) fn kept(&self) -> usize {
        self.memory.bytes()
    }

    /// Makes room where they keep too much: a quarter of what they may, so that it is not done again at once.
    fn keep_within_bounds(&self) {
        if self.kept() <= self.most {
            return;
        }
        let mut lives = self.all();
        lives.sort_by_cached_key(|live| live.used.load(Ordering::Relaxed));
        for live in lives {
            if self.kept() <= self.most / 4 * 3 {
                return;
            }
            live.let_go();
        }
    }

    pub(crate) fn find(&self, session: SessionId) -> Option<Arc<Live>> {
        lock(&self.all).get(&session).cloned()
    }

    /// Everyone of them.
    pub(crate) fn all(&self) -> Vec<Arc<Live>> {
        lock(&self.all).values().cloned().collect()
    }

    /// A session of Belljar's own, until it is removed.
    pub(crate) fn insert_own(self: &Arc<Self>, session: SessionId, layers: Layers) -> Arc<Live> {
        self.insert(Live::own(session, layers, self))
    }

    pub(crate) fn remove(&self, session: SessionId) {
        lock(&self.all).remove(&session);
    }

    fn insert(&self, live: Live) -> Arc<Live> {
        let mut lives = lock(&self.all);
        if lives.len() >= IDLE_KEPT && !lives.contains_key(&live.session) {
            // Nobody but this table knows them, and they have no sandbox: the store can bring them back.
            lives.retain(|_, live| Arc::strong_count(live) > 1 || live.feed.is_watched() || live.seat.is_taken());
        }
        Arc::clone(lives.entry(live.session).or_insert_with(|| Arc::new(live)))
    }
}

impl Control {
    /// Bytes that sessions keep in memory for speed alone.
    #[must_use]
    pub fn kept_bytes(&self) -> usize {
        self.0.lives.kept()
    }

    /// A session, as the asker may see it.
    pub(crate) async fn live(&self, asker: Asker, session: SessionId) -> Result<Arc<Live>, ControlError> {
        if let Some(live) = self.0.lives.find(session) {
            if asker.may_see(session, live.owner) {
                return Ok(live);
            }
            return Err(ControlError::NotFound {
                kind: "session",
                name: session.to_string(),
            });
        }
        let stored = self.0.store.session(asker, session).await?;
        Ok(self.0.lives.insert(Live::new(&stored, &self.0.lives)))
    }
}

/// The calls of a reply, and the tools that they are of.
pub(crate) fn calls(reply: &TurnReply) -> HashMap<ToolCallId, String> {
    let calls = reply.calls.iter();
    calls.map(|call| (call.id.clone(), call.name.clone())).collect()
}

/// Locks what is never held over a panic that matters.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
