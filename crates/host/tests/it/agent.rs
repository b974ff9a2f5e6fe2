//! A host agent in this process, over the simulator.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use domain::{InstallationId, SandboxId, SessionId, SnapshotId};
use host::{HostClient, ListenError};
use lifecycle::Tasks;
use sandbox::{
    ImageDigest, ImageStatus, Kept, Limits, ProviderError, SandboxProvider, SandboxSpec, SandboxStatus, SandboxUsage,
    Simulator, SnapshotStatus, Snapshots,
};
use tokio::sync::Semaphore;

pub(crate) fn image() -> ImageDigest {
    ImageDigest::from_bytes([7; 32])
}

pub(crate) fn spec() -> SandboxSpec {
    SandboxSpec {
        id: SandboxId::new(),
        session: SessionId::new(),
        image: image(),
        limits: Limits::default(),
        builder: false,
    }
}

pub(crate) fn simulator() -> Simulator {
    Simulator::new([image()], sandbox::dialing()).unwrap()
}

/// A host agent that can be ended and started again in the same place.
pub(crate) struct Agent {
    folder: tempfile::TempDir,
    client_uid: u32,
    installation: InstallationId,
    tasks: Mutex<Tasks>,
}

impl Agent {
    pub(crate) fn start(provider: Arc<dyn SandboxProvider>, client_uid: u32) -> Self {
        let agent = Self {
            folder: tempfile::tempdir().unwrap(),
            client_uid,
            installation: InstallationId::new(),
            tasks: Mutex::default(),
        };
        agent.run(provider);
        agent
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("host.sock")
    }

    /// A client of the installation that this host agent works for.
    pub(crate) fn client(&self, tasks: &Tasks) -> HostClient {
        self.client_of(self.installation, tasks)
    }

    pub(crate) fn client_of(&self, installation: InstallationId, tasks: &Tasks) -> HostClient {
        HostClient::new(self.socket(), installation, tasks)
    }

    /// The same, by a socket that leads here.
    pub(crate) fn client_at(&self, socket: &Path, tasks: &Tasks) -> HostClient {
        HostClient::new(socket, self.installation, tasks)
    }

    fn run(&self, provider: Arc<dyn SandboxProvider>) {
        // What another test is about to start may hold the socket before until it has begun.
        let listener = testkit::eventually("the socket to be free", || {
            match host::listen(&self.socket(), self.client_uid) {
                Err(ListenError::Taken(_)) => None,
                listener => Some(listener.unwrap()),
            }
        });
        let claim = self.folder.path().join("installation");
        let tasks = self.tasks.lock().unwrap();
        drop(tasks.spawn(host::serve(listener, provider, self.client_uid, claim, tasks.clone())));
    }

    /// Ends the agent; orders that were begun are carried out first.
    pub(crate) async fn end(&self) {
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap());
        assert!(
            tasks.shut_down(Duration::from_secs(30)).await,
            "the host agent does not end"
        );
    }

    pub(crate) async fn restart(&self, provider: Arc<dyn SandboxProvider>) {
        self.end().await;
        self.run(provider);
    }
}

/// A provider that begins to make a sandbox, or to keep a session's files, and goes on when it is let.
pub(crate) struct Slow {
    pub(crate) simulator: Simulator,
    pub(crate) begun: Semaphore,
    pub(crate) go_on: Semaphore,
}

impl Slow {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            simulator: simulator(),
            begun: Semaphore::new(0),
            go_on: Semaphore::new(0),
        })
    }
}

#[async_trait]
impl SandboxProvider for Slow {
    async fn create(&self, spec: &SandboxSpec) -> Result<SandboxStatus, ProviderError> {
        self.begun.add_permits(1);
        self.go_on.acquire().await.unwrap().forget();
        self.simulator.create(spec).await
    }

    async fn link(&self, id: SandboxId) -> Result<std::os::unix::net::UnixListener, ProviderError> {
        self.simulator.link(id).await
    }

    async fn assign(&self, id: SandboxId, session: SessionId) -> Result<SandboxStatus, ProviderError> {
        self.simulator.assign(id, session).await
    }

    async fn freeze(&self, id: SandboxId) -> Result<(), ProviderError> {
        self.simulator.freeze(id).await
    }

    async fn thaw(&self, id: SandboxId) -> Result<(), ProviderError> {
        self.simulator.thaw(id).await
    }

    async fn destroy(&self, id: SandboxId) -> Result<(), ProviderError> {
        self.simulator.destroy(id).await
    }

    async fn hibernate(&self, id: SandboxId) -> Result<Kept, ProviderError> {
        self.simulator.hibernate(id).await
    }

    async fn wake(&self, spec: &SandboxSpec) -> Result<SandboxStatus, ProviderError> {
        self.simulator.wake(spec).await
    }

    async fn forget(&self, session: SessionId) -> Result<(), ProviderError> {
        self.simulator.forget(session).await
    }

    async fn status(&self, id: SandboxId) -> Result<SandboxStatus, ProviderError> {
        self.simulator.status(id).await
    }

    async fn words(&self, id: SandboxId) -> Result<String, ProviderError> {
        self.simulator.words(id).await
    }

    async fn usage(&self, id: SandboxId) -> Result<SandboxUsage, ProviderError> {
        self.simulator.usage(id).await
    }

    async fn list(&self) -> Result<Vec<SandboxStatus>, ProviderError> {
        self.simulator.list().await
    }

    async fn disks(&self) -> Result<Vec<SessionId>, ProviderError> {
        self.simulator.disks().await
    }

    async fn remove_disk(&self, session: SessionId) -> Result<(), ProviderError> {
        self.simulator.remove_disk(session).await
    }

    async fn snapshot(&self, session: SessionId, snapshot: SnapshotId) -> Result<SnapshotStatus, ProviderError> {
        self.begun.add_permits(1);
        self.go_on.acquire().await.unwrap().forget();
        self.simulator.snapshot(session, snapshot).await
    }

    async fn restore(&self, snapshot: SnapshotId, session: SessionId) -> Result<(), ProviderError> {
        self.simulator.restore(snapshot, session).await
    }

    async fn remove_snapshot(&self, snapshot: SnapshotId) -> Result<(), ProviderError> {
        self.simulator.remove_snapshot(snapshot).await
    }

    async fn snapshots(&self) -> Result<Snapshots, ProviderError> {
        self.simulator.snapshots().await
    }

    async fn commit(&self, id: SandboxId) -> Result<ImageDigest, ProviderError> {
        self.simulator.commit(id).await
    }

    async fn images(&self) -> Result<Vec<ImageStatus>, ProviderError> {
        self.simulator.images().await
    }

    async fn remove_image(&self, image: &ImageDigest) -> Result<(), ProviderError> {
        self.simulator.remove_image(image).await
    }
}
