//! File systems that are mounted by descriptor.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount, unmount,
};
use sandbox::ProviderError;

use crate::attempt::Attempt;

/// What statfs says of tmpfs.
pub(crate) const TMPFS: u64 = 0x0102_1994;

/// Room for the records of thousands of sandboxes.
const RUN_BYTES: u64 = 256 << 20;

/// What a file in memory takes beyond what is in it, and more. The kernel's own bound is a share of the machine's memory.
const INODE_BYTES: u64 = 4_096;

/// How many files in memory there may be where they may have so many bytes.
#[must_use]
pub fn inodes(bytes: u64) -> u64 {
    bytes / INODE_BYTES
}

/// Files in memory, counted as those of whoever writes them; attached nowhere.
///
/// # Errors
/// What the kernel says.
pub fn tmpfs(bytes: u64, mode: &str, owner: u32) -> io::Result<OwnedFd> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let owner = owner.to_string();
    for (key, value) in [
        ("size", bytes.to_string().as_str()),
        ("nr_inodes", &inodes(bytes).to_string()),
        ("mode", mode),
        ("uid", &owner),
        ("gid", &owner),
    ] {
        fsconfig_set_string(&context, key, value)?;
    }
    fsconfig_create(&context)?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)?)
}

/// Makes a folder hold files in memory, for everybody on the machine. Nothing happens where it does already.
///
/// # Errors
/// Where it cannot be mounted.
pub fn hold_in_memory(folder: &Path) -> Result<(), ProviderError> {
    let attempt = || format!("mount a tmpfs at {}", folder.display());
    // The type of the field differs between architectures; the number fits each.
    if rustix::fs::statfs(folder).attempt(attempt)?.f_type as u64 == TMPFS {
        return Ok(());
    }
    let mount = tmpfs(RUN_BYTES, "0711", 0).attempt(attempt)?;
    attach(&mount, folder).attempt(attempt)?;
    mount_change(folder, MountPropagationFlags::PRIVATE).attempt(attempt)
}

/// Mounts a device, attached nowhere.
///
/// # Errors
/// What the kernel says.
pub fn mount_file_system(kind: &str, device: &Path, options: &[&str]) -> io::Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", device)?;
    for option in options {
        fsconfig_set_flag(&context, *option)?;
    }
    fsconfig_create(&context)?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)?)
}

/// Attaches a mount to a folder that nobody but us can change.
///
/// # Errors
/// What the kernel says.
pub fn attach(mount: &OwnedFd, folder: &Path) -> io::Result<()> {
    move_mount(mount, "", CWD, folder, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    Ok(())
}

/// Detaches what is mounted anywhere below a folder, for those who still use it later.
///
/// # Errors
/// What the kernel says.
pub(crate) fn detach_below(folder: &Path) -> io::Result<()> {
    let Ok(folder) = folder.canonicalize() else {
        return Ok(());
    };
    let table = fs::read("/proc/self/mountinfo")?;
    let mounted = table.split(|byte| *byte == b'\n').filter_map(place_of);
    let mut below: Vec<_> = mounted
        .filter(|place| *place != folder && place.starts_with(&folder))
        .collect();
    // What is mounted in another mount first.
    below.sort_unstable_by(|one, other| other.cmp(one));
    below
        .iter()
        .try_for_each(|place| Ok(unmount(place, UnmountFlags::DETACH)?))
}

/// Where a line of the table of mounts says that something is mounted (proc_pid_mountinfo(5)): its fifth field, in which a
/// space, a tab, a line's end and a backslash are written as three octal digits.
fn place_of(line: &[u8]) -> Option<PathBuf> {
    let field = line.split(|byte| *byte == b' ').nth(4)?;
    let mut place = Vec::with_capacity(field.len());
    let mut left = field;
    while let [first, rest @ ..] = left {
        let escaped = rest.get(..3).filter(|_| *first == b'\\');
        let number = escaped.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        place.push(number.unwrap_or(*first));
        left = if number.is_some() { &rest[3..] } else { rest };
    }
    Some(OsString::from_vec(place).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_where_its_line_says() {
        let line = br"36 35 98:0 /mnt1 /run/bell\040jar/a\134b rw,noatime master:1 - ext3 /dev/root rw";
        assert_eq!(place_of(line).unwrap(), Path::new(r"/run/bell jar/a\b"));
        assert_eq!(place_of(b""), None);
    }
}
