//! Bringing a copy back.

use std::path::{Path, PathBuf};

use domain::Timestamp;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::StoreError;
use crate::backup::{Draft, check, sync, sync_folder};
use crate::connection::{Access, Connection};
use crate::open::{Lock, apart, beside};

/// What restoring did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Restored {
    /// Where the store that was replaced is kept, where there was one.
    pub replaced: Option<PathBuf>,
}

/// Puts a copy made by [`crate::Store::backup`] in the place of the store at `path`, which nobody may be using. The copy is checked first
/// and stays; the store that is replaced is kept beside it. Whenever this is cut short, the old store or the new one is in place.
///
/// # Errors
/// The copy is not a store, is damaged, or is of a newer release; the store is in use; a file cannot be written.
pub async fn restore(copy: &Path, path: &Path) -> Result<Restored, StoreError> {
    let (copy, path) = (copy.to_owned(), path.to_owned());
    apart("restore the store", move || put(&copy, &path)).await
}

fn put(copy: &Path, path: &Path) -> Result<Restored, StoreError> {
    let _lock = Lock::take(path)?;
    check(copy)?;
    if path.symlink_metadata().is_err() {
        let draft = Draft::beside(path)?;
        duplicate(copy, &draft)?;
        draft.put(path)?;
        return Ok(Restored { replaced: None });
    }
    let replaced = beside(path, &format!(".replaced-{}", Timestamp::now().0));
    let draft = Draft::at(replaced.clone())?;
    duplicate(copy, &draft)?;
    fold_in_log(path);
    // A log that could not be folded in belongs to the old store alone, and would be played into the new one.
    for suffix in ["-wal", "-shm"] {
        set_aside(&beside(path, suffix), &beside(&replaced, suffix))?;
    }
    // One step: at every moment one of the two whole stores bears the name, and the old one ends under the name it is kept by.
    renameat_with(CWD, &replaced, CWD, path, RenameFlags::EXCHANGE).map_err(|source| StoreError::File {
        attempt: "put in place",
        path: path.to_owned(),
        source: source.into(),
    })?;
    draft.keep();
    sync_folder(path)?;
    Ok(Restored {
        replaced: Some(replaced),
    })
}

/// Copies the copy, and makes sure that the whole of it arrived on the disk.
fn duplicate(copy: &Path, draft: &Draft) -> Result<(), StoreError> {
    let failed = |attempt, path: &Path| {
        let path = path.to_owned();
        move |source| StoreError::File { attempt, path, source }
    };
    let mut source = std::fs::File::open(copy).map_err(failed("read", copy))?;
    let mut target = std::fs::OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(&draft.path)
        .map_err(failed("write", &draft.path))?;
    std::io::copy(&mut source, &mut target).map_err(failed("copy into", &draft.path))?;
    check(&draft.path)?;
    sync(&draft.path)
}

/// Brings the old store's log into its file, as far as it is sound; where it is not, both are kept as they are.
fn fold_in_log(path: &Path) {
    let folded = Connection::open(path, Access::Write).and_then(|connection| {
        connection.all("PRAGMA wal_checkpoint(TRUNCATE)", &[])?;
        connection.close()
    });
    if let Err(error) = folded {
        tracing::warn!(path = %path.display(), %error, "the store that is replaced cannot be read; it is kept as it is");
    }
}

fn set_aside(from: &Path, to: &Path) -> Result<(), StoreError> {
    match std::fs::rename(from, to) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => Err(StoreError::File {
            attempt: "set aside",
            path: from.to_owned(),
            source,
        }),
        _ => Ok(()),
    }
}
