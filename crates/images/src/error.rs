//! Why an image could not be built, made of another or taken in, or the images not be read.

use std::io;
use std::path::{Path, PathBuf};

use sandbox::{ImageDigest, inside};

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

/// Nothing came of a commit, and nothing of it is left.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// There is more than may be.
    #[error("what was built cannot become an image: {what}")]
    TooMuch {
        /// Of what.
        what: String,
    },
    /// Something cannot be in an image.
    #[error("what was built cannot become an image because of {path}: {why}")]
    Unfit {
        /// What, as it is called inside.
        path: PathBuf,
        /// Why not.
        why: &'static str,
    },
    /// A file of a stranger's could not be taken over.
    #[error("could not {attempt} {path} of what was built")]
    File {
        /// What was tried.
        attempt: &'static str,
        /// On what, as it is called inside.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// A file of ours could not be made or read.
    #[error(transparent)]
    Build(#[from] BuildError),
}

impl From<LibraryError> for CommitError {
    fn from(error: LibraryError) -> Self {
        Self::Build(error.into())
    }
}

impl CommitError {
    pub(crate) fn file(attempt: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = Path::new(inside::KNOWLEDGE).join(path);
        move |source| Self::File { attempt, path, source }
    }

    pub(crate) fn unfit(path: &Path, why: &'static str) -> Self {
        let path = Path::new(inside::KNOWLEDGE).join(path);
        Self::Unfit { path, why }
    }
}

/// An image that was made elsewhere could not be taken in, and nothing of it was.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// It is no image, or not one that can be had here.
    #[error("cannot import {path}")]
    Refused {
        /// What should be one.
        path: PathBuf,
        /// Why it is not.
        #[source]
        source: io::Error,
    },
    /// No image may be called so.
    #[error("{name:?} cannot be the name of an image: it should be small letters, digits and -, such as --name mine")]
    Name {
        /// How it was to be called.
        name: String,
    },
    /// The same image is known by another name, or was made here of another.
    #[error("it is here already, as {name}, and stays that: name it so, or by its digest {digest}")]
    Here {
        /// Which.
        digest: ImageDigest,
        /// What it is called.
        name: String,
    },
    /// A file of ours could not be made or read.
    #[error(transparent)]
    Build(#[from] BuildError),
}

impl From<LibraryError> for ImportError {
    fn from(error: LibraryError) -> Self {
        Self::Build(error.into())
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
