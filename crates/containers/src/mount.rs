//! File systems that are mounted by descriptor.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount,
};
use sandbox::ProviderError;

use crate::attempt::Attempt;

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
    const TMPFS: u64 = 0x0102_1994;
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
