//! The end that asks.

mod connection;

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use domain::{InstallationId, SandboxId, SessionId, SnapshotId};
use lifecycle::Tasks;
use sandbox::{
    ImageDigest, ImageStatus, Kept, ProviderError, SandboxProvider, SandboxSpec, SandboxStatus, SandboxUsage,
    SnapshotStatus, Snapshots,
};
use tokio::sync::Mutex;
use tokio::time::timeout;

use self::connection::{Connection, Lost};
use crate::wire::{Answer, Order};

/// How long a host agent may be away, as it is while it is restarted, before orders fail.
const ABSENCE: Duration = Duration::from_secs(10);
/// Making a sandbox or removing one moves files; everything else is a look or a write of the kernel's.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(20);
/// Memory is written to the disk; several wait for each other.
const KEEPING: Duration = Duration::from_secs(180);
/// Where disks share nothing, keeping one or bringing it back copies all of it; an image is made of copies.
const COPYING: Duration = Duration::from_secs(15 * 60);

/// The sandboxes of a host agent, by its socket.
///
/// It connects when it is needed, and again after the host agent was started anew. An order whose connection was lost is
/// given again where that does no harm; a sandbox that was being made is looked for instead.
#[derive(Debug)]
pub struct HostClient {
    socket: PathBuf,
    installation: InstallationId,
    tasks: Tasks,
    connection: Mutex<Option<Arc<Connection>>>,
    absence: Duration,
    patience: Option<Duration>,
}

impl HostClient {
    /// A client, on behalf of an installation, of the host agent that listens on this socket, now or later.
    #[must_use]
    pub fn new(socket: impl Into<PathBuf>, installation: InstallationId, tasks: &Tasks) -> Self {
        Self {
            socket: socket.into(),
            installation,
            tasks: tasks.clone(),
            connection: Mutex::default(),
            absence: ABSENCE,
            patience: None,
        }
    }

    /// Gives an order that may be given twice.
    async fn ask(&self, order: Order, patience: Duration) -> Result<(Answer, Option<OwnedFd>), ProviderError> {
        let patience = self.patience.unwrap_or(patience);
        let asked = async {
            loop {
                match self.connected().await?.ask(order.clone()).await {
                    Ok(answered) => return Ok(answered),
                    Err(Lost) => tracing::debug!(?order, "the host agent went away; asking again"),
                }
            }
        };
        let answered = timeout(patience, asked)
            .await
            .unwrap_or_else(|_| Err(self.late(patience)))?;
        match answered {
            (Answer::Failed(failure), _) => Err(failure.into()),
            answered => Ok(answered),
        }
    }

    async fn ask_done(&self, order: Order, patience: Duration) -> Result<(), ProviderError> {
        match self.ask(order, patience).await? {
            (Answer::Done, _) => Ok(()),
            (other, _) => Err(self.astonished(&other)),
        }
    }

    /// Gives an order that makes a sandbox of this name, and looks for it where no answer came.
    async fn ask_for(&self, id: SandboxId, order: Order) -> Result<SandboxStatus, ProviderError> {
        let patience = self.patience.unwrap_or(LONG);
        let connection = self.connected().await?;
        let answered = match timeout(patience, connection.ask(order)).await {
            Ok(answered) => answered,
            Err(_) => return Err(self.late(patience)),
        };
        match answered {
            Ok((Answer::Status(status), _)) => Ok(status),
            Ok((Answer::Failed(failure), _)) => Err(failure.into()),
            Ok((other, _)) => Err(self.astonished(&other)),
            // The order may have been carried out, in part, or never have been read: whoever has the machine knows.
            Err(Lost) => self.status(id).await.map_err(|error| match error {
                ProviderError::NotFound(id) => ProviderError::Unavailable(format!(
                    "the host agent went away while it made sandbox {id}, of which nothing is left"
                )),
                error => error,
            }),
        }
    }

    /// The connection that lives, or a new one.
    async fn connected(&self) -> Result<Arc<Connection>, ProviderError> {
        let mut kept = self.connection.lock().await;
        if let Some(connection) = kept.as_ref().filter(|connection| connection.lives()) {
            return Ok(Arc::clone(connection));
        }
        let connection = connection::dial(&self.socket, self.installation, self.absence, &self.tasks)
            .await
            .map_err(|error| ProviderError::Unavailable(error.to_string()))?;
        Ok(Arc::clone(kept.insert(Arc::new(connection))))
    }

    fn late(&self, patience: Duration) -> ProviderError {
        ProviderError::Unavailable(format!(
            "the host agent at {} did not answer within {patience:?}",
            self.socket.display()
        ))
    }

    fn astonished(&self, answer: &Answer) -> ProviderError {
        ProviderError::failed(
            format!("understand the host agent at {}", self.socket.display()),
            format!("it answered something else than it was asked: {answer:?}"),
        )
    }
}

#[async_trait]
impl SandboxProvider for HostClient {
    async fn create(&self, spec: &SandboxSpec) -> Result<SandboxStatus, ProviderError> {
        self.ask_for(spec.id, Order::Create(spec.clone())).await
    }

    async fn assign(&self, id: SandboxId, session: SessionId) -> Result<SandboxStatus, ProviderError> {
        match self.ask(Order::Assign { id, session }, SHORT).await? {
            (Answer::Status(status), _) => Ok(status),
            (other, _) => Err(self.astonished(&other)),
        }
    }

    async fn link(&self, id: SandboxId) -> Result<UnixListener, ProviderError> {
        match self.ask(Order::Link(id), SHORT).await? {
            (Answer::Link, Some(descriptor)) => {
                let listener = UnixListener::from(descriptor);
                let set = listener.set_nonblocking(true);
                set.map_err(|error| ProviderError::failed(format!("use the link of sandbox {id}"), error))?;
                Ok(listener)
            }
            (other, _) => Err(self.astonished(&other)),
        }
    }

    async fn freeze(&self, id: SandboxId) -> Result<(), ProviderError> {
        self.ask_done(Order::Freeze(id), SHORT).await
    }

    async fn thaw(&self, id: SandboxId) -> Result<(), ProviderError> {
        self.ask_done(Order::Thaw(id), SHORT).await
    }

    async fn destroy(&self, id: SandboxId) -> Result<(), ProviderError> {
        self.ask_done(Order::Destroy(id), LONG).await
    }

    async fn hibernate(&self, id: SandboxId) -> Result<Kept, ProviderError> {
        let order = Order::Hibernate(id);
        if !self.connected().await?.knows(&order) {
            // One of the release before keeps nothing.
            self.destroy(id).await?;
            return Ok(Kept::Nothing { reason: None });
        }
        match self.ask(order, KEEPING).await? {
            (Answer::Kept(kept), _) => Ok(kept),
            (other, _) => Err(self.astonished(&other)),
        }
    }

    async fn wake(&self, spec: &SandboxSpec) -> Result<SandboxStatus, ProviderError> {
        let order = Order::Wake(spec.clone());
        if !self.connected().await?.knows(&order) {
            return Err(ProviderError::NothingKept {
                session: spec.session,
                reason: "the host agent is of the release before, which keeps none".to_owned(),
            });
        }
        self.ask_for(spec.id, order).await
    }

    async fn forget(&self, session: SessionId) -> Result<(), ProviderError> {
        let order = Order::Forget(session);
        if !self.connected().await?.knows(&order) {
            return Ok(());
        }
        self.ask_done(order, SHORT).await
    }

    async fn status(&self, id: SandboxId) -> Result<SandboxStatus, ProviderError> {
        match self.ask(Order::Status(id), SHORT).await? {
            (Answer::Status(status), _) => Ok(status),
            (other, _) => Err(self.astonished(&other)),
        }
    }

    async fn usage(&self, id: SandboxId) -> Result<SandboxUsage, ProviderError> {
        match self.ask(Order::Usage(id), SHORT).await? {
            (Answer::Usage(usage), _) => Ok(usage),
            (other, _) => Err(self.astonished(&other)),
        }
    }

    async fn words(&self, id: SandboxId) -> Result<String, ProviderError> {
        match self.ask(Order::Words(id), SHORT).await? {
            (Answer::Words(words), _) => Ok(words),
            (other, _) => Err(self.astonished(&other)),
        }
    }

    async fn list(&self) -> Result<Vec<SandboxStatus>, ProviderError> {
        match self.ask(Order::List, SHORT).await? {
            (Answer::Statuses(statuses), _) => Ok(statuses),
            (other, _) => Err(self.astonished(&other)),
        }
    }

    async fn disks(&self) -> Result<Vec<SessionId>, ProviderError> {
        match self.ask(Order::Disks, SHORT).await? {
            (Answer::Sessions(sessions), _) => Ok(sessions),
            (other, _) => Err(self.astonished(&other)),
        }
    }

    async fn remove_disk(&self, session: SessionId) -> Result<(), ProviderError> {
        self.ask_done(Order::RemoveDisk(session), LONG).await
    }

    async fn snapshot(&self, session: SessionId, snapshot: SnapshotId) -> Result<SnapshotStatus, ProviderError> {
        let patience = self.patience.unwrap_or(COPYING);
        let connection = self.connected().await?;
        let answered = match timeout(patience, connection.ask(Order::Snapshot { session, snapshot })).await {
            Ok(answered) => answered,
            Err(_) => return Err(self.late(patience)),
        };
        match answered {
            Ok((Answer::Snapshot(status), _)) => Ok(status),
            Ok((Answer::Failed(failure), _)) => Err(failure.into()),
            Ok((other, _)) => Err(self.astonished(&other)),
            // It is whole or it is not there.
            Err(Lost) => {
                let mut kept = self.snapshots().await?.kept.into_iter();
                kept.find(|status| status.id == snapshot).ok_or_else(|| {
                    ProviderError::Unavailable(format!(
                        "the host agent went away while it made snapshot {snapshot}, of which nothing is left"
                    ))
                })
            }
        }
    }

    async fn restore(&self, snapshot: SnapshotId, session: SessionId) -> Result<(), ProviderError> {
        self.ask_done(Order::Restore { snapshot, session }, COPYING).await
    }

    async fn remove_snapshot(&self, snapshot: SnapshotId) -> Result<(), ProviderError> {
        self.ask_done(Order::RemoveSnapshot(snapshot), LONG).await
    }

    async fn snapshots(&self) -> Result<Snapshots, ProviderError> {
        match self.ask(Order::Snapshots, SHORT).await? {
            (Answer::Snapshots(snapshots), _) => Ok(snapshots),
            (other, _) => Err(self.astonished(&other)),
        }
    }

    async fn commit(&self, id: SandboxId) -> Result<ImageDigest, ProviderError> {
        match self.ask(Order::Commit(id), COPYING).await? {
            (Answer::Image(image), _) => Ok(image),
            (other, _) => Err(self.astonished(&other)),
        }
    }

    async fn images(&self) -> Result<Vec<ImageStatus>, ProviderError> {
        match self.ask(Order::Images, SHORT).await? {
            (Answer::Images(images), _) => Ok(images),
            (other, _) => Err(self.astonished(&other)),
        }
    }

    async fn remove_image(&self, image: &ImageDigest) -> Result<(), ProviderError> {
        self.ask_done(Order::RemoveImage(image.clone()), COPYING).await
    }
}

#[cfg(test)]
mod tests;
