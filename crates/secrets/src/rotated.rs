//! Secrets that services gave in place of configured ones: a store of its own, of the same form and under the same key as that
//! of `store:`.
//!
//! What the operator configured is never written over, wherever it is. An entry is named after the service and a digest of the
//! configured secret, so where another is configured it counts, and nothing succeeds it yet.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use causes::with_causes;
use domain::Timestamp;
use rustix::fs::OFlags;
use secret::{Secret, SecretName, Successors, Unkept};
use sha2::{Digest, Sha256};

use crate::encrypted::{EncryptedStore, Entry, KeyFrom, StoreError};

/// Entries that stay of a service beside the one that is written: another process may still have the secret before configured.
const OTHERS: usize = 1;
/// Bytes of a digest that stand in a name.
const DIGEST: usize = 16;

/// Secrets that services gave in place of configured ones.
pub struct Rotated {
    path: PathBuf,
    store: EncryptedStore,
}

/// What may be known of a secret that was replaced.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rotation {
    /// The service that replaced it.
    pub service: String,
    /// When it was first replaced since it was configured.
    pub first: Timestamp,
    /// When it was last replaced.
    pub last: Timestamp,
}

impl Rotated {
    /// In this file, which need not be there yet.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>, key: KeyFrom) -> Self {
        let path = path.into();
        Self {
            store: EncryptedStore::new(&path, key),
            path,
        }
    }

    /// What was replaced last of each service, and when.
    ///
    /// # Errors
    /// The store cannot be opened.
    pub fn list(&self) -> Result<Vec<Rotation>, StoreError> {
        let mut newest = BTreeMap::<String, Rotation>::new();
        for entry in self.store.list()? {
            let Some((service, _)) = entry.name.as_str().rsplit_once('.') else {
                continue;
            };
            let rotation = Rotation {
                service: service.to_owned(),
                first: entry.made,
                last: entry.set,
            };
            let known = newest
                .entry(rotation.service.clone())
                .or_insert_with(|| rotation.clone());
            if known.last < rotation.last {
                *known = rotation;
            }
        }
        Ok(newest.into_values().collect())
    }

    /// Takes out what succeeded secrets of this service that were configured long ago.
    fn forget(&self, service: &str, name: &SecretName) -> Result<(), StoreError> {
        let of_service = |entry: &Entry| {
            entry
                .name
                .as_str()
                .rsplit_once('.')
                .is_some_and(|(of, _)| of == service)
        };
        let mut others = self.store.list()?;
        others.retain(|entry| of_service(entry) && entry.name != *name);
        others.sort_by_key(|entry| std::cmp::Reverse(entry.set));
        for other in others.into_iter().skip(OTHERS) {
            self.store.remove(&other.name)?;
        }
        Ok(())
    }
}

impl Successors for Rotated {
    fn turn(&self, service: &str) -> Result<Box<dyn Send>, Unkept> {
        let mut path = self.path.clone().into_os_string();
        path.push(format!(".{service}.lock"));
        let path = PathBuf::from(path);
        let failed = |attempt, source| unkept(&StoreError::file(attempt, &path, source));
        let file = File::options()
            .create(true)
            .append(true)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(&path)
            .map_err(|source| failed("open", source))?;
        file.lock().map_err(|source| failed("lock", source))?;
        Ok(Box::new(file))
    }

    fn newest(&self, service: &str, secret: &Secret) -> Result<Option<Secret>, Unkept> {
        self.store
            .value(&name(service, secret)?)
            .map_err(|error| unkept(&error))
    }

    fn keep(&self, service: &str, secret: &Secret, newest: &Secret) -> Result<(), Unkept> {
        let name = name(service, secret)?;
        let kept = self.store.set(&name, newest);
        kept.and_then(|_| self.forget(service, &name))
            .map_err(|error| unkept(&error))
    }
}

/// What the successor of a service's secret is called.
fn name(service: &str, secret: &Secret) -> Result<SecretName, Unkept> {
    let mut digest = Sha256::new();
    for part in ["belljar secrets: rotated", service, secret.expose()] {
        digest.update(part.len().to_be_bytes());
        digest.update(part);
    }
    let digest = hex::encode(&digest.finalize()[..DIGEST]);
    format!("{service}.{digest}").parse().map_err(|error| Unkept {
        why: format!("what succeeds a secret of the service {service:?} can have no name in the store: {error}"),
        remedy: "give the service a shorter name".to_owned(),
    })
}

fn unkept(error: &StoreError) -> Unkept {
    Unkept {
        why: with_causes(error),
        remedy: "`belljar secret list` says when it is mended; where no secret was ever set, `belljar secret set` as root makes the key"
            .to_owned(),
    }
}
