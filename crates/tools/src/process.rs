//! The one way to start a program.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lifecycle::Stop;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::Settings;
use crate::supervise::{Confinement, Order};

/// How long a supervisor may take to kill everything before its call is answered without it.
const KILL_WAIT: Duration = Duration::from_secs(5);
/// How long output is read once every process is dead; it is there already, then.
const DRAIN_WAIT: Duration = Duration::from_secs(1);
/// The exit code with which a supervisor says that it could not start the program.
pub(crate) const NOT_STARTED: i32 = 125;

/// Starts programs, each beneath a supervisor.
#[derive(Debug)]
pub(crate) struct Launcher {
    supervisor: Vec<OsString>,
    workspace: PathBuf,
    environment: Mutex<Arc<BTreeMap<String, String>>>,
    /// A supervisor is started before its program is known.
    ahead: AtomicBool,
    spare: Mutex<Option<Supervisor>>,
}

/// A supervisor that waits for its order. Dropped, it ends.
#[derive(Debug)]
struct Supervisor {
    process: Child,
    /// A socket, which nobody can open anew as he could a pipe (`/proc/<pid>/fd/0`), to give orders of his own.
    input: UnixStream,
    output: pipe::Receiver,
}

/// A program to be started.
pub(crate) struct Program<'a> {
    pub(crate) path: &'a Path,
    pub(crate) arguments: &'a [String],
    /// Its whole environment.
    pub(crate) environment: &'a BTreeMap<String, String>,
    /// It reads what is written by [`Running::write`]; otherwise its input is empty.
    pub(crate) input: bool,
    pub(crate) confinement: Option<&'a Confinement>,
}

/// A program that runs, with its supervisor. Dropped, all of it is killed.
#[derive(Debug)]
pub(crate) struct Running {
    supervisor: Child,
    /// The lifeline: closed, everything dies.
    input: Option<UnixStream>,
    /// What of the order has not been written yet.
    unsent: Vec<u8>,
    /// Output and errors, in the order in which they were written.
    output: pipe::Receiver,
}

/// How a program ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// By itself, with this code; 128 + n after signal n; 0 where it had done its work.
    Exited(i32),
    /// It took too long.
    TimedOut,
    /// The call was stopped.
    Stopped,
}

/// A program could not be run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// Its supervisor could not be started.
    #[error("cannot start {program}")]
    Start {
        program: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Its supervisor is out of control.
    #[error("lost sight of {program}")]
    Lost {
        program: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl Launcher {
    pub(crate) fn new(settings: &Settings, workspace: PathBuf) -> Self {
        Self {
            supervisor: settings.supervisor.clone(),
            workspace,
            environment: Mutex::new(Arc::new(settings.environment.clone())),
            ahead: AtomicBool::new(false),
            spare: Mutex::default(),
        }
    }

    /// Keeps a supervisor started ahead from now on: a new one. To be called within a tokio runtime.
    pub(crate) async fn stand_by(&self) {
        self.rest().await;
        self.ahead.store(true, Ordering::Relaxed);
        self.start_ahead();
    }

    /// Starts none ahead from now on, and ends the one that waits.
    pub(crate) fn rest(&self) -> impl Future<Output = ()> + use<> {
        self.ahead.store(false, Ordering::Relaxed);
        let spare = self.take();
        async {
            if let Some(mut spare) = spare {
                // What cannot be ended here ends with the hands.
                let _ = spare.process.kill().await;
            }
        }
    }

    fn take(&self) -> Option<Supervisor> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn start_ahead(&self) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if self.ahead.load(Ordering::Relaxed) && spare.is_none() {
            // Why it cannot be started is said to the call that needs it.
            *spare = Supervisor::start(&self.supervisor).ok();
        }
    }

    /// The environment that the session gives its programs.
    pub(crate) fn environment(&self) -> Arc<BTreeMap<String, String>> {
        Arc::clone(&self.environment.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set_environment(&self, environment: BTreeMap<String, String>) {
        *self.environment.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(environment);
    }

    /// Starts a program in the workspace. To be called within a tokio runtime.
    pub(crate) fn start(&self, program: &Program<'_>) -> Result<Running, RunError> {
        let failed = |source| RunError::Start {
            program: program.path.to_owned(),
            source,
        };
        let order = Order {
            program: program.path.to_owned(),
            arguments: program.arguments.to_vec(),
            environment: program.environment.clone(),
            folder: self.workspace.clone(),
            pass_input: program.input,
            confinement: program.confinement.cloned(),
        };
        let order = order.written().map_err(failed)?;
        // One that died meanwhile is no trouble.
        let spare = self.take().and_then(|spare| Some((spare.tell(&order).ok()?, spare)));
        let (told, supervisor) = match spare {
            Some(told) => told,
            None => {
                let new = Supervisor::start(&self.supervisor).map_err(failed)?;
                match new.tell(&order) {
                    Ok(told) => (told, new),
                    // What has died already has said why.
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => (order.len(), new),
                    Err(error) => return Err(failed(error)),
                }
            }
        };
        // Beside the program, which has to begin.
        self.start_ahead();
        Ok(Running {
            supervisor: supervisor.process,
            input: Some(supervisor.input),
            unsent: order[told..].to_vec(),
            output: supervisor.output,
        })
    }
}

impl Supervisor {
    /// Starts one, without environment.
    fn start(words: &[OsString]) -> io::Result<Self> {
        let (program, leading) = words
            .split_first()
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no supervisor is set"))?;
        let (output, writer) = io::pipe()?;
        let (input, far) = std::os::unix::net::UnixStream::pair()?;
        input.set_nonblocking(true)?;
        let mut command = Command::new(program);
        command
            .args(leading)
            .env_clear()
            .stdin(OwnedFd::from(far))
            .stdout(writer.try_clone()?)
            .stderr(writer);
        let process = command.spawn()?;
        // It holds the other ends: only the program's own may stay open.
        drop(command);
        Ok(Self {
            process,
            input: UnixStream::from_std(input)?,
            output: pipe::Receiver::from_owned_fd(output.into())?,
        })
    }

    /// Tells it what to start, as far as the socket takes that at once; how far that is.
    fn tell(&self, order: &[u8]) -> io::Result<usize> {
        // A program of its user's may have made it stand still.
        if let Some(pid) = self.process.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
            let _ = kill_process(pid, Signal::CONT);
        }
        let mut told = 0;
        while told < order.len() {
            match rustix::io::write(&self.input, &order[told..]) {
                Ok(written) => told += written,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(told)
    }
}

impl Running {
    /// Writes to the program's input, which it has to have.
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let input = self.input.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        input.write_all(&std::mem::take(&mut self.unsent)).await?;
        input.write_all(bytes).await
    }

    /// Gives each piece of output to `take` until the program ends, `deadline` or `stop`. When it returns, every process of
    /// the program is dead.
    pub(crate) async fn finish(
        self,
        program: &Path,
        deadline: Instant,
        stop: &Stop,
        mut take: impl FnMut(&[u8]) + Send,
    ) -> Result<End, RunError> {
        let take = |bytes: &[u8]| {
            take(bytes);
            ControlFlow::Continue(())
        };
        self.finish_when(program, deadline, stop, take).await
    }

    /// The same; where `take` breaks, the program has done its work, and ends then whether it wants to or not.
    pub(crate) async fn finish_when(
        mut self,
        program: &Path,
        deadline: Instant,
        stop: &Stop,
        mut take: impl FnMut(&[u8]) -> ControlFlow<()> + Send,
    ) -> Result<End, RunError> {
        let mut buffer = vec![0; 16 * 1024];
        let mut open = true;
        let end = loop {
            tokio::select! {
                // The output first: what was written before the end belongs to it.
                biased;
                read = self.output.read(&mut buffer), if open => match read {
                    Ok(0) | Err(_) => open = false,
                    Ok(length) => if take(&buffer[..length]).is_break() {
                        self.kill(program).await?;
                        return Ok(End::Exited(0));
                    },
                },
                sent = send(self.input.as_mut(), &self.unsent), if !self.unsent.is_empty() => match sent {
                    Ok(sent) => drop(self.unsent.drain(..sent)),
                    // It has died, as is seen in a moment.
                    Err(_) => self.unsent.clear(),
                },
                status = self.supervisor.wait() => {
                    let status = status.map_err(|source| RunError::Lost { program: program.to_owned(), source })?;
                    break End::Exited(code(status));
                }
                () = stop.cancelled() => break End::Stopped,
                () = tokio::time::sleep_until(deadline) => break End::TimedOut,
            }
        };
        if !matches!(end, End::Exited(_)) {
            self.kill(program).await?;
        }
        let drained = async {
            while open {
                match self.output.read(&mut buffer).await {
                    Ok(0) | Err(_) => open = false,
                    Ok(length) => open = take(&buffer[..length]).is_continue(),
                }
            }
        };
        // A process that left its supervisor by killing it may hold the pipe open for ever.
        let _ = tokio::time::timeout(DRAIN_WAIT, drained).await;
        Ok(end)
    }

    /// Whether it still runs.
    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.supervisor.try_wait(), Ok(None))
    }

    /// Kills every process of the program and waits until they are dead.
    pub(crate) async fn end(mut self, program: &Path) -> Result<(), RunError> {
        self.kill(program).await
    }

    async fn kill(&mut self, program: &Path) -> Result<(), RunError> {
        let lost = |source| RunError::Lost {
            program: program.to_owned(),
            source,
        };
        self.input = None;
        match tokio::time::timeout(KILL_WAIT, self.supervisor.wait()).await {
            Ok(status) => status.map(|_| ()).map_err(lost),
            Err(_) => self.supervisor.kill().await.map_err(lost),
        }
    }
}

async fn send(input: Option<&mut UnixStream>, unsent: &[u8]) -> io::Result<usize> {
    input.ok_or(io::ErrorKind::BrokenPipe)?.write(unsent).await
}

fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .unwrap_or(-1)
}
