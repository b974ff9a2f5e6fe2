//! One file per authority, named by when it was made; certificate and key, for this user alone.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use rcgen::{Issuer, KeyPair};

use super::{Authority, AuthorityError, parameters};

const PREFIX: &str = "authority-";
const SUFFIX: &str = ".pem";
/// Where the certificate ends and the key begins.
const KEY: &str = "-----BEGIN PRIVATE KEY-----";

fn failed<'a>(attempt: &'static str, path: &'a Path) -> impl Fn(io::Error) -> AuthorityError + 'a {
    move |source| AuthorityError::File {
        attempt,
        path: path.to_owned(),
        source,
    }
}

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
    let mode = fs::metadata(path)
        .map_err(failed("look at", path))?
        .permissions()
        .mode()
        & 0o777;
    if mode & 0o077 != 0 {
        let path = path.to_owned();
        return Err(AuthorityError::Open { path, mode });
    }
    let text = fs::read_to_string(path).map_err(failed("read", path))?;
    let malformed = || AuthorityError::Malformed { path: path.to_owned() };
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
    let unfinished = path.with_extension("unfinished");
    // What a killed process left of one; where there is none, so be it.
    let _ = fs::remove_file(&unfinished);
    let text = format!("{}{}", authority.certificate, authority.issuer.key().serialize_pem());
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
            fs::rename(&unfinished, &path)?;
            File::open(folder)?.sync_all()
        });
    written.map_err(failed("write", &path))
}

/// Removes one that counts no more. Where it stays, it is removed the next time.
pub(super) fn remove(folder: &Path, authority: &Authority) {
    let path = path(folder, authority.created);
    if let Err(error) = fs::remove_file(&path) {
        tracing::warn!(path = %path.display(), %error, "an old certificate authority could not be removed");
    }
}
