//! Who works on which disk, snapshot or image: one at a time.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, PoisonError};

use domain::{SessionId, SnapshotId};
use sandbox::ImageDigest;

/// Something that only one may work on.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Place {
    Disk(SessionId),
    Snapshot(SnapshotId),
    Image(ImageDigest),
}

/// The places that are worked on.
#[derive(Debug, Default)]
pub(super) struct Places {
    taken: Mutex<BTreeSet<Place>>,
    given_back: Condvar,
}

/// Nobody else works on these places as long as this is held.
#[derive(Debug)]
pub(super) struct Taken<'p, const N: usize> {
    places: &'p Places,
    which: [Place; N],
}

impl Places {
    /// Waits until nobody works on any of these, and takes them all at once. Blocks. Who holds some takes no more.
    pub(super) fn take<const N: usize>(&self, which: [Place; N]) -> Taken<'_, N> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let any = |taken: &mut BTreeSet<Place>| which.iter().any(|place| taken.contains(place));
        let mut taken = self
            .given_back
            .wait_while(taken, any)
            .unwrap_or_else(PoisonError::into_inner);
        taken.extend(which.iter().cloned());
        Taken { places: self, which }
    }
}

impl<const N: usize> Drop for Taken<'_, N> {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock().unwrap_or_else(PoisonError::into_inner);
        for place in &self.which {
            taken.remove(place);
        }
        self.places.given_back.notify_all();
    }
}
