//! What every provider must do, as a program that knows nothing of any provider's inside.
//!
//! It asks two things of the runtime that is started in the sandboxes: that it dials the link, and dials again when the
//! connection is closed. `belljar-runtime` does, and so does the simulator's default program.

mod checks;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use domain::{SandboxId, SessionId};
use tokio::net::{UnixListener, UnixStream};

use crate::{ImageDigest, Limits, SandboxProvider, SandboxSpec, SandboxState, SandboxStatus};

/// How long anything may take: far more than it does, and still an end.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long to listen for a connection that must not come.
const SILENCE: Duration = Duration::from_millis(300);

/// A provider on trial.
pub struct Subject {
    /// The provider, without sandboxes.
    pub provider: Arc<dyn SandboxProvider>,
    /// An image that it has.
    pub image: ImageDigest,
    /// What its sandboxes may take here.
    pub limits: Limits,
    /// Ends a provider as suddenly as it can and starts another in its place.
    pub restart: Restart,
}

/// Ends a provider as suddenly as it can and starts another in its place.
pub type Restart = Box<
    dyn Fn(Arc<dyn SandboxProvider>) -> Pin<Box<dyn Future<Output = Arc<dyn SandboxProvider>> + Send>> + Send + Sync,
>;

/// Puts a provider on trial. Its sandboxes and disks are gone afterwards.
///
/// # Panics
/// Where it does not do what [`SandboxProvider`] promises, with what that is.
pub async fn run(mut subject: Subject) {
    subject.a_sandbox_lives_and_is_gone().await;
    subject.a_frozen_sandbox_stands_still().await;
    subject.what_is_unknown_is_not_found().await;
    subject.what_is_taken_is_refused().await;
    subject.what_cannot_be_made_leaves_nothing().await;
    subject.sandboxes_live_side_by_side().await;
    subject.a_disk_outlives_its_sandbox().await;
    subject = subject.sandboxes_outlive_their_provider().await;
    let left = subject.provider.list().await.expect("list what is left");
    assert!(left.is_empty(), "left at the end: {left:?}");
}

impl Subject {
    fn spec(&self) -> SandboxSpec {
        SandboxSpec {
            id: SandboxId::new(),
            session: SessionId::new(),
            image: self.image.clone(),
            limits: self.limits,
        }
    }

    async fn create(&self, spec: &SandboxSpec) -> SandboxStatus {
        let status = within("create", self.provider.create(spec))
            .await
            .expect("create a sandbox");
        assert_eq!(status.id, spec.id);
        assert_eq!(status.session, spec.session);
        assert_eq!(status.image, spec.image);
        assert_eq!(status.state, SandboxState::Running);
        status
    }

    /// The link, and a connection on it from the runtime inside.
    async fn dialled(&self, status: &SandboxStatus) -> (UnixListener, UnixStream) {
        let link = self.provider.link(status.id).await.expect("ask for the link");
        let link = UnixListener::from_std(link).expect("the link does not block");
        let connection = accept(&link, status).await;
        (link, connection)
    }

    async fn state(&self, id: SandboxId) -> SandboxState {
        within("status", self.provider.status(id))
            .await
            .expect("ask for the status")
            .state
    }

    /// Destroys a sandbox and removes its session's disk.
    async fn remove(&self, spec: &SandboxSpec) {
        within("destroy", self.provider.destroy(spec.id))
            .await
            .expect("destroy a sandbox");
        within("remove the disk", self.provider.remove_disk(spec.session))
            .await
            .expect("remove a disk");
    }
}

async fn accept(link: &UnixListener, status: &SandboxStatus) -> UnixStream {
    let (connection, _) = within("the runtime dials", link.accept())
        .await
        .expect("accept the runtime");
    let peer = connection.peer_cred().expect("ask who dials");
    assert_eq!(peer.uid(), status.root_uid, "who dials is not who the status says");
    connection
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited {PATIENCE:?} for: {what}"),
    }
}
