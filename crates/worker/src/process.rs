//! One process, seen from the parent.

use std::ffi::OsStr;
use std::future::Future;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use causes::with_causes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use serde::Serialize;
use tokio::io::BufReader;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::error::WorkerError;
use crate::file::FileQuery;
use crate::script::{Fetch, FetchRequest, ScriptJob, ScriptResult};
use crate::sql::{Checked, Dialect};
use crate::wire::{FrameError, OF_A_STATEMENT, OF_ROWS, Order, Report, VERSION, of_a_script, read, write};
use crate::worker::Config;

/// How long a process that has closed its pipe may take to end before it is killed.
const ENDS: Duration = Duration::from_secs(1);

/// What a job is called in errors.
pub(crate) const STATEMENT: &str = "the statement";
pub(crate) const SCRIPT: &str = "the script";
pub(crate) const READING: &str = "the statement that reads the file";

/// A process that is confined and waits for a job. It is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// How many statements it has checked.
    pub(crate) checked: u32,
}

impl Process {
    /// Starts one with arguments of its own, and waits until it says that it is confined.
    pub(crate) async fn start(config: &Config, own: &[&OsStr], what: &'static str) -> Result<Self, WorkerError> {
        let failed = |source| WorkerError::Start {
            program: config.program.display().to_string(),
            source,
        };
        // What it says of itself is nobody's business: only frames are read.
        let mut child = Command::new(&config.program)
            .args(&config.arguments)
            .args(own)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed(std::io::ErrorKind::BrokenPipe.into()));
        };
        let mut process = Self {
            child,
            input,
            output: BufReader::new(output),
            checked: 0,
        };
        match within(config.start, what, process.hear(what)).await? {
            Report::Ready { version: VERSION } => Ok(process),
            Report::Ready { version } => Err(WorkerError::Nonsense {
                what,
                why: format!("it speaks version {version}, and {VERSION} is spoken here"),
            }),
            Report::Unconfined { why } => Err(WorkerError::Unconfined(why)),
            other => Err(unexpected(what, &other)),
        }
    }

    /// Whether it still lives, as far as the kernel knows.
    pub(crate) fn lives(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Has a statement checked. After any error but a refusal the process is of no use any more.
    pub(crate) async fn check(&mut self, dialect: Dialect, text: &str) -> Result<Checked, WorkerError> {
        let text = text.to_owned();
        self.checked += 1;
        self.say(STATEMENT, &Order::Sql { dialect, text }).await?;
        match self.hear(STATEMENT).await? {
            Report::Checked(checked) => Ok(checked),
            Report::Refused { why, remedy } => Err(WorkerError::Refused { why, remedy }),
            other => Err(unexpected(STATEMENT, &other)),
        }
    }

    /// Runs a script to its end and answers its calls, several at once.
    pub(crate) async fn run(mut self, job: ScriptJob, fetch: &dyn Fetch) -> Result<ScriptResult, WorkerError> {
        let (functions, limits) = (job.functions.clone(), job.limits);
        let longest = of_a_script(limits.output_bytes);
        self.say(SCRIPT, &Order::Script(job)).await?;
        let mut calls = 0;
        let mut answers = FuturesUnordered::new();
        loop {
            // A frame that was read in part must not be lost, so one future reads it whole.
            let report = {
                let mut hearing = std::pin::pin!(read::<Report>(&mut self.output, longest));
                loop {
                    tokio::select! {
                        report = &mut hearing => break report,
                        Some((call, answer)) = answers.next() => {
                            let written = write(&mut self.input, &Order::Answer { call, answer }).await;
                            // Why it does not listen is told by what it said last, or by its end.
                            if written.is_err() {
                                break hearing.await;
                            }
                        }
                    }
                }
            };
            match self.heard(SCRIPT, report).await? {
                Report::Call { call, name, arguments } => {
                    if call != calls || calls >= limits.calls || !functions.contains(&name) {
                        let why = format!("it calls {name} for the {call}th time, which was not agreed");
                        return Err(WorkerError::Nonsense { what: SCRIPT, why });
                    }
                    calls += 1;
                    let request = FetchRequest { name, arguments };
                    answers.push(async move { (call, fetch.fetch(request).await) });
                }
                Report::Returned { value } => return Ok(ScriptResult { value }),
                Report::Failed { message, line } => return Err(WorkerError::Failed { message, line }),
                Report::Limit { why } => return Err(WorkerError::Limit { what: SCRIPT, why }),
                other => return Err(unexpected(SCRIPT, &other)),
            }
        }
    }

    /// Begins to read the file that it was started for.
    pub(crate) async fn query(&mut self, query: FileQuery) -> Result<(), WorkerError> {
        self.say(READING, &Order::File(query)).await
    }

    /// What it says next of the file.
    pub(crate) async fn hear_rows(&mut self) -> Result<Report, WorkerError> {
        let report = read(&mut self.output, OF_ROWS).await;
        self.heard(READING, report).await
    }

    async fn say(&mut self, what: &'static str, order: &impl Serialize) -> Result<(), WorkerError> {
        match write(&mut self.input, order).await {
            Ok(()) => Ok(()),
            Err(FrameError::TooLong(bytes)) => Err(WorkerError::Limit {
                what,
                why: format!("comes with {bytes} bytes, which no worker takes"),
            }),
            Err(_) => Err(self.gone(what).await),
        }
    }

    async fn hear(&mut self, what: &'static str) -> Result<Report, WorkerError> {
        let report = read(&mut self.output, OF_A_STATEMENT).await;
        self.heard(what, report).await
    }

    async fn heard(
        &mut self,
        what: &'static str,
        report: Result<Option<Report>, FrameError>,
    ) -> Result<Report, WorkerError> {
        match report {
            Ok(Some(report)) => Ok(report),
            Ok(None) | Err(FrameError::Pipe(_)) => Err(self.gone(what).await),
            Err(error) => Err(WorkerError::Nonsense {
                what,
                why: with_causes(&error),
            }),
        }
    }

    /// How it ended.
    async fn gone(&mut self, what: &'static str) -> WorkerError {
        let how = match tokio::time::timeout(ENDS, self.child.wait()).await {
            Ok(Ok(status)) => in_words(status),
            _ => "it closed its pipe and stayed".to_owned(),
        };
        WorkerError::Crashed { what, how }
    }
}

/// Waits no longer than that.
pub(crate) async fn within<T>(
    deadline: Duration,
    what: &'static str,
    work: impl Future<Output = Result<T, WorkerError>>,
) -> Result<T, WorkerError> {
    match tokio::time::timeout(deadline, work).await {
        Ok(done) => done,
        Err(_) => Err(WorkerError::Late { what, deadline }),
    }
}

fn unexpected(what: &'static str, report: &Report) -> WorkerError {
    let said = match report {
        Report::Ready { .. } => "that it is ready",
        Report::Unconfined { .. } => "that it is not confined",
        Report::Checked(_) | Report::Refused { .. } => "what it thinks of a statement",
        Report::Call { .. } => "that a script calls",
        Report::Columns { .. } | Report::Rows { .. } | Report::Read | Report::Fault { .. } => "what is in a file",
        Report::Returned { .. } | Report::Failed { .. } | Report::Limit { .. } => "how a script ended",
    };
    WorkerError::Nonsense {
        what,
        why: format!("it says {said}, which was not asked"),
    }
}

fn in_words(status: ExitStatus) -> String {
    match status.signal() {
        // What its limits of memory and of time, and its filter of system calls, end it with.
        Some(libc::SIGABRT) => "it gave up, most likely for want of memory".to_owned(),
        Some(libc::SIGSEGV | libc::SIGBUS) => "it touched memory that is not there, as deep nesting does".to_owned(),
        Some(libc::SIGXCPU) => "it used more processor time than it may".to_owned(),
        Some(libc::SIGSYS) => "it asked the kernel for what it may not have".to_owned(),
        Some(libc::SIGKILL) => "it was killed".to_owned(),
        Some(signal) => format!("signal {signal}"),
        None => format!("it ended with code {}", status.code().unwrap_or_default()),
    }
}
