//! The resolver: nothing is resolved here or anywhere before the control plane has said yes to the name.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use lifecycle::Tasks;
use link::client::{Client, ClientError};
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto};
use sandbox::capture::{DNS_ADDRESS, DNS_ADDRESS_V6, DNS_PORT};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tracing::{debug, warn};

use super::message::{Bad, Code, Question};
use super::names::Names;

/// Questions that may wait for the control plane at once. Further ones are dropped, and asked again by who asked.
const QUESTIONS: usize = 64;

/// The longest question over UDP; longer ones are no questions.
const LONGEST: usize = 1_500;

/// How long to rest when one was not received: in a sandbox that was kept meanwhile the socket is dead until it is made anew.
const REST: Duration = Duration::from_millis(10);

/// How long a connection may be silent between questions.
const IDLE: Duration = Duration::from_secs(10);

pub(super) struct Resolver {
    client: Client,
    names: Arc<Names>,
    places: Arc<Semaphore>,
}

impl Resolver {
    pub(super) fn new(client: Client, names: Arc<Names>) -> Self {
        Self {
            client,
            names,
            places: Arc::new(Semaphore::new(QUESTIONS)),
        }
    }

    /// Answers a message; none where it deserves no answer.
    async fn answer(&self, message: &[u8]) -> Option<Vec<u8>> {
        match Question::parse(message) {
            Ok(question) => Some(self.look_up(&question).await),
            Err(Bad::Answer(answer)) => Some(answer),
            Err(Bad::Ignore) => None,
        }
    }

    async fn look_up(&self, question: &Question) -> Vec<u8> {
        if question.name == "localhost" || question.name.ends_with(".localhost") {
            return question.address(Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST);
        }
        if question.name.is_empty() {
            return question.answer(Code::Refused);
        }
        match self.client.resolve(&question.name).await {
            Ok(number) => match self.names.addresses(&question.name, number) {
                Some(addresses) => question.address(addresses.v4, addresses.v6),
                None => question.answer(Code::ServerFailure),
            },
            // A sandbox that belongs to nobody reaches nothing.
            Err(ClientError::Refused(_) | ClientError::Unclaimed) => question.answer(Code::NoSuchName),
            Err(error) => {
                debug!(%error, "a question could not be put to the control plane");
                question.answer(Code::ServerFailure)
            }
        }
    }

    /// Answers the questions of one connection.
    pub(super) async fn converse(&self, mut stream: TcpStream) -> io::Result<()> {
        loop {
            let Ok(length) = timeout(IDLE, stream.read_u16()).await else {
                return Ok(());
            };
            let mut message = vec![0; usize::from(length?)];
            if timeout(IDLE, stream.read_exact(&mut message)).await.is_err() {
                return Ok(());
            }
            let _place = self.places.acquire().await.map_err(io::Error::other)?;
            let Some(answer) = self.answer(&message).await else {
                return Ok(());
            };
            // An answer repeats a name and adds an address: far below what a length can say.
            let length = u16::try_from(answer.len()).map_err(io::Error::other)?;
            stream.write_u16(length).await?;
            stream.write_all(&answer).await?;
        }
    }
}

/// Answers questions over UDP from now on, where the network brings them.
pub(super) fn listen(resolver: &Arc<Resolver>, tasks: &Tasks) {
    for address in [DNS_ADDRESS.into(), DNS_ADDRESS_V6.into()] {
        let address = SocketAddr::new(address, DNS_PORT);
        match bind(address) {
            Ok(socket) => {
                let (resolver, answering) = (Arc::clone(resolver), tasks.clone());
                tasks.spawn_until_stopped(serve(Arc::new(socket), resolver, answering));
            }
            Err(error) => warn!(%address, %error, "cannot listen for DNS questions: none will be answered there"),
        }
    }
}

async fn serve(socket: Arc<UdpSocket>, resolver: Arc<Resolver>, tasks: Tasks) {
    let mut message = [0; LONGEST];
    loop {
        let (length, from) = match socket.recv_from(&mut message).await {
            Ok(received) => received,
            Err(error) => {
                // Somebody did not wait for the answer before.
                debug!(%error, "a DNS question was not received");
                tokio::time::sleep(REST).await;
                continue;
            }
        };
        let Ok(place) = Arc::clone(&resolver.places).try_acquire_owned() else {
            continue;
        };
        let (socket, resolver, message) = (Arc::clone(&socket), Arc::clone(&resolver), message[..length].to_vec());
        tasks.spawn_until_stopped(async move {
            let _place = place;
            if let Some(answer) = resolver.answer(&message).await {
                // UDP promises nothing.
                let _ = socket.send_to(&answer, from).await;
            }
        });
    }
}

/// A socket at an address that need not be on an interface: every address routes to the sandbox itself.
fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, Some(ipproto::UDP))?;
    if address.is_ipv4() {
        rustix::net::sockopt::set_ip_freebind(&socket, true)?;
    } else {
        rustix::net::sockopt::set_ipv6_v6only(&socket, true)?;
        rustix::net::sockopt::set_ipv6_freebind(&socket, true)?;
    }
    rustix::net::bind(&socket, &address)?;
    UdpSocket::from_std(socket.into())
}
