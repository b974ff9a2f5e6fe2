//! Copies of sessions' files.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use domain::{SessionId, SnapshotId};

use super::{KNOWLEDGE, Simulator, WORKSPACE, remove};
use crate::{ProviderError, SnapshotStatus, Snapshots};

impl Simulator {
    /// The folder of a snapshot's files.
    pub(super) fn kept(&self, snapshot: SnapshotId) -> PathBuf {
        self.all().join(snapshot.to_string())
    }

    fn all(&self) -> PathBuf {
        self.world.folder.path().join("snapshots")
    }

    pub(super) fn keep(&self, session: SessionId, snapshot: SnapshotId) -> Result<SnapshotStatus, ProviderError> {
        let (disk, kept) = (self.workspace(session), self.kept(snapshot));
        if !disk.is_dir() {
            return Err(ProviderError::NoDisk(session));
        }
        if kept.exists() {
            return Err(ProviderError::SnapshotExists(snapshot));
        }
        copy(&disk, &kept.join(WORKSPACE))?;
        copy(&self.knowledge(session), &kept.join(KNOWLEDGE))?;
        status(snapshot, &kept)
    }

    pub(super) fn bring_back(&self, snapshot: SnapshotId, session: SessionId) -> Result<(), ProviderError> {
        let kept = self.kept(snapshot);
        if !kept.is_dir() {
            return Err(ProviderError::NoSnapshot(snapshot));
        }
        for (part, own) in [
            (WORKSPACE, self.workspace(session)),
            (KNOWLEDGE, self.knowledge(session)),
        ] {
            remove(&own)?;
            copy(&kept.join(part), &own)?;
        }
        Ok(())
    }

    pub(super) fn all_kept(&self) -> Result<Snapshots, ProviderError> {
        let all = self.all();
        let failed = |error| ProviderError::failed(format!("list {}", all.display()), error);
        let entries = match fs::read_dir(&all) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            entries => Some(entries.map_err(failed)?),
        };
        let mut kept = Vec::new();
        for entry in entries.into_iter().flatten() {
            let entry = entry.map_err(failed)?;
            if let Ok(snapshot) = entry.file_name().to_string_lossy().parse() {
                kept.push(status(snapshot, &entry.path())?);
            }
        }
        kept.sort_by_key(|status| status.id);
        Ok(Snapshots { shared: true, kept })
    }
}

/// Copies a folder with all that can be told of its files, to a place where nothing is.
pub(super) fn copy(from: &Path, to: &Path) -> Result<(), ProviderError> {
    let attempt = || format!("copy {} to {}", from.display(), to.display());
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).map_err(|error| ProviderError::failed(attempt(), error))?;
    }
    let mut copying = Command::new("cp");
    copying.args(["--archive", "--sparse=always", "--no-target-directory"]);
    let copied = copying.arg(from).arg(to).output();
    let copied = copied.map_err(|error| ProviderError::failed(attempt(), error))?;
    if copied.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&copied.stderr).trim().to_owned();
    Err(ProviderError::failed(attempt(), words))
}

fn status(id: SnapshotId, folder: &Path) -> Result<SnapshotStatus, ProviderError> {
    let made = fs::metadata(folder).and_then(|folder| folder.created());
    let made = made.map_err(|error| ProviderError::failed(format!("look at {}", folder.display()), error))?;
    Ok(SnapshotStatus {
        id,
        created: made.into(),
        bytes: None,
    })
}
