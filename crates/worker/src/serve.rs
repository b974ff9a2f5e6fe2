//! The worker's end of the pipe.

use std::io::{self, Read, Write};

use causes::with_causes;
use serde_json::Value;

use crate::file::{FileCell, FileFailure, FileFault, FileQuery, FileSink};
use crate::script::{FetchRequest, ScriptJob};
use crate::sql::{Checked, Dialect};
use crate::wire::{FrameError, OF_ROWS, Order, Report, VERSION, put, put_within, take};

/// Bytes of rows that are said at once.
const PIECE: usize = 64 << 10;

/// Why a statement may not run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SqlRefusal {
    /// What in it is not allowed, or not understood.
    pub why: String,
    /// What to write instead; a sentence.
    pub remedy: String,
}

/// Why a script has no result.
#[derive(Debug)]
pub enum ScriptFailure {
    /// It threw, or is no JavaScript.
    Threw {
        /// What was thrown.
        message: String,
        /// The line of the script, from 1.
        line: Option<u32>,
    },
    /// It met a limit; a phrase that goes on from "it".
    Limit(String),
    /// The parent is gone.
    Abandoned(io::Error),
}

/// How a script reaches the parent.
pub trait Ask {
    /// Sends a call. Calls count from 0.
    ///
    /// # Errors
    /// The parent is gone.
    fn call(&mut self, call: u32, request: FetchRequest) -> io::Result<()>;

    /// Waits for the answer to any of the calls that were sent.
    ///
    /// # Errors
    /// The parent is gone, or says something else.
    fn answer(&mut self) -> io::Result<(u32, Result<Value, String>)>;
}

/// What a worker can do.
pub trait Work {
    /// Checks a statement.
    ///
    /// # Errors
    /// It may not run.
    fn check_sql(&mut self, dialect: Dialect, text: &str) -> Result<Checked, SqlRefusal>;

    /// Runs a script.
    ///
    /// # Errors
    /// It has no result.
    fn run_script(&mut self, job: ScriptJob, ask: &mut dyn Ask) -> Result<Value, ScriptFailure>;

    /// Reads the file that this process was started for.
    ///
    /// # Errors
    /// There are no more rows, and there should be.
    fn read_file(&mut self, query: FileQuery, out: &mut dyn FileSink) -> Result<(), FileFailure>;
}

/// Does jobs until the parent closes the pipe, or has had a script run or a file read.
///
/// # Errors
/// The parent is gone, or talks nonsense.
pub fn serve(mut input: impl Read, mut output: impl Write, work: &mut impl Work) -> io::Result<()> {
    put(&mut output, &Report::Ready { version: VERSION }).map_err(broken)?;
    while let Some(order) = take(&mut input).map_err(broken)? {
        match order {
            Order::Sql { dialect, text } => {
                let report = match work.check_sql(dialect, &text) {
                    Ok(checked) => Report::Checked(checked),
                    Err(SqlRefusal { why, remedy }) => Report::Refused { why, remedy },
                };
                put(&mut output, &report).map_err(broken)?;
            }
            Order::Script(job) => {
                let longest = job.limits.output_bytes;
                let mut pipes = Pipes {
                    input: &mut input,
                    output: &mut output,
                };
                let report = match work.run_script(job, &mut pipes) {
                    Ok(value) => returned(value, longest),
                    Err(ScriptFailure::Threw { message, line }) => Report::Failed { message, line },
                    Err(ScriptFailure::Limit(why)) => Report::Limit { why },
                    Err(ScriptFailure::Abandoned(error)) => return Err(error),
                };
                return put(&mut output, &report).map_err(broken);
            }
            Order::File(query) => {
                let mut rows = Rows {
                    output: &mut output,
                    waiting: Vec::new(),
                    bytes: 0,
                };
                let read = work.read_file(query, &mut rows).and_then(|()| rows.flush());
                let report = match read {
                    Ok(()) => Report::Read,
                    Err(FileFailure::Fault(fault)) => Report::Fault { fault },
                    Err(FileFailure::Abandoned(error)) => return Err(error),
                };
                return put(&mut output, &report).map_err(broken);
            }
            Order::Answer { .. } => return Err(io::Error::other("an answer to no call")),
        }
    }
    Ok(())
}

/// Says that there will be no work, and why.
///
/// # Errors
/// The parent is gone.
pub fn confess(mut output: impl Write, why: &str) -> io::Result<()> {
    put(&mut output, &Report::Unconfined { why: why.to_owned() }).map_err(broken)
}

fn returned(value: Value, longest: u64) -> Report {
    let bytes = serde_json::to_string(&value).map_or(u64::MAX, |text| text.len() as u64);
    if bytes > longest {
        let why = format!("returned {bytes} bytes of JSON, and may return {longest}");
        return Report::Limit { why };
    }
    Report::Returned { value }
}

fn broken(error: FrameError) -> io::Error {
    io::Error::other(with_causes(&error))
}

struct Pipes<'a, R, W> {
    input: &'a mut R,
    output: &'a mut W,
}

impl<R: Read, W: Write> Ask for Pipes<'_, R, W> {
    fn call(&mut self, call: u32, request: FetchRequest) -> io::Result<()> {
        let FetchRequest { name, arguments } = request;
        put(self.output, &Report::Call { call, name, arguments }).map_err(broken)
    }

    fn answer(&mut self) -> io::Result<(u32, Result<Value, String>)> {
        match take(self.input).map_err(broken)? {
            Some(Order::Answer { call, answer }) => Ok((call, answer)),
            Some(_) => Err(io::Error::other("a second job in the middle of a script")),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Rows on their way, several at once.
struct Rows<'a, W> {
    output: &'a mut W,
    waiting: Vec<Vec<FileCell>>,
    bytes: usize,
}

impl<W: Write> Rows<'_, W> {
    fn flush(&mut self) -> Result<(), FileFailure> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let rows = std::mem::take(&mut self.waiting);
        self.bytes = 0;
        match put_within(self.output, &Report::Rows { rows }, OF_ROWS) {
            Ok(()) => Ok(()),
            Err(FrameError::TooLong(_)) => Err(too_large()),
            Err(error) => Err(FileFailure::Abandoned(broken(error))),
        }
    }
}

impl<W: Write> FileSink for Rows<'_, W> {
    fn columns(&mut self, columns: Vec<(String, String)>) -> io::Result<()> {
        put(self.output, &Report::Columns { columns }).map_err(broken)
    }

    fn row(&mut self, cells: Vec<FileCell>) -> Result<(), FileFailure> {
        let bytes: usize = cells.iter().map(FileCell::size).sum();
        if bytes > OF_ROWS {
            return Err(too_large());
        }
        if self.bytes + bytes > PIECE {
            self.flush()?;
        }
        self.waiting.push(cells);
        self.bytes += bytes;
        Ok(())
    }
}

fn too_large() -> FileFailure {
    FileFault::TooLarge(format!("a row has more than {OF_ROWS} bytes")).into()
}
