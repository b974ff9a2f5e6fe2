//! What the kernel says of processes in `/proc`.
//!
//! A process calls itself what it likes: bytes that need be no text, with brackets and ends of lines among them. So bytes are
//! read, no more of them than an honest answer has, and nobody is overlooked for its name.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::PathBuf;

/// What of a file is read: all of a `stat`, and of a `status` more than stands before its list of groups, which may be long.
const MOST: u64 = 4_096;
/// What of a command line is read.
const MOST_ARGUMENTS: u64 = 64 << 10;

/// The flag of a process, or of its first thread, that ends: <https://docs.kernel.org/filesystems/proc.html>.
const ENDING: u64 = 0x4;

/// A process as `/proc/<number>/stat` has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stat {
    pub(crate) pid: i32,
    /// Its process group.
    pub(crate) group: i32,
    /// Its session.
    pub(crate) session: i32,
    /// Whether it has ended, or is about to.
    pub(crate) ends: bool,
    /// In ticks since the machine was started.
    pub(crate) started: u64,
}

impl Stat {
    /// The process that has this number now.
    pub(crate) fn of(pid: i32) -> io::Result<Self> {
        let read = beginning(pid, "stat", MOST)?;
        Self::understand(&read).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("/proc/{pid}/stat is not as it should be"),
            )
        })
    }

    /// The name in brackets may hold anything, brackets too; nothing behind it does.
    pub(crate) fn understand(stat: &[u8]) -> Option<Self> {
        let opens = stat.iter().position(|byte| *byte == b'(')?;
        let closes = stat.iter().rposition(|byte| *byte == b')')?;
        let pid = std::str::from_utf8(&stat[..opens]).ok()?.trim().parse().ok()?;
        let fields = std::str::from_utf8(&stat[closes + 1..]).ok()?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let [state, _parent, group, session, _terminal, _foreground, flags, ..] = *fields else {
            return None;
        };
        let flags: u64 = flags.parse().ok()?;
        Some(Self {
            pid,
            group: group.parse().ok()?,
            session: session.parse().ok()?,
            ends: matches!(state, "Z" | "X") || flags & ENDING != 0,
            started: fields.get(19)?.parse().ok()?,
        })
    }
}

/// The numbers of all processes that are there now.
pub(crate) fn all() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The user of a process; none where it is gone.
pub(crate) fn user(pid: i32) -> Option<u32> {
    let status = beginning(pid, "status", MOST).ok()?;
    let mut lines = status.split(|byte| *byte == b'\n');
    let users = lines.find_map(|line| line.strip_prefix(b"Uid:"))?;
    let users = std::str::from_utf8(users).ok()?;
    users.split_ascii_whitespace().next()?.parse().ok()
}

/// What a process calls itself.
pub(crate) fn name(pid: i32) -> io::Result<Vec<u8>> {
    let mut name = beginning(pid, "comm", MOST)?;
    // The last byte is the kernel's.
    name.pop();
    Ok(name)
}

/// Whether a process has this among its arguments.
#[must_use]
pub fn has_argument(pid: i32, wanted: &[u8]) -> bool {
    let arguments = beginning(pid, "cmdline", MOST_ARGUMENTS).unwrap_or_default();
    arguments.split(|byte| *byte == 0).any(|argument| argument == wanted)
}

fn beginning(pid: i32, file: &str, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let path: PathBuf = ["/proc", &pid.to_string(), file].iter().collect();
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    use super::*;

    /// The name of a program is the name of the process: what a program tells the kernel later is of the same bytes.
    fn called(name: &[u8]) -> (tempfile::TempDir, Child) {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join(OsStr::from_bytes(name));
        fs::copy("/bin/sleep", &program).unwrap();
        let child = loop {
            // Another test that starts a program this moment has the file open for writing, until its program runs.
            match Command::new(&program).arg("600").spawn() {
                Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {}
                spawned => break spawned.unwrap(),
            }
        };
        // It is said to run before the kernel has its name and its arguments.
        let begun = Instant::now();
        while !has_argument(child.id().cast_signed(), b"600") {
            assert!(begun.elapsed() < Duration::from_secs(60), "it does not run");
            std::thread::yield_now();
        }
        (folder, child)
    }

    #[test]
    fn whatever_a_process_calls_itself_it_is_seen() {
        let own = Stat::of(std::process::id().cast_signed()).unwrap();
        for hostile in [
            &b"\xff\xfe no text"[..],
            b") Z 1 1 1 0",
            b"a\nUid:\t7\t7\t7",
            b"a\nState:\tZ",
            b"(((",
        ] {
            let (_folder, mut child) = called(hostile);
            let pid = child.id().cast_signed();
            let shown = hostile.escape_ascii().to_string();
            let seen = Stat::of(pid).unwrap();
            assert_eq!(seen.pid, pid, "{shown}");
            assert_eq!((seen.group, seen.session), (own.group, own.session), "{shown}");
            assert!(!seen.ends && seen.started >= own.started, "{shown}");
            assert_eq!(user(pid), Some(rustix::process::geteuid().as_raw()), "{shown}");
            assert_eq!(name(pid).unwrap(), hostile, "{shown}");
            assert!(all().any(|one| one == pid), "{shown}");
            assert!(!has_argument(pid, b"60"), "{shown}");
            child.kill().unwrap();
            let process = super::super::Process::open(pid).unwrap();
            assert!(process.ends_within(Duration::from_secs(30)), "{shown}");
            assert!(Stat::of(pid).unwrap().ends, "{shown}");
            child.wait().unwrap();
            assert!(Stat::of(pid).is_err() && user(pid).is_none(), "{shown}");
        }
    }

    #[test]
    fn what_is_no_stat_is_not_understood() {
        for nothing in [&b""[..], b"1", b"1 (a", b"1 (a) S 1 1", b") (", b"x (a) S 1 1 1 1 1 1"] {
            assert_eq!(Stat::understand(nothing), None, "{}", nothing.escape_ascii());
        }
    }
}
