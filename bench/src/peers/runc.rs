//! OCI runtimes and bubblewrap by themselves, on the same root file system.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::run;
use crate::sample::{Sample, scaled};
use crate::sandboxes::COMMAND;

/// The word that makes the bench its own child, in a mount namespace of its own.
pub(crate) const WORD: &str = "runtime";

/// On a machine with cgroups of both versions crun refuses to work; so neither runtime sees those of version 2 here.
const WITHOUT_CGROUP_2: &str = "umount /sys/fs/cgroup/unified 2>/dev/null; exec \"$0\" \"$@\"";

/// How long a runtime takes.
#[derive(Serialize, Deserialize)]
pub(crate) struct Times {
    pub(crate) run: Sample,
    pub(crate) exec: Sample,
    pub(crate) delete: Sample,
    /// Many of `run` at once.
    pub(crate) crowd: Sample,
}

/// Times a runtime, `runc` or `crun`, in a child of this process.
pub(crate) fn time(program: &str, rootfs: &Path) -> anyhow::Result<Times> {
    let mut child = Command::new("unshare");
    child
        .args(["--mount", "sh", "-c", WITHOUT_CGROUP_2])
        .arg(std::env::current_exe()?);
    let output = run(child.args([WORD, program]).arg(rootfs))?;
    serde_json::from_slice(&output.stdout).with_context(|| format!("the part that times {program} gave no figures"))
}

/// What the child does: it prints what it found.
pub(crate) fn time_here(program: &str, rootfs: &Path) -> anyhow::Result<()> {
    let runtime = Runtime::new(program, rootfs)?;
    let times = Times {
        run: runtime.time_run(scaled(100))?,
        exec: runtime.time_exec(scaled(100))?,
        delete: runtime.time_delete(scaled(100))?,
        crowd: runtime.time_crowd(scaled(100))?,
    };
    println!("{}", serde_json::to_string(&times)?);
    Ok(())
}

/// A bundle for an OCI runtime, with that runtime's own default configuration.
struct Runtime {
    program: String,
    rootfs: PathBuf,
    folder: TempDir,
}

impl Runtime {
    fn new(program: &str, rootfs: &Path) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("bench-runtime")
            .tempdir_in("/var/tmp")?;
        let runtime = Self {
            program: program.to_owned(),
            rootfs: rootfs.to_owned(),
            folder,
        };
        run(Command::new(program).arg("spec").current_dir(runtime.folder.path()))
            .with_context(|| format!("{program} made no configuration: apt-get install {program}"))?;
        Ok(runtime)
    }

    fn configure(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let path = self.folder.path().join("config.json");
        let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path)?)?;
        config["process"]["args"] = arguments.into();
        config["process"]["terminal"] = false.into();
        config["root"]["path"] = self.rootfs.to_string_lossy().into_owned().into();
        std::fs::write(path, serde_json::to_vec(&config)?)?;
        Ok(())
    }

    fn command(&self) -> Command {
        self.called(Command::new(&self.program))
    }

    /// The same, ended after so many seconds.
    fn within(&self, seconds: u32) -> Command {
        let mut command = Command::new("timeout");
        command.arg(seconds.to_string()).arg(&self.program);
        self.called(command)
    }

    fn called(&self, mut command: Command) -> Command {
        command
            .arg("--root")
            .arg(self.folder.path().join("state"))
            .current_dir(self.folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// `run` of a program that ends at once.
    fn time_run(&self, count: usize) -> anyhow::Result<Sample> {
        self.configure(&COMMAND)?;
        Sample::of(count, || run(self.command().args(["run", "bench"])).map(drop))
    }

    /// `run` of as many containers at once, as whoever has nothing else starts them; none may take longer than a minute.
    fn time_crowd(&self, count: usize) -> anyhow::Result<Sample> {
        self.configure(&COMMAND)?;
        let one = |number: usize| {
            let began = Instant::now();
            run(self.within(60).args(["run", &format!("bench-{number}")])).map(|_| began.elapsed())
        };
        let took: Vec<_> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..count).map(|number| scope.spawn(move || one(number))).collect();
            all.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
        });
        let mut sample = Sample::default();
        for one in took {
            sample.add(one.map_err(|_| anyhow::anyhow!("a thread of the bench broke down"))??);
        }
        Ok(sample)
    }

    /// `exec` in a container that runs.
    fn time_exec(&self, count: usize) -> anyhow::Result<Sample> {
        self.start("bench-exec")?;
        let sample = Sample::of(count, || {
            run(self.command().args(["exec", "bench-exec"]).args(COMMAND)).map(drop)
        });
        run(self.command().args(["delete", "--force", "bench-exec"]))?;
        sample
    }

    /// `delete --force` of a container that runs.
    fn time_delete(&self, count: usize) -> anyhow::Result<Sample> {
        let mut sample = Sample::default();
        for _ in 0..count {
            self.start("bench-delete")?;
            let began = Instant::now();
            run(self.command().args(["delete", "--force", "bench-delete"]))?;
            sample.add(began.elapsed());
        }
        Ok(sample)
    }

    fn start(&self, name: &str) -> anyhow::Result<()> {
        self.configure(&["/bin/sleep", "100000"])?;
        run(self.command().args(["run", "--detach", name])).map(drop)
    }
}

/// `bwrap` of the same command, with every namespace unshared.
pub(crate) fn time_bubblewrap(rootfs: &Path, count: usize) -> anyhow::Result<Sample> {
    Sample::of(count, || {
        let mut command = Command::new("bwrap");
        command
            .args(["--unshare-all", "--die-with-parent", "--bind"])
            .arg(rootfs)
            .arg("/")
            .args(COMMAND);
        run(&mut command).map(drop)
    })
}
