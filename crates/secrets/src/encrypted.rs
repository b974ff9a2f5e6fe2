//! The encrypted store: one file of sealed secrets in the data directory.
//!
//! Each secret is sealed with XChaCha20-Poly1305 and bound to its name and date, so none can be put in another's place; a seal
//! over the whole file keeps entries from being taken out or brought back one by one. The key comes from a key file, which
//! lies outside the data directory and its copies, or from a passphrase (Argon2id). Who writes replaces the file in one step
//! under a lock; who reads looks whether it was replaced, each time. Values are opened when they are asked for, one at a time.

mod error;
mod form;
mod key;
mod seal;
mod write;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::Timestamp;
use secret::{Credential, Reference, Secret, SecretName, Unresolved};

pub use error::StoreError;
use form::Form;
use key::Keyring;
pub use key::{KeyMade, make_key};
use seal::Key;
pub use write::Change;

/// Where the key of the encrypted store comes from.
#[derive(Clone, Debug)]
pub enum KeyFrom {
    /// A file with 64 hexadecimal digits.
    File(PathBuf),
    /// A passphrase.
    Passphrase(Credential),
}

/// The encrypted store. There may be any number of them for one file, in any number of processes.
pub struct EncryptedStore {
    path: PathBuf,
    keys: Keyring,
    seen: Mutex<Seen>,
}

/// What was read last.
#[derive(Default)]
struct Seen {
    opened: Option<(Stamp, Arc<Opened>)>,
    /// The newest generation that was ever read here: an older one was put back by somebody.
    newest: u64,
}

/// A file that was read and found whole.
struct Opened {
    form: Form,
    key: Key,
}

/// What tells two contents of a file apart without reading them. A replaced file has another inode or another time of change.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

/// What may be known of a secret in the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its name.
    pub name: SecretName,
    /// When the name was first given.
    pub made: Timestamp,
    /// When its value was last set.
    pub set: Timestamp,
}

impl EncryptedStore {
    /// The store in this file, which need not be there yet.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>, key: KeyFrom) -> Self {
        Self {
            path: path.into(),
            keys: Keyring::new(key),
            seen: Mutex::default(),
        }
    }

    /// Every secret's name and dates, by name.
    ///
    /// # Errors
    /// The store cannot be opened.
    pub fn list(&self) -> Result<Vec<Entry>, StoreError> {
        let opened = self.current()?;
        let entries = opened.iter().flat_map(|opened| &opened.form.entries);
        entries
            .map(|(name, entry)| {
                Ok(Entry {
                    name: name.parse().map_err(|_| StoreError::Altered(self.path.clone()))?,
                    made: entry.made,
                    set: entry.set,
                })
            })
            .collect()
    }

    /// The secret of that name.
    pub(crate) fn secret(&self, reference: &Reference, name: &SecretName) -> Result<Secret, Unresolved> {
        let value = self.value(name).map_err(|error| error.unresolved(reference))?;
        value.ok_or_else(|| {
            Unresolved::absent(
                reference,
                "the store has no secret of this name",
                format!("set it: belljar secret set {name}"),
            )
        })
    }

    /// The value of that name, if it has one.
    pub(crate) fn value(&self, name: &SecretName) -> Result<Option<Secret>, StoreError> {
        let Some(opened) = self.current()? else {
            return Ok(None);
        };
        if !opened.form.entries.contains_key(name.as_str()) {
            return Ok(None);
        }
        let value = opened.form.open(name.as_str(), &opened.key);
        value.map(Some).ok_or_else(|| StoreError::Altered(self.path.clone()))
    }

    /// What the file holds now; nothing where there is none.
    fn current(&self) -> Result<Option<Arc<Opened>>, StoreError> {
        let mut seen = self.seen();
        let Some(stamp) = Stamp::of(&self.path)? else {
            seen.opened = None;
            return Ok(None);
        };
        if let Some((known, opened)) = &seen.opened
            && *known == stamp
        {
            return Ok(Some(Arc::clone(opened)));
        }
        seen.opened = None;
        // The stamp is older than what is read now, never newer: the next look finds out.
        let Some(opened) = self.read()? else {
            return Ok(None);
        };
        if opened.form.generation < seen.newest {
            return Err(StoreError::Older {
                path: self.path.clone(),
                found: opened.form.generation,
                newest: seen.newest,
            });
        }
        seen.newest = opened.form.generation;
        let opened = Arc::new(opened);
        seen.opened = Some((stamp, Arc::clone(&opened)));
        Ok(Some(opened))
    }

    /// Reads the file and proves that it is whole.
    fn read(&self) -> Result<Option<Opened>, StoreError> {
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(StoreError::file("read", &self.path, source)),
        };
        let form = Form::parse(&text, &self.path)?;
        let key = self.keys.key(&form.key, &self.path)?;
        if !form.fits(&key) {
            return Err(StoreError::WrongKey(self.path.clone()));
        }
        if !form.is_whole(&key) {
            return Err(StoreError::Altered(self.path.clone()));
        }
        Ok(Some(Opened { form, key }))
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stamp {
    fn of(path: &Path) -> Result<Option<Self>, StoreError> {
        match fs::metadata(path) {
            Ok(about) => Ok(Some(Self {
                device: about.dev(),
                inode: about.ino(),
                size: about.size(),
                changed: (about.ctime(), about.ctime_nsec()),
            })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(StoreError::file("look at", path, source)),
        }
    }
}
