//! Whether processes can be limited, frozen and killed as a group.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Machine;
use super::attempt::{Lack, OrLacking, end, unique_name};

const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(1);
const MEMORY_BYTES: &str = "67108864";

/// How file systems of cgroups are known, in either version (`linux/magic.h`).
const CGROUPS: [u64; 2] = [0x0027_e0eb, 0x6367_7270];

/// Says whether it may start another process.
const SCRIPT: &str = "read begin; echo begun; (exec true) 2>/dev/null && echo forked";

/// A process is put into a group, cannot start another beyond the group's limit, and stands still when the group is frozen.
pub(super) fn cgroups(machine: &Machine) -> Result<String, Lack> {
    let mend = "as root, `mount -t cgroup2 none /sys/fs/cgroup`, with the controllers cpu, memory and pids; a container needs the \
                machine's, and to be allowed to change them: `docker run --privileged --cgroupns host --volume /sys/fs/cgroup:/sys/fs/cgroup …`";
    let table = fs::read_to_string("/proc/self/mountinfo").or_lacking("the table of mounts cannot be read", mend)?;
    let groups = Groups::make(&table, &unique_name()).map_err(|lack| Lack::lacking(lack, mend))?;
    groups.limit().or_lacking("a cgroup cannot be given limits", mend)?;

    let shell = machine.command(Path::new("sh"), &["-c", SCRIPT]).spawn();
    let mut shell = shell.or_lacking("a shell cannot be started", "apt-get install dash")?;
    let seen = groups.watch(&mut shell);
    end(&mut shell);
    seen.map_err(|lack| Lack::lacking(lack, mend))?;
    groups.remove().or_lacking("a cgroup cannot be removed", mend)?;
    Ok(format!("limits and freezing by {} work", groups.version))
}

/// A group in every hierarchy that is needed.
struct Groups {
    version: &'static str,
    all: Vec<PathBuf>,
    memory: PathBuf,
    pids: PathBuf,
    processor: PathBuf,
    freezer: PathBuf,
    freezer_is_first: bool,
    memory_is_first: bool,
    processor_is_first: bool,
}

impl Groups {
    fn make(table: &str, name: &str) -> Result<Self, String> {
        let first = |controller: &str| mounted(table, Some(controller)).filter(|at| is_seen(at));
        let second = mounted(table, None).filter(|at| is_seen(at));
        let find = |controller: &str| {
            let found = first(controller).map(|at| (at, true));
            let found = found.or_else(|| second.clone().map(|at| (at, false)));
            found.ok_or_else(|| format!("there is no cgroup controller {controller}"))
        };
        let ((memory, memory_is_first), (pids, pids_is_first)) = (find("memory")?, find("pids")?);
        let ((processor, processor_is_first), (freezer, freezer_is_first)) = (find("cpu")?, find("freezer")?);
        for (controller, is_first) in [
            ("memory", memory_is_first),
            ("pids", pids_is_first),
            ("cpu", processor_is_first),
        ] {
            if let (false, Some(second)) = (is_first, &second) {
                fs::write(second.join("cgroup.subtree_control"), format!("+{controller}")).map_err(|error| {
                    format!("the cgroup controller {controller} cannot be given to groups: {error}")
                })?;
            }
        }
        let version = match (memory_is_first, freezer_is_first && second.is_none()) {
            (false, _) => "cgroups of version 2",
            (true, true) => "cgroups of version 1",
            (true, false) => "cgroups of both versions side by side",
        };
        let mut groups = Self {
            version,
            all: Vec::new(),
            memory: memory.join(name),
            pids: pids.join(name),
            processor: processor.join(name),
            freezer: freezer.join(name),
            freezer_is_first,
            memory_is_first,
            processor_is_first,
        };
        for group in [&groups.memory, &groups.pids, &groups.processor, &groups.freezer] {
            match fs::create_dir(group) {
                Ok(()) => groups.all.push(group.clone()),
                // Several controllers may share a hierarchy.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(format!("the cgroup {} cannot be made: {error}", group.display())),
            }
        }
        Ok(groups)
    }

    fn limit(&self) -> io::Result<()> {
        let memory = if self.memory_is_first {
            "memory.limit_in_bytes"
        } else {
            "memory.max"
        };
        fs::write(self.memory.join(memory), MEMORY_BYTES)?;
        if fs::read_to_string(self.memory.join(memory))?.trim() != MEMORY_BYTES {
            return Err(io::Error::other(
                "the kernel keeps another limit on memory than it was given",
            ));
        }
        if self.processor_is_first {
            fs::write(self.processor.join("cpu.cfs_period_us"), "100000")?;
            fs::write(self.processor.join("cpu.cfs_quota_us"), "50000")?;
        } else {
            fs::write(self.processor.join("cpu.max"), "50000 100000")?;
        }
        fs::write(self.pids.join("pids.max"), "1")
    }

    /// Puts a shell into the groups and sees that they hold it.
    fn watch(&self, shell: &mut std::process::Child) -> Result<(), String> {
        for group in &self.all {
            fs::write(group.join("cgroup.procs"), shell.id().to_string())
                .map_err(|error| format!("a process cannot be put into {}: {error}", group.display()))?;
        }
        let (Some(mut input), Some(mut output)) = (shell.stdin.take(), shell.stdout.take()) else {
            return Err("the shell has no pipes".to_owned());
        };
        self.freeze(true)?;
        // It is told to go on, and cannot.
        input
            .write_all(b"begin\n")
            .map_err(|error| format!("the shell cannot be spoken to: {error}"))?;
        self.freeze(false)?;
        drop(input);
        let mut said = String::new();
        output
            .read_to_string(&mut said)
            .map_err(|error| format!("the shell cannot be heard: {error}"))?;
        match (said.contains("begun"), said.contains("forked")) {
            (true, false) => Ok(()),
            (true, true) => Err("a group with a limit of one process had two".to_owned()),
            (false, _) => Err("a process that was frozen did not go on afterwards".to_owned()),
        }
    }

    fn freeze(&self, freeze: bool) -> Result<(), String> {
        let (file, order, state, sign) = match (self.freezer_is_first, freeze) {
            (true, true) => ("freezer.state", "FROZEN", "freezer.state", "FROZEN"),
            (true, false) => ("freezer.state", "THAWED", "freezer.state", "THAWED"),
            (false, true) => ("cgroup.freeze", "1", "cgroup.events", "frozen 1"),
            (false, false) => ("cgroup.freeze", "0", "cgroup.events", "frozen 0"),
        };
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            fs::write(self.freezer.join(file), order).map_err(|error| format!("a group cannot be frozen: {error}"))?;
            let seen = fs::read_to_string(self.freezer.join(state)).unwrap_or_default();
            if seen.lines().any(|line| line.trim() == sign) {
                return Ok(());
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        Err(format!("a group did not come to {order:?} within {PATIENCE:?}"))
    }

    fn remove(&self) -> io::Result<()> {
        let begun = Instant::now();
        for group in &self.all {
            // The process is dead; the kernel may take a moment to count it out.
            while let Err(error) = fs::remove_dir(group) {
                match error.kind() {
                    ErrorKind::NotFound => break,
                    ErrorKind::ResourceBusy if begun.elapsed() < PATIENCE => std::thread::sleep(LOOK_AGAIN),
                    _ => return Err(error),
                }
            }
        }
        Ok(())
    }

    fn thaw(&self) -> io::Result<()> {
        let (file, order) = if self.freezer_is_first {
            ("freezer.state", "THAWED")
        } else {
            ("cgroup.freeze", "0")
        };
        let path = self.freezer.join(file);
        if path.exists() { fs::write(path, order) } else { Ok(()) }
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        // Where a trial failed half-way; after a whole one there is nothing left to remove.
        let _ = self.thaw().and_then(|()| self.remove());
    }
}

/// Where a hierarchy is mounted: that of a controller of version 1, or that of version 2.
fn mounted(table: &str, controller: Option<&str>) -> Option<PathBuf> {
    table.lines().find_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut of_mount = mount.split(' ').skip(3);
        let (root, at) = (of_mount.next()?, of_mount.next()?);
        let mut of_file_system = file_system.split(' ');
        let fits = match (of_file_system.next()?, controller) {
            ("cgroup2", None) => true,
            ("cgroup", Some(controller)) => of_file_system.nth(1)?.split(',').any(|name| name == controller),
            _ => false,
        };
        (fits && root == "/").then(|| at.into())
    })
}

/// Whether a hierarchy is what is seen at its place: whatever is mounted over it takes all that is written, and limits nothing.
fn is_seen(hierarchy: &Path) -> bool {
    rustix::fs::statfs(hierarchy).is_ok_and(|about| CGROUPS.contains(&(about.f_type as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
        30 24 0:26 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n\
        33 24 0:29 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory\n\
        34 24 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct\n\
        35 24 0:31 /docker/x /elsewhere rw - cgroup cgroup rw,pids\n";

    #[test]
    fn hierarchies_are_found_by_what_they_control() {
        assert_eq!(
            mounted(HYBRID, Some("cpu")).unwrap(),
            Path::new("/sys/fs/cgroup/cpu,cpuacct")
        );
        assert_eq!(mounted(HYBRID, None).unwrap(), Path::new("/sys/fs/cgroup/unified"));
        assert_eq!(mounted(HYBRID, Some("pids")), None);
        assert_eq!(mounted(HYBRID, Some("freezer")), None);
    }
}
