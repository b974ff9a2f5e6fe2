//! The groups of one sandbox.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use sandbox::SandboxUsage;

use crate::attempt::unless_missing;
use crate::mount::TMPFS;
use crate::process::Process;

/// How long processes may take to stand still, or to be gone.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long to rest between two looks at a file that tells nobody when it changes.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// The groups of one sandbox, one in each hierarchy. Those that are asked for need not be there.
#[derive(Clone, Debug)]
pub struct Group {
    pub(super) every: Vec<PathBuf>,
    /// Where each of them is in its hierarchy.
    pub(super) path: PathBuf,
    /// The folders in which hierarchies of version 1 are mounted side by side.
    pub(super) roots: Vec<PathBuf>,
    pub(super) freezer: Option<PathBuf>,
    pub(super) memory: Option<PathBuf>,
    pub(super) processor: Option<PathBuf>,
    pub(super) pids: Option<PathBuf>,
    pub(super) unified: Option<PathBuf>,
}

impl Group {
    /// Stops every process where it stands.
    ///
    /// # Errors
    /// What the kernel says, or that they did not stand still in time.
    pub fn freeze(&self) -> io::Result<()> {
        if let Some(freezer) = present(&self.freezer) {
            return freeze_v1(&freezer.join("freezer.state"));
        }
        let unified = self.unified()?;
        fs::write(unified.join("cgroup.freeze"), "1")?;
        until("the processes stand still", || {
            is_marked(&unified.join("cgroup.events"), "frozen 1")
        })
    }

    /// Lets every process go on.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn thaw(&self) -> io::Result<()> {
        if let Some(freezer) = present(&self.freezer) {
            return fs::write(freezer.join("freezer.state"), "THAWED");
        }
        fs::write(self.unified()?.join("cgroup.freeze"), "0")
    }

    /// Whether they were stopped.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        if let Some(freezer) = present(&self.freezer) {
            let state = fs::read_to_string(freezer.join("freezer.state")).unwrap_or_default();
            return matches!(state.trim(), "FROZEN" | "FREEZING");
        }
        self.unified()
            .is_ok_and(|unified| is_marked(&unified.join("cgroup.freeze"), "1").unwrap_or(false))
    }

    /// Kills every process, frozen or not, and removes the groups.
    ///
    /// # Errors
    /// What the kernel says, or that they were not gone in time.
    pub fn remove(&self) -> io::Result<()> {
        let mut killed = BTreeMap::new();
        until("every process is gone", || {
            for process in self.kill()? {
                killed.entry(process.identity.pid).or_insert(process);
            }
            let mut gone = true;
            for folder in &self.every {
                match remove_tree(folder) {
                    Ok(()) => {}
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) if error.kind() == io::ErrorKind::ResourceBusy => gone = false,
                    Err(error) => return Err(error),
                }
            }
            Ok(gone)
        })?;
        for process in killed.into_values() {
            process.ends_within(PATIENCE);
            process.bury();
        }
        if let Err(error) = self.remove_what_is_none() {
            tracing::warn!(path = %self.path.display(), %error, "an empty folder in place of a cgroup stays");
        }
        Ok(())
    }

    /// Where the kernel has a hierarchy that is not mounted, gVisor makes ordinary folders in place of groups and leaves them.
    fn remove_what_is_none(&self) -> io::Result<()> {
        for root in &self.roots {
            // Where groups are mounted side by side is a file system of its own; anywhere else nothing is looked for.
            if rustix::fs::statfs(root)?.f_type as u64 != TMPFS {
                continue;
            }
            let device = fs::symlink_metadata(root)?.dev();
            for entry in fs::read_dir(root)? {
                let place = entry?.path();
                let folder = place.join(&self.path);
                // What is on another device is a real group, of a hierarchy that was mounted later.
                let mut steps = folder.ancestors().take_while(|step| *step != root);
                let is_ordinary = steps
                    .all(|step| fs::symlink_metadata(step).is_ok_and(|about| about.is_dir() && about.dev() == device));
                if is_ordinary {
                    unless_missing(fs::remove_dir_all(&folder))?;
                }
            }
        }
        Ok(())
    }

    /// Tells every process to die at once, and gives those that it told.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn kill(&self) -> io::Result<Vec<Process>> {
        // Held open, a process keeps its number for itself.
        let processes = self.processes().into_iter();
        let processes: Vec<_> = processes.filter_map(|pid| Process::open(pid).ok()).collect();
        // A kernel before 5.14 cannot kill a group at once; the processes are told one by one all the same.
        let _unknown = present(&self.unified).map(|unified| fs::write(unified.join("cgroup.kill"), "1"));
        for process in &processes {
            process.kill();
        }
        // Version 1 lets the frozen die only when they are thawed.
        if let Some(freezer) = present(&self.freezer)
            && self.is_frozen()
        {
            fs::write(freezer.join("freezer.state"), "THAWED")?;
        }
        Ok(processes)
    }

    /// The numbers of its processes.
    #[must_use]
    pub fn processes(&self) -> BTreeSet<i32> {
        let mut pids = BTreeSet::new();
        for folder in &self.every {
            collect(folder, &mut pids);
        }
        pids
    }

    /// Limits the buffers of TCP, which version 1 counts apart from other memory, and OCI runtimes do not limit.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn limit_tcp_buffers(&self, bytes: u64) -> io::Result<()> {
        let file = self
            .memory
            .as_ref()
            .map(|memory| memory.join("memory.kmem.tcp.limit_in_bytes"));
        match file.filter(|file| file.exists()) {
            Some(file) => fs::write(file, bytes.to_string()),
            None => Ok(()),
        }
    }

    /// What the processes take; the disk is not known here.
    #[must_use]
    pub fn usage(&self) -> SandboxUsage {
        let unified = self.unified.as_deref();
        let memory =
            number(self.memory.as_deref(), "memory.usage_in_bytes").or_else(|| number(unified, "memory.current"));
        let pids = number(self.pids.as_deref(), "pids.current").or_else(|| number(unified, "pids.current"));
        let processor = number(self.processor.as_deref(), "cpuacct.usage")
            .map(|nanos| nanos / 1_000)
            .or_else(|| entry(unified, "cpu.stat", "usage_usec"));
        SandboxUsage {
            memory_bytes: memory.unwrap_or(0),
            cpu_micros: processor.unwrap_or(0),
            pids: u32::try_from(pids.unwrap_or(0)).unwrap_or(u32::MAX),
            disk_bytes: 0,
        }
    }

    /// Whether the kernel had to kill a process for want of memory.
    #[must_use]
    pub fn ran_out_of_memory(&self) -> bool {
        entry(self.memory.as_deref(), "memory.oom_control", "oom_kill")
            .or_else(|| entry(self.unified.as_deref(), "memory.events", "oom_kill"))
            .is_some_and(|kills| kills > 0)
    }

    /// Whether anything of it is there.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.every.iter().any(|folder| folder.exists())
    }

    fn unified(&self) -> io::Result<&Path> {
        present(&self.unified).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the sandbox has no freezer"))
    }
}

/// A process that forks or is woken at the wrong moment can escape the order, and the group then never stands still.
/// Repeating the order catches the former; letting all go for an instant, the latter.
fn freeze_v1(state: &Path) -> io::Result<()> {
    const TRIES_BEFORE_A_BREATH: u32 = 50;
    let mut tries = 0;
    until("the processes stand still", || {
        tries += 1;
        if tries % TRIES_BEFORE_A_BREATH == 0 {
            fs::write(state, "THAWED")?;
            sleep(LOOK_AGAIN);
        }
        fs::write(state, "FROZEN")?;
        Ok(fs::read_to_string(state)?.trim() == "FROZEN")
    })
}

fn present(folder: &Option<PathBuf>) -> Option<&Path> {
    folder.as_deref().filter(|folder| folder.exists())
}

fn numbers(list: &str) -> Vec<i32> {
    list.lines().filter_map(|line| line.parse().ok()).collect()
}

fn number(folder: Option<&Path>, file: &str) -> Option<u64> {
    fs::read_to_string(folder?.join(file)).ok()?.trim().parse().ok()
}

fn entry(folder: Option<&Path>, file: &str, key: &str) -> Option<u64> {
    let text = fs::read_to_string(folder?.join(file)).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    line?.trim().parse().ok()
}

fn is_marked(file: &Path, line: &str) -> io::Result<bool> {
    Ok(fs::read_to_string(file)?.lines().any(|found| found == line))
}

/// The processes of a group, and of the groups in it. One that vanishes meanwhile has none.
fn collect(folder: &Path, pids: &mut BTreeSet<i32>) {
    let list = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    pids.extend(numbers(&list));
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect(&entry.path(), pids);
        }
    }
}

/// A group is removed after the groups in it.
fn remove_tree(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            unless_missing(remove_tree(&entry.path()))?;
        }
    }
    fs::remove_dir(folder)
}

fn until(what: &str, mut done: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
    let begun = Instant::now();
    while !done()? {
        if begun.elapsed() > PATIENCE {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("waited {PATIENCE:?} until {what}"),
            ));
        }
        sleep(LOOK_AGAIN);
    }
    Ok(())
}
