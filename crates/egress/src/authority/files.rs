//! One file per authority, named by when it was made; certificate and key, for this user alone.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use rcgen::{Issuer, KeyPair};

use super::{Authority, AuthorityError, parameters};
use crate::private_file::{self, failed};

const PREFIX: &str = "authority-";
const SUFFIX: &str = ".pem";
/// Where the certificate ends and the key begins.
const KEY: &str = "-----BEGIN PRIVATE KEY-----";

fn path(folder: &Path, created: Timestamp) -> PathBuf {
    folder.join(format!("{PREFIX}{}{SUFFIX}", created.as_second()))
}

/// Those in a folder, the oldest first. The folder is made where it is missing.
pub(super) fn read(folder: &Path) -> Result<Vec<Arc<Authority>>, AuthorityError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(failed("make the folder", folder))?;
    let mut authorities = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed("list", folder))? {
        let path = entry.map_err(failed("list", folder))?.path();
        let created = path
            .file_name()
            .and_then(|name| name.to_str()?.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.parse().ok())
            .and_then(|seconds| Timestamp::from_second(seconds).ok());
        if let Some(created) = created {
            authorities.push(Arc::new(read_one(&path, created)?));
        }
    }
    authorities.sort_by_key(|one: &Arc<Authority>| one.created);
    Ok(authorities)
}

fn read_one(path: &Path, created: Timestamp) -> Result<Authority, AuthorityError> {
    let malformed = || AuthorityError::Malformed { path: path.to_owned() };
    let text = private_file::read(path)?.ok_or_else(malformed)?;
    let (certificate, key) = text.split_at(text.find(KEY).ok_or_else(malformed)?);
    let key = KeyPair::from_pem(key).map_err(|_| malformed())?;
    Ok(Authority {
        created,
        certificate: certificate.to_owned(),
        issuer: Issuer::new(parameters(created), key),
    })
}

/// Keeps a new one: whole, or not at all.
pub(super) fn write(folder: &Path, authority: &Authority) -> Result<(), AuthorityError> {
    let path = path(folder, authority.created);
    let text = format!("{}{}", authority.certificate, authority.issuer.key().serialize_pem());
    Ok(private_file::write(folder, &path, &text)?)
}

/// Removes one that counts no more. Where it stays, it is removed the next time.
pub(super) fn remove(folder: &Path, authority: &Authority) {
    let path = path(folder, authority.created);
    if let Err(error) = fs::remove_file(&path) {
        tracing::warn!(path = %path.display(), %error, "an old certificate authority could not be removed");
    }
}
