//! What sandboxes are made from.

use domain::Timestamp;
use serde::{Deserialize, Serialize};

use crate::ImageDigest;

/// An image that exists.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ImageStatus {
    /// What it is called by whoever wants a sandbox.
    pub digest: ImageDigest,
    /// Its recipe's name, which all its generations share.
    pub name: String,
    /// When it was made.
    pub built: Timestamp,
    /// The image that the first of its committed layers was made on; none where nothing was committed.
    pub base: Option<ImageDigest>,
    /// Bytes of the layers that it has beyond its base, or of all where it has none.
    pub bytes: u64,
}
