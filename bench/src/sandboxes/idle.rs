//! What sandboxes take that nobody uses at the moment.

use anyhow::ensure;
use futures::future::try_join_all;
use serde_json::json;

use super::crowds::ADMITTED;
use super::{Room, Tenant};
use crate::peers::docker::Docker;
use crate::processes;
use crate::report::Measure;
use crate::sample::scaled;

/// Files in the workspace of one that has many.
const FILES: usize = 10_000;

impl Room {
    /// What sandboxes take that have been used and are idle again, and what each of many does.
    pub(super) async fn idling(&self, docker: Option<&Docker>) -> anyhow::Result<Vec<Measure>> {
        let alone = Measure::value(
            "S8",
            "memory of an idle sandbox: all its processes (PSS)",
            "MiB",
            self.used(0).await?,
        );
        let theirs = docker.map(Docker::idle_memory).transpose()?;
        let full = self.used(FILES).await?;
        let mut found = vec![
            alone.beside_any("docker, asleep", theirs).at_most(10.0, None),
            Measure::value("S8", format!("  with {FILES} files in its workspace"), "MiB", full),
        ];
        for count in [10, 100, 300].map(scaled) {
            found.push(self.gather(count).await?);
        }
        Ok(found)
    }

    /// Memory of a sandbox that has been used, with so many files that its session made.
    async fn used(&self, files: usize) -> anyhow::Result<f64> {
        let tenant = self.create().await?;
        tenant
            .time_call("safebash", &json!({"command": "ls /workspace"}), 20)
            .await?;
        let code = format!(
            "const {{ mkdirSync, writeFileSync }} = await import('node:fs');
             for (let made = 0; made < {files}; made += 1) {{
               const folder = `/workspace/files/${{made % 100}}`;
               mkdirSync(folder, {{ recursive: true }});
               writeFileSync(`${{folder}}/${{made}}.txt`, `The file ${{made}} of many.`);
             }}"
        );
        tenant.call_once("exec", &json!({ "code": code })).await?;
        tenant.linked.stop().await?;
        let memory = tenant.idle_memory().await?;
        ensure!(
            tenant.control.recorded() >= files,
            "of {files} files in the workspace only {} are kept",
            tenant.control.recorded()
        );
        self.remove(tenant).await?;
        Ok(memory)
    }

    /// Memory of each of many whose runtimes have accepted a session, and wait for work.
    async fn gather(&self, count: usize) -> anyhow::Result<Measure> {
        let mut tenants = Vec::new();
        while tenants.len() < count {
            let some = ADMITTED.min(count - tenants.len());
            tenants.extend(try_join_all((0..some).map(|_| self.create())).await?);
        }
        let mut sum = 0.0;
        for tenant in &tenants {
            sum += tenant.idle_memory().await?;
        }
        for tenant in tenants {
            self.remove(tenant).await?;
        }
        #[allow(clippy::cast_precision_loss, reason = "a small number")]
        let each = sum / count as f64;
        let what = format!("  each of {count} that wait (PSS)");
        Ok(Measure::value("S8", what, "MiB", each))
    }
}

impl Tenant {
    /// What all its processes hold, in MiB, when everything is kept and nothing runs but what always does.
    async fn idle_memory(&self) -> anyhow::Result<f64> {
        self.settled().await?;
        let all = processes::of_idle_sandbox(&self.id.to_string()).await?;
        all.into_iter().map(processes::proportional).sum()
    }
}
