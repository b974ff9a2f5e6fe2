//! Many sandboxes: made at once, made one after the other for a while, and idle beside one another.

use std::time::{Duration, Instant};

use anyhow::bail;
use futures::future::try_join_all;

use super::{Room, Tenant};
use crate::processes;
use crate::report::Measure;
use crate::sample::{Sample, scaled};

/// How long creates are kept up.
const MINUTE: usize = 60;

/// Creates under way at once meanwhile: as many as the host agent admits on two cores.
const ADMITTED: usize = 4;

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

    /// How much memory each of many takes that wait for work.
    pub(super) async fn gathering(&self) -> anyhow::Result<Vec<Measure>> {
        let mut found = Vec::new();
        for count in [10, 100, 300].map(scaled) {
            let tenants = self.make(count).await?;
            let mut sum = 0.0;
            for tenant in &tenants {
                sum += memory(&tenant.id.to_string())?;
            }
            for tenant in tenants {
                self.remove(tenant).await?;
            }
            #[allow(clippy::cast_precision_loss, reason = "a small number")]
            let each = sum / count as f64;
            found.push(Measure::value(
                "S8",
                format!("  each of {count} that wait (PSS)"),
                "MiB",
                each,
            ));
        }
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

    /// So many whose runtimes have accepted a session, made a few at a time.
    async fn make(&self, count: usize) -> anyhow::Result<Vec<Tenant>> {
        let mut tenants = Vec::new();
        while tenants.len() < count {
            let some = ADMITTED.min(count - tenants.len());
            tenants.extend(try_join_all((0..some).map(|_| self.create())).await?);
        }
        Ok(tenants)
    }
}

/// What all processes of a sandbox hold, in MiB.
pub(super) fn memory(sandbox: &str) -> anyhow::Result<f64> {
    let processes = processes::of_group(sandbox);
    if processes.is_empty() {
        bail!("sandbox {sandbox} has no process");
    }
    processes.into_iter().map(processes::proportional).sum()
}
