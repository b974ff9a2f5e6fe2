//! What PID 1 offers to the user's processes: a socket with a closed list of routes, while a run is on that may use them.
//!
//! | request | body | answer |
//! |---|---|---|
//! | `POST /v1/services` | `ServiceRequest` | the bytes of the result, or a `ServiceError` |
//! | `GET /v1/services` | | a line for each service |
//! | `GET /v1/services/NAME` | | TypeScript declarations of that service |
//!
//! It is a socket in the file system and no port of 127.0.0.1, because a page in a browser inside reaches every port there is.
//! Every process inside may call it, and shows nothing: the token is added here, on the other side of the wall. So there is
//! nothing to steal, and whatever one process may do here, all may. What is asked is not judged here either: the control
//! plane decides on each call, and keeps the books. Here are the caps alone.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lifecycle::{Stop, Tasks};
use link::client::Client;
use protocol::ServiceGrant;
use sandbox::inside::SERVICES_SOCKET;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tracing::{debug, warn};

use crate::hands::Hands;
use crate::outbox::Outbox;
use pace::Pace;

mod pace;
mod routes;
mod span;

/// Connections at once; further ones wait in the socket's own queue.
const CONNECTIONS: usize = 64;

/// Calls under way at once; further ones wait.
const CALLS: usize = 16;

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
    calls: Arc<Semaphore>,
    pace: Pace,
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

    /// Offers these services from now on and no others; without any there is no socket. What is under way on the offer
    /// before is cut.
    pub(crate) fn set(&self, services: Vec<ServiceGrant>) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = open.take() {
            before.cancel();
            // It is bound anew below, or gone.
            let _ = std::fs::remove_file(SERVICES_SOCKET);
        }
        if services.is_empty() {
            return;
        }
        let offered = Arc::new(Offered {
            client: self.client.clone(),
            hands: Arc::clone(&self.hands),
            outbox: self.outbox.clone(),
            services,
            calls: Arc::new(Semaphore::new(CALLS)),
            pace: Pace::default(),
        });
        match bind(Path::new(SERVICES_SOCKET)) {
            Ok(listener) => {
                let tasks = self.tasks.child();
                *open = Some(tasks.stop());
                tasks.spawn_until_stopped(accept(listener, offered, tasks.clone()));
            }
            Err(error) => warn!(%error, "cannot listen at {SERVICES_SOCKET}: no service can be called"),
        }
    }
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o666))?;
    Ok(listener)
}

async fn accept(listener: UnixListener, offered: Arc<Offered>, tasks: Tasks) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                debug!(%error, "a connection was gone before it was accepted");
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        tasks.spawn_until_stopped(serve(stream, Arc::clone(&offered), place));
    }
}

async fn serve(stream: UnixStream, offered: Arc<Offered>, place: tokio::sync::OwnedSemaphorePermit) {
    let _place = place;
    if let Err(error) = routes::serve(stream, offered).await {
        debug!(%error, "a connection of a user's process ended badly");
    }
}
