//! What a program and all that it started use together, looked at again and again.
//!
//! No limit of the kernel's counts the processes of one program among those of one user, nor their memory and files together; a
//! control group would, and an ordinary user may make none. So they are counted, and killed all at once where they are too
//! many. Between two looks they may be more.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use std::{fs, io};

use rustix::process::{Pid, Signal, kill_process_group};

/// Between two looks.
const LOOKS: Duration = Duration::from_millis(200);
/// Processes, and threads of all of them.
const PROCESSES: u64 = 64;
const THREADS: u64 = 1_024;
/// Sockets: in each the kernel keeps what nobody has read yet, and counts it for no process.
const SOCKETS: u64 = 512;
/// Bytes of memory.
const MEMORY: u64 = 2 << 30;
/// Bytes of files, how many of them, and how deep.
const DISK: u64 = 1 << 30;
const FILES: usize = 20_000;
const DEPTH: usize = 64;
/// Bytes of a block, as files are counted in.
const BLOCK: u64 = 512;
/// Bytes that the kernel says at most of what all processes have mapped.
const MAPS: u64 = 16 << 20;

/// Looks after a session until it has ended.
pub(super) struct Watched {
    session: Pid,
    ended: Arc<(Mutex<bool>, Condvar)>,
}

/// What is looked after.
struct Look {
    session: Pid,
    /// As the kernel names it.
    folder: PathBuf,
    /// The largest file that a process may write, in bytes.
    largest: u64,
    /// Whether something could not be counted when it was last looked.
    hidden: bool,
}

impl Watched {
    /// Begins to look after what a leader of a session starts, and keeps in a folder, in files of so many bytes at most.
    pub(super) fn new(service: &str, session: Pid, folder: &Path, largest: u64) -> io::Result<Self> {
        let ended = Arc::<(Mutex<bool>, Condvar)>::default();
        let (service, own) = (service.to_owned(), Arc::clone(&ended));
        let mut look = Look {
            session,
            folder: folder.canonicalize()?,
            largest,
            hidden: false,
        };
        // A thread, as it must look also when every worker of the runtime is at something else.
        std::thread::Builder::new()
            .name("mcp-watch".to_owned())
            .spawn(move || {
                let (lock, signal) = &*own;
                let mut is_over = lock.lock().unwrap_or_else(PoisonError::into_inner);
                while !*is_over {
                    drop(is_over);
                    let why = look.too_much();
                    is_over = lock.lock().unwrap_or_else(PoisonError::into_inner);
                    if *is_over {
                        return;
                    }
                    if let Some(why) = why {
                        tracing::warn!(
                            service,
                            why,
                            "an MCP server's program is killed, with all that it started"
                        );
                        // While this is not over nobody has reaped the leader, so the number is still its own.
                        let _ = kill_process_group(session, Signal::KILL);
                        return;
                    }
                    let waited = signal.wait_timeout(is_over, LOOKS);
                    is_over = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            })?;
        Ok(Self { session, ended })
    }

    /// Kills whatever is left. Nothing is looked after any more.
    pub(super) fn end(&self) {
        let (lock, signal) = &*self.ended;
        *lock.lock().unwrap_or_else(PoisonError::into_inner) = true;
        // There may be nothing left.
        let _ = kill_process_group(self.session, Signal::KILL);
        signal.notify_all();
    }
}

impl Look {
    /// Why a session may not go on.
    fn too_much(&mut self) -> Option<String> {
        let used = Used::of(self.session);
        if used.leaderless {
            return Some("it has ended".to_owned());
        }
        let mut kept = Kept::default();
        for process in &used.found {
            kept.open(process);
            kept.mapped(process, &self.folder);
        }
        for (what, used, most) in [
            ("processes", used.processes, PROCESSES),
            ("threads", used.threads, THREADS),
            ("bytes of memory", used.memory, MEMORY),
            ("sockets", kept.sockets.len() as u64, SOCKETS),
        ] {
            if used > most {
                return Some(format!("{used} {what}, and {most} are its limit"));
            }
        }
        // Who starts a program, ends, or hands over a file is out of sight for a moment, and nobody is for two looks.
        let before = std::mem::replace(&mut self.hidden, kept.hidden.is_some());
        if before && let Some(why) = kept.hidden {
            return Some(why);
        }
        match disk(&self.folder).map(|bytes| bytes + kept.bytes(self.largest)) {
            Ok(bytes) if bytes <= DISK => None,
            Ok(bytes) => Some(format!("{bytes} bytes of files, and {DISK} are its limit")),
            Err(why) => Some(why),
        }
    }
}

/// What a session uses now.
#[derive(Default)]
struct Used {
    processes: u64,
    threads: u64,
    memory: u64,
    leaderless: bool,
    found: Vec<PathBuf>,
}

impl Used {
    fn of(session: Pid) -> Self {
        let leader = session.as_raw_nonzero().get().to_string();
        let mut used = Self {
            leaderless: true,
            ..Self::default()
        };
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let name = entry.file_name();
            if !name.as_encoded_bytes().first().is_some_and(u8::is_ascii_digit) {
                continue;
            }
            let stat = Stat::of(&entry.path());
            if stat.field(3) != leader {
                continue;
            }
            // Where the first thread has ended, the others may go on.
            let runs = if stat.runs() {
                Some(entry.path())
            } else {
                thread(&entry.path())
            };
            let Some(runs) = runs else { continue };
            used.leaderless &= name.to_str() != Some(&leader);
            used.processes += 1;
            used.threads += stat.field(17).parse().unwrap_or(0);
            used.memory += memory(&runs);
            used.found.push(runs);
        }
        used
    }
}

/// What the kernel says of a process or a thread.
struct Stat(String);

impl Stat {
    fn of(process: &Path) -> Self {
        let about = fs::read(process.join("stat")).unwrap_or_default();
        let about = String::from_utf8_lossy(&about);
        // Its name, in brackets, may hold anything.
        Self(about.rsplit_once(") ").map_or("", |(_, rest)| rest).to_owned())
    }

    /// Counted after the name: state, parent, group, session and so on, see `proc_pid_stat(5)`. Nothing of one that is gone.
    fn field(&self, at: usize) -> &str {
        self.0.split(' ').nth(at).unwrap_or_default()
    }

    fn runs(&self) -> bool {
        !matches!(self.field(0), "" | "Z" | "X")
    }
}

/// A thread of a process that runs. Memory and open files are those of all of them.
fn thread(process: &Path) -> Option<PathBuf> {
    let threads = fs::read_dir(process.join("task")).ok()?.flatten();
    threads.map(|entry| entry.path()).find(|thread| Stat::of(thread).runs())
}

/// Bytes that a process has in memory or swapped out, and those that the kernel keeps to find them.
fn memory(process: &Path) -> u64 {
    let about = fs::read(process.join("status")).unwrap_or_default();
    let about = String::from_utf8_lossy(&about);
    let kilobytes = about.lines().filter_map(|line| match line.split_once(':')? {
        ("VmRSS" | "VmSwap" | "VmPTE" | "HugetlbPages", size) => {
            size.trim().trim_end_matches(" kB").parse::<u64>().ok()
        }
        _ => None,
    });
    kilobytes.sum::<u64>() << 10
}

/// Bytes of files below a folder.
fn disk(folder: &Path) -> Result<u64, String> {
    let (mut bytes, mut count) = (0, 0);
    let mut waiting = vec![(folder.to_owned(), 0)];
    while let Some((folder, depth)) = waiting.pop() {
        if depth > DEPTH {
            return Err(format!("folders deeper than {DEPTH}"));
        }
        // One that is gone meanwhile, or that it closed to itself too, holds no more than it has counted for.
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            count += 1;
            if count > FILES {
                return Err(format!("more than {FILES} files"));
            }
            let Ok(about) = entry.metadata() else { continue };
            bytes += about.blocks() * BLOCK;
            if about.is_dir() {
                waiting.push((entry.path(), depth + 1));
            }
        }
    }
    Ok(bytes)
}

/// A file as the kernel knows it: its device's numbers and its own.
type Inode = (u32, u32, u64);

/// What is kept by who has it open, runs or has mapped it: files that have no name any more, and what is in sockets.
#[derive(Default)]
struct Kept {
    /// Their bytes, where the kernel says them.
    files: BTreeMap<Inode, Option<u64>>,
    sockets: BTreeSet<u64>,
    /// Bytes read of what is mapped.
    read: u64,
    /// What cannot be counted, in words.
    hidden: Option<String>,
}

impl Kept {
    /// Counts what a process has open, and what it runs.
    fn open(&mut self, process: &Path) {
        self.file(process, &process.join("exe"));
        let Ok(entries) = fs::read_dir(process.join("fd")) else {
            return self.unreadable(process, "open files");
        };
        for entry in entries {
            let Ok(entry) = entry else {
                return self.unreadable(process, "open files");
            };
            if self.file(process, &entry.path()) && under_way(&process.join("fdinfo").join(entry.file_name())) {
                self.hidden = Some("files that are sent to a process and not received".to_owned());
            }
        }
    }

    /// Counts a file if it has no name; whether it is a socket.
    fn file(&mut self, process: &Path, path: &Path) -> bool {
        let about = match fs::metadata(path) {
            Ok(about) => about,
            Err(error) => {
                // What is closed meanwhile counts no more.
                if error.kind() == io::ErrorKind::PermissionDenied {
                    self.unreadable(process, "open files");
                }
                return false;
            }
        };
        if about.is_file() && about.nlink() == 0 {
            let device = about.dev();
            let inode = (rustix::fs::major(device), rustix::fs::minor(device), about.ino());
            self.files.insert(inode, Some(about.blocks() * BLOCK));
        }
        let is_socket = about.file_type().is_socket();
        if is_socket {
            self.sockets.insert(about.ino());
        }
        is_socket
    }

    /// Counts what a process has mapped of a folder.
    fn mapped(&mut self, process: &Path, folder: &Path) {
        let mut maps = Vec::new();
        let left = MAPS.saturating_sub(self.read) + 1;
        let read = fs::File::open(process.join("maps")).and_then(|file| file.take(left).read_to_end(&mut maps));
        if read.is_err() {
            return self.unreadable(process, "mapped files");
        }
        self.read += maps.len() as u64;
        if self.read > MAPS {
            self.hidden = Some("more mappings than can be looked at".to_owned());
        }
        for line in maps.split(|byte| *byte == b'\n') {
            if let Some(inode) = removed(line, folder) {
                self.files.entry(inode).or_insert(None);
            }
        }
    }

    /// One that has ended meanwhile hides nothing.
    fn unreadable(&mut self, process: &Path, what: &str) {
        if Stat::of(process).runs() {
            self.hidden = Some(format!(
                "its {what} cannot be read, so they cannot be counted: it is a program that nobody may read, \
                 or this process is root without CAP_SYS_PTRACE"
            ));
        }
    }

    /// Bytes of all of them; one of which they are not known has the most that it can have.
    fn bytes(&self, largest: u64) -> u64 {
        self.files.values().map(|bytes| bytes.unwrap_or(largest)).sum()
    }
}

/// The file in a line of `proc_pid_maps(5)`, where it was below a folder and has no name any more.
fn removed(line: &[u8], folder: &Path) -> Option<Inode> {
    let path = line.iter().position(|byte| *byte == b'/').map(|at| &line[at..])?;
    if !path.starts_with(folder.as_os_str().as_bytes()) || !path.ends_with(b" (deleted)") {
        return None;
    }
    let fields = String::from_utf8_lossy(&line[..line.len() - path.len()]).into_owned();
    let mut fields = fields.split_ascii_whitespace().skip(3);
    let (major, minor) = fields.next()?.split_once(':')?;
    let number = |text| u32::from_str_radix(text, 16).ok();
    Some((number(major)?, number(minor)?, fields.next()?.parse().ok()?))
}

/// Whether files wait in a socket to be received, which nobody has open meanwhile.
fn under_way(about: &Path) -> bool {
    let about = fs::read_to_string(about).unwrap_or_default();
    let mut waiting = about.lines().filter_map(|line| line.strip_prefix("scm_fds:"));
    waiting.any(|waiting| waiting.trim() != "0")
}

#[cfg(test)]
mod tests;
