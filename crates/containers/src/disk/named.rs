//! Disks that are each one entry of a folder, a file or a folder of its own, named after its session.

use std::fs::{self, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use domain::{SessionId, SnapshotId};
use rustix::fs::{CWD, Mode, OFlags, RenameFlags, fsync, openat, renameat_with};
use rustix::io::Errno;
use sandbox::{ProviderError, SnapshotStatus};

use crate::attempt::Attempt;
use crate::disk::{HALF, named_after_sessions, snapshot_name, snapshots_in};

#[derive(Debug)]
pub(super) struct Named {
    folder: PathBuf,
    /// What the name of a disk ends with.
    end: &'static str,
}

impl Named {
    pub(super) fn new(folder: PathBuf, end: &'static str) -> Self {
        Self { folder, end }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where a session's disk is.
    pub(super) fn disk(&self, session: SessionId) -> PathBuf {
        self.folder.join(format!("{session}{}", self.end))
    }

    pub(super) fn snapshot(&self, snapshot: SnapshotId) -> PathBuf {
        self.folder.join(snapshot_name(snapshot))
    }

    /// A disk that is to be kept, and where: nothing is there yet.
    pub(super) fn to_keep(
        &self,
        session: SessionId,
        snapshot: SnapshotId,
    ) -> Result<(PathBuf, PathBuf), ProviderError> {
        let (disk, kept) = (self.disk(session), self.snapshot(snapshot));
        match (disk.exists(), kept.exists()) {
            (false, _) => Err(ProviderError::NoDisk(session)),
            (true, true) => Err(ProviderError::SnapshotExists(snapshot)),
            (true, false) => Ok((disk, kept)),
        }
    }

    /// What was kept, and the disk whose place a copy of it is to have.
    pub(super) fn to_bring_back(
        &self,
        snapshot: SnapshotId,
        session: SessionId,
    ) -> Result<(PathBuf, PathBuf), ProviderError> {
        let (kept, disk) = (self.snapshot(snapshot), self.disk(session));
        if kept.exists() {
            Ok((kept, disk))
        } else {
            Err(ProviderError::NoSnapshot(snapshot))
        }
    }

    pub(super) fn has(&self, session: SessionId) -> Result<bool, ProviderError> {
        let path = self.disk(session);
        path.try_exists().attempt(|| format!("look for {}", path.display()))
    }

    pub(super) fn sessions(&self) -> Result<Vec<SessionId>, ProviderError> {
        named_after_sessions(&self.folder, self.end)
    }

    pub(super) fn give(&self, from: SessionId, to: SessionId) -> Result<(), Errno> {
        renameat_with(CWD, self.disk(from), CWD, self.disk(to), RenameFlags::NOREPLACE)
    }

    pub(super) fn settle(&self) -> Result<(), Errno> {
        fsync(open_folder(&self.folder)?)
    }

    pub(super) fn status(
        &self,
        snapshot: SnapshotId,
        bytes: impl FnOnce(&Metadata) -> Option<u64>,
    ) -> Result<SnapshotStatus, ProviderError> {
        let path = self.snapshot(snapshot);
        let attempt = || format!("look at {}", path.display());
        let about = match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(ProviderError::NoSnapshot(snapshot)),
            about => about.attempt(attempt)?,
        };
        Ok(SnapshotStatus {
            id: snapshot,
            created: about.created().attempt(attempt)?.into(),
            bytes: bytes(&about),
        })
    }
}

/// Every snapshot of a pool's folder.
pub(super) fn snapshots(
    folder: &Path,
    status: impl Fn(SnapshotId) -> Result<SnapshotStatus, ProviderError>,
) -> Result<Vec<SnapshotStatus>, ProviderError> {
    let all = snapshots_in(folder)?.into_iter().map(status);
    // One may be removed meanwhile.
    all.filter(|status| !matches!(status, Err(ProviderError::NoSnapshot(_))))
        .collect()
}

/// Where something is as long as it is being made: beside its place.
pub(super) fn half(path: &Path) -> PathBuf {
    path.with_extension(&HALF[1..])
}

/// A folder that is no link.
pub(super) fn open_folder(folder: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    openat(CWD, folder, flags, Mode::empty())
}
