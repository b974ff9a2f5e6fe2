//! A provider of a test's own, and a way to run commands in its sandboxes.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use base64::Engine as _;
use containers::kernel::Kernel;
use containers::seccomp::Masks;
use containers::{Config, ContainerProvider, DiskChoice};
use domain::{SandboxId, SessionId};
use images::ImageFolder;
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use sandbox::{ImageDigest, Limits, ProviderError, SandboxProvider, SandboxSpec, SandboxStatus};
use tempfile::TempDir;
use testkit::DockerEngine;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;

/// The user that tools run as.
pub(crate) const USER: u32 = 1000;
/// Root inside.
pub(crate) const ROOT: u32 = 0;
/// Root inside with PID 1's own output.
pub(crate) const RUNTIME: u32 = u32::MAX;

/// Whether the big numbers are wanted.
pub(crate) fn full() -> bool {
    std::env::var_os("BELLJAR_TEST_FULL").is_some()
}

/// A provider with folders of its own.
pub(crate) struct World {
    pub(crate) provider: Arc<ContainerProvider>,
    pub(crate) image: ImageDigest,
    pub(crate) config: Config,
    pub(crate) by: By,
    /// Dropped last, when nobody holds the provider any longer.
    remains: Remains,
}

/// What a test leaves behind, whether it passed or not. Removed when it is dropped.
pub(crate) struct Remains {
    by: By,
    config: Config,
    folder: TempDir,
}

/// By what containers are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum By {
    /// This OCI runtime's command.
    Oci(&'static str),
    /// Docker's engine.
    Docker,
    /// An engine that a test has, which listens here.
    DockerAt(&'static Path),
    /// A newer one, which sees a volume of its own alone.
    DockerInVolume,
}

impl By {
    pub(crate) const RUNC: Self = Self::Oci("runc");
    pub(crate) const CRUN: Self = Self::Oci("crun");
    pub(crate) const YOUKI: Self = Self::Oci("youki");
    /// A kernel of its own.
    pub(crate) const RUNSC: Self = Self::Oci("runsc");

    /// Whether it can be tried here; where it cannot, the reason is printed.
    pub(crate) fn is_here(self) -> bool {
        let command = match self {
            Self::Oci(command) => command,
            Self::Docker | Self::DockerAt(_) => return true,
            Self::DockerInVolume => return DockerEngine::newer().is_some(),
        };
        let is_there = || {
            Command::new(testkit::program(command))
                .arg("--version")
                .output()
                .is_ok()
        };
        let why_not = if [Self::YOUKI, Self::RUNSC].contains(&self) && !full() {
            "is built from its sources, for the big tests alone"
        } else if self == Self::RUNSC && !is_there() {
            "could not be built here"
        } else if !is_there() {
            panic!("{command} is not here, and is to be tried: `scripts/prepare tests` installs it");
        } else if self == Self::CRUN && !controllers_beside().is_empty() {
            // Before 1.9 it does.
            "refuses machines where version 2 of cgroups has controllers beside version 1"
        } else {
            return true;
        };
        println!("{command} {why_not}, so it is not tried");
        false
    }

    /// Whose kernel answers in its sandboxes.
    pub(crate) fn kernel(self) -> Kernel {
        match self {
            Self::Oci(command) => Kernel::of(&testkit::program(command)),
            _ => Kernel::OfTheMachine(Masks::default()),
        }
    }

    pub(crate) fn open(self, config: Config) -> Result<ContainerProvider, ProviderError> {
        let images = Arc::new(ImageFolder::open(config.data.join("images")));
        match self {
            Self::Oci(command) => sandbox_oci::open(testkit::program(command), config, images),
            Self::Docker => {
                let engine = DockerEngine::of_this_process();
                sandbox_docker::open(&engine.socket(), None, config, images)
            }
            Self::DockerAt(socket) => sandbox_docker::open(socket, None, config, images),
            Self::DockerInVolume => {
                let engine = DockerEngine::newer().unwrap();
                sandbox_docker::open(&engine.socket(), Some(&volume(&config)), config, images)
            }
        }
    }
}

/// The controllers that version 2 of cgroups has where most are version 1's, or that are version 1's and not mounted here: crun
/// would take any folder for them.
pub(crate) fn controllers_beside() -> String {
    let read = |file| fs::read_to_string(file).unwrap_or_default();
    let (unified, groups) = (
        read("/sys/fs/cgroup/unified/cgroup.controllers"),
        read("/proc/self/cgroup"),
    );
    let mounts = read("/proc/self/mountinfo");
    let is_mounted = |name: &str| {
        let mut mounts = mounts.lines().filter(|line| line.contains(" - cgroup "));
        mounts.any(|line| {
            line.rsplit([' ', ','])
                .take_while(|word| *word != "cgroup")
                .any(|word| word == name)
        })
    };
    let hierarchies = groups.lines().filter_map(|line| line.split(':').nth(1));
    let names = hierarchies.flat_map(|names| names.split(','));
    let lost = names.filter(|name| !name.is_empty() && !name.contains('=') && !is_mounted(name));
    unified.split_whitespace().chain(lost).collect::<Vec<_>>().join(" ")
}

/// What the volume is called that is mounted as this provider's data directory.
pub(crate) fn volume(config: &Config) -> String {
    let folder = config.data.parent().and_then(Path::file_name).unwrap();
    folder.to_string_lossy().trim_start_matches('.').to_owned()
}

impl World {
    pub(crate) fn new(disk: DiskChoice) -> Self {
        Self::by(By::RUNC, disk)
    }

    pub(crate) fn by(by: By, disk: DiskChoice) -> Self {
        Self::prepared(by, disk, |_| {})
    }

    /// The same, with another program as PID 1.
    pub(crate) fn with_runtime(by: By, disk: DiskChoice, runtime: &Path) -> Self {
        Self::configured(by, disk, |config| config.runtime = runtime.to_owned())
    }

    /// The same, where something is done to its folders before they are used.
    pub(crate) fn prepared(by: By, disk: DiskChoice, prepare: impl FnOnce(&Config)) -> Self {
        Self::configured(by, disk, |config| prepare(config))
    }

    fn configured(by: By, disk: DiskChoice, prepare: impl FnOnce(&mut Config)) -> Self {
        let folder = TempDir::with_prefix("belljar-").unwrap();
        // Root inside must be able to pass.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o711)).unwrap();
        let mut config = Config::new(folder.path().join("data"), env!("CARGO_BIN_EXE_sandbox-standin"));
        config.run = folder.path().join("run");
        config.disk = disk;
        config.pool_bytes = 2 << 30;
        // Tests run side by side, and each has a provider that believes it has all of the ids.
        config.first_uid = free_uids();
        if by == By::DockerInVolume {
            // As in the container that the host agent would be in.
            config.run = config.data.join("run");
            let place = DockerEngine::newer().unwrap().volume(&volume(&config));
            fs::create_dir(&config.data).unwrap();
            mount_bind(&place, &config.data).unwrap();
            fs::set_permissions(&config.data, Permissions::from_mode(0o711)).unwrap();
        }
        prepare(&mut config);
        let miniature = testkit::miniature();
        miniature.install(&config.data.join("images"));
        Self {
            provider: Arc::new(
                by.open(config.clone())
                    .unwrap_or_else(|error| panic!("{}", words(&error))),
            ),
            image: miniature.digest.parse().unwrap(),
            by,
            remains: Remains {
                by,
                config: config.clone(),
                folder,
            },
            config,
        }
    }

    /// All but the provider, which somebody else holds.
    pub(crate) fn give_up(self) -> Remains {
        self.remains
    }

    pub(crate) fn folder(&self) -> &Path {
        self.remains.folder.path()
    }

    pub(crate) fn spec(&self) -> SandboxSpec {
        SandboxSpec {
            id: SandboxId::new(),
            session: SessionId::new(),
            image: self.image.clone(),
            limits: LIMITS,
            builder: false,
        }
    }

    pub(crate) async fn create(&self) -> Living {
        self.create_as(&self.spec()).await
    }

    pub(crate) async fn create_as(&self, spec: &SandboxSpec) -> Living {
        let status = self
            .provider
            .create(spec)
            .await
            .unwrap_or_else(|error| panic!("{}", words(&error)));
        let provider: Arc<dyn SandboxProvider> = Arc::clone(&self.provider) as _;
        Living {
            provider,
            spec: spec.clone(),
            status,
        }
    }

    /// What is left of sandboxes among the files.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        ["sandboxes", "oci"]
            .into_iter()
            .filter_map(|name| fs::read_dir(self.config.run.join(name)).ok())
            .flatten()
            .map(|entry| entry.unwrap().path())
            .collect()
    }
}

impl Drop for Remains {
    fn drop(&mut self) {
        let (by, config) = (self.by, self.config.clone());
        // A test's own thread may be one of tokio's, which must not wait.
        let cleaning = std::thread::spawn(move || {
            let provider = by.open(config.clone()).unwrap();
            let waiting = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            waiting.block_on(async {
                for status in provider.list().await.unwrap() {
                    provider.destroy(status.id).await.unwrap();
                }
            });
            provider.close().unwrap();
            if by == By::DockerInVolume {
                unmount(&config.data, UnmountFlags::DETACH).unwrap();
            }
        });
        let cleaned = cleaning.join();
        assert!(std::thread::panicking() || cleaned.is_ok(), "could not clean up");
    }
}

/// Enough for every test, and little enough to be felt.
pub(crate) const LIMITS: Limits = Limits {
    cpu_millis: 2_000,
    memory_bytes: 256 << 20,
    pids: 64,
    disk_bytes: 64 << 20,
};

/// A sandbox that lives.
pub(crate) struct Living {
    pub(crate) provider: Arc<dyn SandboxProvider>,
    pub(crate) spec: SandboxSpec,
    pub(crate) status: SandboxStatus,
}

impl Living {
    /// One that somebody else made.
    pub(crate) fn of(provider: Arc<dyn SandboxProvider>, status: SandboxStatus) -> Self {
        let spec = SandboxSpec {
            id: status.id,
            session: status.session,
            image: status.image.clone(),
            limits: LIMITS,
            builder: false,
        };
        Self { provider, spec, status }
    }

    /// What a command says, which must succeed.
    pub(crate) async fn run(&self, uid: u32, command: &str) -> String {
        let (said, code) = self.attempt(uid, command).await;
        assert_eq!(code, 0, "{command}\n{said}");
        said
    }

    /// The same for a command of several lines.
    pub(crate) async fn attempt_as_written(&self, uid: u32, command: &str) -> (String, i32) {
        let code = base64::engine::general_purpose::STANDARD.encode(command);
        self.attempt(uid, &format!("echo {code} | base64 -d | sh")).await
    }

    /// What a command says, and its exit code.
    pub(crate) async fn attempt(&self, uid: u32, command: &str) -> (String, i32) {
        let link = self.provider.link(self.spec.id).await.unwrap();
        let link = UnixListener::from_std(link).unwrap();
        let order = format!("{uid} {}\n", command.replace('\n', ";"));
        let ask = async {
            let (mut runtime, _) = link.accept().await.unwrap();
            runtime.write_all(order.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            runtime.read_to_end(&mut answer).await.unwrap();
            String::from_utf8_lossy(&answer).into_owned()
        };
        let answer = testkit::within(command, ask).await;
        let (said, code) = answer.trim_end().rsplit_once('\n').unwrap_or(("", &answer));
        let code = code
            .trim()
            .parse()
            .unwrap_or_else(|_| panic!("{command}: no exit code in {answer:?}"));
        (said.trim_end().to_owned(), code)
    }

    /// Writes a Python script and runs it.
    pub(crate) async fn python(&self, uid: u32, script: &str) -> String {
        let name = format!("/tmp/script-{uid}.py");
        let code = base64::engine::general_purpose::STANDARD.encode(script);
        self.run(uid, &format!("echo {code} | base64 -d > {name} && python3 {name}"))
            .await
    }

    /// The number that PID 1 has outside.
    pub(crate) fn pid(&self, world: &World) -> i32 {
        let record = world.config.run.join(format!("sandboxes/{}/record.json", self.spec.id));
        let record: serde_json::Value = serde_json::from_slice(&fs::read(record).unwrap()).unwrap();
        record["process"]["pid"].as_i64().unwrap().try_into().unwrap()
    }

    pub(crate) async fn destroy(self) {
        self.provider
            .destroy(self.spec.id)
            .await
            .unwrap_or_else(|error| panic!("{}", words(&error)));
    }
}

/// An error with its causes.
pub(crate) fn words(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |words, cause| format!("{words}: {cause}"))
}

/// Where a process is told the first of its user ids, which nobody beside it has.
pub(crate) const UIDS: &str = "BELLJAR_TEST_UIDS";

/// The first of some user ids that no other provider in a test has.
pub(crate) fn free_uids() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let own = std::env::var(UIDS).ok().and_then(|first| first.parse().ok());
    // Room for 128 sandboxes each.
    own.unwrap_or(100_000_000) + NEXT.fetch_add(1, Ordering::Relaxed) * 128 * 65_536
}
