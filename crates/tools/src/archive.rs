//! The whole workspace as one archive (tar), out and in.
//!
//! What goes out: files with their holes, hard links, links that stay in the workspace, folders; permissions, times, attributes
//! of users. What never does: pipes, sockets, devices, links that lead elsewhere, set-uid bits. What comes in is refused
//! where it holds any of these, and is put together beside the workspace before a name of it changes.

mod pack;
mod unpack;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::thread::{Builder, JoinHandle};

use rustix::pipe::{PipeFlags, pipe_with};

use crate::Files;
pub use unpack::Leftover;
use unpack::Staged;

/// How names begin that are ours while an archive comes in; they are left out of archives.
const OWN: &str = protocol::IMPORT_FOLDERS;
/// Attributes of files that users may set, and how an archive calls them.
const USERS_ATTRIBUTE: &str = "user.";
const PAX_ATTRIBUTE: &str = "SCHILY.xattr.";
/// The same in base64, as libarchive writes it: for values with a line break, which many readers take for the end.
const PAX_ENCODED: &str = "LIBARCHIVE.xattr.";
/// Bits of a mode that are carried; set-uid and set-gid are not.
const MODE: u32 = 0o1777;

/// Why an archive could not be made or taken in.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// Something in it is not taken in.
    #[error("the archive was refused for {name:?}: {reason}; the workspace is as it was")]
    Refused {
        /// What.
        name: String,
        /// Why.
        reason: &'static str,
    },
    /// It ends before its end, or is none.
    #[error("the archive is broken or was cut short; the workspace is as it was")]
    Broken(#[source] io::Error),
    /// The file system said no.
    #[error("cannot {attempt} {name:?}")]
    Io {
        /// What was tried.
        attempt: &'static str,
        /// On what.
        name: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl ArchiveError {
    fn io<E: Into<io::Error>>(attempt: &'static str, name: &Path) -> impl FnOnce(E) -> Self {
        let name = name.to_string_lossy().into_owned();
        move |source| Self::Io {
            attempt,
            name,
            source: source.into(),
        }
    }

    fn refused(name: &Path, reason: &'static str) -> Self {
        Self::Refused {
            name: name.to_string_lossy().chars().take(200).collect(),
            reason,
        }
    }
}

/// An archive that is being written into a pipe.
#[derive(Debug)]
pub struct Packing(JoinHandle<Result<(), ArchiveError>>);

/// An archive that is being read from a pipe. Dropped without [`Unpacking::commit`], nothing comes of it.
#[derive(Debug)]
pub struct Unpacking(JoinHandle<Result<Staged, ArchiveError>>);

impl Files {
    /// Writes the workspace into a pipe, whose other end this is.
    ///
    /// # Errors
    /// Where there can be no pipe or thread.
    pub fn pack(&self) -> io::Result<(OwnedFd, Packing)> {
        let root = self.workspace()?;
        let (output, input) = pipe_with(PipeFlags::CLOEXEC)?;
        let pack = move || pack::pack(&root, File::from(input));
        Ok((output, Packing(Builder::new().spawn(pack)?)))
    }

    /// Finishes or undoes what a process that was killed left of an archive that came in. To be done before anything else is.
    ///
    /// # Errors
    /// The file system said no.
    pub fn recover(&self) -> Result<(), ArchiveError> {
        let recovered = self.workspace().and_then(|root| unpack::recover(&root));
        recovered.map_err(ArchiveError::io("recover", Path::new("/workspace")))
    }

    /// Reads what is to take the workspace's place from a pipe, whose other end this is.
    ///
    /// # Errors
    /// Where there can be no pipe or thread.
    pub fn unpack(&self) -> io::Result<(OwnedFd, Unpacking)> {
        let root = self.workspace()?;
        let (output, input) = pipe_with(PipeFlags::CLOEXEC)?;
        let unpack = move || unpack::unpack(root, File::from(output));
        Ok((input, Unpacking(Builder::new().spawn(unpack)?)))
    }
}

impl Packing {
    /// Waits until all of it is written.
    ///
    /// # Errors
    /// A file could not be read; the archive is not whole.
    pub fn commit(self) -> Result<(), ArchiveError> {
        self.0.join().unwrap_or_else(|_| Err(panicked()))
    }
}

impl Unpacking {
    /// Puts what came in the workspace's place, once all of it was read.
    ///
    /// # Errors
    /// It is not whole, or was refused; the workspace is as it was.
    pub fn commit(self) -> Result<Leftover, ArchiveError> {
        self.0.join().unwrap_or_else(|_| Err(panicked()))?.commit()
    }
}

fn panicked() -> ArchiveError {
    ArchiveError::Broken(io::Error::other("a thread that worked on it panicked"))
}

/// Whether a link at a place stays in the workspace wherever it is followed from: it climbs only at its beginning, and not above
/// the workspace; every folder on the way to a place is none that a link stands for.
fn stays(place: &Path, target: &Path) -> bool {
    let (mut depth, rest) = match target.strip_prefix("/workspace") {
        Ok(rest) => (0, rest),
        Err(_) if target.is_absolute() => return false,
        Err(_) => (place.components().count().saturating_sub(1), target),
    };
    let mut climbs = true;
    for component in rest.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir if climbs && depth > 0 => depth -= 1,
            Component::Normal(_) => climbs = false,
            _ => return false,
        }
    }
    !target.as_os_str().is_empty()
}

/// An entry's name as a place beneath the workspace: empty for the workspace itself.
fn place(name: &Path) -> Result<PathBuf, ArchiveError> {
    let mut place = PathBuf::new();
    for component in name.components() {
        match component {
            Component::CurDir => {}
            Component::Normal(part) => place.push(part),
            Component::ParentDir => return Err(ArchiveError::refused(name, "it holds ..")),
            Component::RootDir | Component::Prefix(_) => {
                return Err(ArchiveError::refused(name, "it is an absolute path"));
            }
        }
    }
    Ok(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_stays_where_it_cannot_lead_out() {
        let stays = |place: &str, target: &str| stays(Path::new(place), Path::new(target));
        for (place, target) in [
            ("a", "b"),
            ("a", "b/c"),
            ("d/a", "../b"),
            ("d/e/a", "../../b"),
            ("a", "/workspace/b"),
            ("a", "/workspace"),
            ("a", "./b"),
        ] {
            assert!(stays(place, target), "{place} -> {target}");
        }
        for (place, target) in [
            ("a", ".."),
            ("d/a", "../.."),
            ("a", "/etc/passwd"),
            ("a", "/workspace/../etc"),
            ("a", "/workspaces"),
            ("a", "b/../../c"),
            ("a", "b/.."),
            ("a", ""),
        ] {
            assert!(!stays(place, target), "{place} -> {target}");
        }
    }

    #[test]
    fn a_name_is_a_place_beneath_the_workspace() {
        assert_eq!(place(Path::new("./a/b/")).unwrap(), Path::new("a/b"));
        for name in ["../a", "a/../b", "/a"] {
            assert!(place(Path::new(name)).is_err(), "{name}");
        }
    }
}
