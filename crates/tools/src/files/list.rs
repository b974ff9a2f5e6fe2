//! What is in a folder.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use protocol::{FileEntry, FileKind};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};

use super::{FileError, Files, Opened, open_beneath};

/// Folders within folders that are looked into.
const MAX_DEPTH: usize = 64;
/// The most names of one folder that are read at all.
const MAX_NAMES: usize = 100_000;

impl Files {
    /// What is beneath a folder, a folder before its content and by name, at most `most` entries; true where there is more.
    /// Links are listed, never followed. Paths are relative to the folder.
    ///
    /// # Errors
    /// In words, when there is no such folder.
    pub fn list(&self, path: &str, most: usize) -> Result<(Vec<FileEntry>, bool), FileError> {
        let folder = self.folder(path)?;
        let mut entries = Vec::new();
        let more = walk(&folder, Path::new(""), most, MAX_DEPTH, &mut entries)
            .map_err(|errno| FileError::io("list", path, errno))?;
        Ok((entries, more))
    }

    /// What is in a folder itself.
    pub(crate) fn list_one(&self, path: &str, most: usize) -> Result<(Vec<FileEntry>, bool), FileError> {
        let folder = self.folder(path)?;
        let mut entries = Vec::new();
        let more =
            walk(&folder, Path::new(""), most, 1, &mut entries).map_err(|errno| FileError::io("list", path, errno))?;
        Ok((entries, more))
    }

    fn folder(&self, path: &str) -> Result<OwnedFd, FileError> {
        match self.open_any(if path.is_empty() { "." } else { path })? {
            Opened::Folder(folder) => Ok(folder),
            Opened::File(..) => Err(FileError::NotAFolder {
                path: path.to_owned(),
                kind: "a file",
            }),
        }
    }
}

/// Adds what is in a folder, and beneath it; true where not all of it fitted.
fn walk(
    folder: &OwnedFd,
    path: &Path,
    most: usize,
    depth: usize,
    entries: &mut Vec<FileEntry>,
) -> rustix::io::Result<bool> {
    let mut more = false;
    for name in names(folder, &mut more)? {
        if entries.len() == most {
            return Ok(true);
        }
        // Gone meanwhile.
        let Ok(status) = rustix::fs::statat(folder, &name, AtFlags::SYMLINK_NOFOLLOW) else {
            continue;
        };
        let path = path.join(&name);
        let kind = match FileType::from_raw_mode(status.st_mode) {
            FileType::RegularFile => FileKind::File,
            FileType::Directory => FileKind::Folder,
            FileType::Symlink => FileKind::Link,
            _ => FileKind::Special,
        };
        entries.push(FileEntry {
            path: path.to_string_lossy().into_owned(),
            kind,
            bytes: u64::try_from(status.st_size).unwrap_or(0),
            changed: status.st_mtime.saturating_mul(1_000),
        });
        if kind == FileKind::Folder {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            // A folder that may not be read is listed and not looked into.
            let Ok(inner) = open_beneath(folder, Path::new(&name), flags, Mode::empty()) else {
                continue;
            };
            more |= if depth > 1 {
                walk(&inner, &path, most, depth - 1, entries)?
            } else {
                false
            };
        }
    }
    Ok(more)
}

/// The names in a folder, in order.
fn names(folder: impl AsFd, more: &mut bool) -> rustix::io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name == b"." || name == b".." {
            continue;
        }
        if names.len() == MAX_NAMES {
            *more = true;
            break;
        }
        names.push(OsString::from_vec(name));
    }
    names.sort_unstable();
    Ok(names)
}
