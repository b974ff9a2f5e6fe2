//! The key of the encrypted store: from a file, or made from a passphrase.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::fchown;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use argon2::{Algorithm, Argon2, Params};
use chacha20poly1305::XChaCha20Poly1305;
use chacha20poly1305::aead;
use chacha20poly1305::aead::Generate;
use secret::{Credential, Secret};
use tempfile::NamedTempFile;
use zeroize::Zeroizing;

use super::form::KeyKind;
use super::seal::Key;
use super::{KeyFrom, StoreError};
use crate::file::{self, Unread};

/// Bytes that a passphrase has at least.
const LEAST_PASSPHRASE: usize = 12;
/// What deriving a key may cost at most, whatever the file says: 1 GiB of memory, and passes over it.
const MOST_MEMORY: u32 = 1 << 20;
const MOST_PASSES: u32 = 64;
const MOST_LANES: u32 = 16;

/// Fetches the key, and remembers what is dear to derive.
pub(super) struct Keyring {
    from: KeyFrom,
    derived: Mutex<Option<(KeyKind, Secret, Key)>>,
}

impl Keyring {
    pub(super) fn new(from: KeyFrom) -> Self {
        Self {
            from,
            derived: Mutex::default(),
        }
    }

    /// The key for a store of this kind.
    pub(super) fn key(&self, kind: &KeyKind, store: &Path) -> Result<Key, StoreError> {
        match (&self.from, kind) {
            (KeyFrom::File(path), KeyKind::File) => read(path, store),
            (KeyFrom::Passphrase(passphrase), KeyKind::Passphrase { .. }) => self.derived(passphrase, kind, store),
            (KeyFrom::File(_), KeyKind::Passphrase { .. }) => Err(StoreError::OtherKind {
                path: store.to_owned(),
                was: "a passphrase",
            }),
            (KeyFrom::Passphrase(_), KeyKind::File) => Err(StoreError::OtherKind {
                path: store.to_owned(),
                was: "a key file",
            }),
        }
    }

    /// What a new store's key is made from. A key file that is missing is made.
    pub(super) fn kind(&self) -> Result<KeyKind, StoreError> {
        match &self.from {
            KeyFrom::File(path) => make_key(path, None).map(|_| KeyKind::File),
            KeyFrom::Passphrase(_) => {
                let salt = <[u8; 16]>::try_generate().map_err(|_| StoreError::Random)?;
                Ok(KeyKind::Passphrase {
                    salt: hex::encode(salt),
                    memory: Params::DEFAULT_M_COST,
                    passes: Params::DEFAULT_T_COST,
                    lanes: Params::DEFAULT_P_COST,
                })
            }
        }
    }

    fn derived(&self, passphrase: &Credential, kind: &KeyKind, store: &Path) -> Result<Key, StoreError> {
        let passphrase = passphrase.get().map_err(StoreError::Passphrase)?;
        let mut derived = self.derived.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, with, key)) = &*derived
            && known == kind
            && *with == passphrase
        {
            return Ok(key.clone());
        }
        let key = derive(&passphrase, kind, store)?;
        *derived = Some((kind.clone(), passphrase, key.clone()));
        Ok(key)
    }
}

fn derive(passphrase: &Secret, kind: &KeyKind, store: &Path) -> Result<Key, StoreError> {
    let KeyKind::Passphrase {
        salt,
        memory,
        passes,
        lanes,
    } = kind
    else {
        return Err(StoreError::Cost(store.to_owned()));
    };
    if passphrase.expose().len() < LEAST_PASSPHRASE {
        return Err(StoreError::ShortPassphrase(LEAST_PASSPHRASE));
    }
    if *memory > MOST_MEMORY || *passes > MOST_PASSES || *lanes > MOST_LANES {
        return Err(StoreError::Cost(store.to_owned()));
    }
    let altered = || StoreError::Altered(store.to_owned());
    let salt = hex::decode(salt).map_err(|_| altered())?;
    let params = Params::new(*memory, *passes, *lanes, None).map_err(|_| altered())?;
    let mut key = Zeroizing::new([0; 32]);
    Argon2::new(Algorithm::Argon2id, argon2::Version::V0x13, params)
        .hash_password_into(passphrase.expose().as_bytes(), &salt, &mut *key)
        .map_err(|_| altered())?;
    Ok(key)
}

fn read(path: &Path, store: &Path) -> Result<Key, StoreError> {
    let unusable = |why| StoreError::KeyFile {
        path: path.to_owned(),
        why,
    };
    let text = file::read(path).map_err(|error| match error {
        Unread::Io(error) if error.kind() == io::ErrorKind::NotFound => StoreError::NoKey {
            key: path.to_owned(),
            path: store.to_owned(),
        },
        Unread::Io(source) => StoreError::file("read the key file", path, source),
        Unread::Owner(_) => unusable("it belongs to another user, who could change it: give it to the control plane's"),
        Unread::Open(_) => unusable("others may read or change it: close it with chmod 400"),
        Unread::NoFile | Unread::TooLong | Unread::NoText | Unread::Empty => unusable(NO_KEY),
    })?;
    let mut key = Zeroizing::new([0; 32]);
    hex::decode_to_slice(text.expose(), &mut *key).map_err(|_| unusable(NO_KEY))?;
    Ok(key)
}

const NO_KEY: &str = "it holds no key, which is 64 hexadecimal digits: bring back the one that was made";

/// What became of a key file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyMade {
    /// It was made.
    Made,
    /// It was there.
    There,
}

/// Makes a key file with a new key where there is none, readable by its owner only; `owner` is who it is given to, user and
/// group. A file that is there is left alone.
///
/// # Errors
/// The file cannot be made.
pub fn make_key(path: &Path, owner: Option<(u32, u32)>) -> Result<KeyMade, StoreError> {
    let failed = |source| StoreError::file("make the key file", path, source);
    if fs::symlink_metadata(path).is_ok() {
        return Ok(KeyMade::There);
    }
    let folder = path.parent().unwrap_or(Path::new("/"));
    let key = aead::Key::<XChaCha20Poly1305>::try_generate().map_err(|_| StoreError::Random)?;
    let key = Zeroizing::new(<[u8; 32]>::from(key));
    let digits = Zeroizing::new(hex::encode(*key));
    // Made beside its place and linked into it whole: whoever comes second finds the first one's.
    let mut file = NamedTempFile::new_in(folder).map_err(failed)?;
    if let Some((user, group)) = owner {
        fchown(file.as_file(), Some(user), Some(group)).map_err(failed)?;
    }
    writeln!(file, "{}", *digits)
        .and_then(|()| file.as_file().sync_all())
        .map_err(failed)?;
    match file.persist_noclobber(path) {
        Ok(_) => {
            let synced = fs::File::open(folder).and_then(|folder| folder.sync_all());
            synced.map_err(failed).map(|()| KeyMade::Made)
        }
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Ok(KeyMade::There),
        Err(error) => Err(failed(error.error)),
    }
}
