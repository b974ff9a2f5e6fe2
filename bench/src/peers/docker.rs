//! Docker's engine, started by hand with folders of its own and without any network.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use tempfile::TempDir;

use super::run;
use crate::processes;
use crate::sample::{Sample, WARM_UPS};
use crate::sandboxes::COMMAND;

const IMAGE: &str = "bench:latest";
const CONTAINER: &str = "bench-running";

/// An engine with one image, made from the root file system that Belljar uses as well.
pub(crate) struct Docker {
    engine: Child,
    folder: TempDir,
}

impl Docker {
    /// Starts `dockerd` and imports the image.
    pub(crate) fn start(rootfs: &Path) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("bench-docker").tempdir_in("/var/tmp")?;
        let log = std::fs::File::create(folder.path().join("log"))?;
        let engine = Command::new("dockerd")
            .arg("--data-root")
            .arg(folder.path().join("data"))
            .arg("--exec-root")
            .arg(folder.path().join("exec"))
            .arg("--pidfile")
            .arg(folder.path().join("pid"))
            .arg("--host")
            .arg(format!("unix://{}", folder.path().join("docker.sock").display()))
            .args(["--iptables=false", "--ip6tables=false", "--bridge=none"])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("dockerd could not be started: apt-get install docker.io")?;
        let docker = Self { engine, folder };
        let until = Instant::now() + Duration::from_secs(60);
        while run(docker.command().arg("version")).is_err() {
            if Instant::now() > until {
                let log = std::fs::read_to_string(docker.folder.path().join("log")).unwrap_or_default();
                let tail: Vec<&str> = log.lines().rev().take(5).collect();
                bail!("dockerd did not answer within a minute: {}", tail.join(" | "));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let import = format!(
            "tar --create --numeric-owner --directory {} . | docker --host unix://{} import - {IMAGE}",
            rootfs.display(),
            docker.folder.path().join("docker.sock").display()
        );
        run(Command::new("sh").args(["-c", &import])).context("the image could not be imported")?;
        Ok(docker)
    }

    fn command(&self) -> Command {
        let mut command = Command::new("docker");
        command
            .arg("--host")
            .arg(format!("unix://{}", self.folder.path().join("docker.sock").display()));
        command.stdin(Stdio::null());
        command
    }

    /// `docker run --rm` of a program that ends at once.
    pub(crate) fn time_run(&self, count: usize) -> anyhow::Result<Sample> {
        Sample::of(count, || {
            run(self
                .command()
                .args(["run", "--rm", "--network=none", IMAGE])
                .args(COMMAND))
            .map(drop)
        })
    }

    /// `docker exec` in a container that runs.
    pub(crate) fn time_exec(&self, count: usize) -> anyhow::Result<Sample> {
        self.with_running(|| {
            Sample::of(count, || {
                run(self.command().args(["exec", CONTAINER]).args(COMMAND)).map(drop)
            })
        })
    }

    /// `docker start` of a container that was made ahead.
    pub(crate) fn time_start(&self, count: usize) -> anyhow::Result<Sample> {
        let mut sample = Sample::default();
        for number in 0..count + WARM_UPS {
            self.create()?;
            let began = Instant::now();
            run(self.command().args(["start", CONTAINER]))?;
            if number >= WARM_UPS {
                sample.add(began.elapsed());
            }
            self.remove()?;
        }
        Ok(sample)
    }

    /// `docker start` of a container that was stopped, and `docker exec` that reads a file which it had before.
    pub(crate) fn time_wake(&self, count: usize) -> anyhow::Result<Sample> {
        self.with_running(|| {
            let exec = |command: &[&str]| run(self.command().args(["exec", CONTAINER]).args(command));
            exec(&["/bin/sh", "-c", "echo kept > /kept.txt"])?;
            let mut sample = Sample::default();
            for number in 0..count + WARM_UPS {
                run(self.command().args(["kill", CONTAINER]))?;
                let began = Instant::now();
                run(self.command().args(["start", CONTAINER]))?;
                let read = exec(&["/bin/cat", "/kept.txt"])?;
                if number >= WARM_UPS {
                    sample.add(began.elapsed());
                }
                ensure!(
                    read.stdout == b"kept\n",
                    "a container that was started anew has another file"
                );
            }
            Ok(sample)
        })
    }

    /// `docker pause` and `docker unpause`, apart.
    pub(crate) fn time_pause(&self, count: usize) -> anyhow::Result<(Sample, Sample)> {
        self.with_running(|| {
            let (mut pause, mut unpause) = (Sample::default(), Sample::default());
            for _ in 0..count {
                let began = Instant::now();
                run(self.command().args(["pause", CONTAINER]))?;
                pause.add(began.elapsed());
                let began = Instant::now();
                run(self.command().args(["unpause", CONTAINER]))?;
                unpause.add(began.elapsed());
            }
            Ok((pause, unpause))
        })
    }

    /// What a container that sleeps takes, in MiB: its process, and the one of the engine that stands over it.
    pub(crate) fn idle_memory(&self) -> anyhow::Result<f64> {
        self.with_running(|| {
            let asked = run(self
                .command()
                .args(["inspect", "--format", "{{.State.Pid}}", CONTAINER]))?;
            let process = String::from_utf8_lossy(&asked.stdout).trim().parse()?;
            let shim = processes::parent(process).context("the container has no shim")?;
            Ok(processes::proportional(process)? + processes::proportional(shim)?)
        })
    }

    fn with_running<T>(&self, action: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        self.create()?;
        run(self.command().args(["start", CONTAINER]))?;
        let result = action();
        self.remove()?;
        result
    }

    /// Makes a container that sleeps.
    fn create(&self) -> anyhow::Result<()> {
        let create = ["create", "--network=none", "--name", CONTAINER];
        run(self.command().args(create).args([IMAGE, "/bin/sleep", "100000"])).map(drop)
    }

    fn remove(&self) -> anyhow::Result<()> {
        run(self.command().args(["rm", "--force", CONTAINER])).map(drop)
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.engine.id().to_string()).status();
        let _ = self.engine.wait();
    }
}
