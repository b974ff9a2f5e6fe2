//! What copies of disks leave to those that are written to.

use std::fs::File;
use std::io;

use rustix::fs::fstatvfs;

/// The part of a file system that copies leave to what runs…
const PART: u64 = 20;
/// …and the most of it, in bytes.
const MOST_LEFT: u64 = 1 << 30;

/// Refuses what would take the last of the room of the file system that this file is on.
pub(super) fn must_fit(file: &File, bytes: u64) -> io::Result<()> {
    let about = fstatvfs(file)?;
    let in_bytes = |blocks: u64| blocks.saturating_mul(about.f_frsize);
    let left = (in_bytes(about.f_blocks) / PART).min(MOST_LEFT);
    if in_bytes(about.f_bavail) < bytes.saturating_add(left) {
        return Err(io::ErrorKind::StorageFull.into());
    }
    Ok(())
}
