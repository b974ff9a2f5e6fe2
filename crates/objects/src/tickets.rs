//! Signed URLs of the link.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use domain::Timestamp;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

use crate::GOOD_FOR;
use crate::objects::{Key, ObjectError};

/// Where such URLs begin.
const BEGINNING: &str = "/v1/objects/";

/// What a URL is good for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Method {
    /// To fetch an object.
    Get,
    /// To keep one.
    Put,
}

impl Method {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Put => "PUT",
        }
    }
}

/// What a URL allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    /// Which object.
    pub key: Key,
    /// How long it is.
    pub bytes: u64,
}

/// A URL that opens nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TicketError {
    /// It was never signed, or for something else.
    #[error("the URL is not signed for this request")]
    Unsigned,
    /// It was good once.
    #[error("the URL was good for five minutes, which are over; ask for another")]
    Expired,
}

/// Signs and checks URLs, with the key of this installation.
#[derive(Clone)]
pub struct Tickets {
    key: Arc<hmac::Key>,
    life: Duration,
}

impl fmt::Debug for Tickets {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Tickets").finish_non_exhaustive()
    }
}

impl Tickets {
    /// With the key that this file holds; made where there is none, for its owner alone.
    ///
    /// # Errors
    /// [`ObjectError::Settings`]: the file cannot be read or made, or others can read it.
    pub fn open(path: &Path) -> Result<Self, ObjectError> {
        let wrong = |error: io::Error| ObjectError::Settings(format!("the key {}: {error}", path.display()));
        let mut made = [0; 32];
        SystemRandom::new()
            .fill(&mut made)
            .map_err(|_| wrong(io::Error::other("the machine has no random numbers")))?;
        let whole = path.with_extension("unfinished");
        // What a killed process left.
        let _ = fs::remove_file(&whole);
        if !path.exists() {
            let write = || {
                let mut file = OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .mode(0o600)
                    .open(&whole)?;
                file.write_all(&made)?;
                file.sync_all()?;
                fs::rename(&whole, path)
            };
            write().map_err(wrong)?;
        }
        let mut file = fs::File::open(path).map_err(wrong)?;
        let mode = file.metadata().map_err(wrong)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            let words = format!("others can read it (mode {mode:o}): remove it, so that a new one is made");
            return Err(wrong(io::Error::other(words)));
        }
        let mut key = [0; 32];
        file.read_exact(&mut key).map_err(wrong)?;
        Ok(Self {
            key: Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &key)),
            life: GOOD_FOR,
        })
    }

    /// The same, whose URLs are good for so long instead of [`GOOD_FOR`].
    #[must_use]
    pub fn good_for(self, life: Duration) -> Self {
        Self { life, ..self }
    }

    /// A URL of the link for this, good for five minutes from now.
    #[must_use]
    pub fn sign(&self, method: Method, ticket: Ticket, now: Timestamp) -> String {
        let until = now.after(self.life).0;
        let Ticket { key, bytes } = ticket;
        let tag = hmac::sign(&self.key, text(method, ticket, until).as_bytes());
        let signature = hex::encode(tag);
        format!(
            "{BEGINNING}{}/{}?bytes={bytes}&until={until}&signature={signature}",
            key.session, key.sha256
        )
    }

    /// What this URL allows, asked for by this method at this time.
    ///
    /// # Errors
    /// [`TicketError`].
    pub fn check(&self, method: Method, url: &str, now: Timestamp) -> Result<Ticket, TicketError> {
        let (ticket, until, signature) = parse(url).ok_or(TicketError::Unsigned)?;
        hmac::verify(&self.key, text(method, ticket, until).as_bytes(), &signature)
            .map_err(|_| TicketError::Unsigned)?;
        if now.0 > until {
            return Err(TicketError::Expired);
        }
        Ok(ticket)
    }
}

/// What is signed.
fn text(method: Method, ticket: Ticket, until: i64) -> String {
    let Ticket { key, bytes } = ticket;
    format!("belljar object\n{}\n{key}\n{bytes}\n{until}", method.as_str())
}

/// The one way in which such a URL is written.
fn parse(url: &str) -> Option<(Ticket, i64, Vec<u8>)> {
    let (path, query) = url.strip_prefix(BEGINNING)?.split_once('?')?;
    let key = Key::parse(&format!("sessions/{path}"))?;
    let mut parts = query.split('&');
    let mut part = |name: &str| parts.next()?.strip_prefix(name)?.strip_prefix('=');
    let bytes = part("bytes")?.parse().ok()?;
    let until = part("until")?.parse().ok()?;
    let signature = hex::decode(part("signature")?).ok()?;
    parts
        .next()
        .is_none()
        .then_some((Ticket { key, bytes }, until, signature))
}
