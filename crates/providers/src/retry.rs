//! When a call that failed is made again.

use std::time::Duration;

/// How often, and how soon, a call that failed is made again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetryLimits {
    /// Attempts after the first.
    pub retries: u32,
    /// The first delay; each further one is twice as long, and a random part of it is left off.
    pub first_delay: Duration,
    /// The longest delay, ours or the provider's: where the provider asks for more, the call fails.
    pub longest_delay: Duration,
}

impl Default for RetryLimits {
    fn default() -> Self {
        Self {
            retries: 4,
            first_delay: Duration::from_millis(500),
            longest_delay: Duration::from_secs(60),
        }
    }
}
