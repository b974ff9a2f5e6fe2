//! What one session may use of the way out.

use std::time::Duration;

/// Caps of one session. Others never feel that one is at its caps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Connections open at once.
    pub connections: u32,
    /// New connections a second; four times as many in a burst.
    pub new_connections: u32,
    /// New names a minute that only a wildcard allows; a hundred in a burst.
    pub names: u32,
    /// Bytes that may leave, while this process lives.
    pub upload: u64,
    /// Bytes that may come, while this process lives.
    pub download: u64,
    /// A connection over which nothing passes for so long is closed.
    pub idle: Duration,
    /// Whoever opens a connection says something within this.
    pub opening: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 256,
            new_connections: 50,
            names: 60,
            upload: 10 << 30,
            download: 100 << 30,
            idle: Duration::from_secs(15 * 60),
            opening: Duration::from_secs(10),
        }
    }
}
