//! A proxy of HTTP and SOCKS5 for programs that insist on one. What they ask for goes the way that everything goes.
//!
//! Nothing needs it: connections are captured whatever a program believes. It is no way past anything either. What it
//! adds is words: where a captured connection can only be reset, here a denial says its reason.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use lifecycle::Tasks;
use link::client::{Client, ClientError, Tunnel};
use sandbox::capture::PROXY_PORT;
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tracing::{debug, warn};

use super::UNDER_WAY;
use super::names::Names;

mod forward;
mod http;
mod socks;

/// Connections at once; further ones wait.
const CONNECTIONS: usize = 128;

/// How long a connection may take to say what it wants.
const OPENING: Duration = Duration::from_secs(10);

struct Proxy {
    client: Client,
    names: Arc<Names>,
}

/// Why a connection cannot be had.
#[derive(Debug, thiserror::Error)]
enum RefusedError {
    #[error("{0:?} is neither a host name nor an address")]
    NoHost(String),
    #[error(transparent)]
    Link(#[from] ClientError),
}

/// Serves as a proxy from now on.
pub(super) fn listen(client: &Client, names: &Arc<Names>, tasks: &Tasks) {
    let proxy = Arc::new(Proxy {
        client: client.clone(),
        names: Arc::clone(names),
    });
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    for address in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
        let (proxy, places, serving) = (Arc::clone(&proxy), Arc::clone(&places), tasks.clone());
        tasks.spawn_until_stopped(async move {
            match TcpListener::bind(SocketAddr::new(address, PROXY_PORT)).await {
                Ok(listener) => accept(listener, proxy, places, serving).await,
                Err(error) => warn!(%address, %error, "cannot listen as a proxy"),
            }
        });
    }
}

async fn accept(listener: TcpListener, proxy: Arc<Proxy>, places: Arc<Semaphore>, tasks: Tasks) {
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                tasks.spawn_until_stopped(serve(stream, Arc::clone(&proxy), place, tasks.clone()));
            }
            Err(error) => {
                debug!(%error, "a connection to the proxy was gone before it was accepted");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, proxy: Arc<Proxy>, place: OwnedSemaphorePermit, tasks: Tasks) {
    let _place = place;
    let mut first = [0];
    let Ok(Ok(1)) = timeout(OPENING, stream.peek(&mut first)).await else {
        return;
    };
    if first[0] == socks::VERSION {
        socks::serve(stream, &proxy).await;
    } else {
        http::serve(stream, proxy, &tasks).await;
    }
}

impl Proxy {
    /// A connection to a host as an untrusted program wrote it.
    async fn connect(&self, host: &str, port: u16) -> Result<Tunnel, RefusedError> {
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        let host = match bare.parse::<IpAddr>() {
            // The program has resolved the name itself, here, and means it still.
            Ok(address) => match self.names.name(address) {
                Some(name) => name.to_string(),
                None => address.to_canonical().to_string(),
            },
            Err(_) if is_name(host) => host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase(),
            Err(_) => return Err(RefusedError::NoHost(host.chars().take(100).collect())),
        };
        Ok(self.client.connect(&host, port).await?)
    }
}

/// Letters, digits, hyphens, underscores and dots: what holds anything else is the name of no host.
fn is_name(host: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=254).contains(&host.len()) && host.bytes().all(plain)
}

/// Carries bytes both ways until both sides have ended.
async fn carry(mut near: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin, mut far: Tunnel) {
    if let Err(error) = copy_bidirectional_with_sizes(&mut near, &mut far, UNDER_WAY, UNDER_WAY).await {
        debug!(%error, "a connection through the proxy broke off");
    }
}
