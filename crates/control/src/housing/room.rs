//! No user has so many sandboxes that there are none for others.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::MutexGuard;

use super::{Housed, HousingError, Left, Others, Seat};
use crate::Control;
use crate::live::{Live, lock};

/// Why a sandbox goes that makes room.
const ANOTHER: &str = "its user needs another";

/// A session's seat, as long as this is held: no sandbox is made for it.
type HeldSeat<'l> = MutexGuard<'l, Option<Arc<Housed>>>;

/// A place for a sandbox that is being made, as long as this is held.
pub(super) struct Promised<'l>(&'l Seat);

impl Drop for Promised<'_> {
    fn drop(&mut self) {
        self.0.promised.store(false, Ordering::SeqCst);
    }
}

impl Control {
    /// Makes room for one more sandbox of a session's user. Those that sleep since before this process began go first, the oldest
    /// first; then those that only put their session away, and then those that were unused the longest.
    pub(super) async fn make_room<'l>(&self, live: &'l Live, others: Others) -> Result<Promised<'l>, HousingError> {
        let theirs;
        let mut removed = Vec::new();
        let mut removed_left = Vec::new();
        let promised = {
            let _one_counts = self.0.housing.room.lock().await;
            theirs = self.taken_by(live);
            let most = self.0.config.sandboxes_per_user;
            let mut count = theirs.len() + self.left_to(live);
            while count >= most
                && others != Others::Stay
                && let Some(left) = self.take_left(live)
            {
                removed_left.push(left);
                count -= 1;
            }
            for other in by_last_use(&theirs) {
                if count < most || others == Others::Stay {
                    break;
                }
                // Its seat is held until it is gone: nobody makes another for its session meanwhile.
                if let Some(taken) = take_unused(other) {
                    removed.push((other, taken));
                    count -= 1;
                }
            }
            if count < most {
                Ok(live.seat.promise())
            } else if others == Others::Stay {
                Err(HousingError::NoRoom(most))
            } else {
                Err(HousingError::TooMany(most))
            }
        };
        // Others count meanwhile: how long it takes to remove a sandbox is up to its host.
        if !removed_left.is_empty() {
            let control = self.clone();
            // To its end, whoever waits for it: nobody else knows of them any more.
            let removing = self.0.tasks.spawn(async move {
                for left in removed_left {
                    control.put_left_to_sleep(left, ANOTHER).await;
                }
            });
            // One that failed is removed when it is found to be nobody's.
            let _done = removing.await;
        }
        for (other, (_seat, housed)) in removed {
            self.keep_before_it_goes(other, &housed).await;
            let _told = self.put_to_sleep(other, &housed, ANOTHER).await;
        }
        promised
    }

    /// The other sessions of a session's user that have a sandbox, or are promised one.
    fn taken_by(&self, live: &Live) -> Vec<Arc<Live>> {
        let mut theirs = self.0.lives.all();
        theirs.retain(|other| other.owner == live.owner && other.session != live.session && other.seat.counts());
        theirs
    }

    /// How many other sessions of a session's user have a sandbox that a process before this one left, which no session has yet.
    fn left_to(&self, live: &Live) -> usize {
        let left = lock(&self.0.housing.left);
        left.values().filter(|left| left.is_another_of(live)).count()
    }

    /// Takes one of those that sleep; its files stay.
    fn take_left(&self, live: &Live) -> Option<Left> {
        let mut left = lock(&self.0.housing.left);
        // What is not idle is adopted by its session: something may go on in it.
        let idle = left.values().filter(|left| left.is_another_of(live) && left.is_idle);
        let oldest = idle.min_by_key(|left| left.status.created)?.status.session;
        left.remove(&oldest)
    }
}

impl Left {
    fn is_another_of(&self, live: &Live) -> bool {
        self.owner == Some(live.owner) && self.status.session != live.session
    }
}

/// Those whose sandbox nobody needs, the longest unused first; those that a program in the background keeps go last.
fn by_last_use(theirs: &[Arc<Live>]) -> impl Iterator<Item = &Arc<Live>> {
    let since = |other: &&Arc<Live>| {
        let housed = other.seat.unneeded()?;
        // Who is put away goes before all that are still somebody's.
        Some((!housed.usage.is_used()).then(|| housed.usage.idle_since()))
    };
    let mut unused: Vec<_> = theirs
        .iter()
        .filter_map(|other| Some((since(&other)?, other)))
        .collect();
    unused.sort_by_key(|(since, _)| *since);
    unused.into_iter().map(|(_, other)| other)
}

/// Takes a session's sandbox where still nobody needs it; its files stay.
fn take_unused(other: &Live) -> Option<(HeldSeat<'_>, Arc<Housed>)> {
    let mut seat = other.seat.housed.try_lock().ok()?;
    let housed = seat.take_if(|housed| !housed.usage.is_needed())?;
    other.seat.taken.store(false, Ordering::SeqCst);
    Some((seat, housed))
}

impl Seat {
    /// There is to be a sandbox for it, which counts from now on.
    pub(super) fn promise(&self) -> Promised<'_> {
        self.promised.store(true, Ordering::SeqCst);
        Promised(self)
    }

    fn counts(&self) -> bool {
        self.is_taken() || self.promised.load(Ordering::SeqCst)
    }

    /// The sandbox, if nobody needs, makes or removes it.
    fn unneeded(&self) -> Option<Arc<Housed>> {
        let housed = self.housed.try_lock().ok()?.clone()?;
        (!housed.usage.is_needed()).then_some(housed)
    }
}
