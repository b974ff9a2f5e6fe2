//! What a session waits for before it can be prompted: one that is new, one that slept.

use std::time::{Duration, Instant};

use anyhow::Context;

use domain::SessionId;
use futures::StreamExt;
use sandbox::SandboxProvider;
use serde_json::json;

use super::{Room, Tenant};
use crate::installation::{Installation, Programs};
use crate::report::Measure;
use crate::sample::{Sample, WARM_UPS, scaled};

/// Sandboxes that are there before a session wants one.
const AHEAD: usize = 4;

/// What a session keeps while it sleeps.
const NOTE: &str = "notes/kept.txt";

impl Room {
    pub(super) async fn claiming(&self) -> anyhow::Result<Vec<Measure>> {
        let claim = self.time_claim(scaled(50)).await?;
        let row = Measure::times("S2", "claim what was made ahead → it accepts a prompt", &claim);
        Ok(vec![row.at_most(5.0, Some(15.0))])
    }

    pub(super) async fn waking(&self) -> anyhow::Result<Vec<Measure>> {
        let wake = self.time_wake(scaled(30)).await?;
        let row = Measure::times("S6", "wake → it accepts a prompt, its files are there", &wake);
        Ok(vec![row.at_most(150.0, None)])
    }

    /// From a new session to a runtime that has accepted it, for sandboxes that were there before.
    async fn time_claim(&self, count: usize) -> anyhow::Result<Sample> {
        let mut sample = Sample::default();
        for number in 0..count + WARM_UPS {
            let mut tenant = self.create_ahead(&Self::spec()?).await?;
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
            let tenant = self.create_ahead(&spec).await?;
            tenant.claim().await?;
            tenant.linked.read_file(NOTE).await?;
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

/// A session and the output of its first command, over HTTP, where a sandbox was made ahead.
pub(super) async fn commanding(programs: &Programs) -> anyhow::Result<Vec<Measure>> {
    let mut installation = Installation::new(programs, None, "")?.warm(AHEAD)?;
    installation.start_host()?;
    installation.start_serve()?;
    let api = installation.api()?;
    let mut sample = Sample::default();
    for number in 0..scaled(50) + WARM_UPS {
        loop {
            let listed = api.0.get("/api/v1/sandboxes").await?;
            let all = listed["sandboxes"].as_array().context("sandboxes are listed")?;
            if all.iter().filter(|sandbox| sandbox["warm"] == true).count() == AHEAD {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let began = Instant::now();
        let session = api.session().await?;
        let command = json!({"command": "ls /workspace"});
        api.0
            .post(&format!("/api/v1/sessions/{session}/exec"), &command)
            .await?;
        if number >= WARM_UPS {
            sample.add(began.elapsed());
        }
        let archive = format!("/api/v1/sessions/{session}/archive");
        api.0.post(&archive, &json!({})).await?;
    }
    let row = Measure::times("S3", "create and the first command's output, over HTTP", &sample);
    Ok(vec![row.at_most(10.0, Some(30.0))])
}
