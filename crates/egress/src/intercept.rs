//! Connections whose requests are read: each is checked, given what it may carry, and its answer cleaned.
//!
//! Before anything is put into a request five facts agree: the session whose link it came over, the host that the
//! connection was opened for, the name in the TLS handshake, the host in the request, and a rule for scheme, host, port,
//! method and path. The upstream sees a request that was written anew, and its answer comes back without what was put in.

mod answer;
mod body;
mod exchange;
mod facts;
mod frames;
mod method_key;
pub(crate) mod path;
mod pool;
mod select;
mod strict;
mod tokens;
mod upload;
mod upstream;
mod websocket;

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use domain::SessionId;
use hyper_util::rt::{TokioIo, TokioTimer};
use lifecycle::Tasks;
use policy::Destination;
use rustls::{RootCertStore, ServerConfig};
use secret::{Reference, Source};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

pub use path::{PathPattern, PathPatternError};
pub use tokens::TokenAnswers;

use crate::{Code, Denied, Record, Rule, Scheme};
use exchange::Exchange;
use pool::Pool;
use strict::{HeadLimits, Strict, Tunnel};
use upstream::Upstream;

/// Bytes of a request's head.
const HEAD: usize = 64 * 1024;
/// Headers of a request.
const HEADERS: usize = 200;
/// From a head's first byte to its last, and for the TLS handshake.
const HEAD_TIME: Duration = Duration::from_secs(30);
/// Requests of a session that are under way at once, and streams of one HTTP/2 connection.
const AT_ONCE: usize = 256;
const STREAMS: u32 = 128;

/// A stream of bytes, from a client or to an upstream.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for S {}

/// A future that is handed in.
pub type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A connection that was admitted, and is to be read.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Decided {
    /// Whose it is, by its link.
    pub session: SessionId,
    /// TLS, whose first bytes are still in the stream; or plain HTTP.
    pub scheme: Scheme,
    /// What it was opened for.
    pub host: Destination,
    /// The port that it was opened for.
    pub port: u16,
}

/// The rules that a session may use for a destination.
#[derive(Clone, Debug)]
pub struct Matching {
    /// Changes whenever rules or scope do; connections to upstreams are not used across it.
    pub generation: u64,
    /// The most precise first.
    pub rules: Vec<Arc<Rule>>,
    /// Every secret that any rule puts into requests to the host, at whatever port and with whatever scheme. The host may
    /// show it in any answer.
    pub bound: Vec<Reference>,
}

/// A question about a connection.
pub type Ask<T> = Arc<dyn Fn(&Decided) -> Result<T, Denied> + Send + Sync>;

/// What opens a connection to an upstream.
pub type Dial = Arc<dyn Fn(&Decided, &Arc<Rule>) -> Pending<Result<Box<dyn Stream>, Denied>> + Send + Sync>;

/// What intercepting needs of the broker.
#[derive(Clone)]
pub struct Parts {
    /// The rules for a connection, asked again for each request.
    pub matching: Ask<Arc<Matching>>,
    /// A connection to the upstream, at an address that was checked, through the rule's proxy.
    pub dial: Dial,
    /// How to be the host towards the client: a certificate for it, made for this session.
    pub server: Ask<Arc<ServerConfig>>,
    /// Where secrets are.
    pub secrets: Arc<dyn Source>,
    /// Told of every request once it is over.
    pub audit: Arc<dyn Fn(Record) + Send + Sync>,
    /// What an upstream's certificate must lead to.
    pub roots: Arc<RootCertStore>,
    /// The owner of what runs beside.
    pub tasks: Tasks,
}

/// Carries connections whose requests are read. Clones share connections and limits.
#[derive(Clone)]
pub struct Intercept(Arc<Shared>);

pub(crate) struct Shared {
    parts: Parts,
    upstream: Upstream,
    pool: Pool,
    /// Requests that each session may still begin.
    places: Mutex<HashMap<SessionId, Arc<Semaphore>>>,
}

impl Intercept {
    /// Readies it.
    ///
    /// # Errors
    /// When the cryptography has no protocol version in common with itself, which cannot be.
    pub fn new(parts: Parts) -> Result<Self, rustls::Error> {
        let upstream = Upstream::new(&parts.roots, parts.tasks.clone())?;
        Ok(Self(Arc::new(Shared {
            pool: Pool::new(parts.tasks.clone()),
            upstream,
            parts,
            places: Mutex::default(),
        })))
    }

    /// Carries a connection until it ends.
    ///
    /// # Errors
    /// When not even a request could be read, so that there is nobody to answer. What was refused in answers was audited
    /// already.
    pub async fn carry(&self, decided: Decided, client: impl Stream) -> Result<(), Denied> {
        match decided.scheme {
            Scheme::Https => self.carry_tls(decided, client).await,
            Scheme::Http => {
                self.carry_http1(Arc::new(decided), client).await;
                Ok(())
            }
            Scheme::Ssh | Scheme::Tcp => Err(Denied::new(
                Code::Broken,
                format!("a connection to {} was to be read that is no HTTP", decided.host),
                "report this: it is a fault of Belljar",
            )),
        }
    }

    /// Closes what is kept open for a session, and forgets its counts.
    pub fn forget(&self, session: SessionId) {
        self.0.pool.forget(session);
        let mut places = self.0.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.remove(&session);
    }

    async fn carry_tls(&self, decided: Decided, client: impl Stream) -> Result<(), Denied> {
        let config = (self.0.parts.server)(&decided)?;
        let accepted = tokio::time::timeout(HEAD_TIME, TlsAcceptor::from(config).accept(client)).await;
        let stream = match accepted {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(facts::no_handshake(&decided, &error)),
            Err(_) => {
                return Err(Denied::new(
                    Code::NothingSaid,
                    format!("the TLS handshake for {} did not end in time", decided.host),
                    "try again",
                ));
            }
        };
        let (_, session) = stream.get_ref();
        facts::server_name(&decided, session.server_name())?;
        let newest = session.alpn_protocol() == Some(b"h2");
        let decided = Arc::new(decided);
        if newest {
            self.carry_http2(decided, stream).await;
        } else {
            self.carry_http1(decided, stream).await;
        }
        Ok(())
    }

    async fn carry_http1(&self, decided: Arc<Decided>, client: impl Stream) {
        let tunnel = Tunnel::default();
        let limits = HeadLimits {
            bytes: HEAD,
            time: HEAD_TIME,
        };
        let strict = Strict::new(client, limits, tunnel.clone(), answer::malformed);
        let place = websocket::Place::default();
        let exchange = Exchange::new(Arc::clone(&self.0), decided, Some((tunnel, Arc::clone(&place))));
        let served = hyper::server::conn::http1::Builder::new()
            .half_close(true)
            .max_headers(HEADERS)
            .max_buf_size(2 * HEAD)
            .timer(TokioTimer::new())
            .header_read_timeout(None)
            .auto_date_header(false)
            .serve_connection(TokioIo::new(strict), exchange)
            .with_upgrades()
            .await;
        if let Err(error) = served {
            tracing::debug!(%error, "a client's connection ended");
        }
        let agreed = place.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(agreed) = agreed {
            websocket::carry(agreed).await;
        }
    }

    async fn carry_http2(&self, decided: Arc<Decided>, client: impl Stream) {
        let exchange = Exchange::new(Arc::clone(&self.0), decided, None);
        let served = hyper::server::conn::http2::Builder::new(upstream::Executor(self.0.parts.tasks.clone()))
            .max_concurrent_streams(STREAMS)
            .max_header_list_size(u32::try_from(HEAD).unwrap_or(u32::MAX))
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(4 << 20)
            .timer(TokioTimer::new())
            .auto_date_header(false)
            .serve_connection(TokioIo::new(client), exchange)
            .await;
        if let Err(error) = served {
            tracing::debug!(%error, "a client's connection ended");
        }
    }
}

impl Shared {
    /// The places of a session for requests under way.
    fn places(&self, session: SessionId) -> Arc<Semaphore> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let place = places
            .entry(session)
            .or_insert_with(|| Arc::new(Semaphore::new(AT_ONCE)));
        Arc::clone(place)
    }
}
