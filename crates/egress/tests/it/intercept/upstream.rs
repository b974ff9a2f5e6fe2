//! An upstream: TLS, HTTP/1.1 and HTTP/2, and a record of everything it was sent.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, Version};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use lifecycle::Tasks;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair,
};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// The body of an answer.
pub(crate) type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// What an upstream was sent.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) version: Version,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Vec<String> {
        let values = self.headers.get_all(name).iter();
        values
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
            .collect()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// An authority for certificates.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "an authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn certificate(&self) -> CertificateDer<'static> {
        self.0.der().clone()
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// How to be a host, with a certificate that may be changed before it is signed.
    pub(crate) fn server(&self, host: &str, change: impl FnOnce(&mut CertificateParams)) -> ServerConfig {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        change(&mut params);
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            )
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config
    }
}

/// A server that answers as it is told.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    connections: Arc<AtomicUsize>,
}

type Handler = Arc<dyn Fn(&Seen) -> Answer + Send + Sync>;

impl Upstream {
    /// Starts one with TLS, or (none) without.
    pub(crate) async fn start(
        tls: Option<ServerConfig>,
        tasks: &Tasks,
        handler: impl Fn(&Seen) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = Self {
            address: listener.local_addr().unwrap(),
            seen: Arc::default(),
            connections: Arc::default(),
        };
        let acceptor = tls.map(|config| TlsAcceptor::from(Arc::new(config)));
        let (seen, connections) = (Arc::clone(&upstream.seen), Arc::clone(&upstream.connections));
        let handler: Handler = Arc::new(handler);
        let owner = tasks.clone();
        tasks.spawn_until_stopped(async move {
            while let Ok((stream, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::SeqCst);
                let (acceptor, seen, handler) = (acceptor.clone(), Arc::clone(&seen), Arc::clone(&handler));
                let tasks = owner.clone();
                owner.spawn_until_stopped(async move {
                    match acceptor {
                        None => serve(stream, false, seen, handler, tasks).await,
                        Some(acceptor) => {
                            if let Ok(stream) = acceptor.accept(stream).await {
                                let newest = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                                serve(stream, newest, seen, handler, tasks).await;
                            }
                        }
                    }
                });
            }
        });
        upstream
    }

    /// Every request so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// The only request so far.
    pub(crate) fn only(&self) -> Seen {
        let seen = self.seen();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen.into_iter().next().unwrap()
    }

    /// How many connections there were.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

#[derive(Clone)]
struct Executor(Tasks);

impl<F> hyper::rt::Executor<F> for Executor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, task: F) {
        self.0.spawn_until_stopped(task);
    }
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    newest: bool,
    seen: Arc<Mutex<Vec<Seen>>>,
    handler: Handler,
    tasks: Tasks,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (seen, handler) = (Arc::clone(&seen), Arc::clone(&handler));
        async move {
            let (parts, body) = request.into_parts();
            let Ok(body) = body.collect().await else {
                // Nobody waits for an answer to half a request.
                return std::future::pending().await;
            };
            let request = Seen {
                method: parts.method.to_string(),
                target: parts.uri.path_and_query().map_or_else(String::new, ToString::to_string),
                version: parts.version,
                headers: parts.headers,
                body: body.to_bytes(),
            };
            seen.lock().unwrap().push(request.clone());
            Ok::<_, Infallible>(handler(&request))
        }
    });
    let io = TokioIo::new(stream);
    let _ = if newest {
        hyper::server::conn::http2::Builder::new(Executor(tasks))
            .serve_connection(io, service)
            .await
    } else {
        hyper::server::conn::http1::Builder::new()
            .serve_connection(io, service)
            .await
    };
}

/// An answer with a text.
pub(crate) fn text(body: impl Into<Bytes>) -> Answer {
    Response::new(Full::new(body.into()).boxed_unsync())
}

/// An answer that repeats the whole request.
pub(crate) fn echo(seen: &Seen) -> Answer {
    let mut body = format!("{} {}\n", seen.method, seen.target);
    for (name, value) in &seen.headers {
        body.push_str(&format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes())));
    }
    body.push('\n');
    body.push_str(&seen.text());
    text(body)
}
