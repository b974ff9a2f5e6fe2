//! Owners on disk, shown as those of a sandbox.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use sys::mount::{Attributes, set_attributes};
use sys::namespace::{Mapping, user_namespace};

use crate::maker::IDS;

/// What shows the ids of inside, 0 to 65535, as those from `root_uid` on. Root of the machine must have an id on disk too, or an
/// overlay cannot prepare its work folder and silently becomes read-only; it has one that nobody inside has.
///
/// # Errors
/// Where the kernel makes no user namespace.
pub fn shown_from(root_uid: u32) -> io::Result<OwnedFd> {
    let sandbox = Mapping {
        inside: 0,
        outside: root_uid,
        count: IDS,
    };
    let machine = Mapping {
        inside: IDS,
        outside: 0,
        count: 1,
    };
    user_namespace(&[sandbox, machine])
}

/// Makes a mount of what a sandbox writes, attached nowhere yet, show its owners so, or as they are; no file on it gives whoever
/// executes it the rights of its owner, and none is a device.
///
/// # Errors
/// `EINVAL` where the file system cannot map ids.
pub fn map(mount: impl AsFd, ids: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let attributes = Attributes {
        no_set_uid: true,
        no_devices: true,
        ids,
        ..Attributes::default()
    };
    set_attributes(mount, attributes)
}
