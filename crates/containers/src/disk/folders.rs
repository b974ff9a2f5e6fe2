//! Disks as plain folders, for whoever sees nothing that is mounted here. They have no limit, and forks copy.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use domain::{SessionId, SnapshotId};
use rustix::fs::{CWD, Mode, OFlags, RenameFlags, fsync, openat, renameat_with};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};
use sandbox::{ProviderError, SnapshotStatus};
use sys::child::end_with_parent;

use crate::Config;
use crate::attempt::{Attempt, unless_missing};
use crate::disk::{HALF, named_after_sessions, names_ending, snapshot_name, snapshots_in};
use crate::record::make_folder;

/// What the name of a session's folder ends with.
const DISK: &str = ".folder";

#[derive(Debug)]
pub(crate) struct Pool {
    folder: PathBuf,
}

impl Pool {
    pub(crate) fn open(config: &Config) -> Result<Self, ProviderError> {
        let folder = config.data.join("disks");
        make_folder(&config.data, 0o711)?;
        // The engine shows what is in it by its own way.
        make_folder(&folder, 0o700)?;
        for half in names_ending(&folder, HALF)? {
            let half = folder.join(format!("{half}{HALF}"));
            unless_missing(fs::remove_dir_all(&half)).attempt(|| format!("remove {}", half.display()))?;
        }
        Ok(Self { folder })
    }

    /// Where a session's disk is.
    pub(crate) fn folder(&self, session: SessionId) -> PathBuf {
        self.folder.join(format!("{session}{DISK}"))
    }

    pub(crate) fn disk(&self, session: SessionId) -> Result<OwnedFd, ProviderError> {
        let path = self.folder(session);
        make_folder(&path, 0o755)?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        open_tree(CWD, &path, flags).attempt(|| format!("mount the disk {}", path.display()))
    }

    pub(crate) fn look_at(&self, session: SessionId) -> Result<OwnedFd, ProviderError> {
        match open(&self.folder(session)) {
            Err(Errno::NOENT) => Err(ProviderError::NoDisk(session)),
            opened => opened.attempt(|| format!("open the disk of session {session}")),
        }
    }

    pub(crate) fn has(&self, session: SessionId) -> Result<bool, ProviderError> {
        let path = self.folder(session);
        path.try_exists().attempt(|| format!("look for {}", path.display()))
    }

    pub(crate) fn sessions(&self) -> Result<Vec<SessionId>, ProviderError> {
        named_after_sessions(&self.folder, DISK)
    }

    pub(crate) fn give(&self, from: SessionId, to: SessionId) -> Result<(), Errno> {
        renameat_with(CWD, self.folder(from), CWD, self.folder(to), RenameFlags::NOREPLACE)
    }

    pub(crate) fn settle(&self) -> Result<(), Errno> {
        fsync(open(&self.folder)?)
    }

    /// Counted file by file.
    pub(crate) fn used(&self, session: SessionId) -> u64 {
        let path = self.folder(session);
        let counted = run("du", ["--summarize", "--block-size=1", "--one-file-system"], [&path]);
        let counted = counted
            .ok()
            .and_then(|said| said.split_whitespace().next()?.parse().ok());
        counted.unwrap_or(0)
    }

    pub(crate) fn remove(&self, session: SessionId) -> Result<(), ProviderError> {
        self.discard(&self.folder(session))
            .attempt(|| format!("remove the disk of session {session}"))
    }

    /// Nobody writes to the disk meanwhile.
    pub(crate) fn snapshot(&self, session: SessionId, snapshot: SnapshotId) -> Result<SnapshotStatus, ProviderError> {
        let (disk, kept) = (self.folder(session), self.snapshot_path(snapshot));
        if !disk.exists() {
            return Err(ProviderError::NoDisk(session));
        }
        if kept.exists() {
            return Err(ProviderError::SnapshotExists(snapshot));
        }
        self.copy(&disk, &kept)
            .attempt(|| format!("keep the disk of session {session} as snapshot {snapshot}"))?;
        self.status(snapshot)
    }

    pub(crate) fn restore(&self, snapshot: SnapshotId, session: SessionId) -> Result<(), ProviderError> {
        let (kept, disk) = (self.snapshot_path(snapshot), self.folder(session));
        if !kept.exists() {
            return Err(ProviderError::NoSnapshot(snapshot));
        }
        self.copy(&kept, &disk)
            .attempt(|| format!("make the disk of session {session} from snapshot {snapshot}"))
    }

    pub(crate) fn remove_snapshot(&self, snapshot: SnapshotId) -> Result<(), ProviderError> {
        self.discard(&self.snapshot_path(snapshot))
            .attempt(|| format!("remove snapshot {snapshot}"))
    }

    pub(crate) fn snapshots(&self) -> Result<Vec<SnapshotStatus>, ProviderError> {
        let snapshots = snapshots_in(&self.folder)?;
        let all = snapshots.into_iter().map(|snapshot| self.status(snapshot));
        // One may be removed meanwhile.
        all.filter(|status| !matches!(status, Err(ProviderError::NoSnapshot(_))))
            .collect()
    }

    fn status(&self, snapshot: SnapshotId) -> Result<SnapshotStatus, ProviderError> {
        let path = self.snapshot_path(snapshot);
        let attempt = || format!("look at {}", path.display());
        let about = match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(ProviderError::NoSnapshot(snapshot)),
            about => about.attempt(attempt)?,
        };
        Ok(SnapshotStatus {
            id: snapshot,
            created: about.created().attempt(attempt)?.into(),
            // Nobody counts.
            bytes: None,
        })
    }

    fn snapshot_path(&self, snapshot: SnapshotId) -> PathBuf {
        self.folder.join(snapshot_name(snapshot))
    }

    /// Copies a disk to the place of another or where nothing is: whole or not at all.
    fn copy(&self, from: &Path, to: &Path) -> io::Result<()> {
        let half = to.with_extension(&HALF[1..]);
        unless_missing(fs::remove_dir_all(&half))?;
        let copied = run(
            "cp",
            [
                "--archive",
                "--reflink=auto",
                "--sparse=always",
                "--no-target-directory",
            ],
            [from, &half],
        );
        let placed = copied.and_then(|_| {
            rustix::fs::syncfs(open(&half)?)?;
            match renameat_with(CWD, &half, CWD, to, RenameFlags::EXCHANGE) {
                Err(Errno::NOENT) => fs::rename(&half, to),
                // The old one has the other's name now.
                exchanged => Ok(exchanged?),
            }
        });
        // What could not be made is what the caller learns of; at the next start it is cleared again.
        let _cleared = fs::remove_dir_all(&half);
        placed
    }

    /// Takes a folder away, at once for whoever looks.
    fn discard(&self, path: &Path) -> io::Result<()> {
        let half = path.with_extension(&HALF[1..]);
        unless_missing(fs::remove_dir_all(&half))?;
        unless_missing(fs::rename(path, &half))?;
        unless_missing(fs::remove_dir_all(&half))
    }
}

fn open(folder: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    openat(CWD, folder, flags, Mode::empty())
}

/// What a program of the machine says; where it fails, its last words are the error.
fn run<const F: usize, const P: usize>(program: &str, flags: [&str; F], paths: [&Path; P]) -> io::Result<String> {
    let mut command = Command::new(program);
    command.env("LC_ALL", "C").args(flags).arg("--").args(paths);
    // This thread waits for its end. Where this process is killed meanwhile, a copy would go on into what the next one clears.
    end_with_parent(&mut command);
    let output = command.output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let kind = if words.contains("No space left on device") {
        io::ErrorKind::StorageFull
    } else {
        io::ErrorKind::Other
    };
    Err(io::Error::new(kind, words))
}
