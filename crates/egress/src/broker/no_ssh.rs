//! A stream that passes unread may be anything but SSH, whose rules are explicit (threat 15).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{Code, Denied};

/// How both ends of SSH begin (RFC 4253, section 4.2). A server takes nothing else for a client's beginning.
const BEGIN: &[u8] = b"SSH-";

/// A client's stream that breaks where its first bytes, either way, are those of SSH.
pub(super) struct NoSsh<S> {
    inner: S,
    rule: String,
    /// Of what was said, what may still become a beginning, and of that what was yielded.
    said: Vec<u8>,
    yielded: usize,
    is_said: bool,
    heard: usize,
    is_heard: bool,
}

impl<S> NoSsh<S> {
    pub(super) fn new(inner: S, rule: &str) -> Self {
        Self {
            inner,
            rule: rule.to_owned(),
            said: Vec::new(),
            yielded: 0,
            is_said: false,
            heard: 0,
            is_heard: false,
        }
    }

    fn refuse<T>(&self) -> Poll<io::Result<T>> {
        let denied = Denied::new(
            Code::Protocol,
            "it is SSH, which does not pass by a rule with `tcp`",
            "ask whoever runs this installation for a rule with schemes = [\"ssh\"], which names the user, the key and the host's key",
        );
        Poll::Ready(Err(io::Error::other(denied.by(&*self.rule))))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for NoSsh<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.is_said {
            let mut bytes = [0; BEGIN.len()];
            let most = BEGIN.len() - self.said.len();
            let mut more = ReadBuf::new(&mut bytes[..most]);
            ready!(Pin::new(&mut self.inner).poll_read(context, &mut more))?;
            let more = more.filled().to_vec();
            self.said.extend(&more);
            self.is_said = more.is_empty() || !BEGIN.starts_with(&self.said);
            if self.said == BEGIN {
                return self.refuse();
            }
        }
        let held = &self.said[self.yielded..];
        if held.is_empty() {
            return Pin::new(&mut self.inner).poll_read(context, buffer);
        }
        let bytes = held.len().min(buffer.remaining());
        buffer.put_slice(&held[..bytes]);
        self.yielded += bytes;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for NoSsh<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_heard {
            return Pin::new(&mut self.inner).poll_write(context, bytes);
        }
        let rest = &BEGIN[self.heard..];
        let compared = rest.len().min(bytes.len());
        if bytes[..compared] == rest[..compared] && compared == rest.len() {
            return self.refuse();
        }
        let is_other = bytes[..compared] != rest[..compared];
        // No more of it than is compared, so that what is written next is compared too.
        let most = if is_other { bytes.len() } else { compared };
        let written = ready!(Pin::new(&mut self.inner).poll_write(context, &bytes[..most]))?;
        self.is_heard = is_other;
        self.heard += if is_other { 0 } else { written };
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
