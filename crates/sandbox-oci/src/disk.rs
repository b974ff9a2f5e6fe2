//! The disks of sessions: each with its own limit, none at a neighbour's cost.
//!
//! A disk holds `upper` and `work` (what the sandbox changes of its image) and `workspace`. Files on it carry the ids of
//! inside, 0 to 65535, so it fits any sandbox's range. It is handed out as a mount that is attached nowhere.

mod btrfs;
mod ext4;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use domain::SessionId;
use rustix::fs::{AtFlags, Gid, Mode, Uid, chownat, mkdirat, unlinkat};
use sandbox::{ProviderError, inside};
use serde::{Deserialize, Serialize};

use crate::attempt::Attempt;
use crate::{Config, DiskChoice};

pub(crate) const UPPER: &str = "upper";
pub(crate) const WORK: &str = "work";
pub(crate) const WORKSPACE: &str = "workspace";

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
}

/// Where the disks of all sessions are.
#[derive(Debug)]
pub(crate) enum Pool {
    Btrfs(btrfs::Pool),
    Ext4(ext4::Pool),
}

impl Pool {
    pub(crate) fn open(config: &Config) -> Result<Self, ProviderError> {
        match config.disk {
            DiskChoice::Btrfs => btrfs::Pool::open(config).map(Self::Btrfs),
            DiskChoice::Ext4 => ext4::Pool::open(config).map(Self::Ext4),
            DiskChoice::Auto => btrfs::Pool::open(config).map(Self::Btrfs).or_else(|error| {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "no btrfs pool can be had: each session gets a file with ext4 instead, and forks copy"
                );
                ext4::Pool::open(config).map(Self::Ext4)
            }),
        }
    }

    pub(crate) fn kind(&self) -> DiskKind {
        match self {
            Self::Btrfs(pool) => pool.kind(),
            Self::Ext4(_) => DiskKind::Ext4Files,
        }
    }

    /// A session's disk as a mount that is attached nowhere; made if there is none. Nobody else may hold it.
    pub(crate) fn disk(&self, session: SessionId, bytes: u64) -> Result<OwnedFd, ProviderError> {
        let disk = match self {
            Self::Btrfs(pool) => pool.disk(session, bytes)?,
            Self::Ext4(pool) => pool.disk(session, bytes)?,
        };
        furnish(disk.as_fd()).attempt(|| format!("furnish the disk of session {session}"))?;
        Ok(disk)
    }

    pub(crate) fn used(&self, session: SessionId) -> u64 {
        match self {
            Self::Btrfs(pool) => pool.used(session),
            Self::Ext4(pool) => pool.used(session),
        }
    }

    pub(crate) fn remove(&self, session: SessionId) -> Result<(), ProviderError> {
        match self {
            Self::Btrfs(pool) => pool.remove(session),
            Self::Ext4(pool) => pool.remove(session),
        }
    }

    /// Unmounts what the pool itself has mounted.
    pub(crate) fn close(&self) -> Result<(), ProviderError> {
        match self {
            Self::Btrfs(pool) => pool.close(),
            Self::Ext4(_) => Ok(()),
        }
    }
}

fn furnish(disk: BorrowedFd<'_>) -> io::Result<()> {
    // An overlay that does not wait for the disk marks its work folder, lest it be used after a power cut unseen. We use
    // it all the same: what may be lost then is said where the overlay is mounted. Nothing inside can reach this folder.
    let mark = format!("{WORK}/work/incompat/volatile");
    for (path, flags) in [(format!("{mark}/dirty"), AtFlags::empty()), (mark, AtFlags::REMOVEDIR)] {
        match unlinkat(disk, path, flags) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
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
