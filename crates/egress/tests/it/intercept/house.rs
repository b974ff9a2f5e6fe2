//! Everything round the interceptor: authorities, rules, secrets, upstreams, and clients as in a sandbox.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use domain::SessionId;
use egress::{Code, Decided, Denied, Intercept, Matching, Outcome, Parts, Record, Rule, Scheme, Stream};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use lifecycle::Tasks;
use policy::Destination;
use rustls::{ClientConfig, RootCertStore};
use secret::{Reference, Secret, Source, Unresolved};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::upstream::{Answer, Authority, Seen, Upstream};

/// The secret that rules put in, and its reference.
pub(crate) const SECRET: &str = "tok-5f/8e+21&b\"c\\7d";
pub(crate) const REFERENCE: &str = "env:TOKEN";
pub(crate) const PLACEHOLDER: &str = "credential-brokered";

/// How long anything may take before a test is lost.
const PATIENCE: Duration = Duration::from_secs(60);

/// Secrets that a test may change.
#[derive(Default)]
pub(crate) struct Secrets(Mutex<BTreeMap<Reference, Secret>>);

impl Secrets {
    pub(crate) fn set(&self, reference: &str, secret: &str) {
        let mut secrets = self.0.lock().unwrap();
        secrets.insert(reference.parse().unwrap(), Secret::new(secret));
    }

    pub(crate) fn remove(&self, reference: &str) {
        self.0.lock().unwrap().remove(&reference.parse().unwrap());
    }
}

impl Source for Secrets {
    fn secret(&self, reference: &Reference) -> Result<Secret, Unresolved> {
        self.0.lock().unwrap().secret(reference)
    }
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
    pub(crate) trailers: HeaderMap,
}

impl Reply {
    /// The code of a refusal.
    pub(crate) fn code(&self) -> String {
        let refusal: serde_json::Value = serde_json::from_str(&self.body).unwrap();
        let refusal = &refusal["error"];
        for part in ["message", "remedy"] {
            assert!(
                refusal[part].as_str().is_some_and(|words| !words.is_empty()),
                "{refusal}"
            );
        }
        refusal["code"].as_str().unwrap().to_owned()
    }
}

pub(crate) struct House {
    pub(crate) session: SessionId,
    pub(crate) secrets: Arc<Secrets>,
    pub(crate) intercept: Intercept,
    pub(crate) tasks: Tasks,
    pub(crate) ours: Arc<Authority>,
    pub(crate) theirs: Arc<Authority>,
    matching: Arc<Mutex<Result<Arc<Matching>, Denied>>>,
    places: Arc<Mutex<HashMap<String, SocketAddr>>>,
    records: Arc<Mutex<Vec<Record>>>,
}

impl House {
    /// A house with rules, each a name and TOML; the secret is there.
    pub(crate) fn new(rules: &[(&str, &str)]) -> Self {
        let (ours, theirs) = (Arc::new(Authority::new()), Arc::new(Authority::new()));
        let mut roots = RootCertStore::empty();
        roots.add(theirs.certificate()).unwrap();
        let secrets = Arc::new(Secrets::default());
        secrets.set(REFERENCE, SECRET);
        let matching = Arc::new(Mutex::new(Ok(Arc::new(matching(1, rules)))));
        let places: Arc<Mutex<HashMap<String, SocketAddr>>> = Arc::default();
        let records: Arc<Mutex<Vec<Record>>> = Arc::default();
        let tasks = Tasks::new();
        let parts = Parts {
            matching: {
                let matching = Arc::clone(&matching);
                Arc::new(move |_| matching.lock().unwrap().clone())
            },
            dial: {
                let places = Arc::clone(&places);
                Arc::new(move |decided, _| {
                    let place = places.lock().unwrap().get(&decided.host.to_string()).copied();
                    Box::pin(async move {
                        let refused = || Denied::new(Code::Unreachable, "nobody is there", "start one");
                        let stream = TcpStream::connect(place.ok_or_else(refused)?)
                            .await
                            .map_err(|_| refused())?;
                        Ok(Box::new(stream) as Box<dyn Stream>)
                    })
                })
            },
            server: {
                let ours = Arc::clone(&ours);
                Arc::new(move |decided| Ok(Arc::new(ours.server(&decided.host.to_string(), |_| {}))))
            },
            secrets: secrets.clone(),
            audit: {
                let records = Arc::clone(&records);
                Arc::new(move |record| records.lock().unwrap().push(record))
            },
            roots: Arc::new(roots),
            tasks: tasks.clone(),
        };
        Self {
            session: SessionId::new(),
            secrets,
            intercept: Intercept::new(parts).unwrap(),
            tasks,
            ours,
            theirs,
            matching,
            places,
            records,
        }
    }

    /// Other rules from now on.
    pub(crate) fn change(&self, generation: u64, rules: &[(&str, &str)]) {
        *self.matching.lock().unwrap() = Ok(Arc::new(matching(generation, rules)));
    }

    /// Starts an upstream with TLS for a name.
    pub(crate) async fn upstream(
        &self,
        host: &str,
        handler: impl Fn(&Seen) -> Answer + Send + Sync + 'static,
    ) -> Upstream {
        self.upstream_with(host, self.theirs.server(host, |_| {}), handler)
            .await
    }

    /// The same, for HTTP/1.1 alone.
    pub(crate) async fn old_upstream(
        &self,
        host: &str,
        handler: impl Fn(&Seen) -> Answer + Send + Sync + 'static,
    ) -> Upstream {
        let mut config = self.theirs.server(host, |_| {});
        config.alpn_protocols.clear();
        self.upstream_with(host, config, handler).await
    }

    pub(crate) async fn upstream_with(
        &self,
        host: &str,
        config: rustls::ServerConfig,
        handler: impl Fn(&Seen) -> Answer + Send + Sync + 'static,
    ) -> Upstream {
        let upstream = Upstream::start(Some(config), &self.tasks, handler).await;
        self.place(host, upstream.address);
        upstream
    }

    /// Starts an upstream in the clear for a name.
    pub(crate) async fn clear_upstream(
        &self,
        host: &str,
        handler: impl Fn(&Seen) -> Answer + Send + Sync + 'static,
    ) -> Upstream {
        let upstream = Upstream::start(None, &self.tasks, handler).await;
        self.place(host, upstream.address);
        upstream
    }

    /// Says where a name leads.
    pub(crate) fn place(&self, host: &str, address: SocketAddr) {
        self.places.lock().unwrap().insert(host.to_owned(), address);
    }

    pub(crate) fn decided(&self, scheme: Scheme, host: &str, port: u16) -> Decided {
        Decided {
            session: self.session,
            scheme,
            host: Destination::parse(host).unwrap(),
            port,
        }
    }

    /// Opens a connection as a program in the sandbox does; it is carried as was decided.
    pub(crate) fn open(&self, decided: Decided) -> tokio::io::DuplexStream {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let intercept = self.intercept.clone();
        self.tasks.spawn_until_stopped(async move {
            let _ = intercept.carry(decided, far).await;
        });
        near
    }

    /// How a program in the sandbox speaks TLS.
    pub(crate) fn client(&self, protocol: &[u8]) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(self.ours.certificate()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.to_vec()];
        TlsConnector::from(Arc::new(config))
    }

    /// A TLS connection to a host at 443.
    pub(crate) async fn tls(&self, host: &str, protocol: &[u8]) -> TlsStream<tokio::io::DuplexStream> {
        let stream = self.open(self.decided(Scheme::Https, host, 443));
        let name = rustls::pki_types::ServerName::try_from(host.to_owned()).unwrap();
        self.client(protocol).connect(name, stream).await.unwrap()
    }

    /// An HTTP/1.1 client of a host over TLS.
    pub(crate) async fn one(&self, host: &str) -> hyper::client::conn::http1::SendRequest<Full<Bytes>> {
        let stream = self.tls(host, b"http/1.1").await;
        self.one_on(stream).await
    }

    pub(crate) async fn one_on(&self, stream: impl Stream) -> hyper::client::conn::http1::SendRequest<Full<Bytes>> {
        let (client, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .unwrap();
        self.tasks.spawn_until_stopped(async move {
            let _ = connection.await;
        });
        client
    }

    /// An HTTP/2 client of a host.
    pub(crate) async fn many(&self, host: &str) -> hyper::client::conn::http2::SendRequest<Full<Bytes>> {
        let stream = self.tls(host, b"h2").await;
        let executor = Executor(self.tasks.clone());
        let (client, connection) = hyper::client::conn::http2::handshake(executor, TokioIo::new(stream))
            .await
            .unwrap();
        self.tasks.spawn_until_stopped(async move {
            let _ = connection.await;
        });
        client
    }

    /// Sends one request over TLS on a connection of its own.
    pub(crate) async fn ask(&self, host: &str, request: Request<Full<Bytes>>) -> Reply {
        let mut client = self.one(host).await;
        read(client.send_request(request).await.unwrap()).await
    }

    /// The same, in the clear at port 80.
    pub(crate) async fn ask_clear(&self, host: &str, request: Request<Full<Bytes>>) -> Reply {
        let stream = self.open(self.decided(Scheme::Http, host, 80));
        let mut client = self.one_on(stream).await;
        read(client.send_request(request).await.unwrap()).await
    }

    /// Sends bytes over TLS, and gives everything that comes back until the connection closes.
    pub(crate) async fn raw(&self, host: &str, bytes: &[u8]) -> String {
        let mut stream = self.tls(host, b"http/1.1").await;
        stream.write_all(bytes).await.unwrap();
        stream.flush().await.unwrap();
        let mut answer = Vec::new();
        // A connection that was closed without TLS's farewell is closed as well.
        let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer))
            .await
            .expect("it closes");
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Listens as the sandbox's way out to a host, for programs that are run.
    pub(crate) async fn gate(&self, host: &str) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let decided = self.decided(Scheme::Https, host, port);
        let (intercept, tasks) = (self.intercept.clone(), self.tasks.clone());
        self.tasks.spawn_until_stopped(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (intercept, decided) = (intercept.clone(), decided.clone());
                tasks.spawn_until_stopped(async move {
                    let _ = intercept.carry(decided, stream).await;
                });
            }
        });
        port
    }

    /// Waits until so many requests are audited.
    pub(crate) async fn records(&self, count: usize) -> Vec<Record> {
        let enough = async {
            loop {
                let records = self.records.lock().unwrap().clone();
                if records.len() >= count {
                    return records;
                }
                tokio::task::yield_now().await;
            }
        };
        let records = tokio::time::timeout(PATIENCE, enough).await.expect("they are audited");
        assert_eq!(records.len(), count, "{records:?}");
        assert!(!format!("{records:?}").contains(SECRET));
        records
    }

    /// The code of the only refusal that was audited.
    pub(crate) async fn refusal(&self) -> Code {
        match &self.records(1).await[0].outcome {
            Outcome::Denied(denied) => denied.code,
            Outcome::Allowed => panic!("it was allowed"),
        }
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

fn matching(generation: u64, rules: &[(&str, &str)]) -> Matching {
    let rules: Vec<_> = rules.iter().map(|(name, text)| Arc::new(rule(name, text))).collect();
    let bound = rules.iter().flat_map(|rule| rule.bound()).cloned().collect();
    Matching {
        generation,
        rules,
        bound,
    }
}

/// A rule as it stands in the configuration.
pub(crate) fn rule(name: &str, text: &str) -> Rule {
    let text = format!("hosts = [\"**\"]\n{text}");
    let rule: Rule = toml::from_str(&text).unwrap();
    Rule {
        name: name.to_owned(),
        ..rule
    }
}

/// A GET of a path.
pub(crate) fn get(host: &str, path: &str) -> Request<Full<Bytes>> {
    request("GET", host, path, &[], "")
}

/// A request.
pub(crate) fn request(
    method: &str,
    host: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Request<Full<Bytes>> {
    let mut request = Request::builder().method(method).uri(path).header("host", host);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::new(Bytes::from(body.to_owned()))).unwrap()
}

/// A request for HTTP/2.
pub(crate) fn request2(method: &str, uri: &str, headers: &[(&str, &str)], body: &str) -> Request<Full<Bytes>> {
    let mut request = Request::builder()
        .method(method)
        .uri(uri)
        .version(http::Version::HTTP_2);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::new(Bytes::from(body.to_owned()))).unwrap()
}

/// Reads an answer to its end.
pub(crate) async fn read(response: Response<hyper::body::Incoming>) -> Reply {
    let (parts, body) = response.into_parts();
    let body = tokio::time::timeout(PATIENCE, body.collect())
        .await
        .expect("it ends")
        .unwrap();
    let trailers = body.trailers().cloned().unwrap_or_default();
    Reply {
        status: parts.status,
        headers: parts.headers,
        body: String::from_utf8_lossy(&body.to_bytes()).into_owned(),
        trailers,
    }
}
