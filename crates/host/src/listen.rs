//! The host API's socket.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// The socket could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Somebody answers there.
    #[error("another host agent answers on {0}: stop it first, or give this one another socket")]
    Taken(PathBuf),
    /// The file system said no.
    #[error("could not make the host agent's socket {path}")]
    Make {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Listens on a socket that only `client_uid` and root can open. It takes the place of one that was left behind.
///
/// # Errors
/// [`ListenError`].
pub fn listen(path: &Path, client_uid: u32) -> Result<UnixListener, ListenError> {
    if UnixStream::connect(path).is_ok() {
        return Err(ListenError::Taken(path.to_owned()));
    }
    // Made beside its place and moved into it: nobody ever finds it with other rights, or not at all.
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}", std::process::id()));
    let beside = PathBuf::from(beside);
    let made = || {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let _ = fs::remove_file(&beside);
        let listener = UnixListener::bind(&beside)?;
        fs::set_permissions(&beside, Permissions::from_mode(0o600))?;
        chown(&beside, Some(client_uid), None)?;
        fs::rename(&beside, path)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    made().map_err(|source| {
        let _ = fs::remove_file(&beside);
        ListenError::Make {
            path: path.to_owned(),
            source,
        }
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn the_socket_belongs_to_the_client_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/host.sock");
        let _listener = listen(&path, 1234).unwrap();
        let about = fs::metadata(&path).unwrap();
        assert_eq!((about.uid(), about.mode() & 0o777), (1234, 0o600));
        assert_eq!(fs::read_dir(folder.path().join("run")).unwrap().count(), 1);
    }

    #[test]
    fn a_socket_left_behind_is_replaced_and_a_living_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("host.sock");
        drop(listen(&path, 0).unwrap());
        let _living = listen(&path, 0).unwrap();
        assert!(matches!(listen(&path, 0), Err(ListenError::Taken(_))));
    }
}
