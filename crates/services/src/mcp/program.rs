//! An MCP server that is a program on this machine.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use lifecycle::Tasks;
use rmcp::RoleClient;
use rmcp::transport::async_rw::AsyncRwTransport;
use rustix::process::{Pid, Resource, Signal, kill_process_group};
use scrub::Scrub;
use secret::Secret;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader, ReadBuf};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

use super::confine::{ConfineError, Confinement, NOBODY};
use super::watch::Watched;
use crate::definition::Command as Defined;
use crate::refusal::words;

/// Where programs are looked for.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What each process may use: files of that many bytes, open files, processor time in seconds. Memory is what it may write to:
/// engines of JavaScript and their like keep many times that in addresses alone.
const LIMITS: &[(Resource, u64)] = &[
    (Resource::Core, 0),
    (Resource::Cpu, 3_600),
    (Resource::Data, 2 << 30),
    (Resource::Fsize, LARGEST),
    (Resource::Memlock, 0),
    (Resource::Msgqueue, 0),
    (Resource::Nofile, 1_024),
];

/// Bytes of the largest file.
const LARGEST: u64 = 256 << 20;

/// The most that is logged of what one program says on its standard error, in bytes.
const LOGGED: u64 = 64 << 10;

/// What a program may write besides the answers that were asked for, in bytes.
const UNASKED: u64 = 1 << 20;
/// For how many answers at once a program is given room.
const AT_ONCE: u64 = 16;

/// A program that runs, until this is dropped.
pub(super) struct Program {
    /// It is not waited for, so that the number stays its own.
    _child: Child,
    watched: Watched,
    /// Goes with it.
    scratch: Option<TempDir>,
}

/// How many bytes a program may still write. It is filled up at each call.
#[derive(Clone, Default)]
pub(super) struct Budget(Arc<AtomicU64>);

/// The program's standard output, as far as the budget goes.
pub(super) struct Metered {
    output: ChildStdout,
    budget: Budget,
}

pub(super) type Pipes = AsyncRwTransport<RoleClient, Metered, ChildStdin>;

/// A program does not run.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProgramError {
    #[error("there is no program {0:?} in {PATH}")]
    Unknown(String),
    #[error("make a folder for it to work in")]
    Scratch(#[source] io::Error),
    #[error("confine it")]
    Confine(#[from] ConfineError),
    #[error("start it")]
    Start(#[source] io::Error),
}

impl Program {
    /// Starts a program, confined, with an environment of what its definition says and one secret.
    pub(super) fn start(
        service: &str,
        folder: &Path,
        defined: &Defined,
        secret: Option<(&str, &Secret)>,
        line: usize,
        tasks: &Tasks,
    ) -> Result<(Self, Pipes, Budget), ProgramError> {
        let folder = std::path::absolute(folder).map_err(ProgramError::Scratch)?;
        let scratch = tempfile::Builder::new()
            .prefix("belljar-mcp-")
            .tempdir()
            .map_err(ProgramError::Scratch)?;
        if rustix::process::geteuid().is_root() {
            let owner = Some(NOBODY);
            std::os::unix::fs::chown(scratch.path(), owner, owner).map_err(ProgramError::Scratch)?;
        }
        let mut words = arguments(&folder, &defined.words)?.into_iter();
        let mut command = Command::new(words.next().unwrap_or_default());
        command
            .args(words)
            .env_clear()
            .env("PATH", PATH)
            .env("HOME", scratch.path())
            .env("TMPDIR", scratch.path())
            .env("LANG", "C.UTF-8")
            .envs(defined.environment.iter().map(|(name, text)| (name, text)))
            .envs(secret.map(|(name, secret)| (name, secret.expose())))
            .current_dir(scratch.path())
            .kill_on_drop(true)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        sys::child::enclose(command.as_std_mut(), LIMITS);
        let mut read = defined.read.clone();
        read.push(folder);
        let confinement = Confinement {
            scratch: scratch.path(),
            read,
            ports: &defined.ports,
        };
        let runtime = tokio::runtime::Handle::current();
        let mut child = confinement
            .start(|| {
                let _inside = runtime.enter();
                command.spawn()
            })?
            .map_err(ProgramError::Start)?;
        let (Some(input), Some(output), Some(errors)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(ProgramError::Start(io::ErrorKind::BrokenPipe.into()));
        };
        let scrub = Scrub::of(secret.map(|(_, secret)| secret));
        tasks.spawn_until_stopped(log(service.to_owned(), errors, scrub));
        let budget = Budget::default();
        let metered = Metered {
            output,
            budget: budget.clone(),
        };
        let pipes = AsyncRwTransport::new_client(metered, input).with_max_line_length(line);
        let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let Some(session) = id else {
            return Err(ProgramError::Start(io::ErrorKind::BrokenPipe.into()));
        };
        let watched = Watched::new(service, session, scratch.path(), LARGEST).map_err(|error| {
            // It may have started others meanwhile. There may be nothing left.
            let _ = kill_process_group(session, Signal::KILL);
            ProgramError::Start(error)
        })?;
        let program = Self {
            _child: child,
            watched,
            scratch: Some(scratch),
        };
        Ok((program, pipes, budget))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.watched.end();
        // As deep as the program made it: removed by another process, whose stack is its own.
        if let Some(scratch) = self.scratch.take().map(TempDir::keep) {
            std::thread::spawn(move || {
                let _ = std::process::Command::new("/bin/rm")
                    .args(["-rf", "--"])
                    .arg(scratch)
                    .status();
            });
        }
    }
}

/// The program and its arguments: found in the path, or in the service's folder.
fn arguments(folder: &Path, words: &[String]) -> Result<Vec<OsString>, ProgramError> {
    let mut arguments: Vec<OsString> = words
        .iter()
        .map(|word| match word.strip_prefix("./") {
            Some(rest) => folder.join(rest).into(),
            None => word.into(),
        })
        .collect();
    let unknown = || ProgramError::Unknown(words.first().cloned().unwrap_or_default());
    let program = arguments.first_mut().ok_or_else(unknown)?;
    let found = if PathBuf::from(&*program).is_absolute() {
        Some(PathBuf::from(&*program))
    } else {
        PATH.split(':')
            .map(|part| Path::new(part).join(&*program))
            .find(|path| path.is_file())
    };
    *program = found.filter(|path| path.is_file()).ok_or_else(unknown)?.into();
    Ok(arguments)
}

/// Logs what a program says on its standard error, and reads the rest so that it does not wait.
async fn log(service: String, errors: ChildStderr, scrub: Scrub) {
    let mut errors = BufReader::new(errors);
    let mut line = Vec::new();
    let mut left = LOGGED;
    loop {
        line.clear();
        // Without an end of line the next part is a line of its own.
        match (&mut errors).take(4 << 10).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(read) => {
                let read = read as u64;
                if left > 0 {
                    let said = scrub.clean_slice(&line);
                    let said = words(String::from_utf8_lossy(&said));
                    tracing::info!(service, said, "an MCP server writes to its standard error");
                    if left <= read {
                        tracing::warn!(
                            service,
                            "no more of what this MCP server writes to its standard error is logged"
                        );
                    }
                }
                left = left.saturating_sub(read);
            }
        }
    }
}

impl Budget {
    /// The program may write an answer of this many bytes, and some more that nobody asked for.
    pub(super) fn grant(&self, bytes: u64) {
        let bytes = bytes.saturating_add(UNASKED);
        let most = bytes.saturating_mul(AT_ONCE);
        // The closure always says something.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            Some(left.saturating_add(bytes).min(most))
        });
    }

    /// Takes bytes away; false where there were not as many.
    fn take(&self, bytes: u64) -> bool {
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes))
            .is_ok()
    }
}

impl AsyncRead for Metered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.output).poll_read(context, buffer);
        let read = (buffer.filled().len() - before) as u64;
        if self.budget.take(read) {
            return polled;
        }
        buffer.set_filled(before);
        Poll::Ready(Err(io::Error::other("the program writes more than it was asked for")))
    }
}
