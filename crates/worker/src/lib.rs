//! Throw-away processes without secrets, which read what models and sandboxes wrote.
//!
//! A grammar in C and a JavaScript engine are large, and whoever writes their input may know of a mistake in them. So neither
//! runs where keys are: a [`Worker`] hands each job over a pipe to a process that can do nothing but read, write and compute
//! (`belljar worker`), and believes nothing of what comes back: frames have a longest, a job has a deadline, and a process
//! that crashes, hangs or talks nonsense is killed and replaced. A process has one job at a time; one that ran a script or read a
//! file has no second job.
//!
//! * [`Worker`]: the processes, seen from the control plane
//! * [`Checked`]: what is known of an SQL statement that may run
//! * [`ScriptJob`] and [`Fetch`]: a script, and what it may ask of the parent
//! * [`FileQuery`] and [`FileReading`]: a statement for a file of SQLite, and its rows
//! * [`serve`]: the other end of the pipe

mod error;
mod file;
mod process;
mod script;
mod serve;
mod sql;
mod wire;
mod worker;

pub use error::WorkerError;
pub use file::{FileCell, FileFailure, FileFault, FilePart, FileQuery, FileReading, FileSink};
pub use script::{Fetch, FetchRequest, ScriptJob, ScriptLimits, ScriptResult};
pub use serve::{Ask, ScriptFailure, SqlRefusal, Work, confess, serve};
pub use sql::{Checked, Dialect, Named};
pub use worker::{Config, Worker};
