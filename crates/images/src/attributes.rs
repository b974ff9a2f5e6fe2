//! What files have beside their content: as an image may have it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, Timespec, Timestamps, openat};

/// Ids that there are inside.
pub(crate) const IDS: u32 = 65_536;
/// What of a mode is kept of a file, and of a folder.
pub(crate) const FILE_MODE: u32 = 0o777;
pub(crate) const FOLDER_MODE: u32 = 0o1777;

/// When something was changed, in seconds since 1970 and billionths of one.
pub(crate) fn changed(seconds: i64, nanoseconds: i64) -> Timestamps {
    let time = Timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds,
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}

/// Opens a folder that stands directly beneath another, or a path of ours; no link.
pub(crate) fn open_folder(beneath: impl AsFd, name: impl rustix::path::Arg) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(beneath, name, flags, Mode::empty())?)
}
