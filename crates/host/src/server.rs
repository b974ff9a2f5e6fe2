//! The end that has the machine.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use channel::{Descriptors, Lines};
use lifecycle::Tasks;
use sandbox::{ProviderError, SandboxProvider};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

use crate::wire::{Answer, Hello, LONGEST_REQUEST, Order, Request, Saying};

/// Orders under way, of all connections together. Who gives more is read no further until one is done.
const MOST_ORDERS: usize = 64;
/// Connections at a time; there is one client, which uses one.
const MOST_CONNECTIONS: usize = 32;
/// Replies of one connection that wait to be written.
const MOST_REPLIES: usize = 64;
/// How long a client may take to say hello, or to read what it asked for.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long to rest when the process has no descriptor left for a connection.
const REST: Duration = Duration::from_millis(100);

/// Carries out orders that come in on a listening socket, until `tasks` are told to stop. Admits processes of `client_uid`
/// and root; everybody else is told so and goes.
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
    tasks: Tasks,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::UnixListener::from_std(listener)?;
    let server = Server {
        provider,
        client_uid,
        tasks: tasks.clone(),
        orders: Arc::new(Semaphore::new(MOST_ORDERS)),
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
    tasks: Tasks,
    orders: Arc<Semaphore>,
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

        let (replies, outgoing) = mpsc::channel(MOST_REPLIES);
        self.tasks.spawn(write_replies(Arc::clone(stream), outgoing));
        let stop = self.tasks.stop();
        while let Some(line) = stop.run_until_cancelled(lines.next()).await {
            let Some(line) = line.map_err(|error| error.to_string())? else {
                break;
            };
            let request = serde_json::from_slice(&line).map_err(|error| format!("a line is no order: {error}"))?;
            self.begin(request, replies.clone()).await;
        }
        Ok(())
    }

    async fn begin(&self, request: Request, replies: mpsc::Sender<Outgoing>) {
        let Ok(permit) = Arc::clone(&self.orders).acquire_owned().await else {
            return;
        };
        let provider = Arc::clone(&self.provider);
        self.tasks.spawn(async move {
            let number = request.number;
            let (answer, descriptor) = match carry_out(&*provider, request.order).await {
                Ok(done) => done,
                Err(error) => (Answer::Failed(error.into()), None),
            };
            drop(permit);
            // Whoever asked may be gone; what was asked is done all the same.
            let _ = replies.send((Saying::Reply { number, answer }, descriptor)).await;
        });
    }
}

async fn carry_out(provider: &dyn SandboxProvider, order: Order) -> Result<(Answer, Option<OwnedFd>), ProviderError> {
    let answer = match order {
        Order::Create(spec) => Answer::Status(provider.create(&spec).await?),
        Order::Link(id) => return Ok((Answer::Link, Some(provider.link(id).await?.into()))),
        Order::Freeze(id) => provider.freeze(id).await.map(|()| Answer::Done)?,
        Order::Thaw(id) => provider.thaw(id).await.map(|()| Answer::Done)?,
        Order::Destroy(id) => provider.destroy(id).await.map(|()| Answer::Done)?,
        Order::Status(id) => Answer::Status(provider.status(id).await?),
        Order::Usage(id) => Answer::Usage(provider.usage(id).await?),
        Order::List => Answer::Statuses(provider.list().await?),
        Order::RemoveDisk(session) => provider.remove_disk(session).await.map(|()| Answer::Done)?,
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
