//! S: sandboxes, through the host agent as the control plane sees them, beside container engines.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use domain::{InstallationId, ResultPart, RunLimits, SandboxId, SessionId, ToolCall, ToolCallId};
use host::HostClient;
use lifecycle::Tasks;
use link::server::{Linked, Outfit};
use sandbox::{Limits, SandboxProvider, SandboxSpec};
use secret::Secret;
use serde_json::json;
use tokio::time::timeout;

use crate::installation::{Installation, Programs};
use crate::peers::docker::Docker;
use crate::peers::runc::{self, Times};
use crate::report::{Findings, Measure};
use crate::sample::{Sample, WARM_UPS, scaled};
use crate::selection::Selection;

mod crowds;
mod forking;
mod idle;
mod leftovers;
mod nobody;
mod served;
mod waking;

pub(crate) use nobody::{Nobody, outfit};

/// The command that is run in sandboxes and containers alike.
pub(crate) const COMMAND: [&str; 2] = ["/bin/ls", "/workspace"];

/// How long a runtime may take until all files of its workspace are kept.
const KEPT_WITHIN: Duration = Duration::from_secs(120);

/// A host agent that is asked as the control plane asks it.
struct Room {
    installation: Installation,
    host: HostClient,
    /// What its sandboxes are given by the session that claims them.
    outfit: Outfit,
    tasks: Tasks,
}

/// A sandbox whose runtime has accepted a session.
struct Tenant {
    id: SandboxId,
    session: SessionId,
    linked: Linked,
    control: Arc<Nobody>,
    outfit: Outfit,
}

/// Measures what of S is wanted.
pub(crate) async fn measure(programs: &Programs, wanted: &Selection, found: &mut Findings) {
    if !wanted.any(&["S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8", "S9", "S10"]) {
        return;
    }
    let rootfs = testkit::miniature().rootfs();
    let room = match Room::open(programs) {
        Ok(room) => room,
        Err(error) => return found.take("S", Err(error)),
    };
    let mut runtimes = Vec::new();
    if wanted.any(&["S1", "S4", "S7", "S9"]) {
        for program in ["runc", "crun"] {
            match runc::time(program, &rootfs) {
                Ok(times) => runtimes.push((program, times)),
                Err(error) => found.take(program, Err(error)),
            }
        }
    }
    let beside = |id, what: &str, of: fn(&Times) -> &Sample| -> Vec<Measure> {
        let row = |(program, times): &(&str, Times)| Measure::times(id, format!("  {program} {what}"), of(times));
        runtimes.iter().map(row).collect()
    };
    let mut docker = None;
    if wanted.any(&["S1", "S2", "S3", "S4", "S5", "S6", "S8"]) {
        match Docker::start(&rootfs) {
            Ok(started) => docker = Some(started),
            Err(error) => found.take("docker", Err(error)),
        }
    }
    if wanted.has("S1") {
        found.take("S1", room.creating(docker.as_ref(), &rootfs).await);
        found
            .measures
            .extend(beside("S1", "run, the same files", |times| &times.run));
    }
    if wanted.has("S4") {
        found.take("S4", room.commanding(docker.as_ref()).await);
        found
            .measures
            .extend(beside("S4", "exec, the same command", |times| &times.exec));
    }
    if wanted.has("S5") {
        found.take("S5", room.freezing(docker.as_ref()).await);
    }
    if wanted.has("S8") {
        found.take("S8", room.idling(docker.as_ref()).await);
    }
    let container = Container::of(docker.as_ref(), wanted).unwrap_or_else(|error| {
        found.take("docker", Err(error));
        Container::default()
    });
    // An engine that idles takes of the processors too.
    drop(docker);
    if wanted.has("S2") {
        found.take("S2", room.claiming(container.start).await);
    }
    if wanted.has("S6") {
        found.take("S6", room.waking(container.wake).await);
    }
    if wanted.any(&["S2", "S3", "S6"]) {
        found.take("S2, S3, S6", served::measure(programs, wanted, container.run).await);
    }
    if wanted.has("S7") {
        found.take("S7", room.crowding().await);
        found
            .measures
            .extend(beside("S7", "run, as many at once", |times| &times.crowd));
    }
    if wanted.has("S9") {
        found.take("S9", room.destroying().await);
        found.measures.extend(beside("S9", "delete", |times| &times.delete));
    }
    if wanted.has("S10") {
        found.take("S10", room.forking().await);
        found.take("S10", forking::copying(programs).await);
    }
    room.tasks.shut_down(Duration::from_secs(5)).await;
}

/// What a container of Docker's takes for what a session waits for, in milliseconds (p50).
#[derive(Default)]
struct Container {
    /// To begin, made ahead.
    start: Option<f64>,
    /// To be made, and to say what its first command says.
    run: Option<f64>,
    /// To begin again, and to say what stands in a file of before.
    wake: Option<f64>,
}

impl Container {
    fn of(docker: Option<&Docker>, wanted: &Selection) -> anyhow::Result<Self> {
        let Some(docker) = docker else {
            return Ok(Self::default());
        };
        let timed = |id, time: fn(&Docker, usize) -> anyhow::Result<Sample>| {
            let time = wanted.has(id).then(|| time(docker, scaled(20))).transpose();
            time.map(|times| times.map(|times| times.at(0.5)))
        };
        Ok(Self {
            start: timed("S2", Docker::time_start)?,
            run: timed("S3", Docker::time_run)?,
            wake: timed("S6", Docker::time_wake)?,
        })
    }
}

impl Room {
    async fn creating(&self, docker: Option<&Docker>, rootfs: &Path) -> anyhow::Result<Vec<Measure>> {
        let ours = self.time_create(scaled(100)).await?;
        let theirs = docker.map(|docker| docker.time_run(scaled(20))).transpose()?;
        let theirs = theirs.map(|times| times.at(0.5));
        let bubblewrap = runc::time_bubblewrap(rootfs, scaled(100))?;
        let ours = Measure::times("S1", "create cold → the runtime answers", &ours);
        let target = theirs.map_or(60.0, |theirs| 60.0_f64.min((theirs / 5.0).floor()));
        Ok(vec![
            ours.beside_any("docker run", theirs).at_most(target, Some(150.0)),
            Measure::times("S1", "  bwrap, the same files", &bubblewrap),
        ])
    }

    async fn commanding(&self, docker: Option<&Docker>) -> anyhow::Result<Vec<Measure>> {
        let (program, script) = self.time_command(scaled(200)).await?;
        let theirs = docker.map(|docker| docker.time_exec(scaled(100))).transpose()?;
        let ours = Measure::times("S4", "command in a running sandbox", &program);
        Ok(vec![
            ours.beside_any("docker exec", theirs.map(|times| times.at(0.5)))
                .at_most(5.0, Some(15.0)),
            Measure::times("S4", "  the same as a script, by exec", &script),
        ])
    }

    async fn freezing(&self, docker: Option<&Docker>) -> anyhow::Result<Vec<Measure>> {
        let (freeze, thaw) = self.time_freeze(scaled(200)).await?;
        let theirs = docker.map(|docker| docker.time_pause(scaled(100))).transpose()?;
        let (pause, unpause) = theirs.unzip();
        let row = |what, ours: &Sample, peer, theirs: Option<Sample>| {
            Measure::times("S5", what, ours)
                .beside_any(peer, theirs.map(|times| times.at(0.5)))
                .at_most(2.0, None)
        };
        Ok(vec![
            row("freeze", &freeze, "docker pause", pause),
            row("thaw", &thaw, "docker unpause", unpause),
        ])
    }
}

impl Room {
    fn open(programs: &Programs) -> anyhow::Result<Self> {
        Self::of(Installation::new(programs, None, "")?)
    }

    fn of(mut installation: Installation) -> anyhow::Result<Self> {
        installation.start_host()?;
        let tasks = Tasks::new();
        let host = HostClient::new(installation.socket(), InstallationId::new(), &tasks);
        Ok(Self {
            installation,
            host,
            outfit: outfit()?,
            tasks,
        })
    }

    fn spec() -> anyhow::Result<SandboxSpec> {
        Ok(SandboxSpec {
            id: SandboxId::new(),
            session: SessionId::new(),
            image: testkit::miniature().digest.parse()?,
            limits: Limits {
                cpu_millis: 2_000,
                memory_bytes: 512 << 20,
                pids: 256,
                disk_bytes: 256 << 20,
            },
            builder: false,
        })
    }

    /// A sandbox from nothing until its runtime has accepted a session.
    async fn create(&self) -> anyhow::Result<Tenant> {
        let tenant = self.create_ahead(&Self::spec()?).await?;
        tenant.claim().await?;
        Ok(tenant)
    }

    /// A sandbox from nothing until its runtime is there.
    async fn create_ahead(&self, spec: &SandboxSpec) -> anyhow::Result<Tenant> {
        let status = self.host.create(spec).await?;
        let listener = self.host.link(spec.id).await?;
        let control = Arc::new(Nobody::default());
        let handler = Arc::clone(&control);
        let linked = link::server::serve(listener, spec.id, status.root_uid, handler, &self.tasks)?;
        let answered = timeout(Duration::from_secs(30), linked.connected()).await;
        answered.context("the runtime did not connect")?;
        Ok(Tenant {
            id: spec.id,
            session: spec.session,
            linked,
            control,
            outfit: self.outfit.clone(),
        })
    }

    async fn remove(&self, tenant: Tenant) -> anyhow::Result<()> {
        tenant.linked.close();
        self.host.destroy(tenant.id).await?;
        self.host.remove_disk(tenant.session).await?;
        Ok(())
    }

    async fn time_create(&self, count: usize) -> anyhow::Result<Sample> {
        let mut sample = Sample::default();
        for number in 0..count + WARM_UPS {
            let began = Instant::now();
            let tenant = self.create().await?;
            if number >= WARM_UPS {
                sample.add(began.elapsed());
            }
            self.remove(tenant).await?;
        }
        Ok(sample)
    }

    /// A program that is started by itself, and the same by a script.
    async fn time_command(&self, count: usize) -> anyhow::Result<(Sample, Sample)> {
        let tenant = self.create().await?;
        let program = json!({"command": "ls /workspace"});
        let script = json!({"code": "return (await import('node:fs')).readdirSync('/workspace')"});
        let program = tenant.time_call("safebash", &program, count).await?;
        let script = tenant.time_call("exec", &script, count / 2).await?;
        self.remove(tenant).await?;
        Ok((program, script))
    }

    async fn time_freeze(&self, count: usize) -> anyhow::Result<(Sample, Sample)> {
        let tenant = self.create().await?;
        let (mut freeze, mut thaw) = (Sample::default(), Sample::default());
        for number in 0..count + WARM_UPS {
            let began = Instant::now();
            self.host.freeze(tenant.id).await?;
            let frozen = began.elapsed();
            let began = Instant::now();
            self.host.thaw(tenant.id).await?;
            if number >= WARM_UPS {
                freeze.add(frozen);
                thaw.add(began.elapsed());
            }
        }
        self.remove(tenant).await?;
        Ok((freeze, thaw))
    }
}

impl Tenant {
    /// Has the runtime accept the session.
    async fn claim(&self) -> anyhow::Result<()> {
        let token = Secret::new("bench");
        self.linked.claim(self.session, &token, self.outfit.clone()).await?;
        Ok(())
    }

    /// Has the runtime prepare for its claim, as those are that are made ahead, and waits for that.
    async fn prepare(&self) -> anyhow::Result<()> {
        let Outfit {
            authorities,
            known_hosts,
            ..
        } = self.outfit.clone();
        self.linked.trust(authorities, known_hosts).await?;
        // Orders are taken one after the other.
        Ok(self.linked.stop().await?)
    }

    /// Waits until the process that watches the workspace is there, and all files are kept.
    async fn settled(&self) -> anyhow::Result<()> {
        let kept = self.linked.flush_files(KEPT_WITHIN).await;
        kept.context("the files of a sandbox are not kept")
    }

    async fn time_call(&self, name: &str, input: &serde_json::Value, count: usize) -> anyhow::Result<Sample> {
        let mut sample = Sample::default();
        for number in 0..count + WARM_UPS {
            let took = self.call_once(name, input).await?;
            if number >= WARM_UPS {
                sample.add(took);
            }
        }
        Ok(sample)
    }

    /// Uses a tool; gives how long it took.
    async fn call_once(&self, name: &str, input: &serde_json::Value) -> anyhow::Result<Duration> {
        let call = ToolCall {
            id: ToolCallId(format!("bench-{}", SandboxId::new())),
            name: name.to_owned(),
            input: input.clone(),
        };
        let began = Instant::now();
        let result = self.linked.call(call, RunLimits::default()).await?;
        let took = began.elapsed();
        if result.is_error {
            let words = result.content.iter().map(|part| match part {
                ResultPart::Text { text } => text.as_str(),
                ResultPart::Image(_) => "",
            });
            bail!("{name} failed: {}", words.collect::<String>());
        }
        Ok(took)
    }
}
