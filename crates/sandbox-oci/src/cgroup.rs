//! Freezing, killing and counting, by the kernel's own files.
//!
//! A machine has cgroups of version 1 (a hierarchy for each controller), of version 2 (one for all), or both side by side.
//! A sandbox has a group of the same name in each hierarchy; what is asked is answered by whichever knows.

mod group;

use std::fs;
use std::path::PathBuf;

use domain::SandboxId;
use sandbox::ProviderError;

use crate::attempt::Attempt;
pub(crate) use group::Group;

/// The hierarchies of this machine.
#[derive(Clone, Debug)]
pub(crate) struct Hierarchies {
    all: Vec<Hierarchy>,
    parent: String,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Hierarchy {
    mounted: PathBuf,
    /// None for version 2.
    controllers: Option<Vec<String>>,
}

impl Hierarchies {
    pub(crate) fn of_this_machine(parent: &str) -> Result<Self, ProviderError> {
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

    pub(crate) fn group(&self, id: SandboxId) -> Group {
        let folder = |hierarchy: &Hierarchy| hierarchy.mounted.join(&self.parent).join(id.to_string());
        let of = |controller: &str| {
            let controls = |hierarchy: &&Hierarchy| {
                let names = hierarchy.controllers.as_ref();
                names.is_some_and(|names| names.iter().any(|name| name == controller))
            };
            self.all.iter().find(controls).map(folder)
        };
        let unified = self
            .all
            .iter()
            .find(|hierarchy| hierarchy.controllers.is_none())
            .map(folder);
        Group {
            every: self.all.iter().map(folder).collect(),
            freezer: of("freezer"),
            memory: of("memory"),
            processor: of("cpuacct"),
            pids: of("pids"),
            unified,
        }
    }

    /// As the OCI runtime is told.
    pub(crate) fn path(&self, id: SandboxId) -> String {
        format!("/{}/{id}", self.parent)
    }

    /// Whether groups of version 1 have a file of this name under a controller.
    pub(crate) fn offers(&self, controller: &str, file: &str) -> bool {
        self.all.iter().any(|hierarchy| {
            let names = hierarchy.controllers.as_ref();
            names.is_some_and(|names| names.iter().any(|name| name == controller))
                && hierarchy.mounted.join(file).exists()
        })
    }

    /// Whether memory is counted by version 2.
    pub(crate) fn memory_is_unified(&self) -> bool {
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
