//! What every provider must do, as a program that knows nothing of any provider's inside.
//!
//! It asks two things of the runtime that is started in the sandboxes: that it dials the link, and dials again when the
//! connection is closed. `belljar-runtime` does, and so does the simulator's default program. Who puts a provider on trial
//! says besides how a command is run inside, and what there is not to try, and why.

mod asleep;
mod checks;
mod confinement;
mod images;
mod killed;
mod snapshots;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use domain::{SandboxId, SessionId};
use tokio::net::{UnixListener, UnixStream};

pub use self::killed::{Kill, Moment, Orders};
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
    /// Runs a command in a sandbox.
    pub shell: Shell,
    /// Has a process of its own give orders, and kills it.
    pub kill: Result<Kill, NotTried>,
    /// Whether the kernel holds sandboxes to their limits, and in a network of their own.
    pub confined: Result<(), NotTried>,
    /// Whether a disk has a limit; only asked where sandboxes are confined.
    pub disk_limited: Result<(), NotTried>,
    /// Whether each sandbox is somebody of its own to a socket's other end.
    pub own_uids: Result<(), NotTried>,
    /// Whether it keeps processes of sandboxes that are hibernated; where it does not, it is to say so.
    pub keeps: Result<(), NotTried>,
    /// How many sandboxes are made at once.
    pub at_once: usize,
}

/// Why something cannot be tried of a provider, in words; they are printed.
pub type NotTried = &'static str;

/// Runs a command of `sh` in a sandbox, as its user and in the session's workspace: what it says, and its exit code. There are
/// coreutils, `find` and `python3`; `$KNOWLEDGE` is where [`crate::inside::KNOWLEDGE`] is.
pub type Shell = Box<
    dyn Fn(Arc<dyn SandboxProvider>, SandboxStatus, String) -> Pin<Box<dyn Future<Output = (String, i32)> + Send>>
        + Send
        + Sync,
>;

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
    subject.a_snapshot_brings_files_back().await;
    subject.forks_are_strangers().await;
    subject.a_snapshot_that_is_not_there_is_not_found().await;
    subject.what_was_made_ahead_is_given_once().await;
    subject.what_a_builder_knows_becomes_an_image().await;
    subject.only_a_builder_makes_images().await;
    subject.an_image_goes_when_nobody_uses_it().await;
    match subject.keeps {
        Ok(()) => {
            subject.processes_that_are_kept_go_on().await;
            subject.what_is_kept_goes_on_once().await;
            subject
                .what_is_kept_goes_when_anything_else_is_done_with_the_disk()
                .await;
            subject = subject.what_is_kept_outlives_its_provider().await;
        }
        Err(reason) => {
            println!("processes are not kept: {reason}");
            subject.processes_that_are_not_kept_are_said_to_be_gone().await;
        }
    }
    subject.many_at_once_all_live_and_go().await;
    match subject.confined {
        Ok(()) => {
            subject.a_sandbox_at_its_limits_harms_itself_alone().await;
            subject.the_link_is_the_runtime_s_alone().await;
            subject.nothing_leaves_but_what_the_runtime_carries().await;
        }
        Err(reason) => println!("limits and networks are not tried: {reason}"),
    }
    subject = subject.sandboxes_outlive_their_provider().await;
    subject = subject.snapshots_outlive_their_provider().await;
    subject = subject.images_outlive_their_provider().await;
    subject = subject.whoever_is_killed_at_any_step_leaves_all_whole().await;
    let left = subject.provider.list().await.expect("list what is left");
    assert!(left.is_empty(), "left at the end: {left:?}");
    let kept = subject.provider.snapshots().await.expect("list the snapshots").kept;
    assert!(kept.is_empty(), "kept at the end: {kept:?}");
}

impl Subject {
    fn spec(&self) -> SandboxSpec {
        SandboxSpec {
            id: SandboxId::new(),
            session: SessionId::new(),
            image: self.image.clone(),
            limits: self.limits,
            builder: false,
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

    /// What a command says in a sandbox, which must succeed.
    async fn sh(&self, status: &SandboxStatus, command: &str) -> String {
        let (said, code) = self.attempt(status, command).await;
        assert_eq!(code, 0, "{command}\n{said}");
        said
    }

    /// What a command says in a sandbox, and its exit code.
    async fn attempt(&self, status: &SandboxStatus, command: &str) -> (String, i32) {
        let shell = (self.shell)(Arc::clone(&self.provider), status.clone(), command.to_owned());
        let (said, code) = within(command, shell).await;
        (said.trim_end().to_owned(), code)
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
