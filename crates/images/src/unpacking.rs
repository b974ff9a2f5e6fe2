//! A layer's archive as files, as an overlay takes them.
//!
//! A stranger made the archive. Whatever it names is made beneath one folder, where no link is followed; devices, pipes,
//! extended attributes and set-user-id bits are left out. All files together are no larger than the archive.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Seek};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, ResolveFlags, Timestamps, Uid, chmodat, chownat, fchmod, fchown, futimens, linkat,
    mkdirat, openat, openat2, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;
use tar::{Entry, EntryType, Header};

use crate::attributes::{self, FILE_MODE, FOLDER_MODE, IDS};
use crate::bounds::{DEEPEST, LONGEST, MOST, Room};
use crate::{source, whiteout};

/// Unpacks into a folder that is empty. `left` is how many files, folders and links there may still be, of [`MOST`].
pub(crate) fn unpack(archive: &File, to: &Path, left: &mut u64) -> io::Result<()> {
    source::bounded(archive)?;
    let root = attributes::open_folder(CWD, to)?;
    let mut unpacking = Unpacking {
        root: root.as_fd(),
        room: Room::of(&root),
        left,
    };
    let mut file = archive;
    file.rewind()?;
    for entry in tar::Archive::new(archive).entries()? {
        let mut entry = entry?;
        let name = path(&entry.path_bytes());
        unpacking
            .entry(&name, &mut entry)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", name.display())))?;
    }
    file.rewind()?;
    // What is in a folder changes it: so when that was is set when nothing is written any more. The archive remembers it.
    for entry in tar::Archive::new(archive).entries_with_seek()? {
        let entry = entry?;
        if entry.header().entry_type() == EntryType::Directory
            && let Ok(relative) = inside(&path(&entry.path_bytes()))
            // Something else may have taken its place since.
            && let Ok(folder) = open_folder(&root, relative.as_os_str())
        {
            futimens(folder, &times(entry.header())?)?;
        }
    }
    Ok(())
}

struct Unpacking<'a> {
    root: BorrowedFd<'a>,
    room: Room<'a>,
    left: &'a mut u64,
}

impl Unpacking<'_> {
    /// Something with so many bytes is going to be made.
    fn one_more(&mut self, bytes: u64) -> io::Result<()> {
        let left = self.left.checked_sub(1);
        *self.left = left
            .ok_or_else(|| io::Error::other(format!("all layers together hold more than {MOST} files and folders")))?;
        self.room.must_hold(bytes)
    }

    fn entry(&mut self, name: &Path, entry: &mut Entry<'_, &File>) -> io::Result<()> {
        let relative = inside(name)?;
        let Some(last) = relative.file_name() else {
            // The folder of all is there.
            return Ok(());
        };
        let header = entry.header().clone();
        self.one_more(entry.size())?;
        let parent = self.parent(&relative)?;
        if let Some(absent) = last.as_bytes().strip_prefix(whiteout::PREFIX.as_bytes()) {
            return absence(&parent, last, absent);
        }
        let kind = header.entry_type();
        match kind {
            EntryType::Directory => folder(&parent, last, &header)?,
            EntryType::Regular | EntryType::Continuous => {
                remove(&parent, last)?;
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let mut file = File::from(openat(&parent, last, flags, Mode::RUSR | Mode::WUSR)?);
                io::copy(entry, &mut file)?;
                let (owner, group) = owners(&header)?;
                fchown(&file, Some(owner), Some(group))?;
                fchmod(&file, Mode::from_raw_mode(header.mode()? & FILE_MODE))?;
                futimens(&file, &times(&header)?)?;
            }
            EntryType::Symlink => {
                let target = entry.link_name_bytes().unwrap_or_default();
                remove(&parent, last)?;
                symlinkat(&*target, &parent, last)?;
                let (owner, group) = owners(&header)?;
                chownat(&parent, last, Some(owner), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
                utimensat(&parent, last, &times(&header)?, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            EntryType::Link => {
                let target = inside(&path(&entry.link_name_bytes().unwrap_or_default()))?;
                let first = target
                    .file_name()
                    .ok_or_else(|| io::Error::other("it is a link to nothing"))?;
                let folder = self.parent(&target)?;
                if target != relative {
                    remove(&parent, last)?;
                    linkat(&folder, first, &parent, last, AtFlags::empty())?;
                }
            }
            EntryType::Char | EntryType::Block | EntryType::Fifo => {}
            _ => return Err(io::Error::other(format!("an entry of kind {kind:?} is not understood"))),
        }
        Ok(())
    }

    /// The folder that something is to be in. One that the archive does not tell of is root's.
    fn parent(&mut self, relative: &Path) -> io::Result<OwnedFd> {
        let parent = relative.parent().unwrap_or(Path::new(""));
        if parent.as_os_str().is_empty() {
            return Ok(open_folder(self.root, OsStr::new("."))?);
        }
        match open_folder(self.root, parent.as_os_str()) {
            Err(Errno::NOENT) => {}
            Err(Errno::LOOP | Errno::NOTDIR) => {
                return Err(io::Error::other("it would be put behind a link, or into a file"));
            }
            opened => return Ok(opened?),
        }
        let mut folder = open_folder(self.root, OsStr::new("."))?;
        for part in parent {
            match mkdirat(&folder, part, Mode::from_raw_mode(0o755)) {
                Ok(()) => self.one_more(0)?,
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            folder = open_folder(&folder, part)?;
        }
        Ok(folder)
    }
}

fn folder(parent: &OwnedFd, name: &OsStr, header: &Header) -> io::Result<()> {
    if open_folder(parent, name).is_err() {
        remove(parent, name)?;
        mkdirat(parent, name, Mode::RWXU)?;
    }
    let (owner, group) = owners(header)?;
    chownat(parent, name, Some(owner), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
    let mode = Mode::from_raw_mode(header.mode()? & FOLDER_MODE);
    Ok(chmodat(parent, name, mode, AtFlags::empty())?)
}

fn open_folder(beneath: impl AsFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat2(beneath, name, flags, Mode::empty(), resolve)
}

fn path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

/// A name in an archive as a path beneath a folder.
fn inside(name: &Path) -> io::Result<PathBuf> {
    let mut relative = PathBuf::new();
    for part in name.components() {
        match part {
            Component::Normal(part) => relative.push(part),
            Component::CurDir => {}
            _ => return Err(io::Error::other("it leads out of the image")),
        }
    }
    if relative.as_os_str().len() > LONGEST || relative.components().count() > DEEPEST {
        return Err(io::Error::other("its name is longer than an image can have"));
    }
    Ok(relative)
}

/// What an entry takes away of lower layers.
fn absence(parent: &OwnedFd, name: &OsStr, absent: &[u8]) -> io::Result<()> {
    if name == whiteout::OPAQUE {
        return whiteout::make_opaque(parent);
    }
    // Marks of a union file system of old, which say nothing about files.
    if absent.starts_with(whiteout::PREFIX.as_bytes()) {
        return Ok(());
    }
    if matches!(absent, b"" | b"." | b"..") {
        return Err(io::Error::other("it takes away nothing that there could be"));
    }
    let absent = OsStr::from_bytes(absent);
    remove(parent, absent)?;
    whiteout::make(parent, absent)
}

/// Removes what an earlier entry put there, with all that is in it.
fn remove(parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR) => {}
        Err(error) => return Err(error.into()),
    }
    let folder = open_folder(parent, name)?;
    for entry in rustix::fs::Dir::read_from(&folder)? {
        let entry = entry?;
        if entry.file_name() != c"." && entry.file_name() != c".." {
            remove(&folder, OsStr::from_bytes(entry.file_name().to_bytes()))?;
        }
    }
    Ok(unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}

fn owners(header: &Header) -> io::Result<(Uid, Gid)> {
    let id = |id: u64| match u32::try_from(id) {
        Ok(id) if id < IDS => Ok(id),
        _ => Err(io::Error::other(format!(
            "it belongs to user {id}, and there are {IDS}"
        ))),
    };
    Ok((Uid::from_raw(id(header.uid()?)?), Gid::from_raw(id(header.gid()?)?)))
}

fn times(header: &Header) -> io::Result<Timestamps> {
    let seconds = i64::try_from(header.mtime()?).unwrap_or(i64::MAX);
    Ok(attributes::changed(seconds, 0))
}
