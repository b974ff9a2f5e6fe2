//! The installation's own certificate authority, which signs for the hosts whose connections are read.
//!
//! It is made at the first start, and its key never leaves the folder and this process. Every sandbox is told the
//! certificates, never a key. A successor is made long before an authority ends, and trusted from then on by every sandbox
//! that is claimed; it signs only when the old one is about to end. So at each moment whoever was claimed in the last three
//! months trusts who signs, without anybody remembering what was told to whom.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256,
};

use crate::private_file::PrivateFileError;

mod files;
mod leaves;

pub(crate) use leaves::Leaves;

/// How long an authority counts.
const LIFE: SignedDuration = SignedDuration::from_hours(730 * 24);
/// How long before an authority's end its successor is made.
const MADE: SignedDuration = SignedDuration::from_hours(120 * 24);
/// How long before an authority's end its successor signs instead. In between, both are trusted and the old one signs.
const SIGNS: SignedDuration = SignedDuration::from_hours(30 * 24);
/// Clocks of sandboxes may be behind by this.
const BEFORE: SignedDuration = SignedDuration::from_hours(24);

/// Why there is no certificate authority.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// A file of it cannot be read or written, or others can read the key.
    #[error(transparent)]
    File(#[from] PrivateFileError),
    /// A file holds something else.
    #[error("{} holds no certificate authority: remove it, so that a new one is made", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
    },
    /// A certificate could not be made.
    #[error("make a certificate")]
    Making(#[source] rcgen::Error),
}

/// An authority: a certificate and its key.
pub(crate) struct Authority {
    created: Timestamp,
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn make(created: Timestamp) -> Result<Self, AuthorityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(AuthorityError::Making)?;
        let parameters = parameters(created);
        let certificate = parameters.self_signed(&key).map_err(AuthorityError::Making)?;
        Ok(Self {
            created,
            certificate: certificate.pem(),
            issuer: Issuer::new(parameters, key),
        })
    }

    fn ends(&self) -> Timestamp {
        after(self.created, LIFE)
    }

    /// Whether at this time less than so much is left of it.
    fn has_less_than(&self, left: SignedDuration, now: Timestamp) -> bool {
        self.ends().duration_since(now) < left
    }
}

/// What an authority's certificate says; all of it follows from when it was made.
fn parameters(created: Timestamp) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, "Belljar");
    name.push(DnType::CommonName, format!("Belljar egress {}", created.as_second()));
    parameters.distinguished_name = name;
    parameters.not_before = date(after(created, -BEFORE));
    parameters.not_after = date(after(created, LIFE));
    // It signs for hosts, and for no further authority.
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    parameters
}

/// A time some while after another; at the end of time, that.
fn after(time: Timestamp, duration: SignedDuration) -> Timestamp {
    time.checked_add(duration).unwrap_or(Timestamp::MAX)
}

fn date(time: Timestamp) -> time::OffsetDateTime {
    time::OffsetDateTime::from_unix_timestamp(time.as_second()).unwrap_or(time::OffsetDateTime::UNIX_EPOCH)
}

/// The authorities of an installation: one, and at times its successor.
pub struct Authorities {
    folder: PathBuf,
    /// The oldest first.
    known: Mutex<Vec<Arc<Authority>>>,
}

impl Authorities {
    /// Opens those that a folder holds, and makes the first where it holds none. The folder and its files are for this user
    /// alone.
    ///
    /// # Errors
    /// When a file is not as it should be, or others can read a key.
    pub fn open(folder: &Path, now: Timestamp) -> Result<Self, AuthorityError> {
        let authorities = Self {
            folder: folder.to_owned(),
            known: Mutex::new(files::read(folder)?),
        };
        authorities.current(now)?;
        Ok(authorities)
    }

    /// The certificates that a sandbox is told to trust from now on, as PEM; never a key.
    ///
    /// # Errors
    /// When a successor is due and cannot be made or kept.
    pub fn trusted(&self, now: Timestamp) -> Result<String, AuthorityError> {
        let authorities = self.current(now)?;
        Ok(authorities.iter().map(|one| one.certificate.as_str()).collect())
    }

    /// Who signs now.
    pub(crate) fn signing(&self, now: Timestamp) -> Result<Arc<Authority>, AuthorityError> {
        let authorities = self.current(now)?;
        let mut signing = authorities.iter().filter(|one| !one.has_less_than(SIGNS, now));
        // There is always one: the last was just made, or has more than that left.
        signing
            .next()
            .or(authorities.last())
            .cloned()
            .ok_or_else(|| AuthorityError::Malformed {
                path: self.folder.clone(),
            })
    }

    /// All that still count, with the successor where one is due.
    fn current(&self, now: Timestamp) -> Result<Vec<Arc<Authority>>, AuthorityError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|one| {
            let counts = !one.has_less_than(SignedDuration::ZERO, now);
            if !counts {
                files::remove(&self.folder, one);
            }
            counts
        });
        if known.last().is_none_or(|last| last.has_less_than(MADE, now)) {
            let made = Authority::make(now)?;
            files::write(&self.folder, &made)?;
            known.push(Arc::new(made));
        }
        Ok(known.clone())
    }
}

#[cfg(test)]
mod tests;
