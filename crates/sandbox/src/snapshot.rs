//! What is kept of sessions' disks.

use domain::{SnapshotId, Timestamp};
use serde::{Deserialize, Serialize};

/// A snapshot that exists.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SnapshotStatus {
    /// Its name.
    pub id: SnapshotId,
    /// When it was made.
    pub created: Timestamp,
    /// Bytes of the files in it, where that is known. Where it shares them with disks, removing it frees less.
    pub bytes: Option<u64>,
}

/// All snapshots of a provider.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Snapshots {
    /// A snapshot, and a disk that is made from one, share what they hold until it is written to: either takes moments and no
    /// room, however much there is. Otherwise every one is a copy.
    pub shared: bool,
    /// The snapshots, sorted by id.
    pub kept: Vec<SnapshotStatus>,
}
