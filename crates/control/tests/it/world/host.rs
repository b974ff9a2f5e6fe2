//! The provider as control sees it: one that may be started anew.

use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use domain::{SandboxId, SessionId};
use sandbox::{ProviderError, SandboxProvider, SandboxSpec, SandboxStatus, SandboxUsage, Simulator};

pub(crate) struct Host(Mutex<Arc<Simulator>>);

impl Host {
    pub(crate) fn new(simulator: Arc<Simulator>) -> Self {
        Self(Mutex::new(simulator))
    }

    /// It dies and is started anew: its sandboxes live on, the sockets of their links are made again.
    pub(crate) fn restart(&self) {
        let mut simulator = self.0.lock().unwrap();
        *simulator = Arc::new(simulator.restarted().unwrap());
    }

    fn present(&self) -> Arc<Simulator> {
        Arc::clone(&self.0.lock().unwrap())
    }
}

#[async_trait]
impl SandboxProvider for Host {
    async fn create(&self, spec: &SandboxSpec) -> Result<SandboxStatus, ProviderError> {
        self.present().create(spec).await
    }

    async fn link(&self, id: SandboxId) -> Result<UnixListener, ProviderError> {
        self.present().link(id).await
    }

    async fn freeze(&self, id: SandboxId) -> Result<(), ProviderError> {
        self.present().freeze(id).await
    }

    async fn thaw(&self, id: SandboxId) -> Result<(), ProviderError> {
        self.present().thaw(id).await
    }

    async fn destroy(&self, id: SandboxId) -> Result<(), ProviderError> {
        self.present().destroy(id).await
    }

    async fn status(&self, id: SandboxId) -> Result<SandboxStatus, ProviderError> {
        self.present().status(id).await
    }

    async fn usage(&self, id: SandboxId) -> Result<SandboxUsage, ProviderError> {
        self.present().usage(id).await
    }

    async fn list(&self) -> Result<Vec<SandboxStatus>, ProviderError> {
        self.present().list().await
    }

    async fn remove_disk(&self, session: SessionId) -> Result<(), ProviderError> {
        self.present().remove_disk(session).await
    }
}
