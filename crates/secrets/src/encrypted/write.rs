//! Changing the encrypted store: under a lock, and in one step for whoever reads.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use domain::Timestamp;
use rustix::fs::OFlags;
use secret::{Secret, SecretName};
use tempfile::NamedTempFile;

use super::form::Form;
use super::{EncryptedStore, Opened, StoreError};

/// The longest value; keys are shorter.
const MOST_BYTES: usize = 64 << 10;

/// What setting a secret did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// The name is new.
    New,
    /// It had another value before, which is gone.
    Replaced,
}

impl EncryptedStore {
    /// Gives a name this value. The store, and its key file, are made where they are missing. When this returns, it is on the
    /// disk, and counts for whoever asks from now on, in every process.
    ///
    /// # Errors
    /// The value is empty or too long, or the store cannot be opened or written; then it is as it was.
    pub fn set(&self, name: &SecretName, value: &Secret) -> Result<Change, StoreError> {
        match value.expose() {
            "" => return Err(StoreError::Value("empty")),
            text if text.len() > MOST_BYTES => return Err(StoreError::Value("longer than 64 KiB")),
            _ => {}
        }
        let _lock = self.lock()?;
        let mut opened = match self.read()? {
            Some(opened) => opened,
            None => self.empty()?,
        };
        let change = if opened.form.entries.contains_key(name.as_str()) {
            Change::Replaced
        } else {
            Change::New
        };
        opened.form.set(name.as_str(), value, Timestamp::now(), &opened.key)?;
        self.write(&opened.form)?;
        Ok(change)
    }

    /// Removes a secret. From now on references to it lead nowhere, in every process. False: there was none.
    ///
    /// # Errors
    /// The store cannot be opened or written; then it is as it was.
    pub fn remove(&self, name: &SecretName) -> Result<bool, StoreError> {
        let _lock = self.lock()?;
        let Some(mut opened) = self.read()? else {
            return Ok(false);
        };
        let removed = opened.form.remove(name.as_str(), &opened.key)?;
        if removed {
            self.write(&opened.form)?;
        }
        Ok(removed)
    }

    fn empty(&self) -> Result<Opened, StoreError> {
        let kind = self.keys.kind()?;
        let key = self.keys.key(&kind, &self.path)?;
        let form = Form::empty(kind, &key)?;
        Ok(Opened { form, key })
    }

    /// Keeps other writers away until it is dropped; they hold it for as long as a file is written.
    fn lock(&self) -> Result<File, StoreError> {
        let mut path = self.path.clone().into_os_string();
        path.push(".lock");
        let path = PathBuf::from(path);
        let opened = File::options()
            .create(true)
            .append(true)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(&path);
        let file = opened.map_err(|source| StoreError::file("open", &path, source))?;
        file.lock().map_err(|source| StoreError::file("lock", &path, source))?;
        Ok(file)
    }

    fn write(&self, form: &Form) -> Result<(), StoreError> {
        let failed = |source| StoreError::file("write", &self.path, source);
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        let mut file = NamedTempFile::new_in(folder).map_err(failed)?;
        file.write_all(&form.text()?)
            .and_then(|()| file.as_file().sync_all())
            .map_err(failed)?;
        file.persist(&self.path).map_err(|error| failed(error.error))?;
        // The new name has to be on the disk as well.
        fs::File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(failed)
    }
}
