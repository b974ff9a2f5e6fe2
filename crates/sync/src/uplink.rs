//! The socket to PID 1: lines of JSON, with descriptors beside them.

use std::collections::HashMap;
use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use protocol::{Content, Fault, FromSync, SYNC_BYTES, SignedUrl, SyncAnswer, SyncRequest, ToSync};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

/// What could not be had of PID 1, or of the control plane through it.
#[derive(Debug, thiserror::Error)]
pub enum UplinkError {
    /// PID 1 is not there any more, or does not keep to what was agreed.
    #[error("the socket to PID 1 failed")]
    Closed(#[source] io::Error),
    /// The same may succeed later.
    #[error("not now: {0}")]
    Later(String),
    /// It never will.
    #[error("refused: {0}")]
    Refused(String),
    /// There is no room on the disk.
    #[error("the disk is full")]
    NoRoom,
}

pub(crate) struct Uplink {
    stream: UnixStream,
    buffer: Vec<u8>,
    next: u64,
    /// Answers to what is not waited for yet.
    early: HashMap<u64, ToSync>,
    /// Orders to keep everything now.
    pub(crate) flushes: Vec<u64>,
}

impl Uplink {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            buffer: Vec::new(),
            next: 1,
            early: HashMap::new(),
            flushes: Vec::new(),
        }
    }

    /// Waits until PID 1 says that files are kept.
    pub(crate) fn begin(&mut self) -> Result<(), UplinkError> {
        loop {
            match self.read()? {
                ToSync::Begin => return Ok(()),
                line => self.keep(line),
            }
        }
    }

    /// Asks the control plane, and waits for its answer.
    pub(crate) fn ask(&mut self, request: SyncRequest) -> Result<SyncAnswer, UplinkError> {
        let number = self.number();
        self.say(&FromSync::Ask { number, request }, None)?;
        match self.answer(number)? {
            ToSync::Answer { answer, .. } => Ok(answer),
            _ => Err(nonsense()),
        }
    }

    /// Has the control plane know something. Of an older one, which does not know what to do with it, nothing is wanted.
    pub(crate) fn tell_if_known(&mut self, request: SyncRequest) -> Result<(), UplinkError> {
        match self.ask(request) {
            Ok(_) | Err(UplinkError::Refused(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Begins to upload a part of a file; [`Uplink::wait`] says what came of it.
    pub(crate) fn put(
        &mut self,
        url: SignedUrl,
        file: impl AsFd,
        at: u64,
        content: Content,
    ) -> Result<u64, UplinkError> {
        let (number, bytes) = (self.number(), content.bytes);
        self.say(&FromSync::Put { number, url, at, bytes }, Some(file.as_fd()))?;
        Ok(number)
    }

    /// Begins to fetch a part of a file.
    pub(crate) fn get(
        &mut self,
        url: SignedUrl,
        file: impl AsFd,
        at: u64,
        content: Content,
    ) -> Result<u64, UplinkError> {
        let (number, bytes) = (self.number(), content.bytes);
        self.say(&FromSync::Get { number, url, at, bytes }, Some(file.as_fd()))?;
        Ok(number)
    }

    /// Waits until an upload or a download is done.
    pub(crate) fn wait(&mut self, number: u64) -> Result<(), UplinkError> {
        match self.answer(number)? {
            ToSync::Done { .. } => Ok(()),
            _ => Err(nonsense()),
        }
    }

    /// Says something that has no answer.
    pub(crate) fn tell(&mut self, line: &FromSync) -> Result<(), UplinkError> {
        self.say(line, None)
    }

    /// Takes in what has come, without waiting for more.
    pub(crate) fn take(&mut self) -> Result<(), UplinkError> {
        let mut piece = [0; 8 << 10];
        loop {
            match rustix::net::recv(&self.stream, &mut piece, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(UplinkError::Closed(io::ErrorKind::UnexpectedEof.into())),
                Ok((_, count)) => self.buffer.extend_from_slice(&piece[..count]),
                Err(rustix::io::Errno::AGAIN) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(UplinkError::Closed(errno.into())),
            }
        }
        while let Some(line) = self.buffered()? {
            self.keep(line);
        }
        Ok(())
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn answer(&mut self, number: u64) -> Result<ToSync, UplinkError> {
        loop {
            let line = match self.early.remove(&number) {
                Some(line) => line,
                None => {
                    let line = self.read()?;
                    self.keep(line);
                    continue;
                }
            };
            return match line {
                ToSync::Failed { fault, reason, .. } => Err(match fault {
                    Fault::Passing => UplinkError::Later(reason),
                    Fault::Lasting => UplinkError::Refused(reason),
                    Fault::NoRoom => UplinkError::NoRoom,
                }),
                line => Ok(line),
            };
        }
    }

    fn keep(&mut self, line: ToSync) {
        match line {
            ToSync::Flush { number } => self.flushes.push(number),
            // Said once, and waited for by itself.
            ToSync::Begin => {}
            ToSync::Answer { number, .. } | ToSync::Done { number } | ToSync::Failed { number, .. } => {
                self.early.insert(number, line);
            }
        }
    }

    /// Waits for a line.
    fn read(&mut self) -> Result<ToSync, UplinkError> {
        loop {
            if let Some(line) = self.buffered()? {
                return Ok(line);
            }
            let mut piece = [0; 16 << 10];
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(UplinkError::Closed(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => self.buffer.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(UplinkError::Closed(error)),
            }
        }
    }

    fn buffered(&mut self) -> Result<Option<ToSync>, UplinkError> {
        let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') else {
            if self.buffer.len() > 2 * SYNC_BYTES {
                return Err(nonsense());
            }
            return Ok(None);
        };
        let rest = self.buffer.split_off(end + 1);
        let line = std::mem::replace(&mut self.buffer, rest);
        serde_json::from_slice(&line)
            .map(Some)
            .map_err(|error| UplinkError::Closed(error.into()))
    }

    fn say(&mut self, line: &FromSync, descriptor: Option<BorrowedFd<'_>>) -> Result<(), UplinkError> {
        let mut bytes = serde_json::to_vec(line).map_err(|error| UplinkError::Closed(error.into()))?;
        bytes.push(b'\n');
        let mut sent = 0;
        if let Some(descriptor) = descriptor {
            let descriptors = [descriptor];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
                return Err(UplinkError::Closed(io::ErrorKind::OutOfMemory.into()));
            }
            let parts = [IoSlice::new(&bytes)];
            sent = rustix::net::sendmsg(&self.stream, &parts, &mut control, SendFlags::NOSIGNAL)
                .map_err(|errno| UplinkError::Closed(errno.into()))?;
        }
        self.stream.write_all(&bytes[sent..]).map_err(UplinkError::Closed)
    }
}

impl AsFd for Uplink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// An answer of another kind than what was asked for.
pub(crate) fn nonsense() -> UplinkError {
    UplinkError::Closed(io::ErrorKind::InvalidData.into())
}
