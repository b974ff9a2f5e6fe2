//! Servers of a test, as the world has them: port 443 with certificates, HTTP/1.1 and HTTP/2, port 80 without, WebSocket.
//!
//! Each has an address of loopback of its own, because programs mean those ports when they say none. Names lead there by a
//! [`NameServer`](crate::NameServer) or a resolver of the test.

mod certificates;

use std::future::Future;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use lifecycle::Tasks;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

pub use certificates::Authority;

/// The body of an answer; where it fails the connection breaks off.
pub type AnswerBody = BoxBody<Bytes, std::io::Error>;

/// Bytes of a request that are kept.
const KEPT: usize = 8 << 20;

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Arrived {
    /// Whom it was meant for, without a port.
    pub host: String,
    /// The method.
    pub method: Method,
    /// Path and query.
    pub target: String,
    /// Which HTTP.
    pub version: Version,
    /// Whether it came by port 443.
    pub is_secure: bool,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

impl Arrived {
    /// A header's value; empty where there is none, or no text.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default()
    }

    /// The path alone.
    #[must_use]
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// The request in words: its first line, its headers, its body.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{} {} {:?}\n", self.method, self.target, self.version);
        for (name, value) in &self.headers {
            text += &format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes()));
        }
        text + "\n" + &String::from_utf8_lossy(&self.body)
    }
}

type Answering = dyn Fn(&Arrived) -> Response<AnswerBody> + Send + Sync;

/// A server. Ends with its value.
#[derive(Debug)]
pub struct Upstream {
    address: Ipv4Addr,
    shared: Arc<Shared>,
    tasks: Tasks,
}

struct Shared {
    answer: Box<Answering>,
    arrived: Mutex<Vec<Arrived>>,
    connections: AtomicU64,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Upstream {
    /// Listens at ports 80 and 443 of an address of its own, under these names, and answers each request by a function that
    /// may block. Needs to be root, or a machine on which everybody may listen there.
    pub async fn start(
        authority: &Authority,
        names: &[&str],
        answer: impl Fn(&Arrived) -> Response<AnswerBody> + Send + Sync + 'static,
    ) -> Self {
        let address = own_address();
        let shared = Arc::new(Shared {
            answer: Box::new(answer),
            arrived: Mutex::default(),
            connections: AtomicU64::new(0),
        });
        let tasks = Tasks::new();
        let acceptor = TlsAcceptor::from(Arc::new(authority.server(names)));
        for (port, acceptor) in [(80, None), (443, Some(acceptor))] {
            let listener = TcpListener::bind((address, port))
                .await
                .unwrap_or_else(|error| panic!("listen on {address}:{port}: {error}"));
            tasks.spawn_until_stopped(accept(listener, acceptor, Arc::clone(&shared), tasks.clone()));
        }
        Self { address, shared, tasks }
    }

    /// Where it is.
    #[must_use]
    pub const fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The requests that came, oldest first.
    #[must_use]
    pub fn arrived(&self) -> Vec<Arrived> {
        let arrived = self.shared.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        arrived.clone()
    }

    /// How many connections came.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.tasks.stop().cancel();
    }
}

/// An address of loopback that nobody else uses.
pub(crate) fn own_address() -> Ipv4Addr {
    static COUNT: AtomicU8 = AtomicU8::new(64);
    let [.., third, fourth] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, COUNT.fetch_add(1, Ordering::Relaxed), third, fourth)
}

async fn accept(listener: TcpListener, acceptor: Option<TlsAcceptor>, shared: Arc<Shared>, tasks: Tasks) {
    while let Ok((stream, _)) = listener.accept().await {
        shared.connections.fetch_add(1, Ordering::Relaxed);
        let (acceptor, shared, upgrades) = (acceptor.clone(), Arc::clone(&shared), tasks.clone());
        tasks.spawn_until_stopped(async move {
            match acceptor {
                None => converse(stream, shared, false, upgrades).await,
                Some(acceptor) => {
                    // A client that goes away in the middle is no fault of the server.
                    if let Ok(stream) = acceptor.accept(stream).await {
                        converse(stream, shared, true, upgrades).await;
                    }
                }
            }
        });
    }
}

async fn converse<S>(stream: S, shared: Arc<Shared>, is_secure: bool, tasks: Tasks)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let service = service_fn(move |request| answer(request, Arc::clone(&shared), is_secure, tasks.clone()));
    let _ = Builder::new(TokioExecutor::new())
        .serve_connection_with_upgrades(TokioIo::new(stream), service)
        .await;
}

type Answered = Pin<Box<dyn Future<Output = Result<Response<AnswerBody>, std::io::Error>> + Send>>;

fn answer(mut request: Request<Incoming>, shared: Arc<Shared>, is_secure: bool, tasks: Tasks) -> Answered {
    Box::pin(async move {
        let upgrade = hyper::upgrade::on(&mut request);
        let (head, body) = request.into_parts();
        let body = http_body_util::Limited::new(body, KEPT).collect().await;
        let body = body.map_err(std::io::Error::other)?.to_bytes();
        let named = head.headers.get("host").and_then(|host| host.to_str().ok());
        let named = head.uri.authority().map(http::uri::Authority::as_str).or(named);
        let host = named.unwrap_or_default();
        let arrived = Arrived {
            host: host.rsplit_once(':').map_or(host, |(host, _)| host).to_owned(),
            method: head.method,
            target: head.uri.path_and_query().map_or(String::new(), ToString::to_string),
            version: head.version,
            is_secure,
            headers: head.headers,
            body,
        };
        let all = &shared.arrived;
        all.lock().unwrap_or_else(PoisonError::into_inner).push(arrived.clone());
        if arrived.header("upgrade").eq_ignore_ascii_case("websocket") {
            let key = arrived.header("sec-websocket-key").to_owned();
            tasks.spawn_until_stopped(async move {
                if let Ok(upgraded) = upgrade.await {
                    let _ = tell(&mut TokioIo::new(upgraded), &arrived.text()).await;
                }
            });
            return switched(&key);
        }
        tokio::task::spawn_blocking(move || (shared.answer)(&arrived))
            .await
            .map_err(std::io::Error::other)
    })
}

/// An answer with a body that is there whole.
#[must_use]
pub fn answered(status: u16, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Response<AnswerBody> {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    response
        .body(whole(body.into()))
        .unwrap_or_else(|error| panic!("an answer of an upstream: {error}"))
}

fn whole(bytes: Bytes) -> AnswerBody {
    Full::new(bytes).map_err(|never| match never {}).boxed()
}

/// RFC 6455, 4.2.2.
fn switched(key: &str) -> Result<Response<AnswerBody>, std::io::Error> {
    use base64::Engine;
    use sha1::Digest;
    let digest = sha1::Sha1::digest(format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11"));
    Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header("connection", "upgrade")
        .header("upgrade", "websocket")
        .header(
            "sec-websocket-accept",
            base64::engine::general_purpose::STANDARD.encode(digest),
        )
        .body(whole(Bytes::new()))
        .map_err(std::io::Error::other)
}

/// One text message, the server's farewell, and the end (RFC 6455, 5.2).
async fn tell(stream: &mut (impl AsyncWrite + Unpin), text: &str) -> std::io::Result<()> {
    let length = u16::try_from(text.len()).map_err(std::io::Error::other)?;
    stream.write_all(&[0x81, 126]).await?;
    stream.write_all(&length.to_be_bytes()).await?;
    stream.write_all(text.as_bytes()).await?;
    stream.write_all(&[0x88, 0]).await?;
    stream.shutdown().await
}
