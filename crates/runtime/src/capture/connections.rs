//! Captured connections.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use lifecycle::Tasks;
use link::client::Client;
use rustix::net::sockopt::{ip_original_dst, ipv6_original_dst, set_socket_linger};
use sandbox::capture::{DNS_PORT, TCP_PORT};
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tracing::{debug, warn};

use super::UNDER_WAY;
use super::names::Names;
use super::questions::Resolver;

/// Connections carried at once; further ones are reset.
const CONNECTIONS: usize = 256;

/// Connections that the kernel keeps until they are accepted. One more would seem open to who opened it and never be
/// answered, so it is as many as the kernel allows.
const BACKLOG: u32 = 4_096;

struct Carrier {
    client: Client,
    names: Arc<Names>,
    resolver: Arc<Resolver>,
    places: Arc<Semaphore>,
}

/// Carries connections from now on, where the network brings them.
pub(super) fn listen(client: &Client, names: &Arc<Names>, resolver: &Arc<Resolver>, tasks: &Tasks) {
    let carrier = Arc::new(Carrier {
        client: client.clone(),
        names: Arc::clone(names),
        resolver: Arc::clone(resolver),
        places: Arc::new(Semaphore::new(CONNECTIONS)),
    });
    for address in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
        let (carrier, carrying) = (Arc::clone(&carrier), tasks.clone());
        tasks.spawn_until_stopped(async move {
            match bind(SocketAddr::new(address, TCP_PORT)) {
                Ok(listener) => accept(listener, carrier, carrying).await,
                Err(error) => warn!(%address, %error, "cannot listen for captured connections: they will be refused"),
            }
        });
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn accept(listener: TcpListener, carrier: Arc<Carrier>, tasks: Tasks) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                debug!(%error, "a captured connection was gone before it was accepted");
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        // Whatever ends before it was carried ends by a reset, so that nobody takes it for an answer.
        end_by_reset(&stream, true);
        let Ok(place) = Arc::clone(&carrier.places).try_acquire_owned() else {
            continue;
        };
        let carrier = Arc::clone(&carrier);
        tasks.spawn_until_stopped(async move {
            let _place = place;
            carrier.carry(stream).await;
        });
    }
}

impl Carrier {
    async fn carry(&self, mut stream: TcpStream) {
        let Some(bound_for) = original_destination(&stream) else {
            return;
        };
        if bound_for.port() == DNS_PORT {
            end_by_reset(&stream, false);
            if let Err(error) = self.resolver.converse(stream).await {
                debug!(%error, "a connection with DNS questions broke off");
            }
            return;
        }
        let host = match self.names.name(bound_for.ip()) {
            Some(name) => name.to_string(),
            None => bound_for.ip().to_canonical().to_string(),
        };
        match self.client.connect(&host, bound_for.port()).await {
            Ok(mut far) => {
                end_by_reset(&stream, false);
                if let Err(error) = copy_bidirectional_with_sizes(&mut stream, &mut far, UNDER_WAY, UNDER_WAY).await {
                    debug!(%error, host, "a connection broke off");
                    end_by_reset(&stream, true);
                }
            }
            Err(error) => debug!(%error, host, port = bound_for.port(), "a connection is refused"),
        }
    }
}

/// Where a connection was bound for. None: to this listener itself, which is nowhere.
fn original_destination(stream: &TcpStream) -> Option<SocketAddr> {
    let bound_for = match stream.peer_addr().ok()? {
        SocketAddr::V4(_) => ip_original_dst(stream).ok()?.into(),
        SocketAddr::V6(_) => ipv6_original_dst(stream).ok()?.into(),
    };
    (stream.local_addr().ok()? != bound_for).then_some(bound_for)
}

/// Whether closing the connection resets it. Where that cannot be said, it is closed in the plain way.
fn end_by_reset(stream: &TcpStream, reset: bool) {
    let _ = set_socket_linger(stream, reset.then_some(Duration::ZERO));
}
