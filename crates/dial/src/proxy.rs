//! Upstream proxies: a company's way out, or the way into a tailnet.

use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use secret::Secret;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_socks::tcp::Socks5Stream;

/// The longest head of an answer to CONNECT, in bytes, and the most fields in it.
const HEAD: usize = 8 << 10;
const FIELDS: usize = 64;

/// What a proxy is spoken to in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProxyKind {
    /// HTTP/1.1 CONNECT, in the clear.
    Http,
    /// SOCKS5; names are resolved by the proxy.
    Socks5,
}

/// Who we are to a proxy.
#[derive(Clone, Debug)]
pub struct Login {
    /// The user.
    pub user: String,
    /// Their password.
    pub password: Secret,
}

/// A proxy that leads further.
#[derive(Clone, Debug)]
pub struct Proxy {
    /// What it speaks.
    pub kind: ProxyKind,
    /// Its name or address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Who we are to it.
    pub login: Option<Login>,
}

/// Why a proxy did not open the way.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// It wants a user and password, or others.
    #[error("it does not accept the user and password: check those of the rule")]
    Login,
    /// It answered CONNECT with something other than success.
    #[error("it answered with status {0}")]
    Status(u16),
    /// It speaks no HTTP, or says too much.
    #[error("what it answered is no answer to CONNECT")]
    NoAnswer,
    /// It refused in SOCKS5, or broke off.
    #[error("it did not connect")]
    Socks(#[source] tokio_socks::Error),
    /// It broke off.
    #[error("speak to it")]
    Broken(#[from] std::io::Error),
}

impl Proxy {
    /// Where it is, to be shown.
    pub(crate) fn place(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Has the proxy connect a fresh connection with a place. Not a byte beyond its answer is read: a server that speaks
    /// first is heard.
    pub(crate) async fn open(&self, stream: TcpStream, host: &str, port: u16) -> Result<TcpStream, ProxyError> {
        match self.kind {
            ProxyKind::Http => self.open_by_connect(stream, host, port).await,
            ProxyKind::Socks5 => self.open_by_socks(stream, host, port).await,
        }
    }

    async fn open_by_connect(&self, mut stream: TcpStream, host: &str, port: u16) -> Result<TcpStream, ProxyError> {
        let place = match host.parse::<IpAddr>() {
            Ok(IpAddr::V6(address)) => format!("[{address}]:{port}"),
            _ => format!("{host}:{port}"),
        };
        let login = match &self.login {
            Some(Login { user, password }) => {
                let login = STANDARD.encode(format!("{user}:{}", password.expose()));
                format!("Proxy-Authorization: Basic {login}\r\n")
            }
            None => String::new(),
        };
        let request = format!("CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n{login}\r\n");
        stream.write_all(request.as_bytes()).await?;
        match status(&mut stream).await? {
            200..=299 => Ok(stream),
            407 => Err(ProxyError::Login),
            status => Err(ProxyError::Status(status)),
        }
    }

    async fn open_by_socks(&self, stream: TcpStream, host: &str, port: u16) -> Result<TcpStream, ProxyError> {
        let opened = match &self.login {
            Some(Login { user, password }) => {
                Socks5Stream::connect_with_password_and_socket(stream, (host, port), user, password.expose()).await
            }
            None => Socks5Stream::connect_with_socket(stream, (host, port)).await,
        };
        let opened = opened.map_err(|error| match error {
            tokio_socks::Error::PasswordAuthFailure(_) | tokio_socks::Error::NoAcceptableAuthMethods => {
                ProxyError::Login
            }
            error => ProxyError::Socks(error),
        })?;
        Ok(opened.into_inner())
    }
}

/// The status of an answer, read byte by byte up to the end of its head.
async fn status(stream: &mut TcpStream) -> Result<u16, ProxyError> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == HEAD {
            return Err(ProxyError::NoAnswer);
        }
        head.push(stream.read_u8().await?);
    }
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let mut answer = httparse::Response::new(&mut fields);
    answer.parse(&head).map_err(|_| ProxyError::NoAnswer)?;
    answer.code.ok_or(ProxyError::NoAnswer)
}
