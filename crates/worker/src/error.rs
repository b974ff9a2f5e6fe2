//! Why a job has no result.

use std::io;
use std::time::Duration;

use crate::file::FileFault;

/// Why a job has no result, in words for people and models. None of them holds a secret, as workers know none.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The statement is not one that may run.
    #[error("the statement was refused: {why}. {remedy}")]
    Refused {
        /// What in it is not allowed, or not understood.
        why: String,
        /// What to write instead; a sentence.
        remedy: String,
    },
    /// The script threw, or is no JavaScript.
    #[error("the script failed{}: {message}", .line.map(|line| format!(" in line {line}")).unwrap_or_default())]
    Failed {
        /// What was thrown.
        message: String,
        /// The line of the script, from 1, where it is known.
        line: Option<u32>,
    },
    /// The job used more than it may.
    #[error("{what} was stopped: it {why}")]
    Limit {
        /// The job: the statement, or the script.
        what: &'static str,
        /// Which limit it met.
        why: String,
    },
    /// The statement for a file failed.
    #[error(transparent)]
    File(FileFault),
    /// Everybody is at work, and as many jobs as may wait do.
    #[error("{waiting} jobs wait for a worker already; try again in a moment")]
    Busy {
        /// How many wait.
        waiting: usize,
    },
    /// There was no answer in time. The process was killed; the next job has another.
    #[error("the worker did not finish {what} within {} s and was replaced", .deadline.as_secs_f64())]
    Late {
        /// The job.
        what: &'static str,
        /// How long it had.
        deadline: Duration,
    },
    /// The process ended in the middle of a job. The next job has another.
    #[error("the worker broke down over {what} ({how}) and was replaced")]
    Crashed {
        /// The job.
        what: &'static str,
        /// How it ended.
        how: String,
    },
    /// What the process says makes no sense. It was killed; the next job has another.
    #[error("the worker talked nonsense over {what} and was replaced: {why}")]
    Nonsense {
        /// The job.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// The process cannot give up its rights on this machine, and therefore does not work.
    #[error(
        "the worker cannot confine itself on this machine and therefore does nothing: {0}; `belljar doctor` says more"
    )]
    Unconfined(String),
    /// There is no process.
    #[error("cannot start the worker {program}")]
    Start {
        /// What was to be started.
        program: String,
        /// Why it was not.
        #[source]
        source: io::Error,
    },
}
