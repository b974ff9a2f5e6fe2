//! The worker's end of the pipe.

use std::io::{self, Read, Write};

use causes::with_causes;
use serde_json::Value;

use crate::script::{FetchRequest, ScriptJob};
use crate::sql::{Checked, Dialect};
use crate::wire::{Order, Report, VERSION, put, take};

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
}

/// Does jobs until the parent closes the pipe, or has had a script run.
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

fn broken(error: crate::wire::FrameError) -> io::Error {
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
