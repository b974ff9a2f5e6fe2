//! SOCKS5 (RFC 1928): connections, without authentication.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use link::client::ClientError;
use protocol::RefusalCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tracing::debug;

use super::{OPENING, Proxy, RefusedError, carry};

/// The first byte of everything that is said.
pub(super) const VERSION: u8 = 5;

const NO_AUTHENTICATION: u8 = 0;
const NO_METHOD: u8 = 0xff;
const CONNECT: u8 = 1;
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

/// Answers.
const GRANTED: u8 = 0;
const FAILED: u8 = 1;
const NOT_ALLOWED: u8 = 2;
const UNREACHABLE: u8 = 4;
const NO_SUCH_COMMAND: u8 = 7;
const NO_SUCH_ADDRESS: u8 = 8;

/// Serves a connection until it ends.
pub(super) async fn serve(mut stream: TcpStream, proxy: &Proxy) {
    let wanted = match timeout(OPENING, wanted(&mut stream)).await {
        Ok(Ok(Ok(wanted))) => wanted,
        Ok(Ok(Err(code))) => return answer(&mut stream, code).await,
        Ok(Err(error)) => return debug!(%error, "a SOCKS connection broke off in its first words"),
        Err(_) => return,
    };
    let (host, port) = wanted;
    match proxy.connect(&host, port).await {
        Ok(far) => {
            answer(&mut stream, GRANTED).await;
            carry(stream, far).await;
        }
        Err(error) => {
            debug!(%error, port, "a SOCKS connection is refused");
            answer(&mut stream, code(&error)).await;
        }
    }
}

/// What the program wants, or what it is to be told instead.
async fn wanted(stream: &mut TcpStream) -> io::Result<Result<(String, u16), u8>> {
    let mut head = [0; 2];
    stream.read_exact(&mut head).await?;
    let mut methods = vec![0; usize::from(head[1])];
    stream.read_exact(&mut methods).await?;
    if !methods.contains(&NO_AUTHENTICATION) {
        stream.write_all(&[VERSION, NO_METHOD]).await?;
        return Err(io::ErrorKind::Unsupported.into());
    }
    stream.write_all(&[VERSION, NO_AUTHENTICATION]).await?;
    let mut request = [0; 4];
    stream.read_exact(&mut request).await?;
    if request[0] != VERSION {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let host = match request[3] {
        IPV4 => {
            let mut address = [0; 4];
            stream.read_exact(&mut address).await?;
            IpAddr::from(Ipv4Addr::from(address)).to_string()
        }
        IPV6 => {
            let mut address = [0; 16];
            stream.read_exact(&mut address).await?;
            IpAddr::from(Ipv6Addr::from(address)).to_string()
        }
        NAME => {
            let mut name = vec![0; usize::from(stream.read_u8().await?)];
            stream.read_exact(&mut name).await?;
            // What is no text is no name either, and is refused as none.
            String::from_utf8_lossy(&name).into_owned()
        }
        _ => return Ok(Err(NO_SUCH_ADDRESS)),
    };
    let port = stream.read_u16().await?;
    Ok(if request[1] == CONNECT {
        Ok((host, port))
    } else {
        Err(NO_SUCH_COMMAND)
    })
}

fn code(error: &RefusedError) -> u8 {
    match error {
        RefusedError::NoHost(_) | RefusedError::Link(ClientError::Unclaimed) => NOT_ALLOWED,
        RefusedError::Link(ClientError::Refused(refusal)) if refusal.code == RefusalCode::Denied => NOT_ALLOWED,
        RefusedError::Link(ClientError::Refused(_)) => UNREACHABLE,
        RefusedError::Link(_) => FAILED,
    }
}

async fn answer(stream: &mut TcpStream, code: u8) {
    // Whoever asked may have gone. The address that follows says nothing: it is nobody's business.
    let _ = stream.write_all(&[VERSION, code, 0, IPV4, 0, 0, 0, 0, 0, 0]).await;
}
