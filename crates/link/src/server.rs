//! The control plane's end of one sandbox's link.
//!
//! [`serve`] takes the sandbox's listening socket and gives back a [`Linked`], through which orders go in; what comes out
//! goes to the [`LinkHandler`]. A sandbox is hostile: each has its own caps, so that the worst it can do is to shut itself out.

use std::fmt;
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use domain::SandboxId;
use futures::stream::BoxStream;
use lifecycle::Tasks;
use protocol::{
    EarlyResults, ModelRequest, Refusal, RefusalCode, ServiceFailure, ServiceRequest, SyncAnswer, SyncCall, ToControl,
    TurnReply, TurnRequest,
};
use secret::Secret;
use tokio::io::{AsyncRead, AsyncWrite};

mod accept;
mod control;
mod files;
mod linked;
mod orders;
mod routes;

pub use files::FileReader;
pub use linked::{FileSource, LinkError, Linked, Outfit};

/// What the control plane does with what comes out of a sandbox. `sandbox` is known from the link itself, whatever was said
/// over it; `token` is what was shown, not yet checked. A runtime that hangs up drops the future of what it asked for.
#[async_trait]
pub trait LinkHandler: Send + Sync + 'static {
    /// A turn of the sandbox's loop.
    async fn invoke_llm(&self, sandbox: SandboxId, token: &Secret, request: TurnRequest) -> Result<TurnReply, Refusal>;

    /// Results of calls, ahead of the turn of the sandbox's loop that would bring them. `Ok`: they are kept.
    async fn hand_in(&self, sandbox: SandboxId, token: &Secret, results: EarlyResults) -> Result<(), Refusal> {
        let _ = (sandbox, token, results);
        Err(Refusal::new(
            RefusalCode::Denied,
            "results are taken here with their turn only",
        ))
    }

    /// A connection that somebody inside opened, to a name that they resolved or to an address that they wrote: whether it may
    /// be, and then what carries it.
    async fn connect(
        &self,
        sandbox: SandboxId,
        token: &Secret,
        host: &str,
        port: u16,
    ) -> Result<Box<dyn Carrier>, Refusal>;

    /// A name that somebody inside asked for. `Ok` lets them have a synthetic address, the one with that number if it says one;
    /// nothing is resolved.
    async fn resolve(&self, sandbox: SandboxId, token: &Secret, name: &str) -> Result<Option<u32>, Refusal>;

    /// A call of a service that somebody inside made. The body of the answer is read as fast as they read it; dropping it
    /// means that nobody wants the rest.
    async fn service(
        &self,
        sandbox: SandboxId,
        token: &Secret,
        request: ServiceRequest,
    ) -> Result<ServiceAnswer, ServiceFailure> {
        let _ = (sandbox, token);
        let ServiceRequest { service, method, .. } = request;
        let words = format!("there is no {service}.{method}: this installation has no services");
        Err(ServiceFailure::new(404, "unknown_service", words))
    }

    /// A call of a model that a program inside made by itself. The body of the answer is read as fast as the program reads
    /// it; dropping it means that nobody wants the rest.
    async fn model(
        &self,
        sandbox: SandboxId,
        token: &Secret,
        request: ModelRequest,
    ) -> Result<ServiceAnswer, ServiceFailure> {
        let _ = (sandbox, token, request);
        Err(ServiceFailure::new(404, "not_found", "programs may ask no model here"))
    }

    /// What the runtime asks to keep the workspace's files.
    async fn sync(&self, sandbox: SandboxId, token: &Secret, call: SyncCall) -> Result<SyncAnswer, Refusal> {
        let _ = (sandbox, token, call);
        Err(no_files())
    }

    /// A content of a file that is to be kept, by a signed URL: so many bytes, where the runtime said how many.
    async fn keep_object(
        &self,
        sandbox: SandboxId,
        token: &Secret,
        url: &str,
        bytes: Option<u64>,
        body: FileSource,
    ) -> Result<(), Refusal> {
        let _ = (sandbox, token, url, bytes, body);
        Err(no_files())
    }

    /// A content of a file that is kept, by a signed URL.
    async fn fetch_object(&self, sandbox: SandboxId, token: &Secret, url: &str) -> Result<ServiceAnswer, Refusal> {
        let _ = (sandbox, token, url);
        Err(no_files())
    }

    /// What the runtime said of itself: progress, the end of a loop, replaced hands. Answers that a call of [`Linked`]
    /// waits for do not come here. The next line is read when this returns: it must not wait for an answer of the same link.
    async fn event(&self, sandbox: SandboxId, event: ToControl);
}

fn no_files() -> Refusal {
    Refusal::new(RefusalCode::Denied, "this installation keeps no files of workspaces")
}

/// The result of a service's method, or what a model answered to a program, as its bytes come.
pub struct ServiceAnswer {
    /// What the bytes are: `application/json`, mostly.
    pub media_type: String,
    /// How many they are, where that is known.
    pub length: Option<u64>,
    /// The bytes. An error breaks the answer off, and whoever asked is told that it is not whole.
    pub body: BoxStream<'static, std::io::Result<Bytes>>,
}

impl fmt::Debug for ServiceAnswer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ServiceAnswer")
            .field("media_type", &self.media_type)
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

/// What carries a connection that somebody inside opened.
#[async_trait]
pub trait Carrier: Send {
    /// Carries it until it ends. `near` is the sandbox's end.
    async fn carry(self: Box<Self>, near: Box<dyn Connection>);
}

/// A stream of bytes, both ways.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// Serves a sandbox's link until `tasks` is told to stop or [`Linked::close`] is called.
///
/// Only connections of `peer_uid`, the sandbox's mapped root as this process sees it, are served.
///
/// # Errors
/// When the listener cannot be used with the running reactor.
pub fn serve(
    listener: UnixListener,
    sandbox: SandboxId,
    peer_uid: u32,
    handler: Arc<dyn LinkHandler>,
    tasks: &Tasks,
) -> Result<Linked, LinkError> {
    accept::serve(listener, sandbox, peer_uid, handler, tasks)
}
