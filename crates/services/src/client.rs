//! The way to an upstream: one HTTP client per service, over connections that were checked before they were opened.

use std::error::Error;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use causes::with_causes;
use dial::{Allow, DialError, Dialer};
use http::header::{CONTENT_LENGTH, DATE};
use http::{HeaderValue, Method, StatusCode};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio::time::Instant;
use url::{Host, Url};

use crate::request::Outgoing;
use crate::retry::retry_after;
use crate::{Code, Failure};

/// How long a connection may take to open.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a connection that nobody uses is kept, and how many of them.
const IDLE: Duration = Duration::from_secs(60);
const IDLE_CONNECTIONS: usize = 16;
/// The most bytes of an answer that says no, or that holds a token.
const SMALL: usize = 64 << 10;

/// Which certificate authorities vouch for upstreams.
#[derive(Clone, Debug)]
pub struct Trust(Roots);

#[derive(Clone, Debug)]
enum Roots {
    Machine,
    Only(RootCertStore),
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// TLS could not be set up.
    #[error("set up TLS for services")]
    Tls(#[source] rustls::Error),
    /// The HTTP client could not be set up.
    #[error("set up the HTTP client of services")]
    Http(#[source] reqwest::Error),
}

/// A file of certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// It is no PEM.
    #[error("read certificates in PEM form")]
    Pem(#[source] rustls::pki_types::pem::Error),
    /// It holds something else than a certificate authority.
    #[error("use a certificate as an authority")]
    Certificate(#[source] rustls::Error),
}

impl Trust {
    /// The authorities that this machine trusts. They are read when there is a service that needs them.
    #[must_use]
    pub const fn machine() -> Self {
        Self(Roots::Machine)
    }

    /// These authorities, in PEM form, and no others.
    pub fn only(pem: &[u8]) -> Result<Self, TrustError> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            roots
                .add(certificate.map_err(TrustError::Pem)?)
                .map_err(TrustError::Certificate)?;
        }
        Ok(Self(Roots::Only(roots)))
    }

    /// The TLS settings that follow from it.
    pub(crate) fn tls(self) -> Result<ClientConfig, ClientError> {
        let roots = match self.0 {
            Roots::Only(roots) => roots,
            Roots::Machine => machine(),
        };
        let mut tls = ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .map_err(ClientError::Tls)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(tls)
    }
}

fn machine() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        tracing::warn!(
            "this machine trusts no certificate authority, so no service can be reached over https: install the package ca-certificates"
        );
    }
    roots
}

/// A client of one service. No redirect is followed, no proxy is taken from the environment, and connections go only where
/// the operator lets this service be. Clones share connections.
#[derive(Clone)]
pub(crate) struct Client {
    service: String,
    http: reqwest::Client,
    allow: Arc<Allow>,
}

/// A small answer, whole.
pub(crate) struct Small {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
    pub(crate) retry_after: Option<Duration>,
    /// The upstream's clock.
    pub(crate) date: Option<jiff::Timestamp>,
}

impl Client {
    pub(crate) fn new(service: &str, tls: ClientConfig, dialer: Dialer, allow: Allow) -> Result<Self, ClientError> {
        let allow = Arc::new(allow);
        let resolver = Resolver {
            dialer,
            allow: Arc::clone(&allow),
        };
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .dns_resolver(Arc::new(resolver))
            .redirect(Policy::none())
            .no_proxy()
            .tcp_nodelay(true)
            .connect_timeout(CONNECT)
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .user_agent(concat!("belljar/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(ClientError::Http)?;
        Ok(Self {
            service: service.to_owned(),
            http,
            allow,
        })
    }

    /// Sends a request, and waits for the head of the answer.
    pub(crate) async fn send(&self, request: Outgoing, deadline: Instant) -> Result<reqwest::Response, Failure> {
        self.check(&request.url)?;
        let host = host(&request.url);
        let mut sent = reqwest::Request::new(request.verb, request.url);
        *sent.headers_mut() = request.headers;
        if !request.body.is_empty() {
            *sent.body_mut() = Some(request.body.into());
        } else if !matches!(*sent.method(), Method::GET | Method::DELETE) {
            // Some servers insist on being told that there is nothing.
            sent.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        match tokio::time::timeout_at(deadline, self.http.execute(sent)).await {
            Ok(answer) => answer.map_err(|error| self.failure(&host, &error)),
            Err(_) => Err(Failure::new(
                Code::Timeout,
                format!("{}: {host} did not begin to answer in time", self.service),
            )),
        }
    }

    /// Sends a request whose answer is small, and reads it whole.
    pub(crate) async fn small(&self, request: Outgoing, deadline: Instant) -> Result<Small, Failure> {
        let host = host(&request.url);
        let mut answer = self.send(request, deadline).await?;
        let status = answer.status();
        let now = jiff::Timestamp::now();
        let retry_after = retry_after(answer.headers(), now);
        let date = answer
            .headers()
            .get(DATE)
            .and_then(|date| jiff::fmt::rfc2822::parse(date.to_str().ok()?).ok())
            .map(|date| date.timestamp());
        let reading = async {
            let mut body = BytesMut::new();
            while let Some(piece) = answer.chunk().await? {
                if body.len() + piece.len() > SMALL {
                    return Ok(None);
                }
                body.extend_from_slice(&piece);
            }
            Ok(Some(body.freeze()))
        };
        let body = match tokio::time::timeout_at(deadline, reading).await {
            Ok(Ok(Some(body))) => body,
            Ok(Ok(None)) => {
                return Err(Failure::new(
                    Code::AnswerTooLarge,
                    format!("{}: {host} answered with more than {SMALL} bytes", self.service),
                ));
            }
            Ok(Err(error)) => return Err(self.failure(&host, &error)),
            Err(_) => {
                return Err(Failure::new(
                    Code::Timeout,
                    format!("{}: {host} did not end its answer in time", self.service),
                ));
            }
        };
        Ok(Small {
            status,
            body,
            retry_after,
            date,
        })
    }

    /// An address in a URL is never resolved, so it is checked here. Nothing goes unencrypted to where the public network is.
    fn check(&self, url: &Url) -> Result<(), Failure> {
        let address = match url.host() {
            Some(Host::Ipv4(address)) => Some(IpAddr::V4(address)),
            Some(Host::Ipv6(address)) => Some(IpAddr::V6(address)),
            _ => None,
        };
        let (service, host) = (&self.service, host(url));
        if let Some(address) = address
            && let Err(class) = self.allow.permits(address)
        {
            return Err(self.refused(&format!("{service}: {host} is a {class} address")));
        }
        if url.scheme() != "https" && self.allow.networks.is_empty() {
            return Err(Failure::new(
                Code::AddressRefused,
                format!("{service}: {host} is asked over plain http"),
            )
            .remedy(format!(
                "an administrator uses https, or names the address of an inner server in services.{service}.addresses"
            )));
        }
        Ok(())
    }

    fn refused(&self, message: &str) -> Failure {
        Failure::new(Code::AddressRefused, message).remedy(format!(
            "if the service may be there, an administrator names the address in services.{}.addresses",
            self.service
        ))
    }

    /// Why no answer came, or not to its end.
    pub(crate) fn failure(&self, host: &str, error: &reqwest::Error) -> Failure {
        let service = &self.service;
        if let Some(refused @ DialError::Refused { .. }) = cause(error) {
            return self.refused(&format!("{service}: {refused}"));
        }
        if let Some(rustls::Error::InvalidCertificate(why)) = tls_cause(error) {
            return Failure::new(
                Code::BadCertificate,
                format!("{service}: the certificate of {host} is not good: {why}"),
            )
            .remedy(
                "the upstream's owner renews it; an authority of your own is made known to this machine's trust store",
            );
        }
        // Its own text holds the URL, and with it what may be a key.
        let why = error.source().map_or_else(String::new, with_causes);
        if error.is_connect() {
            return Failure::new(Code::Unreachable, format!("{service}: no connection to {host}: {why}"));
        }
        Failure::new(
            Code::AnswerCut,
            format!("{service}: the connection to {host} broke: {why}"),
        )
    }
}

/// Host and port, as a person reads them.
pub(crate) fn host(url: &Url) -> String {
    url[url::Position::BeforeHost..url::Position::AfterPort].to_owned()
}

fn causes_of<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error: &&'e (dyn Error + 'static)| (*error).source())
}

fn cause<E: Error + 'static>(error: &reqwest::Error) -> Option<&E> {
    causes_of(error).find_map(|cause| cause.downcast_ref())
}

/// An `io::Error` is no cause of what it carries, and may carry another.
fn tls_cause(error: &reqwest::Error) -> Option<&rustls::Error> {
    causes_of(error).find_map(|cause| {
        let mut carried = cause.downcast_ref::<io::Error>()?.get_ref()?;
        while let Some(inner) = carried.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            carried = inner;
        }
        carried.downcast_ref()
    })
}

/// Resolves names by the dialer, which checks every address.
struct Resolver {
    dialer: Dialer,
    allow: Arc<Allow>,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (dialer, allow) = (self.dialer.clone(), Arc::clone(&self.allow));
        Box::pin(async move {
            let host = name.as_str().trim_end_matches('.').to_ascii_lowercase();
            let addresses = dialer.addresses(&host, &allow).await?;
            let addresses: Addrs = Box::new(addresses.into_iter().map(|address| SocketAddr::new(address, 0)));
            Ok(addresses)
        })
    }
}
