//! Resolve, check, dial.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use std::{io, vec};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::{Allow, Class, Proxy, ProxyError, Resolve, ResolveError};

/// Addresses of one answer that are tried; whoever has more does not fail at the last.
const TRIED: usize = 8;
/// How long one address has before the next is tried beside it.
const HEAD_START: Duration = Duration::from_millis(250);

/// How a [`Dialer`] works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// From the name to the open connection, a proxy's part included.
    pub deadline: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(10),
        }
    }
}

/// Opens connections to the outside. Clones share the resolver.
#[derive(Clone)]
pub struct Dialer {
    resolver: Arc<dyn Resolve>,
    settings: Settings,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The name has no addresses.
    #[error("resolve {name}")]
    Unresolved {
        /// The name.
        name: String,
        /// Why.
        #[source]
        source: ResolveError,
    },
    /// An address of the answer, or the address that was asked for, may not be dialled. With it the whole answer is refused.
    #[error("{host} is at {address}, which is a {class} address and not named by the configuration")]
    Refused {
        /// What was asked for.
        host: String,
        /// The first address that may not be dialled.
        address: IpAddr,
        /// What kind of place it is.
        class: Class,
    },
    /// No address answered.
    #[error("connect to {host}:{port}")]
    Unreachable {
        /// What was asked for.
        host: String,
        /// At this port.
        port: u16,
        /// The last failure.
        #[source]
        source: io::Error,
    },
    /// It took too long.
    #[error("{host}:{port} did not answer within {} s", deadline.as_secs())]
    Late {
        /// What was asked for.
        host: String,
        /// At this port.
        port: u16,
        /// How long it had.
        deadline: Duration,
    },
    /// The proxy did not open the way.
    #[error("reach {host}:{port} through the proxy {proxy}")]
    Proxy {
        /// What was asked for.
        host: String,
        /// At this port.
        port: u16,
        /// The proxy's host and port.
        proxy: String,
        /// What it said.
        #[source]
        source: ProxyError,
    },
}

impl Dialer {
    /// A dialer that resolves by `resolver`.
    #[must_use]
    pub fn new(resolver: Arc<dyn Resolve>, settings: Settings) -> Self {
        Self { resolver, settings }
    }

    /// The addresses of a host, every one of which may be dialled. `host` is a name in lower case without a dot at its end, or
    /// an address in its plain spelling.
    ///
    /// # Errors
    /// When it has none, or one of them may not be dialled.
    pub async fn addresses(&self, host: &str, allow: &Allow) -> Result<Vec<IpAddr>, DialError> {
        let addresses = self.all_addresses(host).await?;
        for address in &addresses {
            if let Err(class) = allow.permits(*address) {
                return Err(DialError::Refused {
                    host: host.to_owned(),
                    address: *address,
                    class,
                });
            }
        }
        Ok(addresses)
    }

    /// Opens a connection. With a proxy a name is left to it; an address must still be permitted.
    ///
    /// # Errors
    /// When it may not, or cannot, be opened.
    pub async fn dial(
        &self,
        host: &str,
        port: u16,
        allow: &Allow,
        proxy: Option<&Proxy>,
    ) -> Result<TcpStream, DialError> {
        let opening = async {
            match proxy {
                None => first(self.addresses(host, allow).await?, host, port).await,
                Some(proxy) => self.dial_through(proxy, host, port, allow).await,
            }
        };
        let late = |_| DialError::Late {
            host: host.to_owned(),
            port,
            deadline: self.settings.deadline,
        };
        timeout(self.settings.deadline, opening).await.map_err(late)?
    }

    async fn dial_through(&self, proxy: &Proxy, host: &str, port: u16, allow: &Allow) -> Result<TcpStream, DialError> {
        if host.parse::<IpAddr>().is_ok() {
            self.addresses(host, allow).await?;
        }
        // The configuration names the proxy, so it may stand anywhere.
        let addresses = self.all_addresses(&proxy.host).await?;
        let stream = first(addresses, &proxy.host, proxy.port).await?;
        proxy.open(stream, host, port).await.map_err(|source| DialError::Proxy {
            host: host.to_owned(),
            port,
            proxy: proxy.place(),
            source,
        })
    }

    async fn all_addresses(&self, host: &str) -> Result<Vec<IpAddr>, DialError> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![address.to_canonical()]);
        }
        let unresolved = |source| DialError::Unresolved {
            name: host.to_owned(),
            source,
        };
        let addresses = self.resolver.resolve(host).await.map_err(unresolved)?;
        if addresses.is_empty() {
            let name = host.to_owned();
            return Err(unresolved(ResolveError::NoAddress { name }));
        }
        Ok(addresses.into_iter().map(|address| address.to_canonical()).collect())
    }
}

/// The first connection that opens; each address gets a head start before the next.
async fn first(addresses: Vec<IpAddr>, host: &str, port: u16) -> Result<TcpStream, DialError> {
    let mut waiting = in_turns(addresses);
    let mut attempts = FuturesUnordered::new();
    let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
    loop {
        if let Some(address) = waiting.next() {
            attempts.push(TcpStream::connect(SocketAddr::new(address, port)));
        }
        tokio::select! {
            attempt = attempts.next() => match attempt {
                Some(Ok(stream)) => {
                    // Small messages go at once; where the kernel will not, they go later.
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Some(Err(error)) => failure = error,
                None => return Err(DialError::Unreachable { host: host.to_owned(), port, source: failure }),
            },
            () = sleep(HEAD_START), if waiting.len() > 0 => {}
        }
    }
}

/// The families by turns, in the order of the answer, so that one which leads nowhere costs one head start.
fn in_turns(addresses: Vec<IpAddr>) -> vec::IntoIter<IpAddr> {
    let first_is_v6 = addresses.first().is_some_and(IpAddr::is_ipv6);
    let (mut first, mut second): (Vec<_>, Vec<_>) = addresses
        .into_iter()
        .partition(|address| address.is_ipv6() == first_is_v6);
    first.reverse();
    second.reverse();
    let mut turns = Vec::new();
    while turns.len() < TRIED {
        let before = turns.len();
        turns.extend(first.pop());
        turns.extend(second.pop());
        if turns.len() == before {
            break;
        }
    }
    turns.into_iter()
}
