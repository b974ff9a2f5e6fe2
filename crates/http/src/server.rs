//! Connections: how many, how long, and how they end.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use lifecycle::Tasks;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// How long the other side may take to acknowledge what it was sent, in milliseconds.
const ACKNOWLEDGES: u32 = 60_000;

/// What the server accepts.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Connections at the same time; further ones wait to be accepted.
    pub connections: usize,
    /// How long a request's head may take, and how long a connection may lie idle.
    pub head: Duration,
    /// The largest head of a request, in bytes.
    pub head_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            connections: 4_096,
            head: Duration::from_secs(30),
            head_bytes: 32 << 10,
        }
    }
}

/// Answers on `listener` until `tasks` are told to stop; then no connection is accepted any more, and each ends with the request
/// that it is at. Event streams are told to end at once. Returns when the listener is closed; the connections belong to `tasks`.
pub async fn serve(listener: TcpListener, router: Router, config: Config, tasks: Tasks) {
    let stop = tasks.stop();
    let places = Arc::new(Semaphore::new(config.connections));
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = accept(&listener, &places) => accepted,
        };
        match accepted {
            Ok((stream, place)) => {
                let connection = connection(stream, router.clone(), config, tasks.stop());
                tasks.spawn(async move {
                    connection.await;
                    drop(place);
                });
            }
            Err(error) => {
                // Out of descriptors, most likely: it passes when connections end, and trying at once would only burn time.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> io::Result<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    // Only speed is lost where this fails.
    let _ = stream.set_nodelay(true);
    // Whoever is gone without a word is noticed when a keep-alive is not acknowledged, and frees their place.
    let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, ACKNOWLEDGES);
    Ok((stream, place))
}

async fn connection(stream: TcpStream, router: Router, config: Config, stop: lifecycle::Stop) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(config.head)
        .max_buf_size(config.head_bytes.max(8 << 10))
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        // The other side's doing: it went away, was too slow, or does not speak HTTP.
        tracing::debug!(%error, "a connection broke");
    }
}
