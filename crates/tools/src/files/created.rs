//! New files.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::{FileError, Files, Place, kind, open_beneath};

/// A new file that has not taken its place yet. Dropped without [`Created::commit`], it is removed.
#[derive(Debug)]
pub struct Created {
    file: File,
    folder: OwnedFd,
    /// Its name until it takes its place.
    temporary: PathBuf,
    name: PathBuf,
    path: String,
    /// It takes the place of another.
    replaces: bool,
    committed: bool,
}

impl Files {
    /// Makes a new file beside the place that it will take; folders on the way are made. It has the mode of the file that
    /// it replaces.
    ///
    /// # Errors
    /// In words for the model, when the place is not beneath a folder that may be written.
    pub fn create(&self, path: &str) -> Result<Created, FileError> {
        let place = self.place(path)?;
        if !place.root.writable {
            return Err(FileError::ReadOnly {
                path: path.to_owned(),
                folder: place.root.name,
            });
        }
        let name = match place.relative.file_name() {
            Some(name) if !path.ends_with('/') => PathBuf::from(name),
            _ => {
                return Err(FileError::NotAFile {
                    path: path.to_owned(),
                    kind: "a folder",
                });
            }
        };
        let folder = self.make_folders(path, &place)?;
        let before = match rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(status) => Some(status),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(FileError::io("look at", path, errno)),
        };
        match before.map(|status| FileType::from_raw_mode(status.st_mode)) {
            None | Some(FileType::RegularFile) => {}
            Some(FileType::Symlink) => return Err(self.explain("write", path, &place, Errno::LOOP)),
            Some(other) => {
                return Err(FileError::NotAFile {
                    path: path.to_owned(),
                    kind: kind(other),
                });
            }
        }
        let (temporary, file) = new_file(&folder).map_err(|errno| FileError::io("make a file beside", path, errno))?;
        let created = Created {
            file,
            folder,
            temporary,
            name,
            path: path.to_owned(),
            replaces: before.is_some(),
            committed: false,
        };
        if let Some(status) = before {
            rustix::fs::fchmod(&created.file, Mode::from_raw_mode(status.st_mode & 0o777))
                .map_err(|errno| FileError::io("set the mode of", path, errno))?;
        }
        Ok(created)
    }

    /// The folder that a place is in, made with all folders on the way.
    fn make_folders(&self, path: &str, place: &Place<'_>) -> Result<OwnedFd, FileError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = place.relative.parent().unwrap_or(Path::new(""));
        let failed = |errno| self.explain("make folders for", path, place, errno);
        match open_beneath(&place.root.folder, parent, flags, Mode::empty()) {
            Err(Errno::NOENT) => {}
            done => return done.map_err(failed),
        }
        let mut folder = open_beneath(&place.root.folder, Path::new(""), flags, Mode::empty()).map_err(failed)?;
        for name in parent {
            match rustix::fs::mkdirat(&folder, name, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(failed(errno)),
            }
            folder = open_beneath(&folder, Path::new(name), flags, Mode::empty()).map_err(failed)?;
        }
        Ok(folder)
    }
}

/// A file with a name that nobody else has.
fn new_file(folder: &OwnedFd) -> Result<(PathBuf, File), Errno> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    loop {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = PathBuf::from(format!(".belljar-{}-{number}.new", std::process::id()));
        match rustix::fs::openat(folder, &name, flags, Mode::from_raw_mode(0o666)) {
            Ok(file) => return Ok((name, File::from(file))),
            // A process of the same number left it behind.
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
}

impl Created {
    /// The file, to be written.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Whether another file stood in its place when it was made.
    #[must_use]
    pub fn replaces(&self) -> bool {
        self.replaces
    }

    /// Puts the file in its place, at once: whoever looks sees the old one or the new one, whole.
    ///
    /// # Errors
    /// When a folder has come to stand there, or the file system says no.
    pub fn commit(mut self) -> Result<(), FileError> {
        rustix::fs::renameat(&self.folder, &self.temporary, &self.folder, &self.name)
            .map_err(|errno| FileError::io("put into its place", &self.path, errno))?;
        self.committed = true;
        Ok(())
    }
}

impl Drop for Created {
    fn drop(&mut self) {
        if !self.committed {
            // Nothing can be done where it fails, and the file is marked as ours by its name.
            let _ = rustix::fs::unlinkat(&self.folder, &self.temporary, AtFlags::empty());
        }
    }
}
