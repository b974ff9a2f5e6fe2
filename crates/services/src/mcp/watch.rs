//! What a program and all that it started use together, looked at again and again.
//!
//! No limit of the kernel's counts the processes of one program among those of one user, nor their memory and files together; a
//! control group would, and an ordinary user may make none. So they are counted, and killed all at once where they are too
//! many. Between two looks they may be more.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
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
/// Bytes of memory.
const MEMORY: u64 = 2 << 30;
/// Bytes of files, how many of them, and how deep.
const DISK: u64 = 1 << 30;
const FILES: usize = 20_000;
const DEPTH: usize = 64;
/// Bytes of a block, as files are counted in.
const BLOCK: u64 = 512;

/// Looks after a session until it has ended.
pub(super) struct Watched {
    session: Pid,
    ended: Arc<(Mutex<bool>, Condvar)>,
}

impl Watched {
    /// Begins to look after what a leader of a session starts, and keeps in a folder.
    pub(super) fn new(service: &str, session: Pid, folder: &Path) -> io::Result<Self> {
        let ended = Arc::<(Mutex<bool>, Condvar)>::default();
        let (service, folder, own) = (service.to_owned(), folder.to_owned(), Arc::clone(&ended));
        // A thread, as it must look also when every worker of the runtime is at something else.
        std::thread::Builder::new()
            .name("mcp-watch".to_owned())
            .spawn(move || {
                let (lock, signal) = &*own;
                let mut is_over = lock.lock().unwrap_or_else(PoisonError::into_inner);
                while !*is_over {
                    drop(is_over);
                    let why = too_much(session, &folder);
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

/// Why a session may not go on.
fn too_much(session: Pid, folder: &Path) -> Option<String> {
    let used = Used::of(session);
    if used.leaderless {
        return Some("it has ended".to_owned());
    }
    for (what, used, most) in [
        ("processes", used.processes, PROCESSES),
        ("threads", used.threads, THREADS),
        ("bytes of memory", used.memory, MEMORY),
    ] {
        if used > most {
            return Some(format!("{used} {what}, and {most} are its limit"));
        }
    }
    match disk(folder).and_then(|kept| Ok(kept + removed(&used.found)?)) {
        Ok(kept) if kept <= DISK => None,
        Ok(kept) => Some(format!("{kept} bytes of files, and {DISK} are its limit")),
        Err(why) => Some(why),
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
            // One that has ended meanwhile uses nothing.
            let about = fs::read(entry.path().join("stat")).unwrap_or_default();
            let about = String::from_utf8_lossy(&about);
            // Its name, in brackets, may hold anything. After it: state, parent, group, session and so on, see proc_pid_stat(5).
            let fields: Vec<&str> = about
                .rsplit_once(") ")
                .map_or("", |(_, rest)| rest)
                .split(' ')
                .collect();
            if fields.get(3) != Some(&&*leader) || matches!(fields[0], "Z" | "X") {
                continue;
            }
            let number = |at: usize| {
                fields
                    .get(at)
                    .and_then(|field| field.parse::<u64>().ok())
                    .unwrap_or_default()
            };
            used.leaderless &= name.to_str() != Some(&leader);
            used.processes += 1;
            used.threads += number(17);
            used.memory += memory(&entry.path());
            used.found.push(entry.path());
        }
        used
    }
}

/// Bytes that a process has in memory.
fn memory(process: &Path) -> u64 {
    let about = fs::read(process.join("status")).unwrap_or_default();
    let about = String::from_utf8_lossy(&about);
    let line = about.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kilobytes.unwrap_or_default() << 10
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

/// Bytes of files that have no name any more, and are open: in memory, or on the disk until they are closed.
fn removed(processes: &[PathBuf]) -> Result<u64, String> {
    let mut files = BTreeMap::new();
    for process in processes {
        for entry in fs::read_dir(process.join("fd")).into_iter().flatten().flatten() {
            if let Ok(about) = fs::metadata(entry.path())
                && about.is_file()
                && about.nlink() == 0
            {
                files.insert((about.dev(), about.ino()), about.blocks() * BLOCK);
            }
        }
    }
    Ok(files.into_values().sum())
}
