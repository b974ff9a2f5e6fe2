//! What was ordered and is not answered yet, and the stream on which orders go.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use domain::ToolCallId;
use protocol::{PROTOCOL, ToControl, ToRuntime, VersionError};
use tokio::sync::{mpsc, oneshot, watch};

use super::files::FileReader;
use super::linked::FileSource;
use crate::lines;

/// What an order waits for.
pub(super) enum Await {
    Claimed,
    Result(ToolCallId),
    Stopped(u64),
    /// A transfer, and the bytes that it sends in, if it does.
    Transfer(u64, Option<FileSource>),
}

/// What came.
pub(super) enum Answer {
    Line(ToControl),
    File(FileReader),
}

#[derive(PartialEq, Eq, Hash, Clone)]
enum Key {
    Claimed,
    Result(ToolCallId),
    Stopped(u64),
    Transfer(u64),
}

struct Waiting {
    ticket: u64,
    answer: oneshot::Sender<Answer>,
    source: Option<FileSource>,
    /// It sends bytes in, so none come out.
    sends: bool,
}

struct Stream {
    number: u64,
    /// What the runtime at its end speaks.
    protocol: u32,
    orders: mpsc::Sender<Bytes>,
}

#[derive(Default)]
struct State {
    /// The control stream: a newer one takes the place of an older.
    stream: Option<Stream>,
    /// Why the last one that came was refused.
    refused: Option<VersionError>,
    waiting: HashMap<Key, Waiting>,
}

pub(super) struct Orders {
    next: AtomicU64,
    state: Mutex<State>,
    connected: watch::Sender<bool>,
}

impl Orders {
    pub(super) fn new() -> (Self, watch::Receiver<bool>) {
        let (connected, watched) = watch::channel(false);
        let orders = Self {
            next: AtomicU64::new(1),
            state: Mutex::default(),
            connected,
        };
        (orders, watched)
    }

    pub(super) fn next_request(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes this the stream that orders go on. What waits for an answer on an older one waits in vain, and is told so.
    pub(super) fn connect(&self, orders: mpsc::Sender<Bytes>, protocol: u32) -> u64 {
        let number = self.next_request();
        let mut state = self.state();
        state.waiting.clear();
        state.stream = Some(Stream {
            number,
            protocol,
            orders,
        });
        state.refused = None;
        self.connected.send_replace(true);
        number
    }

    /// A control stream came that is not understood.
    pub(super) fn refuse(&self, error: VersionError) {
        self.state().refused = Some(error);
    }

    pub(super) fn refused(&self) -> Option<VersionError> {
        self.state().refused.clone()
    }

    /// The stream of that number has ended.
    pub(super) fn disconnect(&self, number: u64) {
        let mut state = self.state();
        if state.stream.as_ref().is_some_and(|stream| stream.number == number) {
            state.waiting.clear();
            state.stream = None;
            self.connected.send_replace(false);
        }
    }

    pub(super) fn disconnect_all(&self) {
        let mut state = self.state();
        state.waiting.clear();
        state.stream = None;
        self.connected.send_replace(false);
    }

    /// The protocol of the runtime that is connected; none where none is.
    pub(super) fn protocol(&self) -> Option<u32> {
        self.state().stream.as_ref().map(|stream| stream.protocol)
    }

    /// False: there is no stream, or it ended.
    pub(super) async fn send(&self, order: &ToRuntime) -> bool {
        let Some((orders, line)) = self.line(order) else {
            return false;
        };
        orders.send(line).await.is_ok()
    }

    /// False: there is no stream, or too much waits on it already.
    pub(super) fn send_at_once(&self, order: &ToRuntime) -> bool {
        self.line(order)
            .is_some_and(|(orders, line)| orders.try_send(line).is_ok())
    }

    /// The stream that there is, and the order as a line of it.
    fn line(&self, order: &ToRuntime) -> Option<(mpsc::Sender<Bytes>, Bytes)> {
        let (orders, protocol) = {
            let state = self.state();
            let stream = state.stream.as_ref()?;
            (stream.orders.clone(), stream.protocol)
        };
        let line = if protocol < PROTOCOL {
            lines::encode(&order.clone().in_protocol(protocol))
        } else {
            lines::encode(order)
        };
        Some((orders, line))
    }

    /// Remembers who waits for what, until the guard is dropped.
    pub(super) fn register(&self, awaited: Await, answer: oneshot::Sender<Answer>) -> Registration<'_> {
        let (key, source) = match awaited {
            Await::Claimed => (Key::Claimed, None),
            Await::Result(call) => (Key::Result(call), None),
            Await::Stopped(request) => (Key::Stopped(request), None),
            Await::Transfer(request, source) => (Key::Transfer(request), source),
        };
        let ticket = self.next_request();
        let waiting = Waiting {
            ticket,
            answer,
            sends: source.is_some(),
            source,
        };
        self.state().waiting.insert(key.clone(), waiting);
        Registration {
            orders: self,
            key,
            ticket,
        }
    }

    /// Gives an answer to who waits for it. Gives back what nobody waits for: an event, or an answer that is too late.
    pub(super) fn answer(&self, line: ToControl) -> Option<ToControl> {
        let key = match &line {
            ToControl::Claimed { .. } => Key::Claimed,
            ToControl::Result { result } => Key::Result(result.id.clone()),
            ToControl::Stopped { request } => Key::Stopped(*request),
            ToControl::Transferred { request, .. } => Key::Transfer(*request),
            ToControl::LoopEnded { .. }
            | ToControl::Progress { .. }
            | ToControl::Background { .. }
            | ToControl::Alive
            | ToControl::HandsReplaced => return Some(line),
        };
        if let Some(waiting) = self.state().waiting.remove(&key) {
            // Whoever waited may have gone: then nobody is told.
            let _ = waiting.answer.send(Answer::Line(line));
        }
        None
    }

    /// The bytes that a transfer sends in; once.
    pub(super) fn take_source(&self, request: u64) -> Option<FileSource> {
        self.state().waiting.get_mut(&Key::Transfer(request))?.source.take()
    }

    /// Gives the bytes of a file to who asked for them. False: nobody did.
    pub(super) fn deliver(&self, request: u64, reader: FileReader) -> bool {
        let mut state = self.state();
        let key = Key::Transfer(request);
        if state.waiting.get(&key).is_none_or(|waiting| waiting.sends) {
            return false;
        }
        state
            .waiting
            .remove(&key)
            .is_some_and(|waiting| waiting.answer.send(Answer::File(reader)).is_ok())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct Registration<'a> {
    orders: &'a Orders,
    key: Key,
    ticket: u64,
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        let mut state = self.orders.state();
        // Somebody else may wait for the same by now.
        if state
            .waiting
            .get(&self.key)
            .is_some_and(|waiting| waiting.ticket == self.ticket)
        {
            state.waiting.remove(&self.key);
        }
    }
}
