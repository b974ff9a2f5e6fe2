//! What is still being made: a folder that is no image, whoever is killed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::fs::syncfs;
use sys::removal::remove_tree;

use crate::LibraryError;
use crate::bounds::Room;
use crate::library::ImageFolder;

/// What the name of anything begins with that is still being made.
pub(crate) const HALF: &str = "half-";

/// A folder beside images, which is removed with this. Nobody else removes it as long as this process lives.
#[derive(Debug)]
pub(crate) struct Half {
    folder: PathBuf,
    held: File,
}

impl Half {
    pub(crate) fn path(&self) -> &Path {
        &self.folder
    }

    /// The file system that it is on.
    pub(crate) fn room(&self) -> Room<'_> {
        Room::of(&self.held)
    }

    /// Where a new layer is made: its `files`, and its archive.
    pub(crate) fn layer(&self, name: &str) -> PathBuf {
        self.path().join("layers").join(name)
    }

    /// Where the image's own folder is made.
    pub(crate) fn image(&self) -> PathBuf {
        self.path().join("image")
    }

    /// Waits until everything is on the disk: what gets its name is whole even if the power goes.
    pub(crate) fn settle(&self) -> Result<(), LibraryError> {
        syncfs(&self.held).map_err(|error| LibraryError::new("write to the disk", self.path())(error.into()))
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        // What cannot be removed now is when the next one begins.
        let _removed = remove_tree(&self.folder);
    }
}

impl ImageFolder {
    /// Begins something; what others began and did not finish goes.
    pub(crate) fn begin(&self) -> Result<Half, LibraryError> {
        fs::create_dir_all(self.folder()).map_err(LibraryError::new("make the folder", self.folder()))?;
        let _lock = self.lock()?;
        self.remove_halves()?;
        let folder = tempfile::Builder::new().prefix(HALF).tempdir_in(self.folder());
        let folder = folder.map_err(LibraryError::new("make a folder in", self.folder()))?;
        let held = File::open(folder.path()).map_err(LibraryError::new("open", folder.path()))?;
        held.lock().map_err(LibraryError::new("lock", folder.path()))?;
        let half = Half {
            // What comes into it may be deeper than its own removal could go.
            folder: folder.keep(),
            held,
        };
        for place in [half.path().join("layers"), half.image()] {
            fs::create_dir(&place).map_err(LibraryError::new("make the folder", &place))?;
        }
        Ok(half)
    }

    /// Removes what was not finished and that nobody works on. Only under the lock, so that nothing has just begun.
    pub(crate) fn remove_halves(&self) -> Result<(), LibraryError> {
        for entry in fs::read_dir(self.folder()).map_err(LibraryError::new("list", self.folder()))? {
            let entry = entry.map_err(LibraryError::new("list", self.folder()))?;
            let path = entry.path();
            if !entry.file_name().to_string_lossy().starts_with(HALF) {
                continue;
            }
            let Ok(folder) = File::open(&path) else {
                // It was finished, or removed, this moment.
                continue;
            };
            if folder.try_lock().is_ok() {
                remove(&path)?;
            }
        }
        Ok(())
    }

    /// Takes the name of something and removes it. Without its name it is nothing any more, whatever becomes of the rest.
    pub(crate) fn take_away(&self, path: &Path) -> Result<(), LibraryError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let unnamed = self.folder().join(format!("{HALF}{name}"));
        fs::rename(path, &unnamed).map_err(LibraryError::new("remove", path))?;
        remove(&unnamed)
    }
}

fn remove(path: &Path) -> Result<(), LibraryError> {
    match remove_tree(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(LibraryError::new("remove", path)(error)),
        _ => Ok(()),
    }
}
