//! Times, and what is said of many of them.

use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// How often something is done before it counts.
pub(crate) const WARM_UPS: usize = 5;

/// How often something is done: as said, or a tenth of it where BELLJAR_BENCH_QUICK is set.
pub(crate) fn scaled(count: usize) -> usize {
    match std::env::var_os("BELLJAR_BENCH_QUICK") {
        Some(_) => (count / 10).max(5),
        None => count,
    }
}

/// Many times of one thing, in milliseconds.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct Sample(Vec<f64>);

impl Sample {
    /// Does something a few times unmeasured, then `count` times measured.
    pub(crate) fn of<E>(count: usize, mut action: impl FnMut() -> Result<(), E>) -> Result<Self, E> {
        for _ in 0..WARM_UPS.min(count) {
            action()?;
        }
        let mut sample = Self::default();
        for _ in 0..count {
            let began = Instant::now();
            action()?;
            sample.add(began.elapsed());
        }
        Ok(sample)
    }

    /// One more time.
    pub(crate) fn add(&mut self, time: Duration) {
        self.0.push(time.as_secs_f64() * 1_000.0);
    }

    /// All of another's times too.
    pub(crate) fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// The same, each shorter by so many milliseconds.
    pub(crate) fn less(&self, milliseconds: f64) -> Self {
        Self(self.0.iter().map(|time| time - milliseconds).collect())
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The time that this share (0 to 1) of all are not above; the nearest rank.
    pub(crate) fn at(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a rank"
        )]
        let rank = (share * sorted.len() as f64).ceil().max(1.0) as usize;
        sorted.get(rank - 1).copied().unwrap_or(f64::NAN)
    }
}

/// What the least durable write takes here: a page that is synced to the disk, alone. No answer that is stored first is faster.
pub(crate) fn synced_write(folder: &Path) -> std::io::Result<Sample> {
    let mut file = tempfile::tempfile_in(folder)?;
    file.write_all(&[0; 1 << 20])?;
    file.sync_all()?;
    let mut place = 0;
    Sample::of(scaled(200), || {
        place = (place + 4_096) % (1 << 20);
        file.seek(SeekFrom::Start(place))?;
        file.write_all(&[1; 4_096])?;
        file.sync_data()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let mut sample = Sample::default();
        (1..=100).rev().for_each(|ms| sample.add(Duration::from_millis(ms)));
        let rounded = [0.5, 0.95, 0.99, 1.0].map(|share| sample.at(share).round());
        assert_eq!(rounded.map(|value| format!("{value}")), ["50", "95", "99", "100"]);
    }
}
