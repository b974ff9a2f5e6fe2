//! A copy while the store is in use.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::json;

use crate::batch::Bind;
use crate::connection::{Access, Connection};
use crate::error::database;
use crate::open::{apart, beside, not_a_store};
use crate::{Asker, AuditEntry, Store, StoreError, audit, migrations};

impl Store {
    /// Writes a consistent copy of the store to a new file while it is in use: complete, checked, on the disk, and readable by its owner
    /// alone, or not there at all. Audited.
    ///
    /// # Errors
    /// The file exists; it cannot be written; the one who asks is no admin.
    pub async fn backup(&self, asker: Asker, file: &Path) -> Result<(), StoreError> {
        const ATTEMPT: &str = "back up the store";
        asker.must_be_admin(ATTEMPT)?;
        let (path, copy) = (self.inner.path.clone(), file.to_owned());
        apart(ATTEMPT, move || {
            let connection = Connection::open(&path, Access::Read).map_err(|source| database(ATTEMPT, source))?;
            copy_to(&connection, &copy)
        })
        .await?;
        let detail = json!({ "file": file.display().to_string() });
        let entry = AuditEntry::new("store.backed_up", "store", detail);
        let audited = self
            .write(ATTEMPT, move |work| audit::append(work, asker, &[entry]))
            .await;
        if audited.is_err() {
            // A copy that nobody was told of is none.
            remove(file)?;
        }
        audited
    }
}

/// Copies what a connection sees to a new file: first beside it, then checked and synced, then under its name, which nobody may have taken.
pub(crate) fn copy_to(connection: &Connection, file: &Path) -> Result<(), StoreError> {
    if file.symlink_metadata().is_ok() {
        return Err(StoreError::Exists { path: file.to_owned() });
    }
    let draft = Draft::beside(file)?;
    let name = draft.path.display().to_string();
    connection
        .execute("VACUUM INTO $1", &[Bind::from(name)])
        .map_err(|source| database("copy the store", source))?;
    check(&draft.path)?;
    draft.put(file)
}

/// A file that is removed again unless it is put in its place.
pub(crate) struct Draft {
    pub(crate) path: PathBuf,
    done: bool,
}

impl Draft {
    /// An empty file beside `file`; what an attempt that was cut short left there is removed.
    pub(crate) fn beside(file: &Path) -> Result<Self, StoreError> {
        let path = beside(file, ".unfinished");
        remove(&path)?;
        Self::at(path)
    }

    /// An empty file of this name, for its owner alone.
    pub(crate) fn at(path: PathBuf) -> Result<Self, StoreError> {
        let mut options = std::fs::OpenOptions::new();
        options.create_new(true).write(true).mode(0o600);
        match options.open(&path) {
            Ok(_) => Ok(Self { path, done: false }),
            Err(source) => Err(StoreError::File {
                attempt: "make",
                path,
                source,
            }),
        }
    }

    /// It stays under the name that it has.
    pub(crate) fn keep(mut self) {
        self.done = true;
    }

    /// Gives it its name for good, where nobody has that name.
    pub(crate) fn put(self, file: &Path) -> Result<(), StoreError> {
        sync(&self.path)?;
        renameat_with(CWD, &self.path, CWD, file, RenameFlags::NOREPLACE).map_err(|source| match source {
            rustix::io::Errno::EXIST => StoreError::Exists { path: file.to_owned() },
            _ => StoreError::File {
                attempt: "put in place",
                path: file.to_owned(),
                source: source.into(),
            },
        })?;
        self.keep();
        sync_folder(file)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.done {
            // Best effort: the error that led here is the one to tell.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Makes sure that a file is a whole store of Belljar that this build can read.
pub(crate) fn check(path: &Path) -> Result<(), StoreError> {
    let unreadable = |source| not_a_store(path, source);
    let damaged = |reason: String| StoreError::NotAStore {
        path: path.to_owned(),
        reason,
    };
    let connection = Connection::open(path, Access::Read).map_err(unreadable)?;
    if migrations::schema_of(&connection, path)? == 0 {
        return Err(damaged("it is empty".to_owned()));
    }
    for pragma in ["PRAGMA integrity_check(1)", "PRAGMA foreign_key_check"] {
        let verdict: Option<String> = connection.first(pragma).map_err(unreadable)?;
        if let Some(verdict) = verdict.filter(|verdict| verdict != "ok") {
            return Err(damaged(format!("it is damaged: {verdict}")));
        }
    }
    connection.close().map_err(|source| database("check the copy", source))
}

pub(crate) fn remove(path: &Path) -> Result<(), StoreError> {
    match std::fs::remove_file(path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => Err(StoreError::File {
            attempt: "remove",
            path: path.to_owned(),
            source,
        }),
        _ => Ok(()),
    }
}

pub(crate) fn sync(path: &Path) -> Result<(), StoreError> {
    File::open(path)
        .and_then(|file| file.sync_all())
        .map_err(|source| StoreError::File {
            attempt: "write to the disk",
            path: path.to_owned(),
            source,
        })
}

/// Makes a new name in a folder last.
pub(crate) fn sync_folder(file: &Path) -> Result<(), StoreError> {
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    sync(folder)
}
