//! Disks as plain folders, for whoever sees nothing that is mounted here. They have no limit, and forks copy.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use domain::{SessionId, SnapshotId};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};
use sandbox::{ProviderError, SnapshotStatus};
use sys::removal::remove_tree;

use crate::Config;
use crate::attempt::{Attempt, unless_missing};
use crate::disk::named::{Named, half, open_folder, snapshots};
use crate::disk::program::Program;
use crate::disk::{HALF, names_ending};
use crate::record::make_folder;

/// What the name of a session's folder ends with.
const DISK: &str = ".folder";

const DU: Program = Program {
    name: "du",
    package: "coreutils",
    fine: 0,
    within: Duration::from_secs(60),
};
const CP: Program = Program {
    name: "cp",
    within: Duration::from_secs(15 * 60),
    ..DU
};

#[derive(Debug)]
pub(crate) struct Pool(Named);

impl Pool {
    pub(crate) fn open(config: &Config) -> Result<Self, ProviderError> {
        let folder = config.data.join("disks");
        make_folder(&config.data, 0o711)?;
        // The engine shows what is in it by its own way.
        make_folder(&folder, 0o700)?;
        for half in names_ending(&folder, HALF)? {
            let half = folder.join(format!("{half}{HALF}"));
            unless_missing(remove_tree(&half)).attempt(|| format!("remove {}", half.display()))?;
        }
        Ok(Self(Named::new(folder, DISK)))
    }

    /// What its disks and snapshots are called.
    pub(super) fn named(&self) -> &Named {
        &self.0
    }

    pub(crate) fn disk(&self, session: SessionId) -> Result<OwnedFd, ProviderError> {
        let path = self.0.disk(session);
        make_folder(&path, 0o755)?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        open_tree(CWD, &path, flags).attempt(|| format!("mount the disk {}", path.display()))
    }

    pub(crate) fn look_at(&self, session: SessionId) -> Result<OwnedFd, ProviderError> {
        match open_folder(&self.0.disk(session)) {
            Err(Errno::NOENT) => Err(ProviderError::NoDisk(session)),
            opened => opened.attempt(|| format!("open the disk of session {session}")),
        }
    }

    /// Counted file by file.
    pub(crate) fn used(&self, session: SessionId) -> u64 {
        let flags = ["--summarize", "--block-size=1", "--one-file-system", "--"];
        let counted = DU.run(&flags, &[self.0.disk(session).as_os_str()]);
        let counted = counted
            .ok()
            .and_then(|said| said.split_whitespace().next()?.parse().ok());
        counted.unwrap_or(0)
    }

    pub(crate) fn remove(&self, session: SessionId) -> Result<(), ProviderError> {
        discard(&self.0.disk(session)).attempt(|| format!("remove the disk of session {session}"))
    }

    /// Nobody writes to the disk meanwhile.
    pub(crate) fn snapshot(&self, session: SessionId, snapshot: SnapshotId) -> Result<SnapshotStatus, ProviderError> {
        let (disk, kept) = self.0.to_keep(session, snapshot)?;
        copy(&disk, &kept).attempt(|| format!("keep the disk of session {session} as snapshot {snapshot}"))?;
        self.status(snapshot)
    }

    pub(crate) fn restore(&self, snapshot: SnapshotId, session: SessionId) -> Result<(), ProviderError> {
        let (kept, disk) = self.0.to_bring_back(snapshot, session)?;
        copy(&kept, &disk).attempt(|| format!("make the disk of session {session} from snapshot {snapshot}"))
    }

    pub(crate) fn remove_snapshot(&self, snapshot: SnapshotId) -> Result<(), ProviderError> {
        discard(&self.0.snapshot(snapshot)).attempt(|| format!("remove snapshot {snapshot}"))
    }

    pub(crate) fn snapshots(&self) -> Result<Vec<SnapshotStatus>, ProviderError> {
        snapshots(self.0.folder(), |snapshot| self.status(snapshot))
    }

    fn status(&self, snapshot: SnapshotId) -> Result<SnapshotStatus, ProviderError> {
        // Nobody counts.
        self.0.status(snapshot, |_| None)
    }
}

/// Copies a disk to the place of another or where nothing is: whole or not at all.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let half = half(to);
    unless_missing(remove_tree(&half))?;
    let flags = [
        "--archive",
        "--reflink=auto",
        "--sparse=always",
        "--no-target-directory",
        "--",
    ];
    let copied = CP.run(&flags, &[from.as_os_str(), half.as_os_str()]);
    let placed = copied.and_then(|_| {
        rustix::fs::syncfs(open_folder(&half)?)?;
        match renameat_with(CWD, &half, CWD, to, RenameFlags::EXCHANGE) {
            Err(Errno::NOENT) => fs::rename(&half, to),
            // The old one has the other's name now.
            exchanged => Ok(exchanged?),
        }
    });
    // What could not be made is what the caller learns of; at the next start it is cleared again.
    let _cleared = remove_tree(&half);
    placed
}

/// Takes a folder away, at once for whoever looks.
fn discard(path: &Path) -> io::Result<()> {
    let half = half(path);
    unless_missing(remove_tree(&half))?;
    unless_missing(fs::rename(path, &half))?;
    unless_missing(remove_tree(&half))
}
