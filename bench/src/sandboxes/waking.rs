//! What a session waits for before it can be prompted: one that is new, one that slept.

use std::time::Instant;

use anyhow::ensure;
use domain::SessionId;
use futures::{StreamExt, TryStreamExt};
use sandbox::SandboxProvider;

use super::{Room, Tenant};
use crate::report::Measure;
use crate::sample::{Sample, WARM_UPS, scaled};

/// What a session keeps while it sleeps.
const NOTE: &str = "notes/kept.txt";

impl Room {
    pub(super) async fn claiming(&self, theirs: Option<f64>) -> anyhow::Result<Vec<Measure>> {
        let claim = self.time_claim(scaled(100)).await?;
        let row = Measure::times("S2", "claim what was made ahead → it accepts a prompt", &claim);
        let row = row.beside_any("docker start, made ahead", theirs);
        Ok(vec![row.at_most(5.0, Some(15.0))])
    }

    pub(super) async fn waking(&self, theirs: Option<f64>) -> anyhow::Result<Vec<Measure>> {
        let wake = self.time_wake(scaled(100)).await?;
        let row = Measure::times("S6", "wake → it accepts a prompt, its files are there", &wake);
        let row = row.beside_any("docker start, exec cat", theirs);
        Ok(vec![row.at_most(150.0, None)])
    }

    /// From a new session to a runtime that has accepted it, for sandboxes that were there before.
    async fn time_claim(&self, count: usize) -> anyhow::Result<Sample> {
        let mut sample = Sample::default();
        for number in 0..count + WARM_UPS {
            let mut tenant = self.create_ahead(&Self::spec()?).await?;
            tenant.prepare().await?;
            tenant.session = SessionId::new();
            let began = Instant::now();
            self.host.assign(tenant.id, tenant.session).await?;
            tenant.claim().await?;
            if number >= WARM_UPS {
                sample.add(began.elapsed());
            }
            self.remove(tenant).await?;
        }
        Ok(sample)
    }

    /// From a session whose processes are gone to a runtime that has accepted it and has its file.
    async fn time_wake(&self, count: usize) -> anyhow::Result<Sample> {
        let mut sample = Sample::default();
        let mut spec = Self::spec()?;
        let first = self.create_ahead(&spec).await?;
        first.claim().await?;
        let bytes = futures::stream::iter([Ok("kept".into())]).boxed();
        first.linked.write_file(NOTE, bytes).await?;
        self.leave(first).await?;
        for number in 0..count + WARM_UPS {
            spec.id = domain::SandboxId::new();
            let began = Instant::now();
            let mut tenant = self.create_ahead(&spec).await?;
            // Files of the session are kept outside: its runtime asks which of them this disk lacks.
            tenant.outfit.filled = false;
            tenant.claim().await?;
            let read = tenant.linked.read_file(NOTE).await?.into_stream();
            let read: Vec<_> = read.try_collect().await?;
            ensure!(
                read.concat() == b"kept",
                "a session that woke has another file than before"
            );
            if number >= WARM_UPS {
                sample.add(began.elapsed());
            }
            self.leave(tenant).await?;
        }
        self.host.remove_disk(spec.session).await?;
        Ok(sample)
    }

    /// Ends a sandbox and keeps its disk.
    pub(super) async fn leave(&self, tenant: Tenant) -> anyhow::Result<()> {
        tenant.linked.close();
        Ok(self.host.destroy(tenant.id).await?)
    }
}
