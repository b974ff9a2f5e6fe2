//! Connections: how many, how long, and how they end.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use lifecycle::{Stop, Tasks};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// How long the other side may take to acknowledge what it was sent, in milliseconds.
const ACKNOWLEDGES: u32 = 60_000;

/// How long a connection that was accepted before the end may take to its first request, which is answered.
const FIRST_REQUEST: Duration = Duration::from_secs(1);

/// What the server accepts.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Connections at the same time; further ones wait to be accepted.
    pub connections: usize,
    /// Connections from one address of another machine (IPv6: from one network of 64 bits); further ones are closed at once.
    pub of_one_address: usize,
    /// How long a request's head may take, and how long a connection may lie idle.
    pub head: Duration,
    /// The largest head of a request, in bytes.
    pub head_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            connections: 4_096,
            of_one_address: 1_024,
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
    let peers = Peers::new(config.of_one_address);
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = accept(&listener, &places, &peers) => accepted,
        };
        match accepted {
            Ok(None) => {}
            Ok(Some((stream, place))) => {
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

/// The next connection; none where its address has enough of them.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
    peers: &Peers,
) -> io::Result<Option<(TcpStream, (OwnedSemaphorePermit, Peer))>> {
    let place = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, address) = listener.accept().await?;
    let Some(peer) = peers.enter(address.ip()) else {
        return Ok(None);
    };
    // Only speed is lost where this fails.
    let _ = stream.set_nodelay(true);
    // Whoever is gone without a word is noticed when a keep-alive is not acknowledged, and frees their place.
    let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, ACKNOWLEDGES);
    Ok(Some((stream, (place, peer))))
}

/// How many connections each address of another machine has, so that none has them all.
#[derive(Clone, Debug)]
struct Peers {
    most: usize,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// One connection of a peer, while it lasts.
#[derive(Debug)]
struct Peer {
    network: IpAddr,
    peers: Peers,
}

impl Peers {
    fn new(most: usize) -> Self {
        Self {
            most,
            open: Arc::default(),
        }
    }

    fn enter(&self, address: IpAddr) -> Option<Peer> {
        let network = network(address);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(network).or_default();
        // A proxy on this machine speaks for everybody.
        if *count >= self.most && !network.is_loopback() {
            return None;
        }
        *count += 1;
        Some(Peer {
            network,
            peers: self.clone(),
        })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let mut open = self.peers.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.network) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.network);
            }
        }
    }
}

/// What one party can be taken to have for itself: an IPv4 address, or 64 bits of IPv6.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            let bits = address.to_bits() >> 64 << 64;
            IpAddr::V6(bits.into())
        }
        address => address,
    }
}

async fn connection(stream: TcpStream, router: Router, config: Config, stop: Stop) {
    let (router, asked) = (TowerToHyperService::new(router), Stop::new());
    let first = asked.clone();
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(config.head)
        .max_buf_size(config.head_bytes.max(8 << 10))
        .serve_connection(
            TokioIo::new(stream),
            service_fn(move |request| {
                first.cancel();
                router.call(request)
            }),
        );
    tokio::pin!(connection);
    let told_to_end = async {
        stop.cancelled().await;
        // One that brought nothing yet is closed without an answer from then on, though its request may be on its way.
        let _none_came = timeout(FIRST_REQUEST, asked.cancelled()).await;
    };
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = told_to_end => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        // The other side's doing: it went away, was too slow, or does not speak HTTP.
        tracing::debug!(%error, "a connection broke");
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn who_was_accepted_before_the_end_is_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let stop = Stop::new();
        stop.cancel();
        let router = Router::new().route("/", axum::routing::get(|| async { "here" }));
        let serving = connection(stream, router, Config::default(), stop);
        let asking = async {
            client
                .write_all(b"GET / HTTP/1.1\r\nhost: belljar\r\n\r\n")
                .await
                .unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            answer
        };
        // It is told to end before anything comes.
        let ((), answer) = tokio::join!(serving, asking);
        assert!(
            answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("here"),
            "{answer:?}"
        );
    }

    #[test]
    fn no_address_has_all_the_places() {
        let peers = Peers::new(2);
        let at = |text: &str| text.parse().unwrap();
        let held = [peers.enter(at("192.0.2.1")), peers.enter(at("::ffff:192.0.2.1"))];
        assert!(held.iter().all(Option::is_some) && peers.enter(at("192.0.2.1")).is_none());
        assert!(peers.enter(at("192.0.2.2")).is_some());
        drop(held);
        assert!(peers.open.lock().unwrap().is_empty());

        let held = [peers.enter(at("2001:db8::1")), peers.enter(at("2001:db8::2"))];
        assert!(held.iter().all(Option::is_some) && peers.enter(at("2001:db8::3")).is_none());
        assert!(peers.enter(at("2001:db8:0:1::1")).is_some());

        let here: Vec<_> = (0..5).map(|_| peers.enter(at("::1"))).collect();
        assert!(here.iter().all(Option::is_some));
    }
}
