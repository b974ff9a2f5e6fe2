//! The handle by which the control plane gives orders to a sandbox.

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use domain::{RunLimits, SandboxId, SessionId, ToolCall, ToolResult};
use futures::stream::BoxStream;
use lifecycle::Stop;
use protocol::{FileEntry, Grants, Start, ToControl, ToRuntime, Transfer, VersionError};
use secret::Secret;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use super::accept::{self, Link};
use super::files::FileReader;
use super::orders::{Answer, Await, Orders};

/// Bytes on their way into a file. An error gives the transfer up and leaves the old file as it was.
pub type FileSource = BoxStream<'static, std::io::Result<Bytes>>;

/// How long a runtime may take for what it does at once.
const PROMPT: Duration = Duration::from_secs(20);

/// How long bytes may take to reach the workspace.
const TRANSFER: Duration = Duration::from_secs(3_600);

/// How much longer than its own limit a tool call is waited for: the runtime keeps the limit and kills what is left.
const GRACE: Duration = Duration::from_secs(30);

/// An order that did not reach the runtime, or was not answered.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The listening socket cannot be used.
    #[error("cannot listen for the runtime of sandbox {sandbox}")]
    Listen {
        /// Whose.
        sandbox: SandboxId,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// No runtime is connected, or it went away before it answered: what was ordered may have taken effect.
    #[error("the runtime of sandbox {sandbox} is not connected (while: {attempt}); it may come back")]
    Lost {
        /// Whose.
        sandbox: SandboxId,
        /// What was ordered.
        attempt: &'static str,
    },
    /// The runtime is connected and does not answer.
    #[error("the runtime of sandbox {sandbox} did not answer in time (while: {attempt})")]
    Silent {
        /// Whose.
        sandbox: SandboxId,
        /// What was ordered.
        attempt: &'static str,
    },
    /// The runtime said no.
    #[error("the runtime of sandbox {sandbox} could not do it ({attempt}): {reason}")]
    Failed {
        /// Whose.
        sandbox: SandboxId,
        /// What was ordered.
        attempt: &'static str,
        /// Its words, which are a sandbox's: show them, believe nothing.
        reason: String,
        /// It says that nothing is at the path that was ordered.
        missing: bool,
    },
}

/// What a session gives to its sandbox.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Outfit {
    /// The environment of the user's processes; holds no secret.
    pub environment: BTreeMap<String, String>,
    /// Certificates (PEM) of the authorities that they are to trust beside those of the image.
    pub authorities: String,
    /// Keys of SSH hosts that they are to trust beside those of the image, as lines for `known_hosts`.
    pub known_hosts: String,
    /// None of the session's files is to be brought back from outside: tools can be used before the runtime has asked.
    pub filled: bool,
    /// Its processes were kept while nobody used it, and go on in another sandbox.
    pub woken: bool,
}

/// A served link. Clones are the same link.
#[derive(Clone)]
pub struct Linked {
    pub(super) sandbox: SandboxId,
    pub(super) peer_uid: u32,
    pub(super) orders: Arc<Orders>,
    pub(super) connected: watch::Receiver<bool>,
    pub(super) stop: Stop,
    /// What is served; held by those who serve it.
    pub(super) link: Weak<Link>,
    /// Ends the accepting from the present listener.
    pub(super) accepting: Arc<Mutex<Stop>>,
}

impl fmt::Debug for Linked {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Linked")
            .field("sandbox", &self.sandbox)
            .field("connected", &self.is_connected())
            .finish_non_exhaustive()
    }
}

impl Linked {
    /// Whose link it is.
    #[must_use]
    pub fn sandbox(&self) -> SandboxId {
        self.sandbox
    }

    /// Whether the runtime's control stream is open.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        *self.connected.borrow()
    }

    /// Why the runtime's control stream was refused, where the last one that came was: it is of another age.
    #[must_use]
    pub fn refused(&self) -> Option<VersionError> {
        self.orders.refused()
    }

    /// Waits until the runtime's control stream is open; for ever where it never comes, so bound it.
    pub async fn connected(&self) {
        self.wait(true).await;
    }

    /// Waits until there is no control stream: the runtime is gone, and orders are lost until it comes back.
    pub async fn closed(&self) {
        self.wait(false).await;
    }

    /// Gives the sandbox to a session. Safe to repeat for the same session, with a newer token or other authorities too; a
    /// sandbox that belongs to another session refuses.
    ///
    /// # Errors
    /// [`LinkError`]; `Failed` where the sandbox belongs to another session.
    pub async fn claim(&self, session: SessionId, token: &Secret, outfit: Outfit) -> Result<(), LinkError> {
        let order = ToRuntime::Claim {
            session,
            token: token.clone(),
            environment: outfit.environment,
            authorities: outfit.authorities,
            known_hosts: outfit.known_hosts,
            filled: outfit.filled,
            woken: outfit.woken,
        };
        match self.ask("claim", Await::Claimed, &order, PROMPT).await? {
            Answer::Line(ToControl::Claimed { failure: Some(reason) }) => Err(self.failed("claim", reason, false)),
            _ => Ok(()),
        }
    }

    /// Whether the runtime that is connected speaks the protocol of this release; none where none is.
    #[must_use]
    pub fn is_current(&self) -> Option<bool> {
        self.orders.protocol().map(|spoken| spoken == protocol::PROTOCOL)
    }

    /// Lets a sandbox that is nobody's prepare for what a claim is going to bring, and does not wait for it. One that is too
    /// old to know the order does all of it when it is claimed.
    ///
    /// # Errors
    /// [`LinkError::Lost`].
    pub async fn trust(&self, authorities: String, known_hosts: String) -> Result<(), LinkError> {
        if matches!(self.orders.protocol(), Some(..3)) {
            return Ok(());
        }
        let order = ToRuntime::Trust {
            authorities,
            known_hosts,
        };
        self.send("trust", &order).await
    }

    /// Replaces the session's token; to be called inside the old one's half minute.
    ///
    /// # Errors
    /// [`LinkError::Lost`].
    pub async fn token(&self, token: &Secret) -> Result<(), LinkError> {
        let order = ToRuntime::Token { token: token.clone() };
        self.send("token", &order).await
    }

    /// Starts the loop in the sandbox. Its end comes to [`super::LinkHandler::event`] as `LoopEnded`.
    ///
    /// # Errors
    /// [`LinkError::Lost`].
    pub async fn start(&self, start: Start) -> Result<(), LinkError> {
        self.send("start", &ToRuntime::Start(start)).await
    }

    /// Says that a run whose loop is not in the sandbox has begun, with what it may use, or has ended.
    ///
    /// # Errors
    /// [`LinkError::Lost`].
    pub async fn prepare(&self, on: bool, grants: Grants) -> Result<(), LinkError> {
        self.send("prepare", &ToRuntime::Prepare { on, grants }).await
    }

    /// Asks the runtime whether it lives, and does not wait: it answers with `alive`, which comes to
    /// [`super::LinkHandler::event`]. False: it is too old to know the question.
    ///
    /// # Errors
    /// [`LinkError::Lost`], where it does not read its orders too.
    pub fn ask_pulse(&self) -> Result<bool, LinkError> {
        match self.orders.protocol() {
            Some(..3) => Ok(false),
            _ if self.orders.send_at_once(&ToRuntime::Pulse) => Ok(true),
            _ => Err(self.lost("pulse")),
        }
    }

    /// Uses a tool, and waits for its result; progress comes to [`super::LinkHandler::event`].
    ///
    /// # Errors
    /// [`LinkError`]: `Lost` and `Silent` mean that the call may have taken effect.
    pub async fn call(&self, call: ToolCall, limits: RunLimits) -> Result<ToolResult, LinkError> {
        let awaited = Await::Result(call.id.clone());
        let order = ToRuntime::Call { call, limits };
        match self.ask("call", awaited, &order, limits.tool() + GRACE).await? {
            Answer::Line(ToControl::Result { result }) => Ok(result),
            _ => Err(self.lost("call")),
        }
    }

    /// Stops the loop and every call, and waits until every process of theirs is dead. Programs in the background go on.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn stop(&self) -> Result<(), LinkError> {
        self.stop_what(false).await
    }

    /// The same, and programs in the background end too. A runtime that does not know them has none.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn stop_all(&self) -> Result<(), LinkError> {
        self.stop_what(true).await
    }

    async fn stop_what(&self, background: bool) -> Result<(), LinkError> {
        let request = self.orders.next_request();
        let order = ToRuntime::Stop { request, background };
        self.ask("stop", Await::Stopped(request), &order, PROMPT).await?;
        Ok(())
    }

    /// Reads a file of the workspace; `path` is relative to it.
    ///
    /// # Errors
    /// [`LinkError`]; `Failed` where there is no such file.
    pub async fn read_file(&self, path: impl Into<String>) -> Result<FileReader, LinkError> {
        let transfer = Transfer::Read { path: path.into() };
        match self.transfer("read file", transfer, None, PROMPT).await? {
            Answer::File(reader) => Ok(reader),
            Answer::Line(_) => Err(self.failed("read file", "it sent no bytes".to_owned(), false)),
        }
    }

    /// Puts bytes in a file's place, folders on the way included: all of them, or none.
    ///
    /// # Errors
    /// [`LinkError`]; the old file, if any, is then as it was, unless the answer itself was lost.
    pub async fn write_file(&self, path: impl Into<String>, bytes: FileSource) -> Result<(), LinkError> {
        let transfer = Transfer::Write { path: path.into() };
        self.transfer("write file", transfer, Some(bytes), TRANSFER).await?;
        Ok(())
    }

    /// The whole workspace as an archive (tar); it breaks off where it cannot be made whole.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn pack(&self) -> Result<FileReader, LinkError> {
        self.knows_archives("pack the workspace")?;
        match self
            .transfer("pack the workspace", Transfer::Pack, None, PROMPT)
            .await?
        {
            Answer::File(reader) => Ok(reader),
            Answer::Line(_) => Err(self.failed("pack the workspace", "it sent no bytes".to_owned(), false)),
        }
    }

    fn knows_archives(&self, attempt: &'static str) -> Result<(), LinkError> {
        match self.orders.protocol() {
            Some(..3) => {
                let words = "its runtime is of an older release: it knows how when the session gets its next sandbox";
                Err(self.failed(attempt, words.to_owned(), false))
            }
            _ => Ok(()),
        }
    }

    /// Puts what is in an archive (tar) in the workspace's place: all of it, or nothing.
    ///
    /// # Errors
    /// [`LinkError`]; the workspace is then as it was, unless the answer itself was lost.
    pub async fn unpack(&self, archive: FileSource) -> Result<(), LinkError> {
        self.knows_archives("unpack an archive")?;
        self.transfer("unpack an archive", Transfer::Unpack, Some(archive), TRANSFER)
            .await?;
        Ok(())
    }

    /// Lists what is in and below a folder of the workspace; empty for all of it.
    ///
    /// # Errors
    /// [`LinkError`]; `Failed` where there is no such folder.
    pub async fn list_files(&self, path: impl Into<String>) -> Result<Vec<FileEntry>, LinkError> {
        let transfer = Transfer::List { path: path.into() };
        match self.transfer("list files", transfer, None, PROMPT).await? {
            Answer::Line(ToControl::Transferred { entries, .. }) => Ok(entries),
            _ => Err(self.lost("list files")),
        }
    }

    /// Has everything in the workspace kept that is there now. Only for a runtime that asked to keep files: an older one does
    /// not know the order.
    ///
    /// # Errors
    /// [`LinkError`]; `Failed` where something has no room or cannot be read.
    pub async fn flush_files(&self, limit: Duration) -> Result<(), LinkError> {
        self.transfer("keep files", Transfer::Flush, None, limit).await?;
        Ok(())
    }

    /// Accepts from this listener from now on, instead of the one before: the host agent was started anew and made the
    /// socket again. Connections that are open live on.
    ///
    /// # Errors
    /// [`LinkError::Listen`]; [`LinkError::Lost`] where the link is closed.
    pub fn relisten(&self, listener: UnixListener) -> Result<(), LinkError> {
        let link = self.link.upgrade().ok_or_else(|| self.lost("listen anew"))?;
        let accepting = accept::listen(listener, self.peer_uid, link)?;
        let mut present = self.accepting.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *present, accepting).cancel();
        Ok(())
    }

    /// Serves no longer: connections are cut, whatever waits for an answer fails.
    pub fn close(&self) {
        self.stop.cancel();
        self.orders.disconnect_all();
    }

    async fn wait(&self, connected: bool) {
        let mut state = self.connected.clone();
        if state.wait_for(|now| *now == connected).await.is_err() && connected {
            // Nobody serves any more: no runtime will ever connect.
            std::future::pending::<()>().await;
        }
    }

    async fn transfer(
        &self,
        attempt: &'static str,
        transfer: Transfer,
        bytes: Option<FileSource>,
        limit: Duration,
    ) -> Result<Answer, LinkError> {
        let request = self.orders.next_request();
        let order = ToRuntime::Transfer { request, transfer };
        let awaited = Await::Transfer(request, bytes);
        let answer = self.ask(attempt, awaited, &order, limit).await?;
        if let Answer::Line(ToControl::Transferred {
            failure: Some(reason),
            missing,
            ..
        }) = answer
        {
            return Err(self.failed(attempt, reason, missing));
        }
        Ok(answer)
    }

    async fn ask(
        &self,
        attempt: &'static str,
        awaited: Await,
        order: &ToRuntime,
        limit: Duration,
    ) -> Result<Answer, LinkError> {
        let (answer, waiting) = oneshot::channel();
        // Held until the end of this call: an order that nobody waits for is forgotten.
        let _waiting = self.orders.register(awaited, answer);
        self.send(attempt, order).await?;
        match timeout(limit, waiting).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(self.lost(attempt)),
            Err(_) => Err(LinkError::Silent {
                sandbox: self.sandbox,
                attempt,
            }),
        }
    }

    async fn send(&self, attempt: &'static str, order: &ToRuntime) -> Result<(), LinkError> {
        match timeout(PROMPT, self.orders.send(order)).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.lost(attempt)),
            Err(_) => Err(LinkError::Silent {
                sandbox: self.sandbox,
                attempt,
            }),
        }
    }

    fn lost(&self, attempt: &'static str) -> LinkError {
        LinkError::Lost {
            sandbox: self.sandbox,
            attempt,
        }
    }

    fn failed(&self, attempt: &'static str, reason: String, missing: bool) -> LinkError {
        LinkError::Failed {
            sandbox: self.sandbox,
            attempt,
            reason: reason.chars().take(1_000).collect(),
            missing,
        }
    }
}
