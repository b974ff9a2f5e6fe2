//! The client's byte stream, as far as it is well-formed HTTP/1.
//!
//! A head is held back until it is complete and read in only one way. Where a stream breaks that, nothing of the broken
//! part is passed on: the server above sees the end of the stream, and the client a 400 before the connection closes.

mod framing;

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use framing::Framing;
pub(super) use framing::Malformed;

/// How much is read at once where bytes are looked at.
const READ: usize = 16 * 1024;

/// What changes a connection into a tunnel once the upstream has agreed.
#[derive(Clone, Debug, Default)]
pub(super) struct Tunnel(Arc<AtomicBool>);

impl Tunnel {
    /// What the client sends from now on is no HTTP.
    pub(super) fn open(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_open(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Limits of heads.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadLimits {
    /// Bytes of a head.
    pub(super) bytes: usize,
    /// From a head's first byte to its last.
    pub(super) time: Duration,
}

/// A stream of well-formed requests.
pub(super) struct Strict<S> {
    inner: S,
    framing: Framing,
    limits: HeadLimits,
    tunnel: Tunnel,
    /// What was read and not passed on; the first `released` bytes may be.
    raw: BytesMut,
    released: usize,
    deadline: Option<Pin<Box<Sleep>>>,
    ended: bool,
    /// What the client is told before the connection closes.
    farewell: Bytes,
    refuse: fn(Option<Malformed>) -> Bytes,
}

impl<S> Strict<S> {
    /// Watches a stream. `refuse` makes the answer to what is malformed, or (none) not complete in time.
    pub(super) fn new(inner: S, limits: HeadLimits, tunnel: Tunnel, refuse: fn(Option<Malformed>) -> Bytes) -> Self {
        Self {
            inner,
            framing: Framing::new(limits.bytes),
            limits,
            tunnel,
            raw: BytesMut::new(),
            released: 0,
            deadline: None,
            ended: false,
            farewell: Bytes::new(),
            refuse,
        }
    }

    fn examine(&mut self) {
        if self.framing.before_head() && self.tunnel.is_open() {
            self.framing.tunnel();
        }
        match self.framing.examine(&self.raw) {
            Ok(released) => self.released = released,
            Err(malformed) => self.end(Some(malformed)),
        }
    }

    fn end(&mut self, malformed: Option<Malformed>) {
        self.ended = true;
        self.raw.clear();
        self.farewell = (self.refuse)(malformed);
    }
}

impl<S: AsyncRead + Unpin> Strict<S> {
    /// Reads more of what has to be looked at first. False: there is no more.
    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if self.raw.is_empty() {
            self.deadline = None;
        } else {
            let time = self.limits.time;
            let deadline = self
                .deadline
                .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + time)));
            if deadline.as_mut().poll(context).is_ready() {
                self.end(None);
                return Poll::Ready(Ok(false));
            }
        }
        self.raw.reserve(READ);
        let read = ready!(tokio_util::io::poll_read_buf(
            Pin::new(&mut self.inner),
            context,
            &mut self.raw
        ))?;
        Poll::Ready(Ok(read > 0))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Strict<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if this.released > 0 {
                let bytes = this.released.min(buffer.remaining());
                buffer.put_slice(&this.raw[..bytes]);
                this.raw.advance(bytes);
                this.released -= bytes;
                return Poll::Ready(Ok(()));
            }
            if this.ended {
                return Poll::Ready(Ok(()));
            }
            if !this.raw.is_empty() {
                this.examine();
                if this.released > 0 || this.ended {
                    this.deadline = None;
                    continue;
                }
            } else if this.framing.before_head() && this.tunnel.is_open() {
                this.framing.tunnel();
            }
            let open = usize::try_from(this.framing.open()).unwrap_or(usize::MAX);
            if open > 0 {
                let room = open.min(buffer.remaining());
                let mut part = ReadBuf::new(buffer.initialize_unfilled_to(room));
                ready!(Pin::new(&mut this.inner).poll_read(context, &mut part))?;
                let bytes = part.filled().len();
                buffer.advance(bytes);
                this.framing.passed(bytes as u64);
                return Poll::Ready(Ok(()));
            }
            if !ready!(this.poll_more(context))? {
                this.ended = true;
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Strict<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while !this.farewell.is_empty() {
            let written = ready!(Pin::new(&mut this.inner).poll_write(context, &this.farewell))?;
            this.farewell.advance(written);
        }
        Pin::new(&mut this.inner).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}
