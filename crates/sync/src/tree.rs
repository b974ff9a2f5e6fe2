//! Paths below the workspace, and the only way to what they lead to.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

/// A path relative to the workspace; empty for itself.
pub(crate) type Relative = Vec<u8>;

/// Opens beneath a folder, over no link of any kind.
pub(crate) fn open_beneath(folder: impl AsFd, relative: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let relative = if relative.is_empty() { b"." } else { relative };
    for _ in 0..8 {
        // Something was renamed meanwhile, and the kernel could not be sure.
        match rustix::fs::openat2(&folder, relative, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            Err(Errno::AGAIN) => {}
            done => return done,
        }
    }
    Err(Errno::AGAIN)
}

pub(crate) fn open_folder(root: impl AsFd, relative: &[u8]) -> Result<OwnedFd, Errno> {
    open_beneath(root, relative, OFlags::RDONLY | OFlags::DIRECTORY)
}

/// A name in a folder as a path.
pub(crate) fn join(folder: &[u8], name: &[u8]) -> Relative {
    if folder.is_empty() {
        name.to_vec()
    } else {
        [folder, b"/", name].concat()
    }
}

/// The folder of a path, and its name there.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&[], path),
    }
}

pub(crate) fn as_path(relative: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(relative))
}

/// What a file's state is known by: any change of its content, its permissions or itself changes this too. Of a folder only
/// what is its own counts, not what is in it.
pub(crate) fn stamp(status: &Stat) -> i64 {
    let own = [u64::from(status.st_mode), status.st_ino];
    let content = [
        status.st_size.cast_unsigned(),
        status.st_mtime.cast_unsigned(),
        status.st_mtime_nsec,
        status.st_ctime.cast_unsigned(),
        status.st_ctime_nsec,
    ];
    let is_folder = FileType::from_raw_mode(status.st_mode) == FileType::Directory;
    digest(&own, if is_folder { &[] } else { &content })
}

/// Stamps are kept for longer than any runtime: the same of every build of it.
fn digest(own: &[u64], content: &[u64]) -> i64 {
    let mut hasher = Sha256::new();
    for field in own.iter().chain(content) {
        hasher.update(field.to_le_bytes());
    }
    let mut first = [0; 8];
    first.copy_from_slice(&hasher.finalize()[..8]);
    i64::from_le_bytes(first)
}

/// When a file's content was changed, in nanoseconds since 1970.
pub(crate) fn changed(status: &Stat) -> i64 {
    let nanoseconds = i64::try_from(status.st_mtime_nsec).unwrap_or(0);
    status
        .st_mtime
        .saturating_mul(1_000_000_000)
        .saturating_add(nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_the_same_in_every_build() {
        let own = [0o100_644, 7];
        assert_eq!(digest(&own, &[5, 1, 2, 3, 4]), 6_054_450_621_801_689_564);
        assert_eq!(digest(&own, &[]), -5_582_948_710_045_317_295);
    }
}
