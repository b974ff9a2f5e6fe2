//! The id of the disk that a workspace is on: made once, and as old as the disk. Whoever cleared the workspace has the same
//! disk, whoever got an empty one another.
//!
//! It is an extended attribute of the workspace itself, which every provider keeps on the session's disk, or a file in it
//! where there are no attributes. The user can change it, and deceives nobody else by it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use protocol::DiskId;
use rustix::fs::{AtFlags, Mode, OFlags, XattrFlags};
use rustix::io::Errno;

use crate::tree::open_beneath;

const ATTRIBUTE: &str = "user.belljar.disk";
/// Left out by the rules.
const FILE: &str = ".belljar-disk.new";

/// The id of the disk below this folder; one that nobody has where it has none yet, which is [`keep`]'s to write.
///
/// # Errors
/// There is nothing to make one of.
pub(crate) fn id(root: &OwnedFd) -> Result<DiskId, Errno> {
    if let Some(disk) = read(root) {
        return Ok(disk);
    }
    let mut random = [0; 16];
    rustix::fs::open("/dev/urandom", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map(File::from)
        .and_then(|mut file| file.read_exact(&mut random).map_err(|_| Errno::IO))?;
    let text: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    DiskId::try_from(text).map_err(|_| Errno::IO)
}

/// Writes the id to its disk, where it does not stand there: before anything is recorded in its name.
///
/// # Errors
/// It cannot be written, such as for want of room.
pub(crate) fn keep(root: &OwnedFd, disk: &DiskId) -> Result<(), Errno> {
    if read(root).as_ref() == Some(disk) {
        return Ok(());
    }
    let text = disk.as_str().as_bytes();
    if rustix::fs::fsetxattr(root, ATTRIBUTE, text, XattrFlags::empty()).is_err() {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // What stands there is no id.
        let _ = rustix::fs::unlinkat(root, FILE, AtFlags::empty());
        let mut file = File::from(rustix::fs::openat(root, FILE, flags, Mode::from_raw_mode(0o600))?);
        let written = file.write_all(text);
        written.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    }
    rustix::fs::syncfs(root)?;
    if read(root).as_ref() == Some(disk) {
        Ok(())
    } else {
        Err(Errno::IO)
    }
}

fn read(root: &OwnedFd) -> Option<DiskId> {
    let mut attribute = [0; 32];
    let text = match rustix::fs::fgetxattr(root, ATTRIBUTE, &mut attribute) {
        Ok(32) => attribute.to_vec(),
        _ => {
            let file = open_beneath(root.as_fd(), FILE.as_bytes(), OFlags::RDONLY | OFlags::NONBLOCK).ok()?;
            let mut text = Vec::new();
            File::from(file).take(33).read_to_end(&mut text).ok()?;
            text
        }
    };
    DiskId::try_from(String::from_utf8(text).ok()?).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use super::*;

    #[test]
    fn a_disk_has_one_id_as_long_as_it_is_there() {
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let open = |folder: &tempfile::TempDir| OwnedFd::from(File::open(folder.path()).unwrap());
        let disk = id(&open(&folder)).unwrap();
        keep(&open(&folder), &disk).unwrap();
        assert_eq!(id(&open(&folder)).unwrap(), disk);
        keep(&open(&folder), &disk).unwrap();
        assert_eq!(id(&open(&folder)).unwrap(), disk);
        assert_ne!(id(&open(&other)).unwrap(), disk);
        // Where there are no attributes it is a file.
        let _ = rustix::fs::fremovexattr(open(&folder), ATTRIBUTE);
        std::fs::write(folder.path().join(FILE), "ab".repeat(16)).unwrap();
        assert_eq!(id(&open(&folder)).unwrap().as_str(), "ab".repeat(16));
    }
}
