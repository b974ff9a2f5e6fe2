//! A provider of a test's own, and a way to run commands in its sandboxes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

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

/// A provider with folders of its own.
pub(crate) struct World {
    pub(crate) provider: Arc<OciProvider>,
    pub(crate) image: ImageDigest,
    pub(crate) config: Config,
    folder: Option<TempDir>,
}

impl World {
    pub(crate) fn new(disk: DiskChoice) -> Self {
        Self::with(disk, |_| {})
    }

    pub(crate) fn with(disk: DiskChoice, change: impl FnOnce(&mut Config)) -> Self {
        let folder = TempDir::with_prefix("belljar-").unwrap();
        // Root inside must be able to pass.
        std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711)).unwrap();
        let mut config = Config::new(folder.path().join("data"), env!("CARGO_BIN_EXE_sandbox-standin"));
        config.run = folder.path().join("run");
        config.disk = disk;
        config.pool_bytes = 2 << 30;
        // Tests run side by side, and each has a provider that believes it has all of the ids.
        config.first_uid = free_uids();
        change(&mut config);
        let miniature = testkit::miniature();
        miniature.install(&config.data.join("images"));
        let name = miniature.folder.file_name().unwrap().to_string_lossy();
        Self {
            provider: Arc::new(OciProvider::open(config.clone()).unwrap()),
            image: name.parse().unwrap(),
            config,
            folder: Some(folder),
        }
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

    /// Its folder alone; the disk pool stays mounted.
    pub(crate) fn give_up(mut self) -> TempDir {
        self.folder.take().unwrap()
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.as_ref().unwrap().path()
    }

    /// What is left of sandboxes among the files.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        ["sandboxes", "oci"]
            .into_iter()
            .filter_map(|name| std::fs::read_dir(self.config.run.join(name)).ok())
            .flatten()
            .map(|entry| entry.unwrap().path())
            .collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if self.folder.is_some() {
            self.provider.close_pool().unwrap();
        }
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
    // Room for 32 sandboxes each.
    100_000_000 + NEXT.fetch_add(1, Ordering::Relaxed) * 32 * 65_536
}
