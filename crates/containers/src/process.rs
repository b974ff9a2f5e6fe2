//! Processes, seen from outside: a sandbox's PID 1, and the commands that make it.

mod boot;
mod crew;
mod seen;

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid};
use serde::{Deserialize, Serialize};

use self::boot::Boot;
pub use self::crew::{Crew, end_noted};
use self::seen::Stat;
pub use self::seen::has_argument;
pub(crate) use self::seen::{all, name, user};

/// How long what ends may take until it has ended.
const PATIENCE: Duration = Duration::from_secs(10);

/// Names a process for ever: the number is given to others later, the number, the start time and the boot are not.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Identity {
    /// The number.
    pub pid: i32,
    /// In ticks since the machine was started.
    started: u64,
    /// The boot since which the ticks are counted; none where an earlier release wrote it down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot: Option<Boot>,
}

impl Identity {
    /// Whether both name the same process, as far as each says.
    fn is(&self, other: &Self) -> bool {
        let boots = self.boot.zip(other.boot);
        (self.pid, self.started) == (other.pid, other.started) && boots.is_none_or(|(one, other)| one == other)
    }
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
        let identity = Identity {
            pid,
            started: Stat::of(pid)?.started,
            boot: Boot::now(),
        };
        Ok(Self { identity, handle })
    }

    /// The process of that identity; none if it has ended, and it is buried if that falls to us.
    #[must_use]
    pub fn find(identity: Identity) -> Option<Self> {
        let process = Self::open(identity.pid)
            .ok()
            .filter(|process| process.identity.is(&identity))?;
        if process.lives() {
            return Some(process);
        }
        process.bury();
        None
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

/// Takes every process of these users that ends, and falls to us, off the list of processes: also those that nobody knew.
pub fn bury_all_of(users: &Range<u32>) {
    for pid in seen::all() {
        if seen::user(pid).is_some_and(|user| users.contains(&user))
            && let Ok(process) = Process::open(pid)
            && Stat::of(pid).is_ok_and(|stat| stat.ends)
        {
            process.ends_within(PATIENCE);
            process.bury();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
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
        // What is written down is read again.
        let written = serde_json::to_string(&process.identity).unwrap();
        let read = |text: &str| serde_json::from_str::<Identity>(text).unwrap();
        assert!(Process::find(read(&written)).is_some());
        // The same number at the same time after another start of the machine is somebody else.
        let boot = String::from(Boot::now().unwrap());
        let other = written.replace(&boot, &"0".repeat(boot.len()));
        assert_ne!(other, written);
        assert!(Process::find(read(&other)).is_none());
        // An earlier release did not say.
        let before = format!(r#"{{"pid":{},"started":{}}}"#, child.id(), process.identity.started);
        assert!(Process::find(read(&before)).is_some());
        process.kill();
        assert!(process.ends_within(Duration::from_secs(30)));
        assert!(Process::find(process.identity).is_none());
        assert!(Stat::of(process.identity.pid).is_err(), "it was not buried");
        assert!(child.wait().is_err());
    }

    #[test]
    fn whoever_has_ended_is_buried_whatever_it_called_itself() {
        let first = 3_950_000_000;
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join(OsStr::from_bytes(b"\xff)\nUid:\t0"));
        std::fs::copy("/bin/true", &program).unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let child = loop {
            // Another test that starts a program this moment has the file open for writing, until its program runs.
            match Command::new(&program).uid(first + 7).spawn() {
                Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {}
                spawned => break spawned.unwrap(),
            }
        };
        let pid = child.id().cast_signed();
        assert!(Process::open(pid).unwrap().ends_within(Duration::from_secs(30)));
        bury_all_of(&(first..first + 7));
        assert!(Stat::of(pid).is_ok(), "somebody else's was buried");
        bury_all_of(&(first..first + 8));
        assert!(Stat::of(pid).is_err(), "it was overlooked");
    }
}
