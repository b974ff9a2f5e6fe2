//! The one client of all ways out: the same program asks directly, through a proxy, and from inside a sandbox.
//!
//! It is the bench's own file, started with a word and what to do, and prints what it found.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use lifecycle::Tasks;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::sample::{Sample, WARM_UPS};

/// The word that makes the bench a visitor.
pub(crate) const WORD: &str = "visit";

/// Nothing that is measured takes longer.
const PATIENCE: Duration = Duration::from_secs(300);

/// What to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Visit {
    /// The server's name.
    pub(crate) name: String,
    /// Its address, as far as the visitor knows.
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
    /// A proxy to tunnel through by CONNECT.
    pub(crate) proxy: Option<SocketAddr>,
    /// Certificates to trust: a file of PEM.
    pub(crate) authorities: PathBuf,
    /// What is asked for again and again, on one connection.
    pub(crate) path: String,
    pub(crate) requests: usize,
    /// The length of a body that is fetched on a connection of its own, if any.
    pub(crate) bytes: usize,
}

/// What was found.
#[derive(Serialize, Deserialize)]
pub(crate) struct Visited {
    /// Of one request, kept alive.
    pub(crate) requests: Sample,
    /// Of a new connection with its first request.
    pub(crate) first: Sample,
    /// Of the long body; 0 where none was wanted.
    pub(crate) seconds: f64,
}

/// Does what is wanted, and prints what was found.
pub(crate) async fn visit(wanted: &str) -> anyhow::Result<()> {
    let wanted: Visit = serde_json::from_str(wanted).context("what is there to be done?")?;
    let found = timeout(PATIENCE, wanted.go()).await.context("it took too long")??;
    println!("{}", serde_json::to_string(&found)?);
    Ok(())
}

impl Visit {
    /// The same from here, in this process.
    pub(crate) async fn go(&self) -> anyhow::Result<Visited> {
        let tasks = Tasks::new();
        let _end = tasks.stop().drop_guard();
        let began = Instant::now();
        let mut sender = self.open(&tasks).await?;
        let host = format!("{}:{}", self.name, self.port);
        ask(&mut sender, &host, &self.path).await?;
        let mut first = Sample::default();
        first.add(began.elapsed());
        let mut requests = Sample::default();
        for number in 0..self.requests + WARM_UPS {
            let began = Instant::now();
            ask(&mut sender, &host, &self.path).await?;
            if number >= WARM_UPS {
                requests.add(began.elapsed());
            }
        }
        let mut seconds = 0.0;
        if self.bytes > 0 {
            let mut sender = self.open(&tasks).await?;
            let began = Instant::now();
            let length = ask(&mut sender, &host, &format!("/big/{}", self.bytes)).await?;
            seconds = began.elapsed().as_secs_f64();
            if length != self.bytes {
                bail!("{length} of {} bytes came", self.bytes);
            }
        }
        Ok(Visited {
            requests,
            first,
            seconds,
        })
    }

    async fn open(&self, tasks: &Tasks) -> anyhow::Result<SendRequest<Empty<Bytes>>> {
        let target = SocketAddr::new(self.address, self.port);
        let stream = match self.proxy {
            None => TcpStream::connect(target).await?,
            Some(proxy) => tunnel(proxy, target).await?,
        };
        stream.set_nodelay(true)?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(&self.authorities)? {
            // A bundle may hold what is not understood.
            let _ = roots.add(certificate?);
        }
        let config = ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from(self.name.clone())?;
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tasks.spawn_until_stopped(async move {
            // Whoever waits for an answer is told what went wrong.
            let _ = connection.await;
        });
        Ok(sender)
    }
}

/// Through a proxy; the client names the address, as no name of the bench is known to any resolver.
async fn tunnel(proxy: SocketAddr, target: SocketAddr) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(proxy).await?;
    stream
        .write_all(format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").as_bytes())
        .await?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.context("the proxy hung up")?);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    if !head.lines().next().is_some_and(|line| line.contains(" 200")) {
        bail!("the proxy said {head:?}");
    }
    Ok(stream)
}

/// Asks, and reads the answer to its end; gives its length.
async fn ask(sender: &mut SendRequest<Empty<Bytes>>, host: &str, path: &str) -> anyhow::Result<usize> {
    sender.ready().await?;
    let request = Request::get(path).header("host", host).body(Empty::new())?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let mut body = response.into_body();
    let mut length = 0;
    let mut said = Vec::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            length += data.len();
            if status != StatusCode::OK {
                said.extend_from_slice(&data);
            }
        }
    }
    if status != StatusCode::OK {
        bail!("{path} was answered with {status}: {}", String::from_utf8_lossy(&said));
    }
    Ok(length)
}
