//! Lines over a unix socket, with descriptors beside them: how the host agent and the control plane speak, and PID 1 of a
//! sandbox and its hands.
//!
//! Each side believes nothing of the other: lines have a longest, descriptors a most, and who wants none gets none.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::Interest;
use tokio::net::UnixStream;

/// How many descriptors wait at most for the lines that announce them.
const MOST_DESCRIPTORS: usize = 64;

/// What a buffer keeps between lines.
const USUAL: usize = 64 << 10;

/// Whether descriptors are taken from the other side, or closed by the kernel on arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Descriptors {
    /// They are taken; those that no line is read for wait, a few.
    Taken,
    /// The kernel closes them.
    Refused,
}

/// What went wrong between two lines.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// A line has no end where it should have one.
    #[error("a line is longer than {0} bytes")]
    TooLong(usize),
    /// The other side went away before it had said all.
    #[error("the connection broke off in the middle of a line")]
    Broken,
    /// The other side sent more descriptors than it spoke of, or the kernel said no.
    #[error("the connection failed")]
    Io(#[source] io::Error),
    /// A line is not what it should be.
    #[error("a line is malformed")]
    Malformed(#[source] serde_json::Error),
}

/// The reading half.
#[derive(Debug)]
pub struct Lines {
    stream: Arc<UnixStream>,
    longest: usize,
    descriptors: Descriptors,
    buffer: Vec<u8>,
    /// How much of the buffer is known to hold no end of a line.
    looked: usize,
    waiting: VecDeque<OwnedFd>,
}

impl Lines {
    /// Reads lines of at most about so many bytes.
    #[must_use]
    pub fn new(stream: Arc<UnixStream>, longest: usize, descriptors: Descriptors) -> Self {
        Self {
            stream,
            longest,
            descriptors,
            buffer: Vec::new(),
            looked: 0,
            waiting: VecDeque::new(),
        }
    }

    /// What the next line says; none after the last. Nothing is lost when the future is dropped.
    ///
    /// # Errors
    /// [`ChannelError`]: nothing after it can be understood, save after `Malformed`.
    pub async fn read<T: DeserializeOwned>(&mut self) -> Result<Option<T>, ChannelError> {
        let line = self.next().await?;
        line.map(|line| serde_json::from_slice(&line).map_err(ChannelError::Malformed))
            .transpose()
    }

    /// The next line without its end; none after the last. Nothing is lost when the future is dropped.
    ///
    /// # Errors
    /// [`ChannelError`]: nothing after it can be understood.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, ChannelError> {
        loop {
            if let Some(end) = self.buffer[self.looked..].iter().position(|byte| *byte == b'\n') {
                let rest = self.buffer.split_off(self.looked + end + 1);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                line.pop();
                if self.buffer.capacity() > USUAL {
                    self.buffer.shrink_to(USUAL);
                }
                self.looked = 0;
                return Ok(Some(line));
            }
            self.looked = self.buffer.len();
            if self.looked > self.longest {
                return Err(ChannelError::TooLong(self.longest));
            }
            if self.receive().await.map_err(ChannelError::Io)? == 0 {
                return if self.buffer.is_empty() {
                    Ok(None)
                } else {
                    Err(ChannelError::Broken)
                };
            }
        }
    }

    /// The descriptor that came with a line that was read.
    pub fn descriptor(&mut self) -> Option<OwnedFd> {
        self.waiting.pop_front()
    }

    async fn receive(&mut self) -> io::Result<usize> {
        let stream = Arc::clone(&self.stream);
        stream
            .async_io(Interest::READABLE, || {
                let mut chunk = [0; 8 << 10];
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
                let room = if self.descriptors == Descriptors::Taken {
                    space.len()
                } else {
                    0
                };
                let mut control = RecvAncillaryBuffer::new(&mut space[..room]);
                let mut parts = [IoSliceMut::new(&mut chunk)];
                let received = rustix::net::recvmsg(&stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
                for message in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                        self.waiting.extend(descriptors);
                    }
                }
                if self.waiting.len() > MOST_DESCRIPTORS {
                    return Err(ErrorKind::InvalidData.into());
                }
                self.buffer.extend_from_slice(&chunk[..received.bytes]);
                Ok(received.bytes)
            })
            .await
    }
}

/// Writes a line, and a descriptor with its first byte. What was begun must be ended: half a line ends the connection.
///
/// # Errors
/// When the other side is gone.
pub async fn write(stream: &UnixStream, line: &impl Serialize, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut bytes = serde_json::to_vec(line)?;
    bytes.push(b'\n');
    let mut sent = 0;
    if let Some(descriptor) = descriptor {
        let descriptors = [descriptor];
        sent = stream
            .async_io(Interest::WRITABLE, || {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
                    return Err(ErrorKind::OutOfMemory.into());
                }
                let flags = SendFlags::NOSIGNAL;
                Ok(rustix::net::sendmsg(
                    stream,
                    &[IoSlice::new(&bytes)],
                    &mut control,
                    flags,
                )?)
            })
            .await?;
    }
    while sent < bytes.len() {
        sent += stream
            .async_io(Interest::WRITABLE, || {
                Ok(rustix::net::send(stream, &bytes[sent..], SendFlags::NOSIGNAL)?)
            })
            .await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixListener;

    use super::*;

    fn pair(longest: usize, descriptors: Descriptors) -> (UnixStream, Lines) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (ours, Lines::new(Arc::new(theirs), longest, descriptors))
    }

    #[tokio::test]
    async fn descriptors_come_in_the_order_of_their_lines() {
        let (ours, mut lines) = pair(1 << 20, Descriptors::Taken);
        let folder = tempfile::tempdir().unwrap();
        let sender = async {
            for name in ["one", "two"] {
                let listener = UnixListener::bind(folder.path().join(name)).unwrap();
                write(&ours, &"no descriptor", None).await.unwrap();
                write(&ours, &name.repeat(40_000), Some(listener.as_fd()))
                    .await
                    .unwrap();
            }
        };
        let receiver = async {
            for name in ["one", "two"] {
                lines.next().await.unwrap().unwrap();
                assert_eq!(lines.next().await.unwrap().unwrap().len(), 120_002);
                let listener = UnixListener::from(lines.descriptor().unwrap());
                let address = listener.local_addr().unwrap();
                assert!(address.as_pathname().unwrap().ends_with(name));
            }
            assert!(lines.descriptor().is_none());
        };
        tokio::join!(sender, receiver);
    }

    #[tokio::test]
    async fn a_line_is_read_as_what_it_says_or_not_at_all() {
        let (ours, mut lines) = pair(1_000, Descriptors::Refused);
        rustix::net::send(&ours, b"1\nnonsense\n2\n", SendFlags::NOSIGNAL).unwrap();
        assert_eq!(lines.read::<u32>().await.unwrap(), Some(1));
        assert!(matches!(lines.read::<u32>().await, Err(ChannelError::Malformed(_))));
        assert_eq!(lines.read::<u32>().await.unwrap(), Some(2));
        drop(ours);
        assert_eq!(lines.read::<u32>().await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_descriptor_that_nobody_asked_for_is_closed() {
        let (ours, mut lines) = pair(100, Descriptors::Refused);
        let (watched, other) = std::os::unix::net::UnixStream::pair().unwrap();
        write(&ours, &"here you are", Some(other.as_fd())).await.unwrap();
        drop(other);
        assert!(lines.next().await.unwrap().is_some());
        assert!(lines.descriptor().is_none());
        // Its last holder is gone, so the other end of the pair reads its end.
        let mut bytes = [0; 1];
        watched
            .set_read_timeout(Some(std::time::Duration::from_secs(30)))
            .unwrap();
        assert_eq!(std::io::Read::read(&mut &watched, &mut bytes).unwrap(), 0);
    }

    #[tokio::test]
    async fn a_line_without_an_end_is_not_read_for_ever() {
        let (ours, mut lines) = pair(1_000, Descriptors::Refused);
        rustix::net::send(&ours, &[b'x'; 2_000], SendFlags::NOSIGNAL).unwrap();
        assert!(matches!(lines.next().await, Err(ChannelError::TooLong(1_000))));
    }

    #[tokio::test]
    async fn half_a_line_is_none() {
        let (ours, mut lines) = pair(1_000, Descriptors::Refused);
        rustix::net::send(&ours, b"one\nhalf", SendFlags::NOSIGNAL).unwrap();
        drop(ours);
        assert_eq!(lines.next().await.unwrap().unwrap(), b"one");
        assert!(matches!(lines.next().await, Err(ChannelError::Broken)));
    }
}
