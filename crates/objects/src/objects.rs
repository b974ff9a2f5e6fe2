//! One interface to both kinds.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;

use bytes::Bytes;
use domain::{ContentHash, SessionId, Timestamp};
use futures::stream::BoxStream;
use http::HeaderMap;

use crate::local::Local;
use crate::s3::{Presigned, S3, S3Settings};
use crate::tickets::Method;

/// Names an object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key {
    /// Whose it is.
    pub session: SessionId,
    /// What it is.
    pub sha256: ContentHash,
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "sessions/{}/{}", self.session, self.sha256)
    }
}

impl Key {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (session, sha256) = text.strip_prefix("sessions/")?.split_once('/')?;
        let key = Self {
            session: session.parse().ok()?,
            sha256: sha256.parse().ok()?,
        };
        // Each name is written in one way only.
        (key.to_string() == text).then_some(key)
    }
}

/// Why an object could not be had or kept.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// There is none of this name.
    #[error("there is no object {0}")]
    NotFound(Key),
    /// What came is not what the name says, or not as long as was said.
    #[error("what was sent as {key} is something else: {reason}")]
    Other {
        /// The name.
        key: Key,
        /// In what it differs.
        reason: String,
    },
    /// The bytes stopped coming.
    #[error("the bytes of {key} stopped coming")]
    Cut {
        /// The name.
        key: Key,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Where objects are kept cannot be used at the moment; the same may succeed later.
    #[error("cannot {attempt} where objects are kept")]
    Unavailable {
        /// What was tried.
        attempt: &'static str,
        /// Why not.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// Where objects are kept this was refused: it was not done, and will not be.
    #[error("cannot {attempt}: it was refused where objects are kept")]
    Refused {
        /// What was tried.
        attempt: &'static str,
        /// What says so.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// Where objects are kept there is no room for more; there may be later.
    #[error("cannot {attempt}: there is no room where objects are kept")]
    Full {
        /// What was tried.
        attempt: &'static str,
        /// What says so.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The settings make no sense.
    #[error("objects cannot be kept: {0}")]
    Settings(String),
}

pub(crate) fn unavailable<E: Into<Box<dyn Error + Send + Sync>>>(attempt: &'static str) -> impl Fn(E) -> ObjectError {
    move |source| ObjectError::Unavailable {
        attempt,
        source: source.into(),
    }
}

/// Where objects are kept.
#[derive(Clone, Debug)]
pub enum Store {
    /// In this folder.
    Local(PathBuf),
    /// In a service that speaks S3.
    S3(Box<S3Settings>),
}

/// Bytes on their way.
pub(crate) type Stream = BoxStream<'static, io::Result<Bytes>>;

/// The objects. Clones are the same ones.
#[derive(Clone, Debug)]
pub struct Objects(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Local(Local),
    S3(S3),
}

impl Objects {
    /// Objects that are kept there. Nothing is asked of a service yet.
    ///
    /// # Errors
    /// [`ObjectError`]: the folder cannot be made, the settings make no sense.
    pub fn open(store: Store) -> Result<Self, ObjectError> {
        Ok(Self(match store {
            Store::Local(folder) => Kind::Local(Local::open(folder)?),
            Store::S3(settings) => Kind::S3(S3::open(*settings)?),
        }))
    }

    /// Keeps an object of so many bytes. When this returns it is there, whole, and is what its name says; otherwise nothing is.
    /// One that is there already is put again.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn put(&self, key: Key, bytes: u64, stream: Stream) -> Result<(), ObjectError> {
        match &self.0 {
            Kind::Local(local) => local.put(key, bytes, stream).await,
            Kind::S3(s3) => s3.put(key, bytes, stream).await,
        }
    }

    /// An object's bytes, and how many they are.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn get(&self, key: Key) -> Result<(u64, Stream), ObjectError> {
        match &self.0 {
            Kind::Local(local) => local.get(key).await,
            Kind::S3(s3) => s3.get(key).await,
        }
    }

    /// How many bytes an object has; none where it is not there.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn head(&self, key: Key) -> Result<Option<u64>, ObjectError> {
        match &self.0 {
            Kind::Local(local) => local.head(key).await,
            Kind::S3(s3) => s3.head(key).await,
        }
    }

    /// Removes an object. One that is not there is removed already.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn delete(&self, key: Key) -> Result<(), ObjectError> {
        match &self.0 {
            Kind::Local(local) => local.delete(key).await,
            Kind::S3(s3) => s3.delete(key).await,
        }
    }

    /// A request to the service for exactly one object, one method, one length and one checksum, good for [`crate::GOOD_FOR`].
    /// None where objects lie in a folder.
    ///
    /// # Errors
    /// [`ObjectError`]: the keys lead nowhere.
    pub fn presign(
        &self,
        method: Method,
        key: Key,
        bytes: u64,
        now: Timestamp,
    ) -> Result<Option<Presigned>, ObjectError> {
        match &self.0 {
            Kind::Local(_) => Ok(None),
            Kind::S3(s3) => match method {
                Method::Get => s3.presign(&http::Method::GET, key, HeaderMap::new(), now).map(Some),
                Method::Put => s3
                    .presign(&http::Method::PUT, key, S3::held_to(key, bytes)?, now)
                    .map(Some),
            },
        }
    }
}
