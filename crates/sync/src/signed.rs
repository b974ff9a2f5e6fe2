//! URLs that are good for some minutes: asked for shortly before they are used.

use std::time::{Duration, Instant};

/// Pieces whose URLs are asked for at once.
pub(crate) const TOGETHER: usize = 32;

/// How long they are relied on: less than half as long as they are good.
const RELIED_ON: Duration = Duration::from_secs(120);

/// What was signed last: pieces before one, at some time.
pub(crate) struct Signed {
    before: usize,
    since: Instant,
}

impl Signed {
    /// Pieces from this one on are signed now.
    pub(crate) fn now(from: usize) -> Self {
        Self {
            before: from + TOGETHER,
            since: Instant::now(),
        }
    }

    /// Whether a piece's URL can be relied on.
    pub(crate) fn is_good(&self, number: usize) -> bool {
        number < self.before && self.since.elapsed() < RELIED_ON
    }
}
