//! The control stream's framing: one JSON value a line.

use std::io;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt};

/// The longest line. A tool's arguments and its result (pictures included) fit; what is longer ends the stream.
pub(crate) const LONGEST: usize = 16 << 20;

/// The longest greeting.
pub(crate) const GREETING: usize = 1 << 10;

/// The length that a buffer keeps between lines.
const USUAL: usize = 8 << 10;

/// The most parts of one message. A workspace's whole list has a quarter of it.
pub(crate) const PARTS: usize = 500_000;

/// A control stream that cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// The connection failed.
    #[error("cannot read the control stream")]
    Read(#[source] io::Error),
    /// The connection ended in the middle of a line.
    #[error("the control stream ended in the middle of a line")]
    Cut,
    /// A line is longer than any honest one.
    #[error("a line of the control stream is longer than {0} bytes")]
    TooLong(usize),
    /// A line is not what the protocol says.
    #[error("a line of the control stream is malformed")]
    Malformed(#[source] serde_json::Error),
}

/// A value as a line.
pub(crate) fn encode(value: &impl Serialize) -> Bytes {
    // The wire types hold nothing that JSON cannot say; a line that is empty is malformed to the other side.
    let mut line = serde_json::to_vec(value).unwrap_or_default();
    line.push(b'\n');
    line.into()
}

/// Reads lines of bounded length.
pub(crate) struct LineReader<R> {
    from: R,
    buffer: Vec<u8>,
    /// How much of the buffer was searched for a line's end and has none.
    searched: usize,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    pub(crate) fn new(from: R) -> Self {
        Self {
            from,
            buffer: Vec::with_capacity(USUAL),
            searched: 0,
        }
    }

    /// The next line, of at most so many bytes; none at the end. Nothing is lost when this is dropped and called again.
    pub(crate) async fn next<T: DeserializeOwned>(&mut self, longest: usize) -> Result<Option<T>, LineError> {
        loop {
            if let Some(end) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
                return self.take(self.searched + end).map(Some);
            }
            self.searched = self.buffer.len();
            if self.searched >= longest {
                return Err(LineError::TooLong(longest));
            }
            if self.from.read_buf(&mut self.buffer).await.map_err(LineError::Read)? == 0 {
                return if self.buffer.is_empty() {
                    Ok(None)
                } else {
                    Err(LineError::Cut)
                };
            }
        }
    }

    fn take<T: DeserializeOwned>(&mut self, end: usize) -> Result<T, LineError> {
        let value = protocol::parse(PARTS, &self.buffer[..end]).map_err(LineError::Malformed);
        let rest = self.buffer.len() - end - 1;
        self.buffer.copy_within(end + 1.., 0);
        // A claim's line holds a token: nothing of a line stays behind.
        self.buffer[rest..].fill(0);
        self.buffer.truncate(rest);
        if self.buffer.capacity() > 4 * USUAL {
            self.buffer.shrink_to(USUAL);
        }
        self.searched = 0;
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(bytes: &[u8]) -> Vec<Result<Option<u32>, String>> {
        let mut reader = LineReader::new(bytes);
        let mut read = Vec::new();
        loop {
            let line = reader.next(LONGEST).await.map_err(|error| error.to_string());
            let last = !matches!(line, Ok(Some(_)));
            read.push(line);
            if last {
                return read;
            }
        }
    }

    #[tokio::test]
    async fn lines_are_read_whole_and_in_order() {
        assert_eq!(
            read(b"1\n 22 \n3\n").await,
            [Ok(Some(1)), Ok(Some(22)), Ok(Some(3)), Ok(None)]
        );
    }

    #[tokio::test]
    async fn a_malformed_or_cut_or_endless_line_is_an_error() {
        assert_eq!(
            read(b"1\nx\n").await[1],
            Err("a line of the control stream is malformed".into())
        );
        assert_eq!(read(b"1\n2").await[1], Err(LineError::Cut.to_string()));
        assert_eq!(
            read(b"\n").await[0],
            Err("a line of the control stream is malformed".into())
        );
        assert_eq!(
            read(&vec![b'1'; LONGEST + USUAL]).await,
            [Err(LineError::TooLong(LONGEST).to_string())]
        );
    }
}
