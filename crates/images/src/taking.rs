//! Takes over what a stranger wrote: into a folder of ours, and nothing with it that could do harm there.
//!
//! No path is followed: every file is opened beneath the descriptor of its folder, and no link is. Nothing writes there
//! meanwhile.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, SeekFrom as Find, Stat, Timestamps, Uid, chownat, fchmod, fchown,
    fstat, futimens, linkat, mkdirat, openat, readlinkat, seek, statat, symlinkat, utimensat,
};
use rustix::io::Errno;

use crate::attributes::{self, FILE_MODE, FOLDER_MODE, IDS, open_folder};
use crate::bounds::{DEEPEST, Firsts, LONGEST, MOST, Room};
use crate::{CommitError, LibraryError, whiteout};

/// Takes over what is in a folder, into one that is empty, and says how many files, folders and absences that were.
pub(crate) fn take(from: BorrowedFd<'_>, to: &Path, most_bytes: u64) -> Result<u64, CommitError> {
    let opened = open_folder(CWD, to).map_err(LibraryError::new("open", to))?;
    let mut taking = Taking {
        root: opened.as_fd(),
        room: Room::of(&opened),
        entries: 0,
        bytes: 0,
        most_bytes,
        firsts: Firsts::default(),
    };
    let whole = Path::new("");
    taking.folder(from, opened.as_fd(), whole, 0)?;
    let about = fstat(from).map_err(|error| CommitError::file("look at", whole)(error.into()))?;
    let hides = whiteout::is_opaque(from)
        .and_then(|is_opaque| finish_folder(opened.as_fd(), &about, is_opaque).map(|()| is_opaque))
        .map_err(CommitError::file("take over", whole))?;
    Ok(taking.entries + u64::from(hides))
}

struct Taking<'a> {
    root: BorrowedFd<'a>,
    room: Room<'a>,
    entries: u64,
    bytes: u64,
    most_bytes: u64,
    firsts: Firsts,
}

impl Taking<'_> {
    fn folder(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        relative: &Path,
        depth: usize,
    ) -> Result<(), CommitError> {
        if depth > DEEPEST {
            return Err(CommitError::unfit(
                relative,
                "it lies in more folders than an image can have",
            ));
        }
        let failed = |error: Errno| CommitError::file("list", relative)(error.into());
        for entry in Dir::read_from(from).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let relative = relative.join(std::ffi::OsStr::from_bytes(name.to_bytes()));
            if relative.as_os_str().len() > LONGEST {
                return Err(CommitError::unfit(
                    &relative,
                    "its name is longer than an image can have",
                ));
            }
            // In an archive it would say that something is to be taken away.
            if name.to_bytes().starts_with(whiteout::PREFIX.as_bytes()) {
                return Err(CommitError::unfit(&relative, "no name in an image may begin with .wh."));
            }
            self.entry(from, to, name, &relative, depth)?;
            if self.entries > MOST {
                return Err(CommitError::TooMuch {
                    what: format!("there are more than {MOST} files and folders"),
                });
            }
        }
        Ok(())
    }

    fn entry(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &CStr,
        relative: &Path,
        depth: usize,
    ) -> Result<(), CommitError> {
        let failed = |error: Errno| CommitError::file("take over", relative)(error.into());
        let about = statat(from, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        let on_disk = u64::try_from(about.st_blocks).unwrap_or_default().saturating_mul(512);
        self.room
            .must_hold(on_disk)
            .map_err(CommitError::file("take over", relative))?;
        match FileType::from_raw_mode(about.st_mode) {
            FileType::Directory => {
                let inner = open_folder(from, name).map_err(CommitError::file("open", relative))?;
                mkdirat(to, name, Mode::RWXU).map_err(failed)?;
                let made = open_folder(to, name).map_err(CommitError::file("open", relative))?;
                self.folder(inner.as_fd(), made.as_fd(), relative, depth + 1)?;
                whiteout::is_opaque(&inner)
                    .and_then(|is_opaque| finish_folder(made.as_fd(), &about, is_opaque))
                    .map_err(CommitError::file("take over", relative))?;
            }
            FileType::RegularFile => self.file(from, to, name, relative)?,
            FileType::Symlink => {
                let target = readlinkat(from, name, Vec::new()).map_err(failed)?;
                symlinkat(target, to, name).map_err(failed)?;
                let (owner, group) = owners(&about);
                chownat(to, name, Some(owner), Some(group), AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
                utimensat(to, name, &times(&about), AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
            }
            FileType::CharacterDevice if about.st_rdev == 0 => {
                whiteout::make(to, name).map_err(CommitError::file("take over", relative))?;
            }
            // Devices, sockets, pipes.
            _ => return Ok(()),
        }
        self.entries += 1;
        Ok(())
    }

    fn file(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &CStr,
        relative: &Path,
    ) -> Result<(), CommitError> {
        let failed = |error: Errno| CommitError::file("take over", relative)(error.into());
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let source = openat(from, name, flags, Mode::empty()).map_err(failed)?;
        let about = fstat(&source).map_err(failed)?;
        if about.st_nlink > 1 {
            let first = self.firsts.find(about.st_dev as u64, about.st_ino as u64, relative);
            let first = first.map_err(|error| CommitError::TooMuch {
                what: error.to_string(),
            })?;
            if let Some(first) = first {
                return linkat(self.root, first, to, name, AtFlags::empty()).map_err(failed);
            }
        }
        let length = u64::try_from(about.st_size).unwrap_or_default();
        // A hole costs nothing there, and all of its length in an archive.
        self.bytes = self.bytes.saturating_add(length);
        if self.bytes > self.most_bytes {
            return Err(CommitError::TooMuch {
                what: format!("its files have more than the {} bytes of its disk", self.most_bytes),
            });
        }
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let copy = openat(to, name, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        let copy = File::from(copy);
        copy_into(&File::from(source), &copy, length).map_err(CommitError::file("take over", relative))?;
        let (owner, group) = owners(&about);
        fchown(&copy, Some(owner), Some(group))
            .and_then(|()| fchmod(&copy, Mode::from_raw_mode(about.st_mode & FILE_MODE)))
            .and_then(|()| futimens(&copy, &times(&about)))
            .map_err(failed)
    }
}

/// Copies a file, holes as holes.
fn copy_into(from: &File, mut to: &File, length: u64) -> io::Result<()> {
    to.set_len(length)?;
    let mut at = 0;
    while at < length {
        at = match seek(from, Find::Data(at)) {
            Err(Errno::NXIO) => break,
            found => found?,
        };
        let end = seek(from, Find::Hole(at))?.min(length);
        let mut segment = from;
        segment.seek(SeekFrom::Start(at))?;
        to.seek(SeekFrom::Start(at))?;
        if io::copy(&mut segment.take(end - at), &mut to)? < end - at {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        at = end;
    }
    Ok(())
}

fn finish_folder(folder: BorrowedFd<'_>, about: &Stat, is_opaque: bool) -> io::Result<()> {
    if is_opaque {
        whiteout::make_opaque(folder)?;
    }
    let (owner, group) = owners(about);
    fchown(folder, Some(owner), Some(group))?;
    fchmod(folder, Mode::from_raw_mode(about.st_mode & FOLDER_MODE))?;
    Ok(futimens(folder, &times(about))?)
}

/// Whose it is inside; what is nobody's there is root's.
fn owners(about: &Stat) -> (Uid, Gid) {
    let inside = |id: u32| if id < IDS { id } else { 0 };
    (Uid::from_raw(inside(about.st_uid)), Gid::from_raw(inside(about.st_gid)))
}

fn times(about: &Stat) -> Timestamps {
    attributes::changed(about.st_mtime, about.st_mtime_nsec as i64)
}
