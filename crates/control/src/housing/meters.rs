//! How long each step in the life of sandboxes takes, and how often it fails.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper edges of the durations' buckets, in microseconds.
const EDGES: [u64; 12] = [
    500, 1_000, 2_000, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000, 5_000_000, 20_000_000,
];

/// A step in the life of a sandbox.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Transition {
    /// The provider made one, for a session or ahead.
    Create,
    /// A session that had none got one that was made ahead.
    ClaimWarm,
    /// A session that had none got one that was made for it.
    ClaimCold,
    /// One that nobody uses was stopped where it stood.
    Freeze,
    /// A frozen one goes on.
    Thaw,
    /// The processes of one that nobody uses were ended, and its files kept.
    Hibernate,
    /// A session whose processes were gone got a sandbox with its files.
    Wake,
    /// The files of one that nobody uses were kept outside, and its disk removed.
    Archive,
    /// A session whose sandbox was lost got another with its files.
    Replace,
    /// A session's files were kept as they are.
    Snapshot,
    /// A session got the files of a snapshot.
    Restore,
    /// One was removed, with its processes and all but its disk.
    Destroy,
}

impl Transition {
    const ALL: [Self; 12] = [
        Self::Create,
        Self::ClaimWarm,
        Self::ClaimCold,
        Self::Freeze,
        Self::Thaw,
        Self::Hibernate,
        Self::Wake,
        Self::Archive,
        Self::Replace,
        Self::Snapshot,
        Self::Restore,
        Self::Destroy,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::ClaimWarm => "claim_warm",
            Self::ClaimCold => "claim_cold",
            Self::Freeze => "freeze",
            Self::Thaw => "thaw",
            Self::Hibernate => "hibernate",
            Self::Wake => "wake",
            Self::Archive => "archive",
            Self::Replace => "replace",
            Self::Snapshot => "snapshot",
            Self::Restore => "restore",
            Self::Destroy => "destroy",
        }
    }
}

#[derive(Debug, Default)]
struct Meter {
    buckets: [AtomicU64; EDGES.len()],
    micros: AtomicU64,
    done: AtomicU64,
    failed: AtomicU64,
}

/// What was counted since this process began.
#[derive(Debug, Default)]
pub(crate) struct Meters([Meter; Transition::ALL.len()]);

impl Meters {
    fn meter(&self, transition: Transition) -> &Meter {
        &self.0[transition as usize]
    }

    pub(crate) fn took(&self, transition: Transition, time: Duration) {
        let meter = self.meter(transition);
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        meter.micros.fetch_add(micros, Ordering::Relaxed);
        meter.done.fetch_add(1, Ordering::Relaxed);
        if let Some(place) = EDGES.iter().position(|edge| micros <= *edge) {
            meter.buckets[place].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn failed(&self, transition: Transition) {
        self.meter(transition).failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts what was tried, as it went.
    pub(crate) fn tried<T, E>(&self, transition: Transition, time: Duration, outcome: &Result<T, E>) {
        match outcome {
            Ok(_) => self.took(transition, time),
            Err(_) => self.failed(transition),
        }
    }

    pub(crate) fn read(&self) -> Vec<TransitionFigures> {
        let read = |transition: Transition| {
            let meter = self.meter(transition);
            let mut so_far = 0;
            let buckets = EDGES.iter().zip(&meter.buckets).map(|(edge, bucket)| {
                so_far += bucket.load(Ordering::Relaxed);
                (Duration::from_micros(*edge), so_far)
            });
            TransitionFigures {
                transition: transition.name(),
                buckets: buckets.collect(),
                total: Duration::from_micros(meter.micros.load(Ordering::Relaxed)),
                done: meter.done.load(Ordering::Relaxed),
                failed: meter.failed.load(Ordering::Relaxed),
            }
        };
        Transition::ALL.map(read).into()
    }
}

/// How a step in the life of sandboxes went, since this process began.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TransitionFigures {
    /// Its name: a word of letters and `_`.
    pub transition: &'static str,
    /// Durations, and how many took no longer.
    pub buckets: Vec<(Duration, u64)>,
    /// How long all of them took together.
    pub total: Duration,
    /// How many went well.
    pub done: u64,
    /// How many failed.
    pub failed: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_took_longer_counts_in_no_shorter_bucket() {
        let meters = Meters::default();
        meters.took(Transition::Thaw, Duration::from_micros(700));
        meters.took(Transition::Thaw, Duration::from_millis(3));
        meters.took(Transition::Thaw, Duration::from_secs(60));
        meters.tried::<(), ()>(Transition::Thaw, Duration::ZERO, &Err(()));
        let all = meters.read();
        let thaw = all.iter().find(|figures| figures.transition == "thaw").unwrap();
        let counts: Vec<_> = thaw.buckets.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [0, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2]);
        assert_eq!((thaw.done, thaw.failed), (3, 1));
        assert!(all.iter().filter(|figures| figures.done > 0).count() == 1);
    }
}
