//! The supervisor of a call's processes.
//!
//! A process of its own between the hands and a program. It is a child-subreaper, so whoever is descended from the program,
//! however often it forked away, becomes its child sooner or later. Its standard input is a pipe that nobody writes to for
//! its sake: when the other end closes, by intent or because the hands died, it kills everything beneath it and ends.

mod confine;
mod descendants;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use causes::with_causes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, WaitOptions, WaitStatus};

pub(crate) use confine::Confinement;

use crate::process::NOT_STARTED;

/// How much sooner than the hands the kernel should kill a tool's processes when memory runs out.
const OOM_SCORE: i32 = 900;
/// Orphans that end are seen to at least this often.
const REAP_EVERY: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The program could not be started or watched.
#[derive(Debug, thiserror::Error)]
enum SuperviseError {
    #[error("a supervisor's arguments are [--confine JSON] [--pass-input] -- PROGRAM ARGUMENT…, not {0:?}")]
    Usage(OsString),
    #[error("cannot become the supervisor of {program:?}: {attempt}")]
    Prepare {
        program: OsString,
        attempt: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("cannot confine {program:?}")]
    Confine {
        program: OsString,
        #[source]
        source: confine::ConfineError,
    },
    #[error("cannot start {program:?}")]
    Start {
        program: OsString,
        #[source]
        source: io::Error,
    },
    #[error("cannot watch {program:?}")]
    Watch {
        program: OsString,
        #[source]
        source: io::Error,
    },
}

struct Order {
    confinement: Option<Confinement>,
    pass_input: bool,
    program: OsString,
    arguments: Vec<OsString>,
}

/// Runs a program and lets nothing of it outlive the call: the whole of a supervisor's `main`.
///
/// Arguments: `[--confine JSON] [--pass-input] -- PROGRAM ARGUMENT…`. This process adopts every descendant of the program;
/// when the program ends, or the other end of its own standard input is closed, it kills them all and exits, with the
/// program's code (128 + n after signal n; 125 where the program could not be started, and says why on standard error).
pub fn supervise(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    match Order::parse(arguments).and_then(|order| run(&order)) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            // The hands read this as the program's output.
            eprintln!("belljar: {}", with_causes(&error));
            ExitCode::from(u8::try_from(NOT_STARTED).unwrap_or(1))
        }
    }
}

impl Order {
    fn parse(mut arguments: impl Iterator<Item = OsString>) -> Result<Self, SuperviseError> {
        let (mut confinement, mut pass_input) = (None, false);
        loop {
            let argument = arguments.next().unwrap_or_default();
            match argument.to_str() {
                Some("--confine") => {
                    let text = arguments.next().unwrap_or_default();
                    let parsed = text.to_str().and_then(Confinement::from_json);
                    confinement = Some(parsed.ok_or(SuperviseError::Usage(text))?);
                }
                Some("--pass-input") => pass_input = true,
                Some("--") => break,
                _ => return Err(SuperviseError::Usage(argument)),
            }
        }
        let program = arguments
            .next()
            .ok_or_else(|| SuperviseError::Usage("no program".into()))?;
        Ok(Self {
            confinement,
            pass_input,
            program,
            arguments: arguments.collect(),
        })
    }
}

fn run(order: &Order) -> Result<u8, SuperviseError> {
    prepare().map_err(|(attempt, errno)| SuperviseError::Prepare {
        program: order.program.clone(),
        attempt,
        source: errno.into(),
    })?;
    let main = start(order)?;
    let watched = watch(main);
    descendants::kill_all();
    // Killed with the rest where the lifeline was cut; nobody asks for the code then.
    watched
        .map(|code| code.unwrap_or(128 + 9))
        .map_err(|errno| SuperviseError::Watch {
            program: order.program.clone(),
            source: errno.into(),
        })
}

fn prepare() -> Result<(), (&'static str, Errno)> {
    // Fails for the leader of a group, which is alone in it already.
    let _ = rustix::process::setsid();
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|errno| ("adopt its children", errno))?;
    rustix::thread::set_no_new_privs(true).map_err(|errno| ("give up set-uid programs", errno))?;
    let no_core = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    rustix::process::setrlimit(Resource::Core, no_core).map_err(|errno| ("forbid core files", errno))
}

/// Starts the program, which is killed before the hands when memory runs out.
fn start(order: &Order) -> Result<Pid, SuperviseError> {
    let before = fs::read_to_string("/proc/self/oom_score_adj").ok();
    let own = before.as_deref().and_then(|text| text.trim().parse::<i32>().ok());
    if own.is_some_and(|own| own < OOM_SCORE) {
        // Where it cannot be said, the kernel chooses by size alone.
        let _ = fs::write("/proc/self/oom_score_adj", OOM_SCORE.to_string());
    }
    let mut command = Command::new(&order.program);
    command
        .arg0(PathBuf::from(&order.program).file_name().unwrap_or(&order.program))
        .args(&order.arguments);
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
    if let Some(before) = before {
        let _ = fs::write("/proc/self/oom_score_adj", before);
    }
    let child = started.map_err(|source| SuperviseError::Start {
        program: order.program.clone(),
        source,
    })?;
    i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| SuperviseError::Start {
            program: order.program.clone(),
            source: io::Error::other("the kernel gave it no number"),
        })
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
