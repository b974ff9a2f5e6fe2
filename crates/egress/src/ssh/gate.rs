//! What one end has read and the other has not yet written. Beyond a bound no more is read.
//!
//! The SSH library gives a peer new room as soon as bytes were read, and stands still, writing included, when it cannot hand
//! them on. Two of it back to back would wait for each other for ever. So its queues are made wide enough never to be full,
//! and reading from the connection stops before they are.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use russh::ChannelId;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that are held at most, over all channels of a connection.
const HELD: usize = 1 << 20;
/// What a message counts beside its bytes.
const MESSAGE: usize = 256;
/// Messages for which a queue must have room: what is held, what one packet brings beyond it, and what has no bytes.
pub(super) const MESSAGES: usize = 2 * HELD / MESSAGE;

/// Counts what is held of one connection.
#[derive(Clone, Default)]
pub(super) struct Gate(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    held: usize,
    channels: HashMap<ChannelId, usize>,
    waiting: Option<Waker>,
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts for a channel from now on.
    pub(super) fn open(&self, channel: ChannelId) {
        self.lock().channels.insert(channel, 0);
    }

    /// How many channels it counts for.
    pub(super) fn channels(&self) -> usize {
        self.lock().channels.len()
    }

    /// So many bytes were read.
    pub(super) fn came(&self, channel: ChannelId, bytes: usize) {
        let mut state = self.lock();
        if let Some(held) = state.channels.get_mut(&channel) {
            *held += bytes + MESSAGE;
            state.held += bytes + MESSAGE;
        }
    }

    /// They were written.
    pub(super) fn went(&self, channel: ChannelId, bytes: usize) {
        let mut state = self.lock();
        if let Some(held) = state.channels.get_mut(&channel) {
            *held -= bytes + MESSAGE;
            state.held -= bytes + MESSAGE;
            state.wake();
        }
    }

    /// The channel is over; nobody wants what is held of it.
    pub(super) fn close(&self, channel: ChannelId) {
        let mut state = self.lock();
        if let Some(held) = state.channels.remove(&channel) {
            state.held -= held;
            state.wake();
        }
    }
}

impl State {
    fn wake(&mut self) {
        if self.held < HELD
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
            if state.held >= HELD {
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
