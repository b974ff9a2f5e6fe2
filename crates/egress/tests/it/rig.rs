//! A broker with everything around it on this machine: names that lead to servers of the test, who sign for these, a scope
//! that can be changed, and the audit.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use dial::{Dialer, Resolve, ResolveError};
use domain::SessionId;
use egress::{AuditReceiver, Broker, Denied, Limits, Outcome, Record, Rule, Rules, Surroundings};
use lifecycle::Tasks;
use policy::{Decision, Destination};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use secret::{Reference, Secret};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// A broker and what is around it. Ends with all its connections when dropped.
pub(crate) struct World {
    pub(crate) broker: Broker,
    pub(crate) tasks: Tasks,
    pub(crate) names: Arc<Names>,
    pub(crate) scope: Arc<Scope>,
    _folder: TempDir,
    upstream: CertifiedIssuer<'static, KeyPair>,
    audit: tokio::sync::Mutex<(AuditReceiver, VecDeque<Record>)>,
}

/// What is different about a world.
#[derive(Default)]
pub(crate) struct Setting {
    pub(crate) limits: Option<Limits>,
    pub(crate) secrets: BTreeMap<Reference, Secret>,
    pub(crate) clock: Option<Arc<egress::Clock>>,
}

impl World {
    /// A world with these rules, as they are written in a configuration under `[egress.rules]`.
    pub(crate) fn new(rules: &str) -> Self {
        Self::with(rules, Setting::default())
    }

    pub(crate) fn with(rules: &str, setting: Setting) -> Self {
        let (tasks, names, scope) = (Tasks::new(), Arc::new(Names::default()), Arc::new(Scope::default()));
        let folder = tempfile::tempdir().unwrap();
        let upstream = issuer();
        let mut roots = RootCertStore::empty();
        roots.add(upstream.der().clone()).unwrap();
        let (teller, told) = egress::audit_queue();
        let deciding = Arc::clone(&scope);
        let surroundings = Surroundings {
            rules: self::rules(rules).unwrap(),
            limits: setting.limits.unwrap_or_default(),
            decide: Arc::new(move |session, destination, port| deciding.decide(session, destination, port)),
            dialer: Dialer::new(Arc::clone(&names) as Arc<dyn Resolve>, dial::Settings::default()),
            secrets: Arc::new(setting.secrets),
            roots: Arc::new(roots),
            audit: teller,
            tasks: tasks.child(),
            clock: setting.clock.unwrap_or_else(egress::machine_clock),
        };
        Self {
            broker: Broker::new(&folder.path().join("egress"), surroundings).unwrap(),
            tasks,
            names,
            scope,
            _folder: folder,
            upstream,
            audit: (told, VecDeque::new()).into(),
        }
    }

    /// Opens a connection as a sandbox of the session would.
    pub(crate) fn tunnel(&self, session: SessionId, host: &str, port: u16) -> Result<UnixStream, Denied> {
        let admitted = self.broker.admit(session, host, port)?;
        let (near, far) = UnixStream::pair().unwrap();
        self.tasks.spawn_until_stopped(admitted.carry(far));
        Ok(near)
    }

    /// TLS through a tunnel, with a client that trusts `roots` and means `server_name`.
    pub(crate) async fn tls(
        &self,
        tunnel: UnixStream,
        server_name: &str,
        roots: RootCertStore,
    ) -> std::io::Result<TlsStream<UnixStream>> {
        let name = ServerName::try_from(server_name.to_owned()).unwrap();
        connector(roots).connect(name, tunnel).await
    }

    /// Those that sign for the upstreams of the test.
    pub(crate) fn upstream_roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.upstream.der().clone()).unwrap();
        roots
    }

    /// Those that a sandbox is told to trust.
    pub(crate) fn sandbox_roots(&self) -> RootCertStore {
        trusting(&self.broker.authorities().unwrap())
    }

    /// How to be a host with a certificate that upstream clients trust.
    pub(crate) fn server_config(&self, host: &str) -> ServerConfig {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec![host.to_owned()])
            .unwrap()
            .signed_by(&key, &self.upstream)
            .unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap()
    }

    /// A server on loopback that answers each connection by `answer`.
    pub(crate) async fn server<F, R>(&self, answer: F) -> SocketAddr
    where
        F: Fn(TcpStream) -> R + Send + Sync + 'static,
        R: Future<Output = std::io::Result<()>> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let tasks = self.tasks.clone();
        self.tasks.spawn_until_stopped(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let answering = answer(stream);
                tasks.spawn_until_stopped(async move {
                    // A client that goes away in the middle is no fault of the server.
                    let _ = answering.await;
                });
            }
        });
        address
    }

    /// A TLS server that is `host`, and says what it was sent back to whoever sends it.
    pub(crate) async fn tls_echo(&self, host: &str) -> SocketAddr {
        let acceptor = TlsAcceptor::from(Arc::new(self.server_config(host)));
        let address = self
            .server(move |stream| {
                let acceptor = acceptor.clone();
                async move { echo(acceptor.accept(stream).await?).await }
            })
            .await;
        self.names.lead(host, "127.0.0.1");
        address
    }

    /// The next thing that the audit is told.
    pub(crate) async fn told(&self) -> Record {
        let (told, waiting) = &mut *self.audit.lock().await;
        while waiting.is_empty() {
            let tried = testkit::within("the audit is told", told.next()).await.unwrap();
            waiting.extend(tried.records);
        }
        waiting.pop_front().unwrap()
    }

    /// The next refusal that the audit is told; its protocol and code.
    pub(crate) async fn told_denied(&self) -> (&'static str, &'static str) {
        match self.told().await {
            Record {
                protocol,
                outcome: Outcome::Denied(denied),
                ..
            } => (protocol, denied.code.as_str()),
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) async fn echo(stream: impl AsyncRead + AsyncWrite) -> std::io::Result<()> {
    let (mut read, mut write) = tokio::io::split(stream);
    tokio::io::copy(&mut read, &mut write).await?;
    write.shutdown().await
}

/// Sends something and hears everything until the end.
pub(crate) async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    bytes: &[u8],
) -> std::io::Result<Vec<u8>> {
    stream.write_all(bytes).await?;
    stream.shutdown().await?;
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).await?;
    Ok(heard)
}

/// The first bytes of a client that means `host`, and carries another name that only the server can read.
pub(crate) fn encrypted_hello(host: &str) -> Vec<u8> {
    let name = ServerName::try_from(host.to_owned()).unwrap();
    let config = Arc::clone(connector(RootCertStore::empty()).config());
    let mut hello = Vec::new();
    let mut client = rustls::ClientConnection::new(config, name).unwrap();
    client.write_tls(&mut hello).unwrap();
    // `encrypted_client_hello`: the outer kind, a suite, an id, no key, one byte.
    let extension = [0xfe, 0x0d, 0, 11, 0, 0, 1, 0, 1, 5, 0, 0, 0, 1, 9];
    let session = 9 + 2 + 32;
    let ciphers = session + 1 + usize::from(hello[session]);
    let compressions = ciphers + 2 + usize::from(u16::from_be_bytes([hello[ciphers], hello[ciphers + 1]]));
    let extensions = compressions + 1 + usize::from(hello[compressions]);
    // The lengths of the record, of the message (its lower half), and of the extensions.
    for at in [3, 7, extensions] {
        let length = u16::from_be_bytes([hello[at], hello[at + 1]]) + u16::try_from(extension.len()).unwrap();
        hello[at..at + 2].copy_from_slice(&length.to_be_bytes());
    }
    hello.extend(extension);
    hello
}

pub(crate) fn connector(roots: RootCertStore) -> TlsConnector {
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

pub(crate) fn trusting(pem: &str) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    roots
}

/// Rules as they are written in a configuration under `[egress.rules]`; what is wrong with them otherwise.
pub(crate) fn rules(text: &str) -> Result<Rules, String> {
    let rules: BTreeMap<String, Rule> = toml::from_str(text).map_err(|error| error.to_string())?;
    Rules::new(rules).map_err(|mistakes| mistakes.iter().map(|mistake| format!("{mistake}\n")).collect())
}

fn issuer() -> CertifiedIssuer<'static, KeyPair> {
    let mut parameters = CertificateParams::default();
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters
        .distinguished_name
        .push(rcgen::DnType::CommonName, "Upstreams");
    CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap()
}

/// Names that exist, and what was asked for.
#[derive(Default)]
pub(crate) struct Names {
    addresses: Mutex<HashMap<String, Vec<IpAddr>>>,
    asked: Mutex<Vec<String>>,
}

impl Names {
    pub(crate) fn lead(&self, name: &str, address: &str) {
        let address = address.parse().unwrap();
        self.addresses.lock().unwrap().insert(name.to_owned(), vec![address]);
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

#[async_trait]
impl Resolve for Names {
    async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, ResolveError> {
        self.asked.lock().unwrap().push(name.to_owned());
        let addresses = self.addresses.lock().unwrap().get(name).cloned();
        addresses.ok_or_else(|| ResolveError::NoAddress { name: name.to_owned() })
    }
}

/// A scope that allows everything but what it is told not to.
#[derive(Default)]
pub(crate) struct Scope {
    denied: Mutex<HashSet<String>>,
}

impl Scope {
    pub(crate) fn deny(&self, host: &str) {
        self.denied.lock().unwrap().insert(host.to_owned());
    }

    fn decide(&self, _: SessionId, destination: &Destination, _: Option<u16>) -> Decision {
        let denied = self.denied.lock().unwrap().contains(&destination.to_string());
        Decision {
            outcome: if denied {
                policy::Outcome::Deny
            } else {
                policy::Outcome::Allow
            },
            reason: "the scope of the test says so".to_owned(),
            layer: "test".to_owned(),
            rule: "egress.test".to_owned(),
        }
    }
}
