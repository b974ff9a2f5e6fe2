//! The only way to files.
//!
//! A path is first made plain as text (`.` and `..` are taken out, it must be beneath one of the folders), then opened by
//! one `openat2` beneath that folder's descriptor, with no symbolic link allowed anywhere on the way. So there is nothing to
//! swap between a check and a use. A new file is written beside its place and renamed into it: what stood there before, a
//! link or a second name of a file elsewhere, is replaced and never written through.

mod created;
mod error;
mod list;
mod place;

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

pub use created::Created;
pub use error::FileError;
pub(crate) use place::Place;

use crate::Settings;

/// The folders that tools reach, and nothing beside them.
#[derive(Debug)]
pub struct Files {
    roots: Vec<Root>,
}

/// A folder that tools reach.
#[derive(Debug)]
struct Root {
    /// What models call it.
    name: &'static str,
    /// Where it is.
    path: PathBuf,
    folder: OwnedFd,
    writable: bool,
}

/// What a path led to.
pub(crate) enum Opened {
    /// A regular file and its length.
    File(File, u64),
    /// A folder.
    Folder(OwnedFd),
}

impl Files {
    /// Opens the folders. The workspace must be there, the others need not.
    pub(crate) fn open(settings: &Settings) -> Result<Self, FileError> {
        let mut roots = vec![Root::open("/workspace", &settings.workspace, true)?];
        for (name, path, writable) in [
            ("/tmp", Path::new("/tmp"), true),
            ("/skills", &settings.skills, false),
            ("/knowledge", &settings.knowledge, false),
        ] {
            match Root::open(name, path, writable) {
                Ok(root) => roots.push(root),
                Err(FileError::Root { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self { roots })
    }

    /// Opens a regular file to read.
    ///
    /// # Errors
    /// In words for the model, when it is not a regular file beneath one of the folders.
    pub fn read(&self, path: &str) -> Result<File, FileError> {
        match self.open_any(path)? {
            Opened::File(file, _) => Ok(file),
            Opened::Folder(_) => Err(FileError::NotAFile {
                path: path.to_owned(),
                kind: "a folder",
            }),
        }
    }

    /// Opens a file or a folder to read. Pipes, sockets and devices are refused, and never waited for.
    pub(crate) fn open_any(&self, path: &str) -> Result<Opened, FileError> {
        let place = self.place(path)?;
        // Not blocking: an opened pipe must not wait for its writer.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let opened = open_beneath(&place.root.folder, &place.relative, flags, Mode::empty())
            .map_err(|errno| self.explain("open", path, &place, errno))?;
        let status = rustix::fs::fstat(&opened).map_err(|errno| FileError::io("look at", path, errno))?;
        match FileType::from_raw_mode(status.st_mode) {
            FileType::RegularFile => Ok(Opened::File(
                File::from(opened),
                u64::try_from(status.st_size).unwrap_or(0),
            )),
            FileType::Directory => Ok(Opened::Folder(opened)),
            other => Err(FileError::NotAFile {
                path: path.to_owned(),
                kind: kind(other),
            }),
        }
    }

    /// Where a path is on this machine, for programs that open it themselves, beneath their own confinement.
    pub(crate) fn real_path(&self, path: &str) -> Result<PathBuf, FileError> {
        let place = self.place(path)?;
        Ok(place.root.path.join(&place.relative))
    }

    /// The folders that may be written: what models call them, and where they are on this machine.
    pub(crate) fn writable(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let writable = self.roots.iter().filter(|root| root.writable);
        writable.map(|root| (root.name, root.path.as_path()))
    }

    /// The folders that may be read, as they are on this machine.
    pub(crate) fn readable(&self) -> impl Iterator<Item = &Path> {
        self.roots.iter().map(|root| root.path.as_path())
    }

    /// The workspace's own folder.
    pub(crate) fn workspace(&self) -> std::io::Result<OwnedFd> {
        let root = self.roots.first().ok_or(std::io::ErrorKind::NotFound)?;
        root.folder.try_clone()
    }

    /// What the kernel's refusal means, in words.
    fn explain(&self, attempt: &'static str, path: &str, place: &Place<'_>, errno: Errno) -> FileError {
        let path = path.to_owned();
        match errno {
            Errno::LOOP | Errno::NOTDIR => match place.first_link() {
                Some((link, target)) => FileError::Link { path, link, target },
                None => FileError::io(attempt, &path, errno),
            },
            Errno::NOENT => FileError::Missing { path },
            // A folder on the way was renamed away from beneath the root while it was looked up.
            Errno::XDEV | Errno::AGAIN => FileError::Outside {
                reach: self.reach(),
                path,
            },
            // A socket, or a device without a driver.
            Errno::NXIO | Errno::NODEV => FileError::NotAFile {
                path,
                kind: "a socket or a device",
            },
            errno => FileError::io(attempt, &path, errno),
        }
    }

    fn reach(&self) -> String {
        let names: Vec<_> = self.roots.iter().map(|root| root.name).collect();
        names.join(", ")
    }
}

impl Root {
    fn open(name: &'static str, path: &Path, writable: bool) -> Result<Self, FileError> {
        let failed = |source| FileError::Root {
            path: path.to_owned(),
            source,
        };
        let real = path.canonicalize().map_err(failed)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(&real, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?;
        Ok(Self {
            name,
            path: real,
            folder,
            writable,
        })
    }
}

/// Opens beneath a folder, over no link of any kind.
pub(crate) fn open_beneath(folder: impl AsFd, relative: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let relative = if relative.as_os_str().is_empty() {
        Path::new(".")
    } else {
        relative
    };
    for _ in 0..8 {
        match rustix::fs::openat2(&folder, relative, flags, mode, resolve) {
            // Something was renamed meanwhile, and the kernel could not be sure.
            Err(Errno::AGAIN) => {}
            done => return done,
        }
    }
    Err(Errno::AGAIN)
}

/// What a directory entry is, in words.
fn kind(file_type: FileType) -> &'static str {
    match file_type {
        FileType::RegularFile => "a file",
        FileType::Directory => "a folder",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a named pipe",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Unknown => "of an unknown kind",
    }
}
