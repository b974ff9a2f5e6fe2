//! Files with keys: for this user alone, and whole or not there.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Why a file with a key cannot be had or kept.
#[derive(Debug, thiserror::Error)]
pub enum PrivateFileError {
    /// It cannot be read or written.
    #[error("{attempt} {}", path.display())]
    File {
        /// What was tried.
        attempt: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Others can read it.
    #[error("the key in {} can be read by others (mode {mode:o}): remove the file, so that a new one is made", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
}

/// An attempt on a path, which failed.
pub(crate) fn failed<'a>(attempt: &'static str, path: &'a Path) -> impl Fn(io::Error) -> PrivateFileError + 'a {
    move |source| PrivateFileError::File {
        attempt,
        path: path.to_owned(),
        source,
    }
}

/// What a file holds; nothing where there is none.
pub(crate) fn read(path: &Path) -> Result<Option<String>, PrivateFileError> {
    let status = match fs::metadata(path) {
        Ok(status) => status,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("look at", path)(error)),
    };
    let mode = status.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let path = path.to_owned();
        return Err(PrivateFileError::Open { path, mode });
    }
    fs::read_to_string(path).map(Some).map_err(failed("read", path))
}

/// Keeps a file in a folder: whole, or not at all.
pub(crate) fn write(folder: &Path, path: &Path, text: &str) -> Result<(), PrivateFileError> {
    let unfinished = path.with_extension("unfinished");
    // What a killed process left of one; where there is none, so be it.
    let _ = fs::remove_file(&unfinished);
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&unfinished)
        .and_then(|mut file| {
            // Whatever the umask says.
            file.set_permissions(Permissions::from_mode(0o600))?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&unfinished, path)?;
            File::open(folder)?.sync_all()
        });
    written.map_err(failed("write", path))
}
