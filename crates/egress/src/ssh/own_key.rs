//! The host key that the broker shows to sandboxes: one for an installation, made when a rule first needs it.

use std::path::{Path, PathBuf};

use ring::rand::{SecureRandom, SystemRandom};
use russh::keys::PrivateKey;
use russh::keys::ssh_key::LineEnding;
use russh::keys::ssh_key::private::Ed25519Keypair;

use crate::private_file::{self, PrivateFileError};

/// Its file, beside the certificate authorities.
const FILE: &str = "ssh_host_ed25519_key";

/// Why there is no host key.
#[derive(Debug, thiserror::Error)]
pub enum HostKeyError {
    /// Its file cannot be read or written, or others can read it.
    #[error(transparent)]
    File(#[from] PrivateFileError),
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
    let malformed = |source| HostKeyError::Malformed {
        path: path.clone(),
        source,
    };
    if let Some(text) = private_file::read(&path)? {
        return PrivateKey::from_openssh(text).map_err(malformed);
    }
    let mut seed = [0; 32];
    SystemRandom::new().fill(&mut seed).map_err(|_| HostKeyError::Random)?;
    let key = PrivateKey::from(Ed25519Keypair::from_seed(&seed));
    let text = key.to_openssh(LineEnding::LF).map_err(malformed)?;
    private_file::write(folder, &path, &text)?;
    Ok(key)
}

/// A key's public half, as `known_hosts` has it.
pub(super) fn shown(key: &PrivateKey, folder: &Path) -> Result<String, HostKeyError> {
    key.public_key().to_openssh().map_err(|source| HostKeyError::Malformed {
        path: folder.join(FILE),
        source,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

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
        assert!(matches!(
            open(folder.path()),
            Err(HostKeyError::File(PrivateFileError::Open { .. }))
        ));
    }
}
