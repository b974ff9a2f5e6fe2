//! What a model call consumed.

use serde::{Deserialize, Serialize};

/// Tokens, each counted in exactly one field: `input` holds only what no cache knew, whatever the provider's own convention.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Usage {
    /// Input that no cache knew.
    pub input: u64,
    /// Input that was read from a cache.
    pub cache_read: u64,
    /// Input that was written to a cache for five minutes.
    pub cache_write: u64,
    /// Input that was written to a cache for an hour.
    pub cache_write_hour: u64,
    /// Output, thinking included.
    pub output: u64,
    /// The part of `output` that was thinking.
    pub thinking: u64,
}

impl Usage {
    /// Everything that stood in the model's window as input.
    #[must_use]
    pub fn total_input(&self) -> u64 {
        self.input
            .saturating_add(self.cache_read)
            .saturating_add(self.cache_write)
            .saturating_add(self.cache_write_hour)
    }
}
