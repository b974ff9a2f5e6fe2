//! A host agent in this process, over the simulator.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use domain::{SandboxId, SessionId};
use host::HostClient;
use lifecycle::Tasks;
use sandbox::{
    ImageDigest, Limits, ProviderError, SandboxProvider, SandboxSpec, SandboxStatus, SandboxUsage, Simulator,
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
    }
}

pub(crate) fn simulator() -> Simulator {
    Simulator::new([image()], sandbox::dialing()).unwrap()
}

/// A host agent that can be ended and started again in the same place.
pub(crate) struct Agent {
    folder: tempfile::TempDir,
    client_uid: u32,
    tasks: Mutex<Tasks>,
}

impl Agent {
    pub(crate) fn start(provider: Arc<dyn SandboxProvider>, client_uid: u32) -> Self {
        let agent = Self {
            folder: tempfile::tempdir().unwrap(),
            client_uid,
            tasks: Mutex::default(),
        };
        agent.run(provider);
        agent
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("host.sock")
    }

    pub(crate) fn client(&self, tasks: &Tasks) -> HostClient {
        HostClient::new(self.socket(), tasks)
    }

    fn run(&self, provider: Arc<dyn SandboxProvider>) {
        let listener = host::listen(&self.socket(), self.client_uid).unwrap();
        let tasks = self.tasks.lock().unwrap();
        drop(tasks.spawn(host::serve(listener, provider, self.client_uid, tasks.clone())));
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

/// A provider that begins to make a sandbox and goes on when it is let.
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

    async fn freeze(&self, id: SandboxId) -> Result<(), ProviderError> {
        self.simulator.freeze(id).await
    }

    async fn thaw(&self, id: SandboxId) -> Result<(), ProviderError> {
        self.simulator.thaw(id).await
    }

    async fn destroy(&self, id: SandboxId) -> Result<(), ProviderError> {
        self.simulator.destroy(id).await
    }

    async fn status(&self, id: SandboxId) -> Result<SandboxStatus, ProviderError> {
        self.simulator.status(id).await
    }

    async fn usage(&self, id: SandboxId) -> Result<SandboxUsage, ProviderError> {
        self.simulator.usage(id).await
    }

    async fn list(&self) -> Result<Vec<SandboxStatus>, ProviderError> {
        self.simulator.list().await
    }

    async fn remove_disk(&self, session: SessionId) -> Result<(), ProviderError> {
        self.simulator.remove_disk(session).await
    }
}
