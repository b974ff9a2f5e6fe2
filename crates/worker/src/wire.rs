//! What goes over the pipe: a frame is its length in four bytes, the lowest first, and so many bytes of JSON.

use std::io::{self, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::file::{FileCell, FileFault, FileQuery};
use crate::script::ScriptJob;
use crate::sql::{Checked, Dialect};

/// The version of what is said here. Both ends are one file, save where somebody set another program.
pub(crate) const VERSION: u32 = 1;

/// The longest frame to a worker: the most that a script may be given, with room.
pub(crate) const LONGEST: usize = 64 << 20;

/// The longest report on a statement, which may have a quarter of it. What is read becomes many times its size, and a worker
/// may be somebody else's by then.
pub(crate) const OF_A_STATEMENT: usize = 1 << 20;

/// The longest report of rows: a row of the largest value and as much again, or many small ones.
pub(crate) const OF_ROWS: usize = 32 << 20;

/// What a script's report has beside the value or the arguments.
const AROUND: usize = 64 << 10;

/// The longest report of a script that may return so many bytes.
pub(crate) fn of_a_script(output_bytes: u64) -> usize {
    usize::try_from(output_bytes)
        .unwrap_or(LONGEST)
        .saturating_add(AROUND)
        .min(LONGEST)
}

/// From the parent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Order {
    /// Check a statement.
    Sql { dialect: Dialect, text: String },
    /// Run a script; then end.
    Script(ScriptJob),
    /// Read the file that the process was started for; then end.
    File(FileQuery),
    /// The answer to a call of the script.
    Answer { call: u32, answer: Result<Value, String> },
}

/// From the worker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Report {
    /// The first frame: it is confined and waits for jobs.
    Ready { version: u32 },
    /// In its place: it could not be confined, and ends.
    Unconfined { why: String },
    /// The statement may run.
    Checked(Checked),
    /// The statement may not.
    Refused { why: String, remedy: String },
    /// The script calls a function of the parent's. Calls count from 0.
    Call {
        call: u32,
        name: String,
        arguments: Vec<Value>,
    },
    /// The script returned.
    Returned { value: Value },
    /// The script threw.
    Failed { message: String, line: Option<u32> },
    /// What the rows have, before the first.
    Columns { columns: Vec<(String, String)> },
    /// Rows of a file.
    Rows { rows: Vec<Vec<FileCell>> },
    /// There are no more rows.
    Read,
    /// There are no more rows, and there should be.
    Fault { fault: FileFault },
    /// The script met one of its limits.
    Limit { why: String },
}

/// What is wrong with what was read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("a frame of {0} bytes is longer than any may be")]
    TooLong(usize),
    #[error("the pipe broke")]
    Pipe(#[source] io::Error),
    #[error("a frame is malformed")]
    Malformed(#[source] serde_json::Error),
}

fn length(bytes: [u8; 4]) -> Result<usize, FrameError> {
    match usize::try_from(u32::from_le_bytes(bytes)) {
        Ok(length) if length <= LONGEST => Ok(length),
        length => Err(FrameError::TooLong(length.unwrap_or(usize::MAX))),
    }
}

fn frame(message: &impl Serialize, longest: usize) -> Result<Vec<u8>, FrameError> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message).map_err(FrameError::Malformed)?;
    let body = bytes.len() - 4;
    let announced = u32::try_from(body).ok().filter(|_| body <= longest);
    let announced = announced.ok_or(FrameError::TooLong(body))?;
    bytes[..4].copy_from_slice(&announced.to_le_bytes());
    Ok(bytes)
}

/// Reads a frame; none where the other side has closed the pipe.
pub(crate) async fn read<T: DeserializeOwned>(
    pipe: &mut (impl AsyncRead + Unpin),
    longest: usize,
) -> Result<Option<T>, FrameError> {
    let mut announced = [0; 4];
    match pipe.read_exact(&mut announced).await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read.map_err(FrameError::Pipe)?,
    };
    // What was announced is not believed: the buffer grows with what comes.
    let mut body = Vec::new();
    let announced = length(announced)?;
    if announced > longest {
        return Err(FrameError::TooLong(announced));
    }
    let read = pipe.take(announced as u64).read_to_end(&mut body).await;
    if read.map_err(FrameError::Pipe)? < announced {
        return Ok(None);
    }
    serde_json::from_slice(&body).map(Some).map_err(FrameError::Malformed)
}

/// Writes a frame.
pub(crate) async fn write(pipe: &mut (impl AsyncWrite + Unpin), message: &impl Serialize) -> Result<(), FrameError> {
    let bytes = frame(message, LONGEST)?;
    pipe.write_all(&bytes).await.map_err(FrameError::Pipe)?;
    pipe.flush().await.map_err(FrameError::Pipe)
}

/// [`read`] for the worker, which waits.
pub(crate) fn take<T: DeserializeOwned>(pipe: &mut impl Read) -> Result<Option<T>, FrameError> {
    let mut announced = [0; 4];
    match pipe.read_exact(&mut announced) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read.map_err(FrameError::Pipe)?,
    }
    let mut body = vec![0; length(announced)?];
    pipe.read_exact(&mut body).map_err(FrameError::Pipe)?;
    serde_json::from_slice(&body).map(Some).map_err(FrameError::Malformed)
}

/// [`write`] for the worker, which waits.
pub(crate) fn put(pipe: &mut impl Write, message: &impl Serialize) -> Result<(), FrameError> {
    put_within(pipe, message, LONGEST)
}

/// [`put`] of a frame that may not have more than so many bytes.
pub(crate) fn put_within(pipe: &mut impl Write, message: &impl Serialize, longest: usize) -> Result<(), FrameError> {
    pipe.write_all(&frame(message, longest)?).map_err(FrameError::Pipe)?;
    pipe.flush().map_err(FrameError::Pipe)
}
