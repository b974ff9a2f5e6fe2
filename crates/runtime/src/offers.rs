//! What PID 1 offers to the user's processes: a socket with a closed list of routes, while a run is on that may use them, and a
//! port (`door`) for programs that know nothing of the socket: other harnesses, clients of the Model Context Protocol.
//!
//! | request | body | answer |
//! |---|---|---|
//! | `POST /v1/services` | `ServiceRequest` | the bytes of the result, or a `ServiceError` |
//! | `GET /v1/services` | | a line for each service |
//! | `GET /v1/services/NAME` | | TypeScript declarations of that service |
//! | `POST /v1/background` | `{"command", "seconds"}` | `{"seconds"}`: a command of the shell goes on for so long |
//!
//! It is a socket in the file system and no port of 127.0.0.1, because a page in a browser inside reaches every port there is;
//! the port refuses what comes from pages.
//! Every process inside may call it, and shows nothing: the token is added here, on the other side of the wall. So there is
//! nothing to steal, and whatever one process may do here, all may. What is asked is not judged here either: the control
//! plane decides on each call, and keeps the books. Here are the caps alone.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lifecycle::{Stop, Tasks};
use link::client::Client;
use protocol::{Grants, ServiceFailure, ServiceGrant};
use sandbox::inside::{HARNESS_PORT, SERVICES_SOCKET};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tracing::{debug, warn};

use crate::hands::Hands;
use crate::outbox::Outbox;
use pace::Pace;

mod body;
mod door;
mod mcp;
mod pace;
mod routes;
mod span;

/// Connections at once; further ones wait in the socket's own queue.
const CONNECTIONS: usize = 64;

/// Calls under way at once; further ones wait, but not for ever.
const CALLS: usize = 16;
const PLACE_TIME: Duration = Duration::from_secs(60);
/// Attempts to listen where the offer before still does, and how far apart they are.
const LISTEN_ATTEMPTS: u32 = 500;
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(10);

/// What is offered, if anything is.
pub(crate) struct Offers {
    client: Client,
    hands: Arc<Hands>,
    outbox: Outbox,
    tasks: Tasks,
    open: Mutex<Option<Stop>>,
}

/// An offer, as those who serve it see it.
struct Offered {
    client: Client,
    hands: Arc<Hands>,
    outbox: Outbox,
    services: Vec<ServiceGrant>,
    /// The models that programs may ask.
    models: Vec<String>,
    /// How long programs in the background may go on.
    background: Duration,
    calls: Arc<Semaphore>,
    pace: Pace,
}

impl Offered {
    /// One of the places for calls. It is taken before a call's body is read, so that no more of them are in memory at once.
    async fn place(&self) -> Result<OwnedSemaphorePermit, ServiceFailure> {
        let place = timeout(PLACE_TIME, Arc::clone(&self.calls).acquire_owned()).await;
        place.ok().and_then(Result::ok).ok_or_else(|| {
            let words = "too many calls are under way in this sandbox; try again when one is done";
            ServiceFailure::new(429, "rate_limit_error", words)
        })
    }
}

impl Offers {
    pub(crate) fn new(client: &Client, hands: &Arc<Hands>, outbox: &Outbox, tasks: &Tasks) -> Self {
        Self {
            client: client.clone(),
            hands: Arc::clone(hands),
            outbox: outbox.clone(),
            tasks: tasks.clone(),
            open: Mutex::default(),
        }
    }

    /// Offers these services and models from now on and no others; without any there is neither socket nor port. What is under
    /// way on the offer before is cut.
    pub(crate) fn set(&self, grants: &Grants) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = open.take() {
            before.cancel();
            // It is bound anew below, or gone.
            let _ = std::fs::remove_file(SERVICES_SOCKET);
        }
        let background = Duration::from_secs(grants.background_seconds);
        let has_socket = !grants.services.is_empty() || !background.is_zero();
        if !has_socket && grants.models.is_empty() {
            return;
        }
        let offered = Arc::new(Offered {
            client: self.client.clone(),
            hands: Arc::clone(&self.hands),
            outbox: self.outbox.clone(),
            services: grants.services.clone(),
            models: grants.models.clone(),
            background,
            calls: Arc::new(Semaphore::new(CALLS)),
            pace: Pace::default(),
        });
        let tasks = self.tasks.child();
        *open = Some(tasks.stop());
        if has_socket {
            match bind(Path::new(SERVICES_SOCKET)) {
                Ok(listener) => {
                    tasks.spawn_until_stopped(accept(listener, Arc::clone(&offered), tasks.clone()));
                }
                Err(error) => warn!(%error, "cannot listen at {SERVICES_SOCKET}: no service can be called"),
            }
        }
        if offered.services.is_empty() && offered.models.is_empty() {
            return;
        }
        let first = listen();
        let accepting = tasks.clone();
        tasks.spawn_until_stopped(async move {
            match until_free(first).await {
                Ok(listener) => accept(listener, offered, accepting).await,
                Err(error) => warn!(%error, "cannot listen at port {HARNESS_PORT}: programs can ask no model"),
            }
        });
    }
}

/// What came of listening, tried again for a moment while the offer before still has the port.
async fn until_free(mut listener: io::Result<TcpListener>) -> io::Result<TcpListener> {
    for _ in 0..LISTEN_ATTEMPTS {
        match &listener {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                tokio::time::sleep(BETWEEN_ATTEMPTS).await;
                listener = listen();
            }
            _ => break,
        }
    }
    listener
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o666))?;
    Ok(listener)
}

/// Not asynchronous, so that it is there when this returns.
fn listen() -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    // Connections of the run before may still be closing.
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, HARNESS_PORT)))?;
    socket.listen(64)
}

/// Where connections come from.
trait Accepts: Send + 'static {
    type Stream: Send + 'static;

    fn next(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    fn serve(stream: Self::Stream, offered: Arc<Offered>) -> impl Future<Output = hyper::Result<()>> + Send;
}

impl Accepts for UnixListener {
    type Stream = UnixStream;

    async fn next(&self) -> io::Result<UnixStream> {
        Ok(self.accept().await?.0)
    }

    fn serve(stream: UnixStream, offered: Arc<Offered>) -> impl Future<Output = hyper::Result<()>> + Send {
        routes::serve(stream, offered)
    }
}

impl Accepts for TcpListener {
    type Stream = TcpStream;

    async fn next(&self) -> io::Result<TcpStream> {
        let (stream, _) = self.accept().await?;
        // Words come in small pieces, and each is waited for.
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn serve(stream: TcpStream, offered: Arc<Offered>) -> impl Future<Output = hyper::Result<()>> + Send {
        door::serve(stream, offered)
    }
}

async fn accept<L: Accepts>(listener: L, offered: Arc<Offered>, tasks: Tasks) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let stream = match listener.next().await {
            Ok(stream) => stream,
            Err(error) => {
                debug!(%error, "a connection was gone before it was accepted");
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        tasks.spawn_until_stopped(serve::<L>(stream, Arc::clone(&offered), place));
    }
}

async fn serve<L: Accepts>(stream: L::Stream, offered: Arc<Offered>, place: OwnedSemaphorePermit) {
    let _place = place;
    if let Err(error) = L::serve(stream, offered).await {
        debug!(%error, "a connection of a user's process ended badly");
    }
}
