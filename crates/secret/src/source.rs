//! What follows references.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::{Reference, Secret};

/// Follows references, from memory or by a look at a local file: it may be asked for each request, and whoever asks keeps the
/// answer for that request only. So a secret that was changed or revoked counts everywhere at once.
pub trait Source: Send + Sync {
    /// The secret that a reference leads to now.
    ///
    /// # Errors
    /// It leads nowhere, or nobody knows whether it still does.
    fn secret(&self, reference: &Reference) -> Result<Secret, Unresolved>;
}

/// A reference leads nowhere. Says which, why, and what to do; never a value.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the secret {reference} cannot be had: {why}; {remedy}")]
pub struct Unresolved {
    /// The reference.
    pub reference: Reference,
    /// The kind of reason.
    pub because: Because,
    /// The reason, in words that follow a colon.
    pub why: String,
    /// What to do, in words that follow a semicolon.
    pub remedy: String,
}

/// Why a reference leads nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Because {
    /// There is no such secret, or it was revoked.
    Absent,
    /// It is there and must not or cannot be used: open to others, empty, sealed with another key.
    Unusable,
    /// What keeps it does not answer; it may later.
    Unavailable,
}

impl Unresolved {
    /// There is no such secret, or it was revoked.
    pub fn absent(reference: &Reference, why: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(reference, Because::Absent, why.into(), remedy.into())
    }

    /// It is there and must not or cannot be used.
    pub fn unusable(reference: &Reference, why: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(reference, Because::Unusable, why.into(), remedy.into())
    }

    /// What keeps it does not answer.
    pub fn unavailable(reference: &Reference, why: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(reference, Because::Unavailable, why.into(), remedy.into())
    }

    fn new(reference: &Reference, because: Because, why: String, remedy: String) -> Self {
        Self {
            reference: reference.clone(),
            because,
            why,
            remedy,
        }
    }
}

/// A table of secrets that were fetched before.
impl Source for BTreeMap<Reference, Secret> {
    fn secret(&self, reference: &Reference) -> Result<Secret, Unresolved> {
        self.get(reference)
            .cloned()
            .ok_or_else(|| Unresolved::absent(reference, "it is not in the table", "add it"))
    }
}

impl<S: Source + ?Sized> Source for Arc<S> {
    fn secret(&self, reference: &Reference) -> Result<Secret, Unresolved> {
        (**self).secret(reference)
    }
}
