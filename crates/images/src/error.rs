//! Why an image could not be built, or the images not be read.

use std::io;
use std::path::PathBuf;

use crate::OutsideError;

/// A build that ended without an image. Nothing of it counts.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A program that does a part of the work failed.
    #[error("could not {stage}")]
    Outside {
        /// The part of the work.
        stage: &'static str,
        /// What the program said.
        #[source]
        source: OutsideError,
    },
    /// The machine lacks the keys that Debian's packages are checked with.
    #[error(
        "{path} is lacking, without which Debian's packages cannot be checked: apt-get install debian-archive-keyring"
    )]
    Keyring {
        /// Where they should be.
        path: PathBuf,
    },
    /// Images are made by root alone.
    #[error("an image is built by root, because its files belong to several users: run this as root")]
    NotRoot,
    /// A file of the image, or of the folder of images, could not be made.
    #[error("could not {attempt} {path}")]
    File {
        /// What was tried.
        attempt: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// A place in the image is not inside it: a symbolic link leads out.
    #[error("{path} leads out of the image by a symbolic link")]
    Outward {
        /// Which.
        path: PathBuf,
    },
    /// The folder of images could not be read.
    #[error(transparent)]
    Library(#[from] LibraryError),
}

impl BuildError {
    pub(crate) fn file(attempt: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { attempt, path, source }
    }
}

/// The folder of images could not be read or changed.
#[derive(Debug, thiserror::Error)]
#[error("could not {attempt} {path}")]
pub struct LibraryError {
    pub(crate) attempt: &'static str,
    pub(crate) path: PathBuf,
    #[source]
    pub(crate) source: io::Error,
}

impl LibraryError {
    pub(crate) fn new(attempt: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self { attempt, path, source }
    }
}
