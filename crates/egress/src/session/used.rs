//! What a session has used up, whichever sandboxes it had.

use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use super::Bucket;
use crate::Limits;

/// New names at once, before the rate counts.
const BURST: u32 = 100;

/// Small, because it is kept where nothing else of a session is.
pub(crate) struct Used {
    /// Bytes that left.
    pub(super) sent: AtomicU64,
    /// Bytes that came.
    pub(super) received: AtomicU64,
    /// New names that it may still use.
    pub(super) names: Mutex<Bucket>,
}

impl Used {
    /// Nothing yet.
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            names: Mutex::new(Bucket::new(BURST, f64::from(limits.names) / 60.0)),
        }
    }
}
