//! The host key that the broker shows to sandboxes: one for an installation, made when a rule first needs it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use ring::rand::{SecureRandom, SystemRandom};
use russh::keys::PrivateKey;
use russh::keys::ssh_key::LineEnding;
use russh::keys::ssh_key::private::Ed25519Keypair;

/// Its file, beside the certificate authorities.
const FILE: &str = "ssh_host_ed25519_key";

/// Why there is no host key.
#[derive(Debug, thiserror::Error)]
pub enum HostKeyError {
    /// Its file cannot be read or written.
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
    #[error("the host key in {} can be read by others (mode {mode:o}): remove the file, so that a new one is made", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The file holds something else.
    #[error("{} holds no host key: remove it, so that a new one is made", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: russh::keys::ssh_key::Error,
    },
    /// The machine gives no random numbers.
    #[error("make a host key: the machine gives no random numbers")]
    Random,
}

/// The key in a folder, which is there already; made where there is none.
pub(super) fn open(folder: &Path) -> Result<PrivateKey, HostKeyError> {
    let path = folder.join(FILE);
    let failed = |attempt| {
        let path = path.clone();
        move |source| HostKeyError::File { attempt, path, source }
    };
    let malformed = |source| HostKeyError::Malformed {
        path: path.clone(),
        source,
    };
    match fs::metadata(&path) {
        Ok(status) => {
            let mode = status.permissions().mode() & 0o777;
            if mode & 0o077 != 0 {
                return Err(HostKeyError::Open { path, mode });
            }
            let text = fs::read_to_string(&path).map_err(failed("read"))?;
            PrivateKey::from_openssh(text).map_err(malformed)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut seed = [0; 32];
            SystemRandom::new().fill(&mut seed).map_err(|_| HostKeyError::Random)?;
            let key = PrivateKey::from(Ed25519Keypair::from_seed(&seed));
            let text = key.to_openssh(LineEnding::LF).map_err(malformed)?;
            keep(folder, &path, text.as_bytes()).map_err(failed("write"))?;
            Ok(key)
        }
        Err(error) => Err(failed("look at")(error)),
    }
}

/// A key's public half, as `known_hosts` has it.
pub(super) fn shown(key: &PrivateKey, folder: &Path) -> Result<String, HostKeyError> {
    key.public_key().to_openssh().map_err(|source| HostKeyError::Malformed {
        path: folder.join(FILE),
        source,
    })
}

/// Whole, or not at all.
fn keep(folder: &Path, path: &Path, text: &[u8]) -> io::Result<()> {
    let unfinished = path.with_extension("unfinished");
    // What a killed process left of one; where there is none, so be it.
    let _ = fs::remove_file(&unfinished);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&unfinished)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&unfinished, path)?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_and_is_for_this_user_alone() {
        let folder = tempfile::tempdir().unwrap();
        let made = open(folder.path()).unwrap();
        let again = open(folder.path()).unwrap();
        assert_eq!(made.public_key(), again.public_key());
        let path = folder.path().join(FILE);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        assert!(matches!(open(folder.path()), Err(HostKeyError::Open { .. })));
    }
}
