//! What sessions keep in memory for speed alone, counted over all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The bytes that all keep together.
#[derive(Clone, Default, Debug)]
pub(crate) struct Memory(Arc<AtomicUsize>);

impl Memory {
    pub(crate) fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// The share of one who keeps nothing yet.
    pub(crate) fn share(&self) -> Share {
        Share {
            all: self.clone(),
            bytes: 0,
        }
    }
}

/// The bytes that one keeps, until it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    all: Memory,
    bytes: usize,
}

impl Share {
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn set(&mut self, bytes: usize) {
        self.all.0.fetch_add(bytes, Ordering::Relaxed);
        self.all.0.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}
