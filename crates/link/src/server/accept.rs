//! Who may connect, and how many.

use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::SandboxId;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use lifecycle::{Stop, Tasks};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tracing::{debug, warn};

use super::control::Pace;
use super::linked::{LinkError, Linked};
use super::orders::Orders;
use super::{LinkHandler, routes};

/// Connections that one sandbox may have at once; further ones wait in the socket's own queue. More than a runtime ever needs:
/// it carries fewer connections of its users.
const CONNECTIONS: usize = 384;

/// How long the head of a request may take, and how long it may be.
const HEAD_TIME: Duration = Duration::from_secs(10);
const HEAD_BYTES: usize = 16 << 10;

/// Turns, with their large bodies, that one sandbox may have at once: one, and its repeat.
const TURNS: usize = 2;

/// Requests with results, as large as turns, that one sandbox may have at once; further ones wait. A loop has one.
const RESULTS: usize = 2;

/// Calls of services that one sandbox may have under way at once; further ones wait.
const SERVICES: usize = 32;

/// Questions of one sandbox about its files at once; further ones wait.
const SYNCS: usize = 2;

/// Contents of files that one sandbox may have on their way; further ones wait.
const OBJECTS: usize = 16;

/// Calls of models that programs of one sandbox may have under way at once; further ones wait.
const MODELS: usize = 16;

/// What the tasks of one link share.
pub(super) struct Link {
    pub(super) sandbox: SandboxId,
    pub(super) handler: Arc<dyn LinkHandler>,
    pub(super) orders: Arc<Orders>,
    pub(super) tasks: Tasks,
    pub(super) turns: Semaphore,
    pub(super) results: Semaphore,
    pub(super) services: Arc<Semaphore>,
    pub(super) models: Arc<Semaphore>,
    pub(super) objects: Arc<Semaphore>,
    pub(super) syncs: Semaphore,
    pub(super) pace: Pace,
}

pub(super) fn serve(
    listener: UnixListener,
    sandbox: SandboxId,
    peer_uid: u32,
    handler: Arc<dyn LinkHandler>,
    tasks: &Tasks,
) -> Result<Linked, LinkError> {
    let (orders, connected) = Orders::new();
    let tasks = tasks.child();
    let link = Arc::new(Link {
        sandbox,
        handler,
        orders: Arc::new(orders),
        tasks: tasks.clone(),
        turns: Semaphore::new(TURNS),
        results: Semaphore::new(RESULTS),
        services: Arc::new(Semaphore::new(SERVICES)),
        models: Arc::new(Semaphore::new(MODELS)),
        objects: Arc::new(Semaphore::new(OBJECTS)),
        syncs: Semaphore::new(SYNCS),
        pace: Pace::default(),
    });
    Ok(Linked {
        sandbox,
        peer_uid,
        orders: Arc::clone(&link.orders),
        connected,
        stop: tasks.stop(),
        link: Arc::downgrade(&link),
        accepting: Arc::new(Mutex::new(listen(listener, peer_uid, link)?)),
    })
}

/// Accepts from this listener until the group of tasks is told to stop, or what is returned is cancelled.
pub(super) fn listen(listener: UnixListener, peer_uid: u32, link: Arc<Link>) -> Result<Stop, LinkError> {
    let sandbox = link.sandbox;
    let listener = listener
        .set_nonblocking(true)
        .and_then(|()| tokio::net::UnixListener::from_std(listener))
        .map_err(|source| LinkError::Listen { sandbox, source })?;
    let accepting = link.tasks.child();
    let stop = accepting.stop();
    accepting.spawn_until_stopped(accept(listener, peer_uid, link));
    Ok(stop)
}

async fn accept(listener: tokio::net::UnixListener, peer_uid: u32, link: Arc<Link>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, most likely: others must close some first.
                warn!(sandbox = %link.sandbox, %error, "cannot accept a connection on the link");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        match stream.peer_cred() {
            Ok(peer) if peer.uid() == peer_uid => {}
            Ok(peer) => {
                warn!(sandbox = %link.sandbox, uid = peer.uid(), expected = peer_uid, "refused a stranger on the link");
                continue;
            }
            Err(error) => {
                warn!(sandbox = %link.sandbox, %error, "refused a connection of nobody on the link");
                continue;
            }
        }
        let link_of_connection = Arc::clone(&link);
        link.tasks.spawn_until_stopped(async move {
            let _place = place;
            connection(stream, link_of_connection).await;
        });
    }
}

async fn connection(stream: UnixStream, link: Arc<Link>) {
    // What a request turns into (a tunnel, the control stream) is run here, in the connection's own place and task.
    let (becomes, mut became) = tokio::sync::mpsc::channel(1);
    let service = service_fn(|request| routes::answer(request, Arc::clone(&link), becomes.clone()));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
    if let Err(error) = served {
        debug!(sandbox = %link.sandbox, %error, "a connection on the link ended badly");
        return;
    }
    if let Ok(next) = became.try_recv() {
        routes::go_on(next, &link).await;
    }
}
