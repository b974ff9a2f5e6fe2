//! What one end has read and the other has not yet written. Beyond a bound no more is read.
//!
//! The SSH library gives a peer new room as soon as bytes were read, and stands still, writing included, when it cannot hand
//! them on. Two of it back to back would wait for each other for ever. So its queues are made wide enough never to be full,
//! and reading from the connection stops before they are.
//!
//! What is not read may be the word that gives the other direction room. So two gates that are full at once, that of what a
//! client says and that of what the server says, stay full: no two commands share the second.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use russh::ChannelId;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that are held at most, over all channels of a connection.
const HELD: u32 = 1 << 20;
/// What a message counts beside its bytes.
const MESSAGE: u32 = 256;
/// Messages for which a queue must have room: what is held, what one packet brings beyond it, and what has no bytes.
pub(super) const MESSAGES: usize = (2 * HELD / MESSAGE) as usize;
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
        self.lock().add(channel, -cost(bytes));
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
    i64::try_from(bytes).unwrap_or(i64::MAX).saturating_add(MESSAGE.into())
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
        self.held >= i64::from(HELD)
    }

    fn wake(&mut self) {
        if !self.is_full()
            && let Some(waiting) = self.waiting.take()
        {
            waiting.wake();
        }
    }
}

/// A stream that is read only while its gate holds little.
pub(super) struct Gated<S> {
    inner: S,
    gate: Gate,
}

impl<S> Gated<S> {
    pub(super) const fn new(inner: S, gate: Gate) -> Self {
        Self { inner, gate }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Gated<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        {
            let mut state = self.gate.lock();
            if state.is_full() {
                state.waiting = Some(context.waker().clone());
                return Poll::Pending;
            }
        }
        Pin::new(&mut self.inner).poll_read(context, buffer)
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
