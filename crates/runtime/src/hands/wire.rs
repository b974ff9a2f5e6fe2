//! Lines and descriptors over a socketpair.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::Interest;
use tokio::net::UnixStream;

/// The longest line, the same as on the control stream.
const LONGEST: usize = 16 << 20;

/// Bytes read at once.
const PIECE: usize = 16 << 10;

/// Descriptors that may wait for their line.
const DESCRIPTORS: usize = 16;

/// The other side broke off, or does not keep to the protocol.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    #[error("cannot read from the other side")]
    Read(#[source] io::Error),
    #[error("cannot write to the other side")]
    Write(#[source] io::Error),
    #[error("the other side sent a line of more than {LONGEST} bytes")]
    TooLong,
    #[error("the other side sent more descriptors than it spoke of")]
    Descriptors,
    #[error("the other side sent a malformed line")]
    Malformed(#[source] serde_json::Error),
}

pub(crate) struct Receiver {
    socket: Arc<UnixStream>,
    buffer: Vec<u8>,
    searched: usize,
    descriptors: VecDeque<OwnedFd>,
}

impl Receiver {
    pub(crate) fn new(socket: Arc<UnixStream>) -> Self {
        Self {
            socket,
            buffer: Vec::new(),
            searched: 0,
            descriptors: VecDeque::new(),
        }
    }

    /// The next line; none when the other side has closed. Nothing is lost when this is dropped and called again.
    pub(crate) async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, WireError> {
        loop {
            if let Some(end) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
                let end = self.searched + end;
                let value = serde_json::from_slice(&self.buffer[..end]).map_err(WireError::Malformed)?;
                self.buffer.drain(..=end);
                if self.buffer.capacity() > 4 * PIECE {
                    self.buffer.shrink_to(PIECE);
                }
                self.searched = 0;
                return Ok(Some(value));
            }
            self.searched = self.buffer.len();
            if self.searched > LONGEST {
                return Err(WireError::TooLong);
            }
            if self.fill().await? == 0 {
                return Ok(None);
            }
        }
    }

    /// The next descriptor: that of the line that was read last, where the line says that one comes with it.
    pub(crate) fn descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptors.pop_front()
    }

    async fn fill(&mut self) -> Result<usize, WireError> {
        let (buffer, descriptors, socket) = (&mut self.buffer, &mut self.descriptors, &self.socket);
        let read = socket
            .async_io(Interest::READABLE, || {
                let mut piece = [0; PIECE];
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut ancillary = RecvAncillaryBuffer::new(&mut space);
                let pieces = &mut [IoSliceMut::new(&mut piece)];
                let read = recvmsg(socket, pieces, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?.bytes;
                for message in ancillary.drain() {
                    if let RecvAncillaryMessage::ScmRights(sent) = message {
                        descriptors.extend(sent);
                    }
                }
                buffer.extend_from_slice(&piece[..read]);
                Ok(read)
            })
            .await
            .map_err(WireError::Read)?;
        if self.descriptors.len() > DESCRIPTORS {
            return Err(WireError::Descriptors);
        }
        Ok(read)
    }
}

/// Sends a line, and with it a descriptor. What was begun must be ended: a line that was sent in part ends the wire.
pub(crate) async fn send(
    socket: &UnixStream,
    value: &impl Serialize,
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<(), WireError> {
    let mut line = serde_json::to_vec(value).map_err(WireError::Malformed)?;
    line.push(b'\n');
    let mut sent = 0;
    while sent < line.len() {
        let rest = &line[sent..];
        // A descriptor travels with the first byte.
        let beside = descriptor.filter(|_| sent == 0);
        sent += socket
            .async_io(Interest::WRITABLE, || {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut ancillary = SendAncillaryBuffer::new(&mut space);
                let descriptors = beside.as_slice();
                if !descriptors.is_empty() {
                    ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
                }
                Ok(sendmsg(
                    socket.as_fd(),
                    &[IoSlice::new(rest)],
                    &mut ancillary,
                    SendFlags::NOSIGNAL,
                )?)
            })
            .await
            .map_err(WireError::Write)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn pair() -> (Arc<UnixStream>, Receiver) {
        let (near, far) = UnixStream::pair().unwrap();
        (Arc::new(near), Receiver::new(Arc::new(far)))
    }

    #[tokio::test]
    async fn descriptors_arrive_with_their_lines_and_in_order() {
        let (near, mut far) = pair();
        for text in ["first", "second"] {
            let mut file = tempfile::tempfile().unwrap();
            io::Write::write_all(&mut file, text.as_bytes()).unwrap();
            io::Seek::rewind(&mut file).unwrap();
            send(&near, &text, Some(file.as_fd())).await.unwrap();
            send(&near, &"no file", None).await.unwrap();
        }
        for text in ["first", "second"] {
            assert_eq!(far.next::<String>().await.unwrap().as_deref(), Some(text));
            let mut content = String::new();
            std::fs::File::from(far.descriptor().unwrap())
                .read_to_string(&mut content)
                .unwrap();
            assert_eq!(content, text);
            assert_eq!(far.next::<String>().await.unwrap().as_deref(), Some("no file"));
        }
        assert!(far.descriptor().is_none());
    }

    #[tokio::test]
    async fn a_long_line_passes_while_both_sides_work_and_the_end_is_the_end() {
        let (near, mut far) = pair();
        let long = "x".repeat(1 << 20);
        let (sent, received) = tokio::join!(send(&near, &long, None), far.next::<String>());
        sent.unwrap();
        assert!(received.unwrap().as_ref() == Some(&long));
        drop(near);
        assert!(far.next::<String>().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_malformed_line_is_an_error() {
        let (near, mut far) = pair();
        near.try_write(b"nonsense\n").unwrap();
        assert!(matches!(far.next::<u32>().await, Err(WireError::Malformed(_))));
    }
}
