//! What one end has read and the other has not yet written. Beyond a bound no more comes.
//!
//! The SSH library gives a peer new room as soon as bytes were read, and stands still, writing included, when it cannot hand
//! them on. Two of it back to back would wait for each other for ever. So its queues are made wide enough never to be full,
//! and what comes is held up before they are: that of a server by reading no more from its connection.
//!
//! What is not read may be the word that gives the other direction room, so of two ends that read no more none would ever go
//! on. That is why a client's connection is read always. It is the client that is held up: while much of what it said is held,
//! it is given room for so few bytes that only the next look at the gate comes of them, and that look is not taken at once.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use russh::ChannelId;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Bytes of all channels of a connection, from which on it is held up.
const HELD: i64 = 1 << 20;
/// Bytes from which on nothing is read even of a client: what its channels had room for when it was held up, and thousands of
/// looks at the gate.
const MOST: i64 = 4 << 20;
/// What a message counts beside its bytes.
const MESSAGE: i64 = 256;
/// Messages for which a queue must have room: what is held, what one packet brings beyond it, and what has no bytes.
pub(super) const MESSAGES: usize = (2 * MOST / MESSAGE) as usize;
/// Bytes that a channel of a client may have under way.
pub(super) const ROOM: u32 = 256 << 10;
/// The same while the client is held up. The library gives new room when less than half of it is left.
const LITTLE_ROOM: u32 = 2;
/// How long a client that is held up is not looked at, at first, and when nothing moves.
const SHORT: Duration = Duration::from_millis(5);
const LONG: Duration = Duration::from_secs(1);
/// Bytes of requests beside a command, over the life of a channel. They are in the queue before anybody asks for the gate.
pub(super) const BESIDE: usize = 64 << 10;
/// What one of them counts beside its bytes.
const REQUEST: usize = 1 << 10;

/// Counts what is held of one connection.
#[derive(Clone, Default)]
pub(super) struct Gate(Arc<Mutex<State>>);

/// The library hands bytes on before it says that they came, so they may be gone before they were counted: the counts are
/// below zero for that moment.
#[derive(Default)]
struct State {
    held: i64,
    channels: HashMap<ChannelId, Held>,
    waiting: Option<Waker>,
    /// Something was written since somebody looked.
    moved: bool,
}

/// What is counted of a channel.
#[derive(Default)]
struct Held {
    cost: i64,
    beside: usize,
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts for a channel from now on: before its first byte can come, since bytes of channels that are not known were those
    /// of channels that are over.
    pub(super) fn open(&self, channel: ChannelId) {
        self.lock().channels.entry(channel).or_default();
    }

    /// How many channels it counts for.
    pub(super) fn channels(&self) -> usize {
        self.lock().channels.len()
    }

    /// A message with so many bytes was read.
    pub(super) fn came(&self, channel: ChannelId, bytes: usize) {
        self.lock().add(channel, cost(bytes));
    }

    /// It was written.
    pub(super) fn went(&self, channel: ChannelId, bytes: usize) {
        let mut state = self.lock();
        state.moved = true;
        state.add(channel, -cost(bytes));
    }

    /// The room that a channel of a client is given next.
    pub(super) fn room(&self) -> u32 {
        if self.lock().is_full() { LITTLE_ROOM } else { ROOM }
    }

    /// A request came that is neither data nor a command. False: it is one too many, and the connection must end.
    pub(super) fn beside(&self, channel: ChannelId, bytes: usize) -> bool {
        let mut state = self.lock();
        state.channels.get_mut(&channel).is_none_or(|held| {
            held.beside = held.beside.saturating_add(bytes + REQUEST);
            held.beside <= BESIDE
        })
    }

    /// The channel is over; nobody wants what is held of it.
    pub(super) fn close(&self, channel: ChannelId) {
        let mut state = self.lock();
        if let Some(held) = state.channels.remove(&channel) {
            state.held -= held.cost;
            state.wake();
        }
    }
}

fn cost(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX).saturating_add(MESSAGE)
}

impl State {
    fn add(&mut self, channel: ChannelId, cost: i64) {
        if let Some(held) = self.channels.get_mut(&channel) {
            held.cost += cost;
            self.held += cost;
            self.wake();
        }
    }

    fn is_full(&self) -> bool {
        self.held >= HELD
    }

    fn wake(&mut self) {
        if !self.is_full()
            && let Some(waiting) = self.waiting.take()
        {
            waiting.wake();
        }
    }
}

/// A stream that is not read as it comes while its gate holds much.
pub(super) struct Gated<S> {
    inner: S,
    gate: Gate,
    /// How it is read then; not at all where this is nothing.
    pace: Option<Pace>,
}

/// Looks at a stream, with pauses between that grow while nothing moves.
struct Pace {
    pause: Option<Pin<Box<Sleep>>>,
    next: Duration,
}

impl<S> Gated<S> {
    /// A server's connection.
    pub(super) const fn server(inner: S, gate: Gate) -> Self {
        Self {
            inner,
            gate,
            pace: None,
        }
    }

    /// A client's connection.
    pub(super) const fn client(inner: S, gate: Gate) -> Self {
        Self {
            inner,
            gate,
            pace: Some(Pace::NEW),
        }
    }
}

impl Pace {
    const NEW: Self = Self {
        pause: None,
        next: SHORT,
    };

    /// Waits for the end of a pause.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(context));
            self.pause = None;
        }
        Poll::Ready(())
    }

    /// All that was there was read: what comes next waits.
    fn pause(&mut self, context: &mut Context<'_>) {
        let mut pause = Box::pin(sleep(self.next));
        self.next = (2 * self.next).min(LONG);
        // So that its end is heard of.
        let _ = pause.as_mut().poll(context);
        self.pause = Some(pause);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Gated<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let mut state = this.gate.lock();
        let is_full = state.is_full();
        if is_full {
            state.waiting = Some(context.waker().clone());
        }
        let (may_look, moved) = (state.held < MOST, std::mem::take(&mut state.moved));
        drop(state);
        if let Some(pace) = this.pace.as_mut().filter(|_| moved || !is_full) {
            pace.next = SHORT;
        }
        if !is_full {
            return Pin::new(&mut this.inner).poll_read(context, buffer);
        }
        let Some(pace) = this.pace.as_mut().filter(|_| may_look) else {
            return Poll::Pending;
        };
        ready!(pace.poll(context));
        let read = Pin::new(&mut this.inner).poll_read(context, buffer);
        if read.is_pending() {
            pace.pause(context);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Gated<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
