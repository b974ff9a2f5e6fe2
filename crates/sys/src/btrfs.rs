//! Subvolumes of btrfs and their quotas.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// `struct btrfs_ioctl_vol_args`: also the shape of the others that name a subvolume.
#[repr(C)]
struct Named {
    descriptor: i64,
    name: [u8; 4088],
}

/// `struct btrfs_ioctl_vol_args_v2`.
#[repr(C)]
struct Copied {
    descriptor: i64,
    transaction: u64,
    flags: u64,
    unused: [u64; 4],
    name: [u8; 4040],
}

/// `struct btrfs_ioctl_get_subvol_info_args`.
#[repr(C)]
struct About {
    number: u64,
    name: [u8; 256],
    parent: u64,
    folder: u64,
    generation: u64,
    flags: u64,
    ids: [[u8; 16]; 3],
    transactions: [u64; 4],
    changed: Moment,
    made: Moment,
    sent: Moment,
    received: Moment,
    unused: [u64; 8],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Moment {
    seconds: u64,
    nanos: u32,
    unused: u32,
}

#[repr(C)]
struct QuotaControl {
    command: u64,
    status: u64,
}

#[repr(C)]
struct GroupChange {
    create: u64,
    group: u64,
}

#[repr(C)]
struct GroupLimit {
    group: u64,
    flags: u64,
    most_referenced: u64,
    most_exclusive: u64,
    reserved_referenced: u64,
    reserved_exclusive: u64,
}

#[repr(C)]
struct InodeLookup {
    tree: u64,
    object: u64,
    name: [u8; 4080],
}

#[repr(C)]
struct FileSystem {
    most_devices: u64,
    devices: u64,
    id: [u8; 16],
    rest: [u8; 992],
}

/// Structures made of numbers and arrays of numbers alone: zero is a value, and so is whatever the kernel writes.
trait Plain {}
impl Plain for Named {}
impl Plain for Copied {}
impl Plain for About {}
impl Plain for QuotaControl {}
impl Plain for GroupChange {}
impl Plain for GroupLimit {}
impl Plain for InodeLookup {}
impl Plain for FileSystem {}

const WRITE: u64 = 1;
const READ: u64 = 2;
const QUOTA_ENABLE: u64 = 1;
const LIMIT_REFERENCED: u64 = 1;
const READ_ONLY: u64 = 1 << 1;
/// The object id of a subvolume's root folder.
const FIRST_FREE: u64 = 256;

/// Makes a subvolume in a folder.
///
/// # Errors
/// `EEXIST` where the name is taken; `ENOTTY` where this is no btrfs.
pub fn create_subvolume(folder: impl AsFd, name: &str) -> io::Result<()> {
    call(folder, WRITE, 14, &mut named(name)?)
}

/// Makes a subvolume in a folder that holds what another holds at this moment, all of it or nothing; the two share it until one
/// is written to.
///
/// # Errors
/// `EEXIST` where the name is taken; `ENOTTY` where this is no btrfs.
pub fn copy_subvolume(from: impl AsFd, folder: impl AsFd, name: &str, read_only: bool) -> io::Result<()> {
    let mut copied: Copied = zero();
    copied.descriptor = from.as_fd().as_raw_fd().into();
    copied.flags = if read_only { READ_ONLY } else { 0 };
    write_name(&mut copied.name, name)?;
    call(folder, WRITE, 23, &mut copied)
}

/// When the subvolume was made that an open file or folder belongs to.
///
/// # Errors
/// `ENOTTY` where this is no btrfs.
pub fn subvolume_made(folder: impl AsFd) -> io::Result<SystemTime> {
    let mut about: About = zero();
    call(folder, READ, 60, &mut about)?;
    Ok(UNIX_EPOCH + Duration::new(about.made.seconds, about.made.nanos))
}

/// Removes a subvolume of a folder, with all that is in it.
///
/// # Errors
/// `ENOENT` where there is none.
pub fn delete_subvolume(folder: impl AsFd, name: &str) -> io::Result<()> {
    call(folder, WRITE, 15, &mut named(name)?)
}

/// The number of the subvolume that an open file or folder belongs to.
///
/// # Errors
/// `ENOTTY` where this is no btrfs.
pub fn subvolume_id(folder: impl AsFd) -> io::Result<u64> {
    let mut lookup: InodeLookup = zero();
    lookup.object = FIRST_FREE;
    call(folder, READ | WRITE, 18, &mut lookup)?;
    Ok(lookup.tree)
}

/// Begins to count what each subvolume holds. Nothing happens where it is counted already.
///
/// # Errors
/// `ENOTTY` where this is no btrfs.
pub fn enable_quota(folder: impl AsFd) -> io::Result<()> {
    let mut control = QuotaControl {
        command: QUOTA_ENABLE,
        status: 0,
    };
    call(folder, READ | WRITE, 40, &mut control)
}

/// Limits what a subvolume may hold.
///
/// # Errors
/// `ENOTCONN` where quotas are not enabled.
pub fn limit_subvolume(folder: impl AsFd, subvolume: u64, bytes: u64) -> io::Result<()> {
    let mut limit: GroupLimit = zero();
    limit.group = subvolume;
    limit.flags = LIMIT_REFERENCED;
    limit.most_referenced = bytes;
    call(folder, READ, 43, &mut limit)
}

/// Forgets the count of a subvolume that is gone.
///
/// # Errors
/// `EBUSY` while the kernel is still removing it; `ENOENT` where it forgot by itself.
pub fn forget_quota(folder: impl AsFd, subvolume: u64) -> io::Result<()> {
    call(
        folder,
        WRITE,
        42,
        &mut GroupChange {
            create: 0,
            group: subvolume,
        },
    )
}

/// The id of the file system that an open file belongs to, as it stands in /sys/fs/btrfs.
///
/// # Errors
/// `ENOTTY` where this is no btrfs.
pub fn file_system_id(folder: impl AsFd) -> io::Result<String> {
    let mut file_system: FileSystem = zero();
    call(folder, READ, 31, &mut file_system)?;
    let hex: String = file_system.id.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    Ok(parts.join("-"))
}

fn zero<T: Plain>() -> T {
    // SAFETY: `Plain` says that zero is a value.
    unsafe { zeroed() }
}

fn named(name: &str) -> io::Result<Named> {
    let mut arguments: Named = zero();
    write_name(&mut arguments.name, name)?;
    Ok(arguments)
}

fn write_name(place: &mut [u8], name: &str) -> io::Result<()> {
    let fits = !name.is_empty() && name.len() <= 255 && !name.contains(['/', '\0']);
    if !fits {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    place[..name.len()].copy_from_slice(name.as_bytes());
    Ok(())
}

fn call<T: Plain>(file: impl AsFd, direction: u64, number: u64, argument: &mut T) -> io::Result<()> {
    const BTRFS: u64 = 0x94;
    let request = direction << 30 | (size_of::<T>() as u64) << 16 | BTRFS << 8 | number;
    // SAFETY: the request's number carries the length of `T`, so the kernel reads and writes no more than that; the
    // structures above have the kernel's layout and any bytes are a value of theirs; the descriptor is open.
    let result = unsafe { libc::ioctl(file.as_fd().as_raw_fd(), request as _, &raw mut *argument) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
