//! The disks of sessions: each with its own limit, none at a neighbour's cost.
//!
//! A disk holds `upper` and `work` (what the sandbox changes of its image) and `workspace`. Files on it carry the ids of
//! inside, 0 to 65535, so it fits any sandbox's range. It is handed out as a mount that is attached nowhere.

mod btrfs;
mod ext4;
mod folders;
mod named;
mod program;
mod room;

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use domain::{SessionId, SnapshotId};
use rustix::fs::{AtFlags, Gid, Mode, Uid, chownat, mkdirat};
use sandbox::{ProviderError, SnapshotStatus, Snapshots, inside};
use serde::{Deserialize, Serialize};

use crate::attempt::Attempt;
use crate::overlay::forget_mark;
use crate::record::make_folder;
use crate::{Config, DiskChoice};

/// What the name of a snapshot ends with.
const SNAPSHOT: &str = ".snapshot";
/// What the name of anything ends with that is still being made.
const HALF: &str = ".half";

/// What the sandbox changes of its image, where an overlay shows it.
pub const UPPER: &str = "upper";
/// What such an overlay needs.
pub const WORK: &str = "work";
/// The session's files.
pub const WORKSPACE: &str = "workspace";

/// What session disks are made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DiskKind {
    /// Subvolumes of the data directory's own btrfs.
    Btrfs,
    /// Subvolumes of a btrfs in one sparse file.
    BtrfsFile,
    /// A sparse file with ext4 for each.
    Ext4Files,
    /// A plain folder for each, without a limit.
    Folders,
}

/// Where the disks of all sessions are.
#[derive(Debug)]
pub(crate) enum Pool {
    Btrfs(btrfs::Pool),
    Ext4(ext4::Pool),
    Folders(folders::Pool),
}

impl Pool {
    pub(crate) fn open(config: &Config) -> Result<Self, ProviderError> {
        match config.disk {
            DiskChoice::Btrfs => btrfs::Pool::open(config).map(Self::Btrfs),
            DiskChoice::Ext4 => ext4::Pool::open(config).map(Self::Ext4),
            // What sessions have decides, whatever the machine could have by now: else their disks would be out of sight.
            DiskChoice::Auto if btrfs::Pool::is_in_use(config)? => btrfs::Pool::open(config).map(Self::Btrfs),
            DiskChoice::Auto if ext4::Pool::is_in_use(config)? => ext4::Pool::open(config).map(Self::Ext4),
            DiskChoice::Auto => btrfs::Pool::open(config).map(Self::Btrfs).or_else(|error| {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "no btrfs pool can be had: each session gets a file with ext4 instead, and forks copy"
                );
                ext4::Pool::open(config).map(Self::Ext4)
            }),
            DiskChoice::Folders => {
                make_folder(&config.data, 0o711)?;
                if btrfs::holds(&config.data)? {
                    btrfs::Pool::open(config).map(Self::Btrfs)
                } else {
                    folders::Pool::open(config).map(Self::Folders)
                }
            }
        }
    }

    pub(crate) fn kind(&self) -> DiskKind {
        match self {
            Self::Btrfs(pool) => pool.kind(),
            Self::Ext4(_) => DiskKind::Ext4Files,
            Self::Folders(_) => DiskKind::Folders,
        }
    }

    /// A session's disk as a mount that is attached nowhere; made if there is none. Its limit is this from then on, but one
    /// that has more already keeps that, and one of ext4 is never made smaller. Nobody else may hold it.
    pub(crate) fn disk(&self, session: SessionId, bytes: u64) -> Result<OwnedFd, ProviderError> {
        let disk = match self {
            Self::Btrfs(pool) => pool.disk(session, bytes)?,
            Self::Ext4(pool) => pool.disk(session, bytes)?,
            Self::Folders(pool) => pool.disk(session)?,
        };
        furnish(disk.as_fd()).attempt(|| format!("furnish the disk of session {session}"))?;
        Ok(disk)
    }

    /// Where a session's disk is for whoever sees no mount of this process; none where it is one.
    pub(crate) fn folder(&self, session: SessionId) -> Option<PathBuf> {
        match self {
            Self::Btrfs(pool) => pool.path(session),
            Self::Ext4(_) => None,
            Self::Folders(pool) => Some(pool.named().disk(session)),
        }
    }

    /// A session's disk, to be read from outside. `shown`: a sandbox that lives has it mounted, and stands still.
    pub(crate) fn look_at(&self, session: SessionId, shown: bool) -> Result<OwnedFd, ProviderError> {
        match self {
            Self::Btrfs(pool) => pool.look_at(session),
            Self::Ext4(pool) => pool.look_at(session, shown),
            Self::Folders(pool) => pool.look_at(session),
        }
    }

    /// Whether a session has a disk.
    pub(crate) fn has(&self, session: SessionId) -> Result<bool, ProviderError> {
        match self {
            Self::Btrfs(pool) => pool.has(session),
            Self::Ext4(pool) => pool.named().has(session),
            Self::Folders(pool) => pool.named().has(session),
        }
    }

    /// The sessions that have a disk, sorted.
    pub(crate) fn sessions(&self) -> Result<Vec<SessionId>, ProviderError> {
        let mut sessions = match self {
            Self::Btrfs(pool) => pool.sessions()?,
            Self::Ext4(pool) => pool.named().sessions()?,
            Self::Folders(pool) => pool.named().sessions()?,
        };
        sessions.sort_unstable();
        Ok(sessions)
    }

    /// Makes the disk of one session that of another, which has none; whoever has it mounted does not notice. Nothing happens
    /// where it was done before.
    pub(crate) fn give(&self, from: SessionId, to: SessionId) -> Result<(), ProviderError> {
        let given = match self {
            Self::Btrfs(pool) => pool.give(from, to),
            Self::Ext4(pool) => pool.named().give(from, to),
            Self::Folders(pool) => pool.named().give(from, to),
        };
        match given {
            Err(rustix::io::Errno::NOENT) if self.has(to)? => Ok(()),
            given => given.attempt(|| format!("give the disk of session {from} to session {to}")),
        }
    }

    /// Waits until disks keep their names even if the power goes.
    pub(crate) fn settle(&self) -> Result<(), ProviderError> {
        let settled = match self {
            Self::Btrfs(pool) => pool.settle(),
            Self::Ext4(pool) => pool.named().settle(),
            Self::Folders(pool) => pool.named().settle(),
        };
        settled.attempt(|| "write the names of disks to the disk".into())
    }

    pub(crate) fn used(&self, session: SessionId) -> u64 {
        match self {
            Self::Btrfs(pool) => pool.used(session),
            Self::Ext4(pool) => pool.used(session),
            Self::Folders(pool) => pool.used(session),
        }
    }

    pub(crate) fn remove(&self, session: SessionId) -> Result<(), ProviderError> {
        match self {
            Self::Btrfs(pool) => pool.remove(session),
            Self::Ext4(pool) => pool.remove(session),
            Self::Folders(pool) => pool.remove(session),
        }
    }

    /// Keeps a session's disk. Nobody else may change it; `shown`: a sandbox that lives has it mounted, and stands still.
    pub(crate) fn snapshot(
        &self,
        session: SessionId,
        snapshot: SnapshotId,
        shown: bool,
    ) -> Result<SnapshotStatus, ProviderError> {
        let kept = match self {
            Self::Btrfs(pool) => pool.snapshot(session, snapshot),
            Self::Ext4(pool) => pool.snapshot(session, snapshot, shown),
            Self::Folders(pool) => pool.snapshot(session, snapshot),
        };
        kept.map_err(full)
    }

    /// Puts a copy of a snapshot in the place of a session's disk. Nobody else may hold the disk.
    pub(crate) fn restore(&self, snapshot: SnapshotId, session: SessionId) -> Result<(), ProviderError> {
        let restored = match self {
            Self::Btrfs(pool) => pool.restore(snapshot, session),
            Self::Ext4(pool) => pool.restore(snapshot, session),
            Self::Folders(pool) => pool.restore(snapshot, session),
        };
        restored.map_err(full)
    }

    pub(crate) fn remove_snapshot(&self, snapshot: SnapshotId) -> Result<(), ProviderError> {
        match self {
            Self::Btrfs(pool) => pool.remove_snapshot(snapshot),
            Self::Ext4(pool) => pool.remove_snapshot(snapshot),
            Self::Folders(pool) => pool.remove_snapshot(snapshot),
        }
    }

    pub(crate) fn snapshots(&self) -> Result<Snapshots, ProviderError> {
        let (shared, mut kept) = match self {
            Self::Btrfs(pool) => (true, pool.snapshots()?),
            Self::Ext4(pool) => (pool.shares(), pool.snapshots()?),
            Self::Folders(pool) => (false, pool.snapshots()?),
        };
        kept.sort_by_key(|status| status.id);
        Ok(Snapshots { shared, kept })
    }

    /// Unmounts what the pool itself has mounted.
    pub(crate) fn close(&self) -> Result<(), ProviderError> {
        match self {
            Self::Btrfs(pool) => pool.close(),
            Self::Ext4(_) | Self::Folders(_) => Ok(()),
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Says of a failure that it is for want of room, where it is.
fn full(error: ProviderError) -> ProviderError {
    match error {
        ProviderError::Failed { attempt, source } if source.downcast_ref::<io::Error>().is_some_and(is_full) => {
            ProviderError::Full(attempt)
        }
        error => error,
    }
}

/// So many bytes, as people say it.
fn in_words(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

fn snapshot_name(snapshot: SnapshotId) -> String {
    format!("{snapshot}{SNAPSHOT}")
}

/// Whether folders here can be disks with a limit.
///
/// # Errors
/// Where the file system cannot be looked at.
pub fn holds_subvolumes(data: &Path) -> Result<bool, ProviderError> {
    btrfs::holds(data)
}

/// The names in a pool's folder that end with this, without it.
fn names_ending(folder: &Path, end: &str) -> Result<Vec<String>, ProviderError> {
    let attempt = || format!("list {}", folder.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).attempt(attempt)? {
        let name = entry.attempt(attempt)?.file_name();
        if let Some(name) = name.to_str().and_then(|name| name.strip_suffix(end)) {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// Whether a folder is there and something in it.
fn holds_anything(folder: &Path) -> Result<bool, ProviderError> {
    match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        entries => Ok(entries
            .attempt(|| format!("list {}", folder.display()))?
            .next()
            .is_some()),
    }
}

/// The snapshots whose names stand in a pool's folder.
fn snapshots_in(folder: &Path) -> Result<Vec<SnapshotId>, ProviderError> {
    let names = names_ending(folder, SNAPSHOT)?;
    Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
}

fn furnish(disk: BorrowedFd<'_>) -> io::Result<()> {
    // Nothing inside can reach this folder.
    forget_mark(disk, WORK)?;
    for folder in [UPPER, WORK, WORKSPACE] {
        match mkdirat(disk, folder, Mode::from_raw_mode(0o755)) {
            Err(rustix::io::Errno::EXIST) => continue,
            made => made?,
        }
        if folder == WORKSPACE {
            let (user, group) = (Uid::from_raw(inside::USER_ID), Gid::from_raw(inside::GROUP_ID));
            chownat(disk, folder, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
        }
    }
    Ok(())
}

/// The sessions whose names, with this end, stand in a pool's folder.
fn named_after_sessions(folder: &Path, end: &str) -> Result<Vec<SessionId>, ProviderError> {
    let names = names_ending(folder, end)?;
    Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
}
