//! Disks as subvolumes, each with a quota.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use domain::{SessionId, SnapshotId};
use rustix::fs::{Mode, OFlags, RenameFlags, fstatvfs, fsync, openat, renameat, renameat_with, statvfs};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, UnmountFlags, open_tree, unmount};
use sandbox::{ProviderError, SnapshotStatus};
use sys::btrfs;
use sys::loop_device::LoopDevice;

use crate::attempt::{Attempt, unless_missing};
use crate::disk::named::snapshots;
use crate::disk::program::{Program, make_file};
use crate::disk::room::must_fit;
use crate::disk::{DiskKind, HALF, holds_anything, in_words, named_after_sessions, names_ending, snapshot_name};
use crate::record::make_folder;
use crate::{Config, mount};

/// Where the subvolumes are, in the data directory.
const FOLDER: &str = "pool";
/// What is mounted there where the data directory is on no btrfs.
const FILE: &str = "pool.btrfs";

/// What statfs says of btrfs.
const MAGIC: u64 = 0x9123_683e;
/// The file system's own needs; below this nobody could work.
const LEAST_BYTES: u64 = 256 << 20;

const MKFS: Program = Program {
    name: "mkfs.btrfs",
    package: "btrfs-progs",
    fine: 0,
    within: Duration::from_secs(60),
};

#[derive(Debug)]
pub(crate) struct Pool {
    folder: PathBuf,
    handle: File,
    /// The folder around it, on whose file system a pool in a file finds its room.
    around: File,
    /// Where the counts of its quotas are.
    counts: PathBuf,
    kind: DiskKind,
}

impl Pool {
    /// Whether there is one, with disks or without.
    pub(crate) fn is_in_use(config: &Config) -> Result<bool, ProviderError> {
        Ok(config.data.join(FILE).exists() || holds_anything(&config.data.join(FOLDER))?)
    }

    pub(crate) fn open(config: &Config) -> Result<Self, ProviderError> {
        let folder = config.data.join(FOLDER);
        make_folder(&config.data, 0o711)?;
        make_folder(&folder, 0o700)?;
        let is_own = holds(&config.data)?;
        if !is_own && !holds(&folder)? {
            mount_file(config, &folder)?;
        }
        let handle = File::open(&folder).attempt(|| format!("open {}", folder.display()))?;
        btrfs::enable_quota(&handle).attempt(|| format!("enable quotas of the btrfs at {}", folder.display()))?;
        let id = btrfs::file_system_id(&handle).attempt(|| format!("identify the btrfs at {}", folder.display()))?;
        let around = File::open(&config.data).attempt(|| format!("open {}", config.data.display()))?;
        let pool = Self {
            folder,
            handle,
            around,
            counts: format!("/sys/fs/btrfs/{id}/qgroups").into(),
            kind: if is_own { DiskKind::Btrfs } else { DiskKind::BtrfsFile },
        };
        for half in names_ending(&pool.folder, HALF)? {
            pool.delete(&format!("{half}{HALF}"))
                .attempt(|| format!("remove the disk {half}, which was never finished"))?;
        }
        Ok(pool)
    }

    pub(crate) fn kind(&self) -> DiskKind {
        self.kind
    }

    pub(crate) fn disk(&self, session: SessionId, bytes: u64) -> Result<OwnedFd, ProviderError> {
        let name = session.to_string();
        let attempt = || format!("make the subvolume {}", self.folder.join(&name).display());
        match btrfs::create_subvolume(&self.handle, &name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made.attempt(attempt)?,
        }
        let subvolume = self.open_subvolume(&name).attempt(attempt)?;
        let number = btrfs::subvolume_id(&subvolume).attempt(attempt)?;
        let used = self.count(&subvolume).unwrap_or(0);
        let bytes = bytes.min(self.share().attempt(attempt)?);
        if used > bytes {
            tracing::warn!(%session, "a disk holds {}, more than its new limit of {}: nothing more can be written to it until \
                 files are removed", in_words(used), in_words(bytes));
        }
        // Below what is used not even a file could be removed for certain.
        let most = bytes.max(used);
        btrfs::limit_subvolume(&self.handle, number, most)
            .attempt(|| format!("limit the disk of session {session} to {most} bytes"))?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        open_tree(&self.handle, &name, flags).attempt(|| format!("mount the disk of session {session}"))
    }

    /// The most that one disk may have, whatever its limit: half of the pool, so that none fills it alone. Snapshots are disks of
    /// their own.
    fn share(&self) -> io::Result<u64> {
        let pool = fstatvfs(&self.handle)?;
        Ok(pool.f_blocks.saturating_mul(pool.f_frsize) / 2)
    }

    /// Where a subvolume is, if the pool is not mounted here alone.
    pub(crate) fn path(&self, session: SessionId) -> Option<PathBuf> {
        (self.kind == DiskKind::Btrfs).then(|| self.folder.join(session.to_string()))
    }

    pub(crate) fn look_at(&self, session: SessionId) -> Result<OwnedFd, ProviderError> {
        match self.open_subvolume(&session.to_string()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(ProviderError::NoDisk(session)),
            opened => opened.attempt(|| format!("open the disk of session {session}")),
        }
    }

    pub(crate) fn has(&self, session: SessionId) -> Result<bool, ProviderError> {
        match self.open_subvolume(&session.to_string()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            opened => opened
                .map(|_| true)
                .attempt(|| format!("look for the disk of session {session}")),
        }
    }

    pub(crate) fn sessions(&self) -> Result<Vec<SessionId>, ProviderError> {
        named_after_sessions(&self.folder, "")
    }

    pub(crate) fn give(&self, from: SessionId, to: SessionId) -> Result<(), Errno> {
        let (from, to) = (from.to_string(), to.to_string());
        renameat_with(&self.handle, from, &self.handle, to, RenameFlags::NOREPLACE)
    }

    pub(crate) fn settle(&self) -> Result<(), Errno> {
        fsync(&self.handle)
    }

    pub(crate) fn used(&self, session: SessionId) -> u64 {
        let subvolume = self.open_subvolume(&session.to_string());
        subvolume.ok().and_then(|disk| self.count(&disk)).unwrap_or(0)
    }

    /// How many bytes a subvolume holds, shared or not.
    fn count(&self, subvolume: &OwnedFd) -> Option<u64> {
        let number = btrfs::subvolume_id(subvolume).ok()?;
        let file = self.counts.join(format!("0_{number}/referenced"));
        fs::read_to_string(file).ok()?.trim().parse().ok()
    }

    pub(crate) fn remove(&self, session: SessionId) -> Result<(), ProviderError> {
        self.delete(&session.to_string())
            .attempt(|| format!("remove the disk of session {session}"))
    }

    pub(crate) fn snapshot(&self, session: SessionId, snapshot: SnapshotId) -> Result<SnapshotStatus, ProviderError> {
        let attempt = || format!("keep the disk of session {session} as snapshot {snapshot}");
        let disk = match self.open_subvolume(&session.to_string()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(ProviderError::NoDisk(session)),
            opened => opened.attempt(attempt)?,
        };
        let name = snapshot_name(snapshot);
        if self.open_subvolume(&name).is_ok() {
            return Err(ProviderError::SnapshotExists(snapshot));
        }
        self.must_fit_another().attempt(attempt)?;
        match btrfs::copy_subvolume(disk, &self.handle, &name, true) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(ProviderError::SnapshotExists(snapshot)),
            made => {
                made.attempt(attempt)?;
                self.status(snapshot).inspect_err(|_| {
                    // Whoever is told of a failure has no snapshot, and this is what they learn of.
                    let _removed = self.delete(&name);
                })
            }
        }
    }

    /// Refuses a copy where little room is left. It takes none by itself, but what it shares is kept when it is written to.
    fn must_fit_another(&self) -> io::Result<()> {
        must_fit(&self.handle, 0)?;
        must_fit(&self.around, 0)
    }

    pub(crate) fn restore(&self, snapshot: SnapshotId, session: SessionId) -> Result<(), ProviderError> {
        let attempt = || format!("make the disk of session {session} from snapshot {snapshot}");
        let kept = match self.open_subvolume(&snapshot_name(snapshot)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(ProviderError::NoSnapshot(snapshot)),
            opened => opened.attempt(attempt)?,
        };
        let (disk, half) = (session.to_string(), format!("{session}{HALF}"));
        self.delete(&half).attempt(attempt)?;
        self.must_fit_another().attempt(attempt)?;
        btrfs::copy_subvolume(kept, &self.handle, &half, false).attempt(attempt)?;
        let (pool, changed_places) = (&self.handle, RenameFlags::EXCHANGE);
        match renameat_with(pool, &half, pool, &disk, changed_places) {
            Err(Errno::NOENT) => renameat(pool, &half, pool, &disk).attempt(attempt),
            // The old one has the other's name now.
            exchanged => exchanged
                .map_err(io::Error::from)
                .and_then(|()| self.delete(&half))
                .attempt(attempt),
        }
    }

    pub(crate) fn remove_snapshot(&self, snapshot: SnapshotId) -> Result<(), ProviderError> {
        self.delete(&snapshot_name(snapshot))
            .attempt(|| format!("remove snapshot {snapshot}"))
    }

    pub(crate) fn snapshots(&self) -> Result<Vec<SnapshotStatus>, ProviderError> {
        snapshots(&self.folder, |snapshot| self.status(snapshot))
    }

    fn status(&self, snapshot: SnapshotId) -> Result<SnapshotStatus, ProviderError> {
        let attempt = || format!("look at snapshot {snapshot}");
        let kept = match self.open_subvolume(&snapshot_name(snapshot)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(ProviderError::NoSnapshot(snapshot)),
            opened => opened.attempt(attempt)?,
        };
        Ok(SnapshotStatus {
            id: snapshot,
            created: btrfs::subvolume_made(&kept).attempt(attempt)?.into(),
            bytes: self.count(&kept),
        })
    }

    /// Removes a subvolume and its count; one that is not there is removed already.
    fn delete(&self, name: &str) -> io::Result<()> {
        let number = match self.open_subvolume(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened.and_then(btrfs::subvolume_id)?,
        };
        unless_missing(btrfs::delete_subvolume(&self.handle, name))?;
        // Newer kernels forget by themselves, when the files are really gone; older ones at the next chance.
        let _forgotten = btrfs::forget_quota(&self.handle, number);
        Ok(())
    }

    pub(crate) fn close(&self) -> Result<(), ProviderError> {
        if self.kind == DiskKind::Btrfs {
            return Ok(());
        }
        unmount(&self.folder, UnmountFlags::DETACH).attempt(|| format!("unmount {}", self.folder.display()))
    }

    fn open_subvolume(&self, name: &str) -> io::Result<OwnedFd> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Ok(openat(&self.handle, name, flags, Mode::empty())?)
    }
}

/// Whether a folder is on btrfs.
pub(crate) fn holds(folder: &Path) -> Result<bool, ProviderError> {
    let about = rustix::fs::statfs(folder).attempt(|| format!("look at the file system of {}", folder.display()))?;
    // The type of the field differs between architectures; the number fits each.
    Ok(about.f_type as u64 & 0xffff_ffff == MAGIC)
}

/// Mounts the file with the pool, which is made at the first time. One that cannot be mounted then is removed: nobody's disk
/// is in it, and the next start must not take it for one that is in use.
fn mount_file(config: &Config, folder: &Path) -> Result<(), ProviderError> {
    let path = config.data.join(FILE);
    if path.exists() {
        return mount_at(&path, folder);
    }
    make_pool(config, &path)?;
    let mounted = mount_at(&path, folder);
    if mounted.is_err() {
        unless_missing(fs::remove_file(&path)).attempt(|| format!("remove {}", path.display()))?;
    }
    mounted
}

fn mount_at(path: &Path, folder: &Path) -> Result<(), ProviderError> {
    let attempt = || format!("mount {} at {}", path.display(), folder.display());
    let file = File::options().read(true).write(true).open(path).attempt(attempt)?;
    // Sandboxes hold the pool where nobody sees it mounted any more. The same device is the same file system; another one
    // would be a second that writes to the file, and destroy what is on it.
    let device = match LoopDevice::showing(path).attempt(attempt)? {
        Some(device) => device,
        None => LoopDevice::attach(&file).attempt(attempt)?,
    };
    // One pool is one device, so nothing needs finding; and the first that fills is the pool, not a neighbour.
    let mount = mount::mount_file_system("btrfs", device.path(), &[]).attempt(attempt)?;
    mount::attach(&mount, folder).attempt(attempt)
}

fn make_pool(config: &Config, path: &Path) -> Result<(), ProviderError> {
    let attempt = || format!("make the disk pool {}", path.display());
    let room = statvfs(&config.data).attempt(attempt)?;
    let free = room.f_bavail.saturating_mul(room.f_frsize);
    let bytes = match config.pool_bytes {
        0 => free / 5 * 4,
        bytes => bytes,
    };
    if bytes < LEAST_BYTES {
        return Err(ProviderError::Limit(format!(
            "the disk pool would have {bytes} bytes and needs {LEAST_BYTES}: free room in {}, or give it a size",
            config.data.display()
        )));
    }
    make_file(path, bytes, MKFS, &["--quiet", "--force", "--metadata", "single"])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use seccompiler::{
        BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
        apply_filter,
    };

    use super::*;

    /// `BTRFS_IOC_GET_SUBVOL_INFO`.
    const LOOK: u64 = 0x81f8_943c;

    /// From here on this thread cannot look at subvolumes.
    fn forbid_looking() {
        let about_subvolumes = SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, LOOK).unwrap();
        let rule = SeccompRule::new(vec![about_subvolumes]).unwrap();
        let ioctl = if cfg!(target_arch = "x86_64") { 16 } else { 29 };
        let refused = SeccompAction::Errno(Errno::IO.raw_os_error().unsigned_abs());
        let architecture = std::env::consts::ARCH.try_into().unwrap();
        let rules = BTreeMap::from([(ioctl, vec![rule])]);
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, architecture).unwrap();
        apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
    }

    #[test]
    fn a_snapshot_that_nobody_could_be_told_of_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::new(folder.path().join("data"), "/nothing");
        config.pool_bytes = LEAST_BYTES;
        let pool = Pool::open(&config).unwrap();
        let (session, first, second) = (SessionId::new(), SnapshotId::new(), SnapshotId::new());
        drop(pool.disk(session, 1 << 20).unwrap());
        pool.snapshot(session, first).unwrap();
        let again = pool.snapshot(session, first);
        assert!(matches!(again, Err(ProviderError::SnapshotExists(_))), "{again:?}");
        let failed = std::thread::scope(|scope| {
            let blind = scope.spawn(|| {
                forbid_looking();
                pool.snapshot(session, second)
            });
            blind.join().unwrap()
        });
        assert!(matches!(failed, Err(ProviderError::Failed { .. })), "{failed:?}");
        let kept: Vec<_> = pool.snapshots().unwrap().into_iter().map(|status| status.id).collect();
        assert_eq!(kept, [first]);
        pool.close().unwrap();
    }
}
