//! The supervisor of a call's processes.
//!
//! A process of its own between the hands and a program. It is a child-subreaper, so whoever is descended from the program,
//! however often it forked away, becomes its child sooner or later. On its standard input it is told what to start
//! ([`Order`]), so that it can be started before that is known. Nothing more is written there for its sake: when the other
//! end closes, by intent or because the hands died, it kills everything beneath it and ends.

mod confine;
mod descendants;
mod order;

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use causes::with_causes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Pid, PidfdFlags, Resource, Rlimit, WaitOptions, WaitStatus, set_dumpable_behavior,
};

pub(crate) use confine::Confinement;
pub(crate) use order::Order;

use crate::process::NOT_STARTED;

/// How much sooner than the hands the kernel should kill a tool's processes when memory runs out.
const OOM_SCORE: i32 = 900;
/// Orphans that end are seen to at least this often.
const REAP_EVERY: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The program could not be started or watched.
#[derive(Debug, thiserror::Error)]
enum SuperviseError {
    #[error("cannot become a supervisor: {attempt}")]
    Prepare {
        attempt: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("cannot understand on standard input what to start")]
    Order(#[source] io::Error),
    #[error("cannot confine {program:?}")]
    Confine {
        program: PathBuf,
        #[source]
        source: confine::ConfineError,
    },
    #[error("cannot start {program:?}")]
    Start {
        program: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot watch {program:?}")]
    Watch {
        program: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Runs a program and lets nothing of it outlive the call: the whole of a supervisor's `main`.
///
/// What to run is read from standard input, of which the program gets the rest if it is to have one. This process adopts
/// every descendant of the program; when the program ends, or the other end of standard input is closed, it kills them all
/// and exits, with the program's code (128 + n after signal n; 125 where the program could not be started, and says why on
/// standard error; 0 where it was never told what to start).
#[must_use]
pub fn supervise() -> ExitCode {
    match prepare().and_then(obey) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            // The hands read this as the program's output.
            eprintln!("belljar: {}", with_causes(&error));
            ExitCode::from(u8::try_from(NOT_STARTED).unwrap_or(1))
        }
    }
}

/// Becomes a supervisor.
fn prepare() -> Result<Option<KilledFirst>, SuperviseError> {
    let attempt = |attempt| {
        move |errno: Errno| SuperviseError::Prepare {
            attempt,
            source: errno.into(),
        }
    };
    let killed_first = KilledFirst::begin();
    // Other programs of its user could make it start what they like. Its own program is open to them again.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(attempt("close its memory"))?;
    // Fails for the leader of a group, which is alone in it already.
    let _ = rustix::process::setsid();
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(attempt("adopt its children"))?;
    rustix::thread::set_no_new_privs(true).map_err(attempt("give up set-uid programs"))?;
    let no_core = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    rustix::process::setrlimit(Resource::Core, no_core).map_err(attempt("forbid core files"))?;
    Ok(killed_first)
}

/// When memory runs out this process, and what it starts, is killed before the hands. Where that cannot be said, the kernel chooses
/// by size alone.
struct KilledFirst {
    score: File,
    before: String,
}

impl KilledFirst {
    fn begin() -> Option<Self> {
        let mut score = File::options()
            .read(true)
            .write(true)
            .open("/proc/self/oom_score_adj")
            .ok()?;
        let before = io::read_to_string(&score).ok()?;
        let own: i32 = before.trim().parse().ok()?;
        if own < OOM_SCORE {
            score.write_all(OOM_SCORE.to_string().as_bytes()).ok()?;
        }
        Some(Self { score, before })
    }

    /// From here on it is so for what was started, and no more for this process.
    fn end(mut self) {
        let _ = self.score.write_all(self.before.as_bytes());
    }
}

/// Waits for its order and carries it out.
fn obey(killed_first: Option<KilledFirst>) -> Result<u8, SuperviseError> {
    let Some(order) = Order::read(lifeline(&io::stdin())).map_err(SuperviseError::Order)? else {
        return Ok(0);
    };
    let main = start(&order);
    if let Some(killed_first) = killed_first {
        killed_first.end();
    }
    let watched = watch(main?);
    descendants::kill_all();
    // Killed with the rest where the lifeline was cut; nobody asks for the code then.
    watched
        .map(|code| code.unwrap_or(128 + 9))
        .map_err(|errno| SuperviseError::Watch {
            program: order.program,
            source: errno.into(),
        })
}

/// Starts the program.
fn start(order: &Order) -> Result<Pid, SuperviseError> {
    let failed = |source| SuperviseError::Start {
        program: order.program.clone(),
        source,
    };
    std::env::set_current_dir(&order.folder).map_err(failed)?;
    let mut command = Command::new(&order.program);
    command
        .arg0(order.program.file_name().unwrap_or(order.program.as_os_str()))
        .args(&order.arguments)
        .env_clear()
        .envs(&order.environment);
    if !order.pass_input {
        command.stdin(Stdio::null());
    }
    let started = match &order.confinement {
        None => command.spawn(),
        // The thread is confined and what it starts inherits that; this process is not, since it has to kill.
        Some(confinement) => std::thread::scope(|scope| {
            scope
                .spawn(|| confinement.enforce().map(|()| command.spawn()))
                .join()
                .unwrap_or_else(|_| Ok(Err(io::Error::other("the thread that starts it panicked"))))
        })
        .map_err(|source| SuperviseError::Confine {
            program: order.program.clone(),
            source,
        })?,
    };
    let child = started.map_err(failed)?;
    i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| failed(io::Error::other("the kernel gave it no number")))
}

/// Waits until the program ends, with its code, or the lifeline is cut, with none.
fn watch(main: Pid) -> Result<Option<u8>, Errno> {
    let pidfd = rustix::process::pidfd_open(main, PidfdFlags::empty())?;
    let input = io::stdin();
    loop {
        // No event is asked for: that the other end has closed is always told.
        let mut watched = [
            PollFd::from_borrowed_fd(lifeline(&input), PollFlags::empty()),
            PollFd::new(&pidfd, PollFlags::IN),
        ];
        match poll(&mut watched, Some(&REAP_EVERY)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let cut = !watched[0].revents().is_empty();
        if let Some(code) = reap(main) {
            return Ok(Some(code));
        }
        if cut {
            return Ok(None);
        }
    }
}

fn lifeline(input: &io::Stdin) -> BorrowedFd<'_> {
    input.as_fd()
}

/// Lets the dead go; the program's code where it is among them.
fn reap(main: Pid) -> Option<u8> {
    let mut code = None;
    while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
        if pid == main {
            code = Some(exit_code(status));
        }
    }
    code
}

fn exit_code(status: WaitStatus) -> u8 {
    let code = status
        .exit_status()
        .or_else(|| status.terminating_signal().map(|signal| 128 + signal))
        .unwrap_or(1);
    u8::try_from(code & 0xff).unwrap_or(1)
}
