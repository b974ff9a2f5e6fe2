//! A sandbox's end of a connection, counted.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{Session, spent};

/// What passed over one connection.
pub(crate) struct Meter {
    session: Arc<Session>,
    sent: AtomicU64,
    received: AtomicU64,
    /// Something passed since the last look.
    moved: AtomicBool,
}

impl Meter {
    pub(crate) fn new(session: Arc<Session>) -> Arc<Self> {
        Arc::new(Self {
            session,
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            moved: AtomicBool::new(true),
        })
    }

    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Returns once nothing passed for so long, or up to twice as long.
    pub(crate) async fn idle(&self, time: Duration) {
        while self.moved.swap(false, Ordering::Relaxed) {
            tokio::time::sleep(time).await;
        }
    }

    fn count(&self, own: &AtomicU64, all: &AtomicU64, bytes: usize, most: u64) -> io::Result<()> {
        // A usize fits on every machine that this runs on.
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.moved.store(true, Ordering::Relaxed);
        own.fetch_add(bytes, Ordering::Relaxed);
        if all.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) > most {
            return Err(io::Error::other(spent()));
        }
        Ok(())
    }
}

/// A stream whose bytes are counted; it breaks where the session's are used up.
pub(crate) struct Metered<S> {
    inner: S,
    meter: Arc<Meter>,
}

impl<S> Metered<S> {
    pub(crate) fn new(inner: S, meter: Arc<Meter>) -> Self {
        Self { inner, meter }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.inner).poll_read(context, buffer))?;
        let (meter, session) = (&this.meter, &this.meter.session);
        let read = buffer.filled().len() - before;
        Poll::Ready(meter.count(&meter.sent, &session.used.sent, read, session.limits.upload))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.inner).poll_write(context, bytes))?;
        let (meter, session) = (&this.meter, &this.meter.session);
        meter.count(
            &meter.received,
            &session.used.received,
            written,
            session.limits.download,
        )?;
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.inner).poll_write_vectored(context, slices))?;
        let (meter, session) = (&this.meter, &this.meter.session);
        meter.count(
            &meter.received,
            &session.used.received,
            written,
            session.limits.download,
        )?;
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(context)
    }
}
