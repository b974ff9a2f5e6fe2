//! The end that has the machine.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use channel::{Descriptors, Lines};
use lifecycle::Tasks;
use sandbox::{ProviderError, SandboxProvider};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

use crate::claim::Claim;
use crate::wire::{Answer, Failure, Hello, LONGEST_REQUEST, NAMES_INSTALLATION, Order, Request, Saying};

/// Orders under way, of all connections together. Who gives more is read no further until one is done.
const MOST_ORDERS: usize = 64;
/// Orders that copy or remove whole disks, of those that are carried out at a time. They take long: others never wait for them.
const MOST_COPIES: usize = 4;
/// Orders of that kind that wait for their turn or are carried out. More are refused.
const MOST_COPIES_TAKEN: usize = 256;
/// Connections at a time; there is one client, which uses one.
const MOST_CONNECTIONS: usize = 32;
/// Replies of one connection that wait to be written.
const MOST_REPLIES: usize = 64;
/// How long a client may take to say hello, or to read what it asked for.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long to rest when the process has no descriptor left for a connection.
const REST: Duration = Duration::from_millis(100);

/// Carries out orders that come in on a listening socket, until `tasks` are told to stop. Admits processes of `client_uid`
/// and root, of the one installation that the file `claim` names; everybody else is told so and goes. The first that comes
/// is written into it.
///
/// Every order is a task of `tasks`: one that was begun is carried out, whatever becomes of the connection it came by, and
/// shutting the tasks down waits for it.
///
/// # Errors
/// When the socket cannot be used at all.
pub async fn serve(
    listener: UnixListener,
    provider: Arc<dyn SandboxProvider>,
    client_uid: u32,
    claim: PathBuf,
    tasks: Tasks,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::UnixListener::from_std(listener)?;
    let server = Server {
        provider,
        client_uid,
        claim: Claim::new(claim),
        tasks: tasks.clone(),
        orders: Arc::new(Semaphore::new(MOST_ORDERS)),
        copies: Arc::new(Semaphore::new(MOST_COPIES)),
        copies_taken: Arc::new(Semaphore::new(MOST_COPIES_TAKEN)),
    };
    let connections = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let stop = tasks.stop();
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection to the host agent could not be accepted");
                tokio::time::sleep(REST).await;
                continue;
            }
        };
        let (server, place) = (server.clone(), Arc::clone(&connections).try_acquire_owned());
        tasks.spawn(async move {
            let stream = Arc::new(stream);
            if let Err(reason) = server.attend(&stream, place.is_ok()).await {
                tracing::warn!(reason, "a connection to the host agent was refused");
                let _ = timeout(PATIENCE, channel::write(&stream, &Saying::Refused(reason), None)).await;
            }
        });
    }
    Ok(())
}

#[derive(Clone)]
struct Server {
    provider: Arc<dyn SandboxProvider>,
    client_uid: u32,
    claim: Claim,
    tasks: Tasks,
    orders: Arc<Semaphore>,
    copies: Arc<Semaphore>,
    copies_taken: Arc<Semaphore>,
}

/// A reply on its way, with the descriptor that goes with it.
type Outgoing = (Saying, Option<OwnedFd>);

impl Server {
    /// Serves one connection to its end. An error is why it is ended from here, in words for the other side.
    async fn attend(&self, stream: &Arc<UnixStream>, has_place: bool) -> Result<(), String> {
        let peer = stream
            .peer_cred()
            .map_err(|error| format!("the kernel does not say who you are: {error}"))?;
        if peer.uid() != self.client_uid && peer.uid() != 0 {
            return Err(format!(
                "the host agent serves the user with id {} and root, and you are {}: run `belljar serve` as that user",
                self.client_uid,
                peer.uid()
            ));
        }
        if !has_place {
            return Err(format!(
                "there are {MOST_CONNECTIONS} connections to the host agent already"
            ));
        }
        let mut lines = Lines::new(Arc::clone(stream), LONGEST_REQUEST, Descriptors::Refused);
        let hello = Saying::Hello(Hello::ours());
        timeout(PATIENCE, channel::write(stream, &hello, None))
            .await
            .ok()
            .and_then(Result::ok)
            .ok_or("you do not read")?;
        let line = timeout(PATIENCE, lines.next())
            .await
            .map_err(|_| "you said no hello in time")?;
        let Some(line) = line.map_err(|error| error.to_string())? else {
            return Ok(());
        };
        let hello: Hello =
            serde_json::from_slice(&line).map_err(|error| format!("the first line is no hello: {error}"))?;
        hello.check()?;
        self.admit(&hello).await?;

        let (replies, outgoing) = mpsc::channel(MOST_REPLIES);
        self.tasks.spawn(write_replies(Arc::clone(stream), outgoing));
        let stop = self.tasks.stop();
        while let Some(line) = stop.run_until_cancelled(lines.next()).await {
            let Some(line) = line.map_err(|error| error.to_string())? else {
                break;
            };
            let request = serde_json::from_slice(&line).map_err(|error| format!("a line is no order: {error}"))?;
            self.begin(request, hello.protocol, replies.clone()).await;
        }
        Ok(())
    }

    /// Whether the one that said this is of the installation whose sandboxes these are.
    async fn admit(&self, hello: &Hello) -> Result<(), String> {
        let (claim, installation) = (self.claim.clone(), hello.installation);
        if installation.is_none() && hello.protocol >= NAMES_INSTALLATION {
            return Err("you do not say of which installation you are".to_owned());
        }
        let admitted = tokio::task::spawn_blocking(move || match installation {
            Some(installation) => claim.admit(installation),
            None => claim.admit_nameless(),
        })
        .await;
        admitted.map_err(|_| "the host agent is ending".to_owned())?
    }

    async fn begin(&self, request: Request, protocol: u32, replies: mpsc::Sender<Outgoing>) {
        let Request { number, order } = request;
        let copies = order.copies();
        // Whoever copies waits for its turn in its own task: nobody's other orders stay unread.
        let taken = if copies {
            Arc::clone(&self.copies_taken).try_acquire_owned().ok()
        } else {
            Arc::clone(&self.orders).acquire_owned().await.ok()
        };
        let (provider, turns) = (Arc::clone(&self.provider), Arc::clone(&self.copies));
        self.tasks.spawn(async move {
            let carried_out = async {
                let _taken = taken.ok_or_else(too_many_copies)?;
                let _turn = if copies {
                    Some(turns.acquire().await.map_err(|_| too_many_copies())?)
                } else {
                    None
                };
                carry_out(&*provider, order).await
            };
            let (answer, descriptor) = match carried_out.await {
                Ok(done) => done,
                Err(error) => (Answer::Failed(Failure::from(error).in_protocol(protocol)), None),
            };
            // Whoever asked may be gone; what was asked is done all the same.
            let _ = replies.send((Saying::Reply { number, answer }, descriptor)).await;
        });
    }
}

fn too_many_copies() -> ProviderError {
    ProviderError::Unavailable(format!(
        "{MOST_COPIES_TAKEN} disks, snapshots and images wait to be copied or removed already: try again in a while"
    ))
}

async fn carry_out(provider: &dyn SandboxProvider, order: Order) -> Result<(Answer, Option<OwnedFd>), ProviderError> {
    let answer = match order {
        Order::Create(spec) => Answer::Status(provider.create(&spec).await?),
        Order::Assign { id, session } => Answer::Status(provider.assign(id, session).await?),
        Order::Link(id) => return Ok((Answer::Link, Some(provider.link(id).await?.into()))),
        Order::Freeze(id) => provider.freeze(id).await.map(|()| Answer::Done)?,
        Order::Thaw(id) => provider.thaw(id).await.map(|()| Answer::Done)?,
        Order::Destroy(id) => provider.destroy(id).await.map(|()| Answer::Done)?,
        Order::Hibernate(id) => Answer::Kept(provider.hibernate(id).await?),
        Order::Wake(spec) => Answer::Status(provider.wake(&spec).await?),
        Order::Forget(session) => provider.forget(session).await.map(|()| Answer::Done)?,
        Order::Status(id) => Answer::Status(provider.status(id).await?),
        Order::Usage(id) => Answer::Usage(provider.usage(id).await?),
        Order::Words(id) => Answer::Words(provider.words(id).await?),
        Order::List => Answer::Statuses(provider.list().await?),
        Order::Disks => Answer::Sessions(provider.disks().await?),
        Order::RemoveDisk(session) => provider.remove_disk(session).await.map(|()| Answer::Done)?,
        Order::Snapshot { session, snapshot } => Answer::Snapshot(provider.snapshot(session, snapshot).await?),
        Order::Restore { snapshot, session } => provider.restore(snapshot, session).await.map(|()| Answer::Done)?,
        Order::RemoveSnapshot(snapshot) => provider.remove_snapshot(snapshot).await.map(|()| Answer::Done)?,
        Order::Snapshots => Answer::Snapshots(provider.snapshots().await?),
        Order::Commit(id) => Answer::Image(provider.commit(id).await?),
        Order::Images => Answer::Images(provider.images().await?),
        Order::RemoveImage(image) => provider.remove_image(&image).await.map(|()| Answer::Done)?,
    };
    Ok((answer, None))
}

/// Writes replies until nobody can have any more, or the client does not read them.
async fn write_replies(stream: Arc<UnixStream>, mut outgoing: mpsc::Receiver<Outgoing>) {
    while let Some((saying, descriptor)) = outgoing.recv().await {
        let written = timeout(
            PATIENCE,
            channel::write(&stream, &saying, descriptor.as_ref().map(AsFd::as_fd)),
        )
        .await;
        if !matches!(written, Ok(Ok(()))) {
            // Half a line may stand there: nothing after it could be understood.
            let _ = rustix::net::shutdown(&stream, rustix::net::Shutdown::Both);
            return;
        }
    }
}
