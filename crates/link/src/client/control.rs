//! The control stream, as a runtime sees it.

use std::fmt;

use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use protocol::{Hello, ToControl, ToRuntime};
use tokio::io::{AsyncWriteExt, ReadHalf, WriteHalf};

use super::{ClientError, lost};
use crate::lines::{self, LineReader};

/// An open control stream: its two directions.
#[derive(Debug)]
pub struct Control {
    /// Orders.
    pub reader: ControlReader,
    /// Answers and events.
    pub writer: ControlWriter,
}

/// Orders from the control plane.
pub struct ControlReader(LineReader<ReadHalf<TokioIo<Upgraded>>>);

/// The way for answers and events.
pub struct ControlWriter(WriteHalf<TokioIo<Upgraded>>);

impl fmt::Debug for ControlReader {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ControlReader")
    }
}

impl fmt::Debug for ControlWriter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ControlWriter")
    }
}

impl ControlReader {
    /// The next order; none when the control plane has closed the stream. Nothing is lost when this is dropped and called
    /// again.
    ///
    /// # Errors
    /// When the stream broke off or what came is malformed: it must be opened anew.
    pub async fn next(&mut self) -> Result<Option<ToRuntime>, ClientError> {
        Ok(self.0.next(lines::LONGEST).await?)
    }
}

impl ControlWriter {
    /// Says something.
    ///
    /// # Errors
    /// When the stream is broken: it must be opened anew.
    pub async fn send(&mut self, line: &ToControl) -> Result<(), ClientError> {
        self.0
            .write_all(&lines::encode(line))
            .await
            .map_err(|error| lost("speak on the control stream", error))
    }
}

/// Says hello and hears who answers.
pub(super) async fn greet(stream: TokioIo<Upgraded>, ours: &Hello) -> Result<(Control, Hello), ClientError> {
    let attempt = "say hello on the control stream";
    let (read, mut write) = tokio::io::split(stream);
    let mut lines = LineReader::new(read);
    write
        .write_all(&lines::encode(ours))
        .await
        .map_err(|error| lost(attempt, error))?;
    let hello: Hello = lines
        .next(lines::GREETING)
        .await?
        .ok_or_else(|| lost(attempt, "it was closed"))?;
    hello.check()?;
    let control = Control {
        reader: ControlReader(lines),
        writer: ControlWriter(write),
    };
    Ok((control, hello))
}
