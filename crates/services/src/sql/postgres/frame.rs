//! Messages of a server, none of which is larger than it may be: one row could have a gigabyte.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, TlsStream};

/// The largest message.
pub(super) const LARGEST: u32 = 16 << 20;
/// A message begins with its kind and its length, which counts itself.
const HEAD: usize = 5;

/// Whether a message was too large. Clones share it: the stream says so, and whoever waits for an answer reads it.
#[derive(Clone, Default)]
pub(super) struct Overflow(Arc<AtomicBool>);

impl Overflow {
    pub(super) fn happened(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A stream of messages that ends before one that is too large.
pub(super) struct Measured<S> {
    inner: S,
    overflow: Overflow,
    head: [u8; HEAD],
    filled: usize,
    /// Bytes until the next message.
    left: u32,
}

impl<S> Measured<S> {
    pub(super) fn new(inner: S, overflow: Overflow) -> Self {
        Self {
            inner,
            overflow,
            head: [0; HEAD],
            filled: 0,
            left: 0,
        }
    }

    fn measure(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            if self.left > 0 {
                let skipped = bytes.len().min(self.left as usize);
                self.left -= u32::try_from(skipped).unwrap_or(self.left);
                bytes = &bytes[skipped..];
                continue;
            }
            self.head[self.filled] = bytes[0];
            self.filled += 1;
            bytes = &bytes[1..];
            if self.filled == HEAD {
                let [_, a, b, c, d] = self.head;
                self.filled = 0;
                self.left = u32::from_be_bytes([a, b, c, d]).saturating_sub(4);
                if self.left > LARGEST {
                    self.overflow.0.store(true, Ordering::Relaxed);
                    return Err(io::ErrorKind::FileTooLarge.into());
                }
            }
        }
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Measured<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(context, into))?;
        Poll::Ready(self.measure(&into.filled()[before..]))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Measured<S> {
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

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Measured<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}
