//! What the operator decides.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Where things are and what they are made with.
#[derive(Clone, Debug)]
pub struct Config {
    /// What must survive a restart of the machine: images, and the disks of sessions.
    pub data: PathBuf,
    /// What need not: the records, links and bundles of living sandboxes. Every folder above it must be open to
    /// everybody for passing through (mode 0711 or more), and it is best on a tmpfs.
    pub run: PathBuf,
    /// The program that is PID 1 in every sandbox.
    pub runtime: PathBuf,
    /// The first user id that sandboxes may have; each takes 65,536. Nobody else on the machine may have one from here on, but
    /// other providers, which see what each other gave out.
    pub first_uid: u32,
    /// What session disks are made of.
    pub disk: DiskChoice,
    /// The size of the pool, where it is a file; 0: four fifths of what is free when it is made.
    pub pool_bytes: u64,
    /// The cgroup under which each sandbox has its own. Those of all providers together leave the machine some room there.
    pub cgroup: String,
}

impl Config {
    /// What is usual, for a data directory and a runtime.
    #[must_use]
    pub fn new(data: impl Into<PathBuf>, runtime: impl Into<PathBuf>) -> Self {
        Self {
            data: data.into(),
            run: "/run/belljar".into(),
            runtime: runtime.into(),
            first_uid: 2_000_000,
            disk: DiskChoice::Auto,
            pool_bytes: 0,
            cgroup: "belljar".into(),
        }
    }
}

/// What session disks are made of.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskChoice {
    /// btrfs where the machine has it, else ext4.
    #[default]
    Auto,
    /// A subvolume per session: of the data directory's own btrfs, or of one in a sparse file.
    Btrfs,
    /// A sparse file with ext4 per session.
    Ext4,
    /// For whoever makes containers and sees nothing that is mounted here: a subvolume per session where the data directory
    /// is on btrfs, else a plain folder, which has no limit. The `run` folder is kept on the disk too.
    Folders,
}
