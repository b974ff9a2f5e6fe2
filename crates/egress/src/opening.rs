//! The first bytes of a connection: what they speak, and which host they mean.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::timeout;

mod hello;

/// The longest ClientHello, and the longest beginning that is looked at.
const LONGEST: usize = 16 << 10;
/// A TLS record that carries a handshake.
const HANDSHAKE: u8 = 22;
/// The longest method of an HTTP request that is taken for one.
const METHOD: usize = 20;

/// What the first bytes speak.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Spoken {
    /// TLS.
    Tls {
        /// The host that it names in the clear.
        server_name: Option<String>,
        /// It carries a name that only the server can read, or pretends to.
        encrypted: bool,
    },
    /// TLS that breaks its own rules.
    BadTls,
    /// An HTTP request in the clear.
    Http,
    /// Something else.
    Other,
    /// Nothing, up to the deadline or the end.
    Nothing,
}

/// The beginning of a connection.
#[derive(Debug)]
pub(crate) struct Opening {
    pub(crate) spoken: Spoken,
    /// What was read; it has yet to be passed on.
    pub(crate) bytes: Bytes,
}

/// Reads as little of a connection as tells what it speaks. Whoever sends too slowly said nothing.
///
/// # Errors
/// When the connection breaks.
pub(crate) async fn read<S: AsyncRead + Unpin>(client: &mut S, deadline: Duration) -> io::Result<Opening> {
    let mut bytes = BytesMut::with_capacity(2 << 10);
    let spoken = match timeout(deadline, listen(client, &mut bytes)).await {
        Ok(spoken) => spoken?,
        Err(_) => Spoken::Nothing,
    };
    Ok(Opening {
        spoken,
        bytes: bytes.freeze(),
    })
}

async fn listen<S: AsyncRead + Unpin>(client: &mut S, bytes: &mut BytesMut) -> io::Result<Spoken> {
    let mut acceptor = Acceptor::default();
    loop {
        let before = bytes.len();
        if before >= LONGEST {
            return Ok(Spoken::Other);
        }
        bytes.reserve(2 << 10);
        if client.read_buf(bytes).await? == 0 {
            return Ok(Spoken::Nothing);
        }
        let spoken = if bytes[0] == HANDSHAKE {
            tls(&mut acceptor, &bytes[before..], bytes)
        } else {
            http(bytes)
        };
        if let Some(spoken) = spoken {
            return Ok(spoken);
        }
    }
}

/// Takes more of a ClientHello; nothing while it is not complete.
fn tls(acceptor: &mut Acceptor, mut news: &[u8], all: &[u8]) -> Option<Spoken> {
    while !news.is_empty() {
        // The hello is read out of memory, so what fails is what it says.
        if acceptor.read_tls(&mut news).is_err() {
            return Some(Spoken::BadTls);
        }
        match acceptor.accept() {
            Ok(None) => {}
            Ok(Some(accepted)) => {
                let server_name = accepted.client_hello().server_name().map(str::to_owned);
                return Some(match hello::is_encrypted(all) {
                    Some(encrypted) => Spoken::Tls { server_name, encrypted },
                    None => Spoken::BadTls,
                });
            }
            Err(_) => return Some(Spoken::BadTls),
        }
    }
    None
}

/// Looks for `METHOD target`; nothing while it may still become that.
fn http(bytes: &[u8]) -> Option<Spoken> {
    let method = bytes
        .iter()
        .take_while(|byte| byte.is_ascii_uppercase() || **byte == b'-')
        .count();
    match bytes.get(method) {
        _ if method > METHOD => Some(Spoken::Other),
        // `SSH-2.0-…` and the like have no blank behind their first word.
        Some(b' ') if method > 0 => Some(Spoken::Http),
        Some(_) => Some(Spoken::Other),
        None => None,
    }
}

#[cfg(test)]
mod tests;
