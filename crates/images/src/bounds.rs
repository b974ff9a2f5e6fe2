//! What an image may take: names, files, and room on the file system that images lie on.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfs, fstatvfs};

/// Folders in each other.
pub(crate) const DEEPEST: usize = 128;
/// Bytes of a name with all folders above it, less than what the kernel takes in a path.
pub(crate) const LONGEST: usize = 2_048;
/// Files, folders and links together.
pub(crate) const MOST: u64 = 4_000_000;

/// Refuses a folder that lies in more others than any that is taken over, which has `/knowledge` above it: whoever goes down
/// into it would end.
pub(crate) fn must_be_shallow(relative: &Path) -> io::Result<()> {
    if relative.components().count() > DEEPEST + 1 {
        let words =
            format!("folders lie in each other more than {DEEPEST} times, which no image can have; make them fewer");
        return Err(io::Error::other(words));
    }
    Ok(())
}

/// What is remembered of files with several names, in bytes, and what one takes beside its name.
const REMEMBERED: usize = 64 << 20;
const PLACE: usize = 64;
/// What is held at one time of the names in a folder and in those that it lies in, in bytes.
const HELD: usize = 64 << 20;

/// What of a file system is never taken: of its bytes and of its inodes this part, and no more than so many. The store, the
/// session disks and the machine itself may have theirs on the same one.
const PART: u64 = 20;
const BYTES: u64 = 1 << 30;
const INODES: u64 = 100_000;

/// Where files with several names stand first.
#[derive(Debug, Default)]
pub(crate) struct Firsts {
    names: HashMap<(u64, u64), PathBuf>,
    bytes: usize,
}

impl Firsts {
    /// Where the file of a device and a number stands first; none where that is here.
    pub(crate) fn find(&mut self, device: u64, number: u64, here: &Path) -> io::Result<Option<&Path>> {
        let file = (device, number);
        if !self.names.contains_key(&file) {
            self.bytes += here.as_os_str().len() + PLACE;
            if self.bytes > REMEMBERED {
                let words = "there are more files with several names (hard links) than an image can have";
                return Err(io::Error::other(words));
            }
            self.names.insert(file, here.to_owned());
            return Ok(None);
        }
        Ok(self.names.get(&file).map(PathBuf::as_path))
    }
}

/// The bytes of names that are held at one time. Whoever lets go of names puts back the value from before them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Names(usize);

impl Names {
    /// So many are held that there is room for so many more of this length.
    #[cfg(test)]
    pub(crate) fn with_room_for(count: usize, length: usize) -> Self {
        Self(HELD - count * (length + PLACE))
    }

    /// Counts one more.
    pub(crate) fn hold(&mut self, name: &OsStr) -> io::Result<()> {
        self.0 += name.len() + PLACE;
        if self.0 > HELD {
            return Err(io::Error::other(format!(
                "there are more names in one folder than an image can have: with {PLACE} bytes beside each they may take {} MiB; \
                 spread the files over several folders",
                HELD >> 20
            )));
        }
        Ok(())
    }
}

/// The file system on which something is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room<'f>(BorrowedFd<'f>);

impl<'f> Room<'f> {
    /// Of the one that this file or folder is on.
    pub(crate) fn of(file: &'f impl AsFd) -> Self {
        Self(file.as_fd())
    }

    /// How many bytes there are to be taken.
    pub(crate) fn bytes(self) -> io::Result<u64> {
        Ok(spare(&fstatvfs(self.0)?))
    }

    /// Refuses where one more file, folder or link with so many bytes would take what is left to others.
    pub(crate) fn must_hold(self, bytes: u64) -> io::Result<()> {
        let about = fstatvfs(self.0)?;
        let has = spare(&about);
        if has <= bytes {
            return Err(full(
                &format!("{} MiB", bytes.div_ceil(1 << 20)),
                &format!("{} MiB", has >> 20),
            ));
        }
        let kept = (about.f_files / PART).min(INODES);
        // Some file systems make inodes as they are needed, and say that there are none.
        if about.f_files > 0 && about.f_favail <= kept {
            return Err(full("one more file", "no inode"));
        }
        Ok(())
    }
}

fn spare(about: &StatVfs) -> u64 {
    let kept = about.f_blocks.saturating_mul(about.f_frsize) / PART;
    let free = about.f_bavail.saturating_mul(about.f_frsize);
    free.saturating_sub(kept.min(BYTES))
}

fn full(wanted: &str, has: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::StorageFull,
        format!(
            "there is no room for {wanted}: the file system that images lie on has {has} to spare, as a twentieth of it (or 1 GiB, or \
             {INODES} inodes) stays free for all else; remove images (belljar image gc) or other files, or make it larger"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_of_names_is_bounded() {
        let mut firsts = Firsts::default();
        let name = PathBuf::from("x".repeat(LONGEST));
        assert_eq!(firsts.find(1, 0, &name).unwrap(), None);
        assert_eq!(firsts.find(1, 0, Path::new("twin")).unwrap(), Some(&*name));
        assert_eq!(firsts.find(2, 0, Path::new("on another disk")).unwrap(), None);
        let refused = (1..MOST).find_map(|number| Some((number, firsts.find(1, number, &name).err()?)));
        let (number, error) = refused.unwrap();
        assert!(number < 50_000, "{number} names of {LONGEST} bytes were remembered");
        assert!(error.to_string().contains("hard links"), "{error}");
    }
}
