//! Freezing, killing and counting, by the kernel's own files.
//!
//! A machine has cgroups of version 1 (a hierarchy for each controller), of version 2 (one for all), or both side by side.
//! A sandbox has a group of the same name in each hierarchy; what is asked is answered by whichever knows.

mod group;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sandbox::ProviderError;

use crate::attempt::Attempt;
pub use group::Group;

/// The memory that the machine keeps at least, if it has twice as much.
const LEAST_ROOM: u64 = 512 << 20;
/// Processes that every Linux can have.
const LEAST_PROCESSES: u64 = 32_768;

/// The hierarchies of this machine.
#[derive(Clone, Debug)]
pub struct Hierarchies {
    all: Vec<Hierarchy>,
    parent: String,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Hierarchy {
    mounted: PathBuf,
    /// None for version 2.
    controllers: Option<Vec<String>>,
}

impl Hierarchy {
    /// The folder in which those of version 1 are mounted side by side.
    fn root(&self) -> Option<PathBuf> {
        self.controllers.as_ref()?;
        self.mounted.parent().map(Path::to_owned)
    }
}

fn memory_of_the_machine() -> io::Result<u64> {
    let table = fs::read_to_string("/proc/meminfo")?;
    let total = table.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kibibytes = total.and_then(|total| total.trim().split(' ').next()?.parse::<u64>().ok());
    kibibytes
        .map(|kibibytes| kibibytes * 1_024)
        .ok_or_else(|| io::Error::other("/proc/meminfo does not say how much memory there is"))
}

impl Hierarchies {
    /// Those in which `parent` is the group that holds every sandbox's.
    ///
    /// # Errors
    /// [`ProviderError::Machine`] where no cgroups are mounted.
    pub fn of_this_machine(parent: &str) -> Result<Self, ProviderError> {
        let table = fs::read_to_string("/proc/self/mountinfo").attempt(|| "read /proc/self/mountinfo".into())?;
        let all = parse(&table);
        if all.is_empty() {
            return Err(ProviderError::Machine {
                lacks: "no cgroups are mounted; mount them: mount -t cgroup2 none /sys/fs/cgroup".into(),
            });
        }
        Ok(Self {
            all,
            parent: parent.to_owned(),
        })
    }

    /// The groups of this name, which need not be there.
    #[must_use]
    pub fn group(&self, name: &str) -> Group {
        let folder = |hierarchy: &Hierarchy| hierarchy.mounted.join(&self.parent).join(name);
        let of = |controller: &str| self.of_version_1(controller).map(folder);
        let unified = self
            .all
            .iter()
            .find(|hierarchy| hierarchy.controllers.is_none())
            .map(folder);
        let mut roots: Vec<_> = self.all.iter().filter_map(Hierarchy::root).collect();
        roots.dedup();
        Group {
            every: self.all.iter().map(folder).collect(),
            path: Path::new(&self.parent).join(name),
            roots,
            freezer: of("freezer"),
            memory: of("memory"),
            processor: of("cpuacct"),
            pids: of("pids"),
            unified,
        }
    }

    fn of_version_1(&self, controller: &str) -> Option<&Hierarchy> {
        self.all.iter().find(|hierarchy| {
            let names = hierarchy.controllers.as_ref();
            names.is_some_and(|names| names.iter().any(|name| name == controller))
        })
    }

    /// Keeps something of the machine from all sandboxes together, however many there are: an eighth of its memory, and half
    /// of its processes. Without it those who run out of memory, or cannot fork, could be the control plane and this process.
    ///
    /// # Errors
    /// What the kernel says against it.
    pub fn leave_room(&self) -> io::Result<()> {
        let total = memory_of_the_machine()?;
        let bytes = total - (total / 8).max(LEAST_ROOM).min(total / 2);
        let numbers = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"];
        let numbers = numbers.map(|file| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok());
        let processes = numbers.into_iter().flatten().min().unwrap_or(LEAST_PROCESSES) / 2;
        for (controller, files, value) in [
            ("memory", ["memory.limit_in_bytes", "memory.max"], bytes),
            ("pids", ["pids.max", "pids.max"], processes),
        ] {
            let of_version_2 = || self.all.iter().find(|hierarchy| hierarchy.controllers.is_none());
            let Some(hierarchy) = self.of_version_1(controller).or_else(of_version_2) else {
                continue;
            };
            let parent = hierarchy.mounted.join(&self.parent);
            fs::create_dir_all(&parent)?;
            let file = parent.join(files[usize::from(hierarchy.controllers.is_none())]);
            if hierarchy.controllers.is_none() && !file.exists() {
                fs::write(
                    hierarchy.mounted.join("cgroup.subtree_control"),
                    format!("+{controller}"),
                )?;
            }
            fs::write(&file, value.to_string())?;
        }
        Ok(())
    }

    /// The group of this name, as an OCI runtime is told.
    #[must_use]
    pub fn path(&self, name: &str) -> String {
        format!("/{}/{name}", self.parent)
    }

    /// Whether groups of version 1 have a file of this name under a controller.
    #[must_use]
    pub fn offers(&self, controller: &str, file: &str) -> bool {
        self.of_version_1(controller)
            .is_some_and(|hierarchy| hierarchy.mounted.join(file).exists())
    }

    /// Whether memory is counted by version 2.
    #[must_use]
    pub fn memory_is_unified(&self) -> bool {
        let v1 = self.all.iter().filter_map(|hierarchy| hierarchy.controllers.as_ref());
        !v1.flatten().any(|name| name == "memory")
    }
}

fn parse(mountinfo: &str) -> Vec<Hierarchy> {
    let mut all: Vec<Hierarchy> = Vec::new();
    for line in mountinfo.lines() {
        let Some((mount, file_system)) = line.split_once(" - ") else {
            continue;
        };
        let mut of_mount = mount.split(' ').skip(3);
        let (Some(root), Some(mounted)) = (of_mount.next(), of_mount.next()) else {
            continue;
        };
        let mut of_file_system = file_system.split(' ');
        let controllers = match of_file_system.next() {
            Some("cgroup2") => None,
            Some("cgroup") => Some(
                of_file_system
                    .nth(1)
                    .unwrap_or("")
                    .split(',')
                    .map(str::to_owned)
                    .collect(),
            ),
            _ => continue,
        };
        let hierarchy = Hierarchy {
            mounted: mounted.into(),
            controllers,
        };
        // A second mount of the same hierarchy, or of a part of it, shows nothing new.
        if root == "/" && !all.iter().any(|known| known.controllers == hierarchy.controllers) {
            all.push(hierarchy);
        }
    }
    all
}

#[cfg(test)]
mod tests;
