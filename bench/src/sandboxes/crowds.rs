//! Many sandboxes: made at once, and made one after the other for a while.

use std::time::{Duration, Instant};

use futures::future::try_join_all;

use super::Room;
use crate::report::Measure;
use crate::sample::{Sample, scaled};

/// How long creates are kept up.
const MINUTE: usize = 60;

/// Creates under way at once meanwhile: as many as the host agent admits on two cores.
pub(super) const ADMITTED: usize = 4;

impl Room {
    pub(super) async fn crowding(&self) -> anyhow::Result<Vec<Measure>> {
        let created = self.time_crowd(scaled(100)).await?;
        let row = Measure::times("S7", "creates at once → the runtime accepts a session", &created);
        let mut found = vec![row.at_most(1_500.0, Some(3_000.0))];
        for count in [2, 8, 32] {
            let mut sample = Sample::default();
            while sample.len() < 100 {
                sample.extend(self.time_crowd(count).await?);
            }
            found.push(Measure::times("S7", format!("  {count} at once"), &sample));
        }
        let what = format!("  creates kept up for {} s", scaled(MINUTE));
        found.push(Measure::value("S7", what, "1/s", self.keep_up(scaled(MINUTE)).await?));
        Ok(found)
    }

    /// Many at the same time, each from its order on.
    async fn time_crowd(&self, count: usize) -> anyhow::Result<Sample> {
        let one = async || {
            let began = Instant::now();
            let tenant = self.create().await?;
            Ok::<_, anyhow::Error>((began.elapsed(), tenant))
        };
        let made = try_join_all((0..count).map(|_| one())).await?;
        let mut sample = Sample::default();
        for (took, tenant) in made {
            sample.add(took);
            self.remove(tenant).await?;
        }
        Ok(sample)
    }

    /// Creates a second, each sandbox removed when its runtime has accepted a session.
    async fn keep_up(&self, seconds: usize) -> anyhow::Result<f64> {
        let began = Instant::now();
        let until = began + Duration::from_secs(seconds as u64);
        let one = async || {
            let mut made = 0_u32;
            while Instant::now() < until {
                let tenant = self.create().await?;
                self.remove(tenant).await?;
                made += 1;
            }
            Ok::<_, anyhow::Error>(made)
        };
        let made = try_join_all((0..ADMITTED).map(|_| one())).await?;
        Ok(f64::from(made.iter().sum::<u32>()) / began.elapsed().as_secs_f64())
    }
}
