//! What runs in a simulated sandbox.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use domain::{SandboxId, SessionId};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;

/// Makes the task that is a sandbox's PID 1. When it ends the sandbox is dead.
pub type Program = Arc<dyn Fn(Started) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// What a simulated runtime finds when it starts.
#[derive(Clone, Debug)]
pub struct Started {
    /// The sandbox.
    pub id: SandboxId,
    /// Whose files it has.
    pub session: SessionId,
    /// The link's socket.
    pub socket: PathBuf,
    /// The session's files.
    pub workspace: PathBuf,
    /// What it has at [`crate::inside::KNOWLEDGE`].
    pub knowledge: PathBuf,
}

/// The least that a runtime does: it dials the link, says nothing, and dials again when the connection is closed.
#[must_use]
pub fn dialing() -> Program {
    Arc::new(|started| Box::pin(dial(started.socket)))
}

async fn dial(socket: PathBuf) {
    loop {
        if let Ok(mut link) = UnixStream::connect(&socket).await {
            let mut ignored = [0; 512];
            while matches!(link.read(&mut ignored).await, Ok(1..)) {}
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
