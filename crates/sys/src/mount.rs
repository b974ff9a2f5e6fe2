//! Attributes of mounts.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// What is to hold of a mount from now on.
#[derive(Clone, Copy, Default, Debug)]
pub struct Attributes<'a> {
    /// Nothing can be written through it.
    pub read_only: bool,
    /// Set-user-id bits mean nothing.
    pub no_set_uid: bool,
    /// Devices cannot be opened.
    pub no_devices: bool,
    /// Programs cannot be executed.
    pub no_exec: bool,
    /// Owners are shown as this user namespace maps them. Only for a mount that is attached nowhere yet.
    pub ids: Option<BorrowedFd<'a>>,
}

/// Gives a mount these attributes, and takes none away. The mount becomes private: nothing spreads from or to it.
///
/// # Errors
/// `EINVAL` where the file system cannot map ids, or the mount is attached already.
pub fn set_attributes(mount: impl AsFd, attributes: Attributes<'_>) -> io::Result<()> {
    let flags = [
        (attributes.read_only, libc::MOUNT_ATTR_RDONLY),
        (attributes.no_set_uid, libc::MOUNT_ATTR_NOSUID),
        (attributes.no_devices, libc::MOUNT_ATTR_NODEV),
        (attributes.no_exec, libc::MOUNT_ATTR_NOEXEC),
        (attributes.ids.is_some(), libc::MOUNT_ATTR_IDMAP),
    ];
    let change = libc::mount_attr {
        attr_set: flags
            .into_iter()
            .filter_map(|(wanted, flag)| wanted.then_some(flag))
            .fold(0, |all, flag| all | flag),
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: attributes.ids.map_or(0, |ids| ids.as_raw_fd().unsigned_abs().into()),
    };
    // SAFETY: the path is a constant that ends in a zero; the structure is whole, lives through the call, and its length is
    // the one that is given; the descriptors are borrowed and so are open.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const change,
            size_of::<libc::mount_attr>(),
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
