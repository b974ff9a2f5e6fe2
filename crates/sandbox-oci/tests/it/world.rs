//! A provider of a test's own, and a way to run commands in its sandboxes.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use domain::{SandboxId, SessionId};
use sandbox::{ImageDigest, Limits, SandboxProvider, SandboxSpec, SandboxStatus};
use sandbox_oci::{Config, DiskChoice, OciProvider};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;

/// The user that tools run as.
pub(crate) const USER: u32 = 1000;
/// Root inside.
pub(crate) const ROOT: u32 = 0;
/// Root inside with PID 1's own output.
pub(crate) const RUNTIME: u32 = u32::MAX;

/// A provider with folders of its own.
pub(crate) struct World {
    pub(crate) provider: Arc<OciProvider>,
    pub(crate) image: ImageDigest,
    pub(crate) config: Config,
    /// Dropped last, when nobody holds the provider any longer.
    remains: Remains,
}

/// What a test leaves behind, whether it passed or not. Removed when it is dropped.
pub(crate) struct Remains {
    config: Config,
    folder: TempDir,
}

impl World {
    pub(crate) fn new(disk: DiskChoice) -> Self {
        Self::with(disk, |_| {})
    }

    pub(crate) fn with(disk: DiskChoice, change: impl FnOnce(&mut Config)) -> Self {
        let folder = TempDir::with_prefix("belljar-").unwrap();
        // Root inside must be able to pass.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o711)).unwrap();
        let mut config = Config::new(folder.path().join("data"), env!("CARGO_BIN_EXE_sandbox-standin"));
        config.run = folder.path().join("run");
        config.disk = disk;
        config.pool_bytes = 2 << 30;
        // Tests run side by side, and each has a provider that believes it has all of the ids.
        config.first_uid = free_uids();
        change(&mut config);
        let miniature = testkit::miniature();
        miniature.install(&config.data.join("images"));
        Self {
            provider: Arc::new(OciProvider::open(config.clone()).unwrap_or_else(|error| panic!("{}", words(&error)))),
            image: miniature.digest.parse().unwrap(),
            remains: Remains {
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
        let config = self.config.clone();
        // A test's own thread may be one of tokio's, which must not wait.
        let cleaning = std::thread::spawn(move || {
            let provider = OciProvider::open(config).unwrap();
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
    /// What a command says, which must succeed.
    pub(crate) async fn run(&self, uid: u32, command: &str) -> String {
        let (said, code) = self.attempt(uid, command).await;
        assert_eq!(code, 0, "{command}\n{said}");
        said
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

fn free_uids() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Room for 128 sandboxes each.
    100_000_000 + NEXT.fetch_add(1, Ordering::Relaxed) * 128 * 65_536
}
