//! Disks as sparse files with a file system each: where there is no btrfs. A limit is the file system's size.
//!
//! What a sandbox writes finds its place in the file system around only then, and where there is none it is lost without a
//! word to whoever wrote it. So a copy of a disk never takes the last of the room.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use domain::{SessionId, SnapshotId};
use rustix::fs::{SeekFrom, copy_file_range, ioctl_ficlone, seek};
use rustix::io::Errno;
use sandbox::{ProviderError, SnapshotStatus};
use sys::loop_device::LoopDevice;

use crate::attempt::{Attempt, unless_missing};
use crate::disk::named::{Named, half, snapshots};
use crate::disk::program::{Program, make_file};
use crate::disk::room::must_fit;
use crate::disk::{HALF, holds_anything, in_words, is_full, names_ending};
use crate::record::make_folder;
use crate::{Config, mount};

/// Where the files are, in the data directory.
const FOLDER: &str = "disks";
/// What the name of a disk ends with.
const DISK: &str = ".ext4";
/// How long the kernel may take to let go of a disk after the last process of its sandbox.
const PATIENCE: Duration = Duration::from_secs(10);

/// How much is copied before the room is looked at again.
const PIECE: u64 = 8 << 20;

/// How long a whole disk may be looked through before it is made larger: who needs its sandbox waits, and the old limit will do.
const CHECKED_WITHIN: Duration = Duration::from_secs(20);

const MKFS: Program = Program {
    name: "mkfs.ext4",
    package: "e2fsprogs",
    fine: 0,
    within: Duration::from_secs(60),
};
/// Everything may be used (no blocks are kept for root), and nothing is written before it is needed.
const FRUGAL: [&str; 6] = [
    "-q",
    "-F",
    "-m",
    "0",
    "-E",
    "lazy_itable_init=1,lazy_journal_init=1,nodiscard",
];
/// Says by 1 that it mended what was wrong.
const CHECK: Program = Program {
    name: "e2fsck",
    fine: 1,
    within: MENDED_WITHIN,
    ..MKFS
};
const RESIZE: Program = Program {
    name: "resize2fs",
    within: MENDED_WITHIN,
    ..MKFS
};
/// How long it may take to mend a disk, which nobody can use before, or to change its size, which is to be interrupted only where
/// it never ends.
const MENDED_WITHIN: Duration = Duration::from_secs(600);

/// Where a file system of ext4 says how large it is: the place of its superblock, and in it (`struct ext4_super_block`) the
/// number of its blocks, low and high half, and the power of two by which a block is larger than 1 KiB.
const SUPERBLOCK: u64 = 1_024;
const BLOCKS_LOW: u64 = SUPERBLOCK + 0x4;
const BLOCK_SIZE: u64 = SUPERBLOCK + 0x18;
const BLOCKS_HIGH: u64 = SUPERBLOCK + 0x150;

/// And what it says of its state: that it was left whole, that something in it is not.
const STATE: u64 = SUPERBLOCK + 0x3a;
const WHOLE: u16 = 1;
const BROKEN: u16 = 2;

/// More than any file system leaves out at its end, where there is no room for another group with its tables.
const LEFT_OUT: u64 = 8 << 20;

#[derive(Debug)]
pub(crate) struct Pool {
    named: Named,
    /// Whether the file system can make a copy of a file that shares what it holds, once that could be tried.
    shares: Mutex<Option<bool>>,
}

impl Pool {
    /// Whether there are disks or snapshots of this kind.
    pub(crate) fn is_in_use(config: &Config) -> Result<bool, ProviderError> {
        holds_anything(&config.data.join(FOLDER))
    }

    pub(crate) fn open(config: &Config) -> Result<Self, ProviderError> {
        let folder = config.data.join(FOLDER);
        make_folder(&config.data, 0o711)?;
        make_folder(&folder, 0o700)?;
        // The kernel says of a loop device where its file really is.
        let folder = folder.canonicalize().attempt(|| format!("find {}", folder.display()))?;
        for half in names_ending(&folder, HALF)? {
            let half = folder.join(format!("{half}{HALF}"));
            unless_missing(fs::remove_file(&half)).attempt(|| format!("remove {}", half.display()))?;
        }
        let shares = match can_share(&folder) {
            // Whoever is to make room has to begin.
            Err(error) if is_full(&error) => None,
            tried => Some(tried.attempt(|| format!("find out how files are copied in {}", folder.display()))?),
        };
        let shares = Mutex::new(shares);
        Ok(Self {
            named: Named::new(folder, DISK),
            shares,
        })
    }

    /// What its disks and snapshots are called.
    pub(super) fn named(&self) -> &Named {
        &self.named
    }

    /// Whether copies take no room, as far as that is known: where there is none at all, it is found out later.
    pub(crate) fn shares(&self) -> bool {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        if shares.is_none() {
            *shares = can_share(self.named.folder()).ok();
        }
        shares.unwrap_or_default()
    }

    pub(crate) fn disk(&self, session: SessionId, bytes: u64) -> Result<OwnedFd, ProviderError> {
        let path = self.named.disk(session);
        if path.exists() {
            wait_until_free(&path)?;
            resize(session, &path, bytes);
            mend(&path)?;
        } else {
            make_file(&path, bytes, MKFS, &FRUGAL)?;
        }
        show(&path)
    }

    pub(crate) fn look_at(&self, session: SessionId, shown: bool) -> Result<OwnedFd, ProviderError> {
        let path = self.named.disk(session);
        let attempt = || format!("mount the disk {}", path.display());
        if !path.exists() {
            return Err(ProviderError::NoDisk(session));
        }
        if shown && let Some(device) = LoopDevice::showing(&path).attempt(attempt)? {
            // The same file system once more, by the device that it has: a second device would destroy it.
            return mount::mount_file_system("ext4", device.path(), &[]).attempt(attempt);
        }
        wait_until_free(&path)?;
        show(&path)
    }

    pub(crate) fn used(&self, session: SessionId) -> u64 {
        fs::metadata(self.named.disk(session)).map_or(0, |file| file.blocks() * 512)
    }

    pub(crate) fn remove(&self, session: SessionId) -> Result<(), ProviderError> {
        let path = self.named.disk(session);
        unless_missing(fs::remove_file(&path)).attempt(|| format!("remove {}", path.display()))
    }

    pub(crate) fn snapshot(
        &self,
        session: SessionId,
        snapshot: SnapshotId,
        shown: bool,
    ) -> Result<SnapshotStatus, ProviderError> {
        let (disk, kept) = self.named.to_keep(session, snapshot)?;
        if shown {
            flush(&disk).attempt(|| format!("write what is still in memory to {}", disk.display()))?;
        } else {
            wait_until_free(&disk)?;
        }
        copy(&disk, &kept).attempt(|| format!("keep the disk of session {session} as snapshot {snapshot}"))?;
        // It outlives a power cut too, as the row does that names it.
        self.named
            .settle()
            .attempt(|| format!("write the name of snapshot {snapshot} to the disk"))?;
        self.status(snapshot)
    }

    pub(crate) fn restore(&self, snapshot: SnapshotId, session: SessionId) -> Result<(), ProviderError> {
        let (kept, disk) = self.named.to_bring_back(snapshot, session)?;
        copy(&kept, &disk).attempt(|| format!("make the disk of session {session} from snapshot {snapshot}"))
    }

    pub(crate) fn remove_snapshot(&self, snapshot: SnapshotId) -> Result<(), ProviderError> {
        let path = self.named.snapshot(snapshot);
        unless_missing(fs::remove_file(&path)).attempt(|| format!("remove {}", path.display()))
    }

    pub(crate) fn snapshots(&self) -> Result<Vec<SnapshotStatus>, ProviderError> {
        snapshots(self.named.folder(), |snapshot| self.status(snapshot))
    }

    fn status(&self, snapshot: SnapshotId) -> Result<SnapshotStatus, ProviderError> {
        self.named.status(snapshot, |about| Some(about.blocks() * 512))
    }
}

fn show(path: &Path) -> Result<OwnedFd, ProviderError> {
    let attempt = || format!("mount the disk {}", path.display());
    let file = File::options().read(true).write(true).open(path).attempt(attempt)?;
    let device = LoopDevice::attach(&file).attempt(attempt)?;
    mount::mount_file_system("ext4", device.path(), &[]).attempt(attempt)
}

/// Makes a disk that nobody holds larger where its limit was raised. One that has more already keeps it: making it smaller would
/// move what it holds. One that cannot be made larger is still the session's.
fn resize(session: SessionId, path: &Path, bytes: u64) {
    let outcome = size(path).and_then(|now| {
        if bytes < now.saturating_add(LEFT_OUT) {
            return Ok(now);
        }
        grow(path, bytes)?;
        size(path)
    });
    match outcome {
        Ok(now) if now > bytes => {
            tracing::info!(%session, "a disk keeps its {}, though the limit is {} now: disks of ext4 are never made smaller", in_words(now), in_words(bytes));
        }
        Ok(_) => {}
        Err(error) => {
            tracing::error!(%session, error = &error as &dyn std::error::Error, "a disk could not be given its new limit of {} and keeps the one before; it is tried again when its sandbox is started again", in_words(bytes));
        }
    }
}

/// Checks a file system that says of itself that somebody was interrupted who changed it, or that it is not whole.
fn mend(path: &Path) -> Result<(), ProviderError> {
    let attempt = || format!("find out whether the disk {} is whole", path.display());
    let mut state = [0; 2];
    let file = File::open(path).attempt(attempt)?;
    file.read_exact_at(&mut state, STATE).attempt(attempt)?;
    if u16::from_le_bytes(state) & (WHOLE | BROKEN) == WHOLE {
        return Ok(());
    }
    let checked = CHECK.needed(&["-f", "-p"], &[path.as_os_str()], || {
        format!("check the disk {}", path.display())
    });
    checked.map(drop)
}

/// How large the file system in a file is.
fn size(path: &Path) -> Result<u64, ProviderError> {
    let attempt = || format!("find out how large the disk {} is", path.display());
    let file = File::open(path).attempt(attempt)?;
    let number = |at| {
        let mut bytes = [0; 4];
        file.read_exact_at(&mut bytes, at)
            .attempt(attempt)
            .map(|()| u32::from_le_bytes(bytes))
    };
    let blocks = (u64::from(number(BLOCKS_HIGH)?) << 32) | u64::from(number(BLOCKS_LOW)?);
    Ok(blocks.saturating_mul(1_024 << number(BLOCK_SIZE)?.min(6)))
}

/// Done by programs, not by the kernel, which grows what is mounted only for who may also exceed every limit of resources. What
/// was interrupted is checked, mended and done anew by the next try.
fn grow(path: &Path, bytes: u64) -> Result<(), ProviderError> {
    let attempt = || format!("make the disk {} larger", path.display());
    let file = File::options().write(true).open(path).attempt(attempt)?;
    let length = file.metadata().attempt(attempt)?.len();
    file.set_len(length.max(bytes)).attempt(attempt)?;
    let check = Program {
        within: CHECKED_WITHIN,
        ..CHECK
    };
    check.needed(&["-f", "-p"], &[path.as_os_str()], || {
        format!("check the disk {}", path.display())
    })?;
    let kibibytes = format!("{}K", bytes / 1_024);
    RESIZE.needed(&[], &[path.as_os_str(), kibibytes.as_ref()], attempt)?;
    file.sync_all().attempt(attempt)
}

/// Copies a disk, holes as holes, to the place of another or where nothing is: whole or not at all.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let half = half(to);
    let copied = File::open(from)
        .and_then(|from| copy_into(&from, &File::create(&half)?))
        .and_then(|()| fs::rename(&half, to));
    if copied.is_err() {
        // What could not be made is what the caller learns of; at the next start it is cleared again.
        let _cleared = fs::remove_file(&half);
    }
    copied
}

fn copy_into(from: &File, to: &File) -> io::Result<()> {
    // What is shared is written to as well, and needs room of its own then.
    must_fit(to, 0)?;
    match ioctl_ficlone(to, from) {
        Ok(()) => to.sync_all(),
        Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL | Errno::XDEV) => copy_data(from, to, must_fit),
        Err(error) => Err(error.into()),
    }
}

/// A copy that fails gives its room back at once, whoever else holds its file by then: a process that was just started and is
/// not its program yet, or somebody who waits until all files are written. Removing it would leave the room to them.
fn copy_data(from: &File, to: &File, room: impl Fn(&File, u64) -> io::Result<()>) -> io::Result<()> {
    let copied = copy_pieces(from, to, room);
    if copied.is_err() {
        // What could not be made is what the caller learns of.
        let _emptied = to.set_len(0);
    }
    copied
}

fn copy_pieces(from: &File, to: &File, room: impl Fn(&File, u64) -> io::Result<()>) -> io::Result<()> {
    let about = from.metadata()?;
    room(to, about.blocks() * 512)?;
    to.set_len(about.len())?;
    let mut at = 0;
    while at < about.len() {
        at = match seek(from, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => break,
            found => found?,
        };
        let end = seek(from, SeekFrom::Hole(at))?;
        let mut place = at;
        while at < end {
            let piece = PIECE.min(end - at);
            // Others may have taken what was there at the beginning.
            room(to, piece)?;
            let wanted = usize::try_from(piece).unwrap_or(usize::MAX);
            if copy_file_range(from, Some(&mut at), to, Some(&mut place), wanted)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
    to.sync_all()
}

/// Finds out by trying.
fn can_share(folder: &Path) -> io::Result<bool> {
    let [from, to] = ["tried", "shared"].map(|name| folder.join(format!("{name}{HALF}")));
    let shared = try_to_share(&from, &to);
    for tried in [from, to] {
        unless_missing(fs::remove_file(tried))?;
    }
    shared
}

fn try_to_share(from: &Path, to: &Path) -> io::Result<bool> {
    fs::write(from, [1; 4096])?;
    match ioctl_ficlone(File::create(to)?, File::open(from)?).map_err(io::Error::from) {
        Err(error) if is_full(&error) => Err(error),
        shared => Ok(shared.is_ok()),
    }
}

/// Two devices that show one file would destroy what is on it.
fn wait_until_free(path: &Path) -> Result<(), ProviderError> {
    let attempt = || format!("wait until nobody holds the disk {}", path.display());
    let begun = Instant::now();
    while LoopDevice::showing(path).attempt(attempt)?.is_some() {
        if begun.elapsed() > PATIENCE {
            return Err(ProviderError::failed(
                attempt(),
                "a loop device still shows it (losetup -a)",
            ));
        }
        sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Brings all that was written to a mounted disk into its file.
fn flush(path: &Path) -> io::Result<()> {
    match LoopDevice::showing(path)? {
        Some(device) => device.flush(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::Write;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_disk_grows_whoever_was_interrupted_before_and_is_never_made_smaller() {
        const SMALL: u64 = 64 << 20;
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("disk.ext4");
        make_file(&disk, SMALL, MKFS, &FRUGAL).unwrap();
        let near = |bytes: u64| {
            let now = size(&disk).unwrap();
            assert!(now <= bytes && bytes < now + LEFT_OUT, "{now} instead of {bytes}");
        };
        near(SMALL);
        // The file became larger, and whoever did that was killed.
        File::options()
            .write(true)
            .open(&disk)
            .unwrap()
            .set_len(4 * SMALL)
            .unwrap();
        resize(SessionId::new(), &disk, 3 * SMALL);
        near(3 * SMALL);
        resize(SessionId::new(), &disk, SMALL);
        near(3 * SMALL);
        CHECK.run(&["-f", "-n"], &[disk.as_os_str()]).unwrap();
        // Who made it larger was killed before the last word.
        for state in [0, WHOLE | BROKEN] {
            let order = format!("set_super_value state {state}");
            let said = Command::new("debugfs").args(["-w", "-R", &order]).arg(&disk).output();
            assert!(said.as_ref().is_ok_and(|said| said.status.success()), "{said:?}");
            let state_now = || {
                let mut state = [0; 2];
                File::open(&disk).unwrap().read_exact_at(&mut state, STATE).unwrap();
                u16::from_le_bytes(state)
            };
            assert_eq!(state_now(), state);
            mend(&disk).unwrap();
            assert_eq!(state_now(), WHOLE);
        }
        fs::write(&disk, vec![0; 1 << 20]).unwrap();
        assert!(mend(&disk).is_err(), "what cannot be mended is not mounted");
    }

    #[test]
    fn a_copy_that_fails_half_way_takes_no_room_even_while_somebody_holds_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut from = File::create_new(folder.path().join("from")).unwrap();
        from.write_all(&vec![7; usize::try_from(3 * PIECE).unwrap()]).unwrap();
        let from = File::open(folder.path().join("from")).unwrap();
        let to = File::create_new(folder.path().join("to")).unwrap();
        let asked = Cell::new(0);
        let room = |to: &File, _| {
            asked.set(asked.get() + 1);
            if asked.get() < 4 {
                return Ok(());
            }
            assert!(to.metadata()?.blocks() > 0, "nothing was copied yet");
            Err(io::ErrorKind::StorageFull.into())
        };
        let failed = copy_data(&from, &to, room).unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::StorageFull);
        assert_eq!(to.metadata().unwrap().blocks(), 0);
        // And where there is room it is whole.
        copy_data(&from, &to, |_, _| Ok(())).unwrap();
        assert_eq!(
            fs::read(folder.path().join("to")).unwrap(),
            fs::read(folder.path().join("from")).unwrap()
        );
    }
}
