//! No user has so many sandboxes that there are none for others.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Housed, HousingError, Seat};
use crate::Control;
use crate::live::{Live, lock};

/// A place for a sandbox that is being made, as long as this is held.
pub(super) struct Promised<'l>(&'l Seat);

impl Drop for Promised<'_> {
    fn drop(&mut self) {
        self.0.promised.store(false, Ordering::SeqCst);
    }
}

impl Control {
    /// Makes room for one more sandbox of a session's user: of those that nobody uses, the one that was unused the longest goes.
    pub(super) async fn make_room<'l>(&self, live: &'l Live) -> Result<Promised<'l>, HousingError> {
        let _one_at_a_time = self.0.housing.room.lock().await;
        let most = self.0.config.sandboxes_per_user;
        loop {
            let mut theirs = self.0.lives.all();
            theirs.retain(|other| other.owner == live.owner && other.session != live.session && other.seat.counts());
            if theirs.len() < most {
                live.seat.promised.store(true, Ordering::SeqCst);
                return Ok(Promised(&live.seat));
            }
            let unused = theirs.iter().filter_map(|other| {
                let housed = other.seat.unused()?;
                let since = *lock(&housed.used);
                Some((since, other))
            });
            let Some((_, other)) = unused.min_by_key(|(since, _)| *since) else {
                return Err(HousingError::TooMany(most));
            };
            self.clear(other).await;
        }
    }

    /// Removes a session's sandbox where still nobody uses it; its files stay.
    async fn clear(&self, other: &Live) {
        let Ok(mut seat) = other.seat.housed.try_lock() else {
            return;
        };
        let unused = |housed: &mut Arc<Housed>| housed.users.load(Ordering::SeqCst) == 0;
        if let Some(housed) = seat.take_if(unused) {
            let why = "its user needs another; its files are kept";
            self.discard(other, &housed, "removed", Some(why)).await;
        }
    }
}

impl Seat {
    fn counts(&self) -> bool {
        self.is_taken() || self.promised.load(Ordering::SeqCst)
    }

    /// The sandbox, if nobody uses, makes or removes it.
    fn unused(&self) -> Option<Arc<Housed>> {
        let housed = self.housed.try_lock().ok()?.clone()?;
        (housed.users.load(Ordering::SeqCst) == 0).then_some(housed)
    }
}
