//! The file as it is written: JSON, in which only values are secret.

use std::collections::BTreeMap;
use std::path::Path;

use domain::Timestamp;
use secret::Secret;
use serde::{Deserialize, Serialize};

use super::StoreError;
use super::seal::{Key, Sealed, open, seal};

/// The version that this release reads and writes.
const VERSION: u32 = 1;

/// The whole file.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Form {
    pub(super) version: u32,
    /// One more with each change.
    pub(super) generation: u64,
    pub(super) key: KeyKind,
    /// Opens with the right key, whatever became of the rest.
    proof: Sealed,
    pub(super) entries: BTreeMap<String, SealedEntry>,
    /// Binds all that stands above it.
    seal: Option<Sealed>,
}

/// What the key is made from.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "from", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum KeyKind {
    /// A key file.
    File,
    /// A passphrase, through Argon2id: memory in KiB.
    Passphrase {
        salt: String,
        memory: u32,
        passes: u32,
        lanes: u32,
    },
}

/// One secret.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SealedEntry {
    pub(super) made: Timestamp,
    pub(super) set: Timestamp,
    value: Sealed,
}

impl Form {
    /// A store without secrets.
    pub(super) fn empty(kind: KeyKind, key: &Key) -> Result<Self, StoreError> {
        let mut form = Self {
            version: VERSION,
            generation: 0,
            proof: seal(key, PROOF, b"")?,
            key: kind,
            entries: BTreeMap::new(),
            seal: None,
        };
        form.seal = Some(seal(key, &form.context()?, b"")?);
        Ok(form)
    }

    /// Reads a file's content.
    pub(super) fn parse(text: &[u8], path: &Path) -> Result<Self, StoreError> {
        let no_store = |_| StoreError::NoStore(path.to_owned());
        let Version { version } = serde_json::from_slice(text).map_err(no_store)?;
        if version != VERSION {
            return Err(StoreError::Version {
                path: path.to_owned(),
                found: version,
            });
        }
        serde_json::from_slice(text).map_err(no_store)
    }

    /// Whether this is the key that the file was sealed with.
    pub(super) fn fits(&self, key: &Key) -> bool {
        open(key, PROOF, &self.proof).is_some()
    }

    /// Whether the file is as it was sealed.
    pub(super) fn is_whole(&self, key: &Key) -> bool {
        match (&self.seal, self.context()) {
            (Some(seal), Ok(context)) => open(key, &context, seal).is_some(),
            _ => false,
        }
    }

    /// The value of an entry; nothing where there is none or it was altered.
    pub(super) fn open(&self, name: &str, key: &Key) -> Option<Secret> {
        let entry = self.entries.get(name)?;
        let value = open(key, &entry_context(name, entry.set), &entry.value)?;
        Some(Secret::new(std::str::from_utf8(&value).ok()?))
    }

    /// Puts a value under a name and seals the whole anew.
    pub(super) fn set(&mut self, name: &str, value: &Secret, now: Timestamp, key: &Key) -> Result<(), StoreError> {
        let made = self.entries.get(name).map_or(now, |entry| entry.made);
        let value = seal(key, &entry_context(name, now), value.expose().as_bytes())?;
        let entry = SealedEntry { made, set: now, value };
        self.entries.insert(name.to_owned(), entry);
        self.finish(key)
    }

    /// Takes a name out and seals the whole anew. False: there was none.
    pub(super) fn remove(&mut self, name: &str, key: &Key) -> Result<bool, StoreError> {
        if self.entries.remove(name).is_none() {
            return Ok(false);
        }
        self.finish(key).map(|()| true)
    }

    fn finish(&mut self, key: &Key) -> Result<(), StoreError> {
        self.generation += 1;
        self.seal = Some(seal(key, &self.context()?, b"")?);
        Ok(())
    }

    /// Everything but the seal, always as the same bytes.
    fn context(&self) -> Result<Vec<u8>, StoreError> {
        let all = (
            SEAL,
            self.version,
            self.generation,
            &self.key,
            &self.proof,
            &self.entries,
        );
        Ok(serde_json::to_vec(&all)?)
    }

    /// The file's content.
    pub(super) fn text(&self) -> Result<Vec<u8>, StoreError> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        Ok(text)
    }
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

const PROOF: &[u8] = b"belljar secrets: the key";
const SEAL: &str = "belljar secrets: the file";

/// What an entry is bound to.
fn entry_context(name: &str, set: Timestamp) -> Vec<u8> {
    format!("belljar secrets: the value\n{name}\n{}", set.0).into_bytes()
}
