//! What happens in one session, for everybody who watches it.
//!
//! The feed holds the last events and the message that is being written, and passes on what is new through a bounded ring.
//! Whoever is too slow for the ring reads the store instead and comes back; nothing here waits for a watcher. The last events
//! may be let go of at any time: who has not seen them reads the store too.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use domain::{Delta, Event, EventNumber, MessageId, NumberedEvent, ToolCallId};
use store::Store;
use tokio::sync::broadcast;

use super::Position;
use crate::memory::Share;

/// New things that a watcher may be behind before it reads the store.
const RING: usize = 512;
/// Events that are kept for those who return soon.
const RECENT: usize = 256;

/// Something that a watcher sees.
#[derive(Clone, PartialEq, Debug)]
pub enum Watched {
    /// A durable event.
    Event(Arc<NumberedEvent>),
    /// Something under way.
    Delta(Arc<Delta>),
}

/// What travels through the ring. It holds no event: one that was let go of is read from the store.
#[derive(Clone, Debug)]
pub(crate) enum Told {
    Event(Weak<NumberedEvent>),
    Delta(Arc<Delta>),
}

impl Told {
    /// What it tells; none where that was let go of.
    pub(crate) fn seen(self) -> Option<Watched> {
        match self {
            Self::Event(event) => event.upgrade().map(Watched::Event),
            Self::Delta(delta) => Some(Watched::Delta(delta)),
        }
    }
}

/// One session's feed.
#[derive(Debug)]
pub(crate) struct Feed {
    state: Mutex<State>,
    ring: broadcast::Sender<Told>,
}

#[derive(Debug)]
struct State {
    last: EventNumber,
    recent: VecDeque<Recent>,
    share: Share,
    open: Option<Open>,
}

/// An event that is kept.
#[derive(Debug)]
struct Recent {
    event: Arc<NumberedEvent>,
    bytes: usize,
}

/// The message that is being written.
#[derive(Debug)]
struct Open {
    message: MessageId,
    opened: EventNumber,
    text: String,
    thinking: String,
}

/// Where a watcher stands after it joined.
#[derive(Debug)]
pub(crate) enum Joined {
    /// What it has not seen, and what brings the rest; none where that is more than is looked at at a time: it joins again.
    Ready {
        missed: Vec<Watched>,
        rest: Option<broadcast::Receiver<Told>>,
    },
    /// What it has not seen is no longer here: it reads the store first, up to this event.
    Behind,
}

impl Feed {
    /// The feed of a session whose last event has this number.
    pub(crate) fn new(last: EventNumber, share: Share) -> Self {
        Self {
            state: Mutex::new(State {
                last,
                recent: VecDeque::new(),
                share,
                open: None,
            }),
            ring: broadcast::Sender::new(RING),
        }
    }

    /// The number of the last event that was passed on.
    pub(crate) fn last(&self) -> EventNumber {
        self.state().last
    }

    /// Whether these events come right after those that were passed on.
    pub(crate) fn follows(&self, events: &[NumberedEvent]) -> bool {
        let last = self.state().last;
        events.first().is_none_or(|first| first.number == last + 1)
    }

    /// Passes on events that were stored. Those that were passed on before are left out.
    pub(crate) fn publish(&self, events: impl IntoIterator<Item = NumberedEvent>) {
        let mut state = self.state();
        for event in events {
            if event.number <= state.last {
                continue;
            }
            if event.number > state.last + 1 {
                // Somebody stored events and was stopped before it could tell: watchers find the gap and read the store.
                state.let_go();
            }
            state.last = event.number;
            match &event.event {
                Event::MessageOpened { message, .. } => {
                    state.open = Some(Open {
                        message: *message,
                        opened: event.number,
                        text: String::new(),
                        thinking: String::new(),
                    });
                }
                Event::Message { message } if state.is_open(message.id) => state.open = None,
                Event::Run { state: run, .. } if run.is_final() => state.open = None,
                _ => {}
            }
            let event = Arc::new(event);
            state.keep(Arc::clone(&event));
            // Nobody watches: nobody needs to hear it.
            let _ = self.ring.send(Told::Event(Arc::downgrade(&event)));
        }
    }

    /// Adds words to the open message's text. Nothing happens if another message is open by now.
    pub(crate) fn text(&self, message: MessageId, words: &str) {
        if words.is_empty() {
            return;
        }
        let mut state = self.state();
        let Some(open) = state.open.as_mut().filter(|open| open.message == message) else {
            return;
        };
        let offset = open.text.len() as u64;
        open.text.push_str(words);
        let _ = self.ring.send(Told::Delta(Arc::new(Delta::Text {
            message,
            offset,
            text: words.to_owned(),
        })));
    }

    /// Adds words to the open message's thinking.
    pub(crate) fn thinking(&self, message: MessageId, words: &str) {
        if words.is_empty() {
            return;
        }
        let mut state = self.state();
        let Some(open) = state.open.as_mut().filter(|open| open.message == message) else {
            return;
        };
        let offset = open.thinking.len() as u64;
        open.thinking.push_str(words);
        let _ = self.ring.send(Told::Delta(Arc::new(Delta::Thinking {
            message,
            offset,
            text: words.to_owned(),
        })));
    }

    /// Passes on a piece of a tool's output.
    pub(crate) fn progress(&self, call: ToolCallId, text: String) {
        let _ = self
            .ring
            .send(Told::Delta(Arc::new(Delta::ToolProgress { call, text })));
    }

    /// Whether anybody watches.
    pub(crate) fn is_watched(&self) -> bool {
        self.ring.receiver_count() > 0
    }

    /// Begins to watch behind `position`.
    pub(crate) fn join(&self, position: Position) -> Joined {
        let state = self.state();
        let first = state.last - state.recent.len() as EventNumber + 1;
        if position.number + 1 < first {
            return Joined::Behind;
        }
        let unseen = state
            .recent
            .iter()
            .filter(|recent| recent.event.number > position.number);
        let (mut missed, mut bytes) = (Vec::new(), 0);
        for recent in unseen {
            if bytes >= Store::PAGE_BYTES {
                return Joined::Ready { missed, rest: None };
            }
            bytes += recent.bytes;
            missed.push(Watched::Event(Arc::clone(&recent.event)));
        }
        if let Some(open) = &state.open {
            missed.extend(open.behind(position));
        }
        Joined::Ready {
            missed,
            rest: Some(self.ring.subscribe()),
        }
    }

    /// Lets go of the last events: who needs them reads the store.
    pub(crate) fn let_go(&self) {
        self.state().let_go();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_open(&self, message: MessageId) -> bool {
        self.open.as_ref().is_some_and(|open| open.message == message)
    }

    fn keep(&mut self, event: Arc<NumberedEvent>) {
        let mut kept = self.share.bytes();
        if self.recent.len() == RECENT
            && let Some(oldest) = self.recent.pop_front()
        {
            kept -= oldest.bytes;
        }
        let bytes = size(&event);
        self.recent.push_back(Recent { event, bytes });
        self.share.set(kept + bytes);
    }

    fn let_go(&mut self) {
        self.recent = VecDeque::new();
        self.share.set(0);
    }
}

impl Open {
    /// What a watcher at this position has not seen of the message.
    fn behind(&self, position: Position) -> Vec<Watched> {
        // An offset counts only if it was taken after this message was opened.
        let seen = if position.number < self.opened {
            Position::default()
        } else {
            position
        };
        let message = self.message;
        let rest = |whole: &str, from: u64| {
            let from = usize::try_from(from).ok()?;
            whole.get(from..).filter(|rest| !rest.is_empty()).map(str::to_owned)
        };
        let thinking = rest(&self.thinking, seen.thinking).map(|text| Delta::Thinking {
            message,
            offset: seen.thinking,
            text,
        });
        let text = rest(&self.text, seen.text).map(|text| Delta::Text {
            message,
            offset: seen.text,
            text,
        });
        thinking
            .into_iter()
            .chain(text)
            .map(|delta| Watched::Delta(Arc::new(delta)))
            .collect()
    }
}

/// Bytes that an event has in memory, about: as many as it is written with, and its frame.
fn size(event: &NumberedEvent) -> usize {
    let mut written = Counted(size_of::<NumberedEvent>());
    // What cannot be written was never stored.
    let _ = serde_json::to_writer(&mut written, event);
    written.0
}

/// Counts what is written, and forgets it.
struct Counted(usize);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
