//! A sandbox's PID 1, seen from outside.

use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid};
use serde::{Deserialize, Serialize};

/// Names a process for ever: the number is given to others later, the number and the start time are not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Identity {
    /// The number.
    pub pid: i32,
    /// In ticks since the machine was started.
    started: u64,
}

/// A process that can be waited for, whoever its parent is.
#[derive(Debug)]
pub struct Process {
    /// Which one it is.
    pub identity: Identity,
    handle: OwnedFd,
}

impl AsFd for Process {
    /// Is ready for reading when the process has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

impl Process {
    /// The process that has this number now.
    ///
    /// # Errors
    /// Where none has.
    pub fn open(pid: i32) -> io::Result<Self> {
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let handle = pidfd_open(Pid::from_raw(pid).ok_or_else(gone)?, PidfdFlags::empty())?;
        let started = start_time(pid)?;
        Ok(Self {
            identity: Identity { pid, started },
            handle,
        })
    }

    /// The process of that identity; none if it has ended.
    #[must_use]
    pub fn find(identity: Identity) -> Option<Self> {
        Self::open(identity.pid)
            .ok()
            .filter(|process| process.identity == identity && process.lives())
    }

    /// Whether it has not ended.
    #[must_use]
    pub fn lives(&self) -> bool {
        !self.ends_within(Duration::ZERO)
    }

    /// Tells it to die.
    pub fn kill(&self) {
        // The only failure is that it has ended already.
        let _ended = pidfd_send_signal(&self.handle, Signal::KILL);
    }

    /// How it ended by itself, if it is there to be buried by this process.
    #[must_use]
    pub fn exit_code(&self) -> Option<i32> {
        let seen = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let ended = waitid(WaitId::PidFd(self.handle.as_fd()), seen).ok().flatten();
        ended.and_then(|ended| ended.exit_status())
    }

    /// Takes it off the list of processes, if it has ended and that falls to us: where this process is the first of a
    /// container, or takes orphans in. Otherwise whoever is does.
    pub fn bury(&self) {
        let _not_ours = waitid(
            WaitId::PidFd(self.handle.as_fd()),
            WaitIdOptions::EXITED | WaitIdOptions::NOHANG,
        );
    }

    /// Waits for its end. False: it still lives.
    pub fn ends_within(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            match poll(&mut [PollFd::new(&self.handle, PollFlags::IN)], Some(&timeout)) {
                Ok(ready) => return ready > 0,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }
}

/// Takes every process of these users that has ended, and falls to us, off the list of processes: also those that nobody knew.
pub fn bury_all_of(users: &Range<u32>) {
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let status = fs::read_to_string(entry.path().join("status")).unwrap_or_default();
        let field = |name: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name)?.split_whitespace().next())
        };
        let user = field("Uid:").and_then(|user| user.parse().ok());
        if field("State:") == Some("Z")
            && user.is_some_and(|user| users.contains(&user))
            && let Some(pid) = Pid::from_raw(pid)
        {
            // Where it falls to another, this is refused.
            let _not_ours = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        }
    }
}

fn start_time(pid: i32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in parentheses may hold anything, spaces and parentheses too; the start is the 20th field behind it.
    stat.rsplit_once(')')
        .and_then(|(_, fields)| fields.split_ascii_whitespace().nth(19))
        .and_then(|field| field.parse().ok())
        .ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("/proc/{pid}/stat has no start time"),
            )
        })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_known_by_number_and_start() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let process = Process::open(child.id().cast_signed()).unwrap();
        let later = Identity {
            started: process.identity.started + 1,
            ..process.identity
        };
        assert!(Process::find(process.identity).is_some());
        assert!(Process::find(later).is_none());
        process.kill();
        assert!(process.ends_within(Duration::from_secs(30)));
        assert!(Process::find(process.identity).is_none());
        child.wait().unwrap();
    }
}
