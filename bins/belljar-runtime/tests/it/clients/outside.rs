//! What is outside: the real broker, and behind it servers of the test that want a key.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use dial::{Dialer, Resolve, ResolveError};
use domain::SessionId;
use egress::{Admitted, Broker, Denied, Limits, Rule, Rules, Surroundings};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use lifecycle::Tasks;
use link::server::{Carrier, Connection};
use policy::{Decision, Outcome};
use protocol::{Denial, Refusal, RefusalCode};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::{RootCertStore, ServerConfig};
use secret::Secret;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// The key that no program inside knows, and every server outside wants.
pub(super) const KEY: &str = "the-real-key-0123456789";

const HOSTS: [&str; 5] = [
    "api.client.test",
    "git.client.test",
    "npm.client.test",
    "pypi.client.test",
    "pass.client.test",
];

const RULES: &str = r#"
[keyed]
hosts = ["api.client.test", "npm.client.test", "pypi.client.test"]
networks = ["127.0.0.0/8"]
inject = [{ kind = "bearer", secret = "env:KEY" }]
[git]
hosts = ["git.client.test"]
networks = ["127.0.0.0/8"]
git = { repositories = ["acme/app"], write = true, secret = "env:KEY" }
[passed]
hosts = ["pass.client.test"]
networks = ["127.0.0.0/8"]
"#;

/// The broker, and the folder in which the git server's repository is.
pub(crate) struct Outside {
    broker: Broker,
    session: SessionId,
    folder: PathBuf,
    pub(super) upstream_authority: String,
}

impl Outside {
    pub(super) async fn new(session: SessionId, folder: &Path, tasks: &Tasks) -> Self {
        let upstream = issuer();
        let mut roots = RootCertStore::empty();
        roots.add(upstream.der().clone()).unwrap();
        let (audit, mut told) = tokio::sync::mpsc::channel(1_000);
        tasks.spawn_until_stopped(async move { while told.recv().await.is_some() {} });
        let rules: BTreeMap<String, Rule> = toml::from_str(RULES).unwrap();
        let key = BTreeMap::from([("env:KEY".parse().unwrap(), Secret::new(KEY))]);
        let server = serve(&upstream, folder, tasks).await;
        let surroundings = Surroundings {
            rules: Rules::new(rules).unwrap_or_else(|mistakes| panic!("{mistakes:?}")),
            limits: Limits::default(),
            decide: Arc::new(|_, _, _| Decision {
                outcome: Outcome::Allow,
                reason: "the test allows all".to_owned(),
                layer: "test".to_owned(),
                rule: "egress.test".to_owned(),
            }),
            dialer: Dialer::new(Arc::new(Names(server)), dial::Settings::default()),
            secrets: Arc::new(key),
            roots: Arc::new(roots),
            audit,
            tasks: tasks.child(),
        };
        Self {
            broker: Broker::new(&folder.join("egress"), surroundings).unwrap(),
            session,
            folder: folder.to_owned(),
            upstream_authority: upstream.pem(),
        }
    }

    /// Whom a sandbox is told to trust.
    pub(super) fn authorities(&self) -> String {
        self.broker.authorities().unwrap()
    }

    /// What git was pushed.
    pub(super) fn pushed(&self) -> PathBuf {
        self.folder.join("git/acme/app.git/refs/heads/main")
    }

    pub(crate) fn resolve(&self, name: &str) -> Result<(), Refusal> {
        self.broker.resolve(self.session, name).map_err(refusal)
    }

    pub(crate) fn connect(&self, host: &str, port: u16) -> Result<Box<dyn Carrier>, Refusal> {
        let admitted = self.broker.admit(self.session, host, port).map_err(refusal)?;
        Ok(Box::new(Brokered(admitted)))
    }
}

fn refusal(denied: Denied) -> Refusal {
    let denial = Denial {
        reason: denied.code.as_str().to_owned(),
        rule: denied.rule.clone(),
        remedy: Some(denied.remedy.clone()),
    };
    Refusal {
        denial: Some(denial),
        ..Refusal::new(RefusalCode::Denied, denied.reason)
    }
}

struct Brokered(Admitted);

#[async_trait]
impl Carrier for Brokered {
    async fn carry(self: Box<Self>, near: Box<dyn Connection>) {
        self.0.carry(near).await;
    }
}

/// All names lead to the one server.
struct Names(Ipv4Addr);

#[async_trait]
impl Resolve for Names {
    async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, ResolveError> {
        if HOSTS.contains(&name) {
            return Ok(vec![self.0.into()]);
        }
        Err(ResolveError::NoAddress { name: name.to_owned() })
    }
}

fn issuer() -> CertifiedIssuer<'static, KeyPair> {
    let mut parameters = CertificateParams::default();
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters
        .distinguished_name
        .push(rcgen::DnType::CommonName, "Upstreams of a test");
    CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap()
}

/// A server at port 443 of an address of its own on loopback: programs mean that port when they say none.
async fn serve(upstream: &CertifiedIssuer<'static, KeyPair>, folder: &Path, tasks: &Tasks) -> Ipv4Addr {
    let key = KeyPair::generate().unwrap();
    let names: Vec<String> = HOSTS.map(str::to_owned).into();
    let certificate = CertificateParams::new(names)
        .unwrap()
        .signed_by(&key, upstream)
        .unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    static COUNT: AtomicU8 = AtomicU8::new(64);
    let [.., third, fourth] = std::process::id().to_be_bytes();
    let address = Ipv4Addr::new(127, COUNT.fetch_add(1, Ordering::Relaxed), third, fourth);
    let listener = TcpListener::bind((address, 443)).await.unwrap();
    repository(&folder.join("git"));
    let (acceptor, folder, serving) = (TlsAcceptor::from(Arc::new(config)), folder.to_owned(), tasks.clone());
    tasks.spawn_until_stopped(async move {
        while let Ok((stream, _)) = listener.accept().await {
            serving.spawn_until_stopped(converse(stream, acceptor.clone(), folder.clone()));
        }
    });
    address
}

async fn converse(stream: TcpStream, acceptor: TlsAcceptor, folder: PathBuf) {
    // A client that goes away in the middle is no fault of the server.
    let Ok(stream) = acceptor.accept(stream).await else {
        return;
    };
    let service = service_fn(|request| answer(request, folder.clone()));
    let _ = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn answer(request: Request<Incoming>, folder: PathBuf) -> Result<Response<Full<Bytes>>, std::io::Error> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
    let header = |name: &str| header(&parts.headers, name);
    let host = header("host");
    let path = parts.uri.path();
    let shown = match host.as_str() {
        "pass.client.test" => String::new(),
        "git.client.test" => {
            use base64::Engine;
            let pair = format!("x-access-token:{KEY}");
            format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair))
        }
        _ => format!("Bearer {KEY}"),
    };
    if header("authorization") != shown {
        let mut refused = Response::new(Full::from("who are you?\n"));
        *refused.status_mut() = StatusCode::UNAUTHORIZED;
        let challenge = "Basic realm=\"git\"".parse().map_err(std::io::Error::other)?;
        refused.headers_mut().insert("www-authenticate", challenge);
        return Ok(refused);
    }
    let (media_type, content) = match (host.as_str(), path) {
        ("git.client.test", _) => {
            let query = parts.uri.query().unwrap_or_default().to_owned();
            let environment = [
                ("GIT_PROJECT_ROOT", folder.join("git").display().to_string()),
                ("GIT_HTTP_EXPORT_ALL", "1".to_owned()),
                ("PATH_INFO", path.to_owned()),
                ("QUERY_STRING", query),
                ("REQUEST_METHOD", parts.method.to_string()),
                ("CONTENT_TYPE", header("content-type")),
                ("HTTP_CONTENT_ENCODING", header("content-encoding")),
                ("GIT_PROTOCOL", header("git-protocol")),
                ("REMOTE_USER", "test".to_owned()),
            ];
            return tokio::task::spawn_blocking(move || git(&environment, &body))
                .await
                .map_err(std::io::Error::other)?;
        }
        ("npm.client.test", _) => (
            "application/json",
            Bytes::from_static(
                br#"{"name":"belljar-probe","dist-tags":{"latest":"1.2.3"},"versions":{"1.2.3":{"name":"belljar-probe","version":"1.2.3","dist":{"tarball":"https://npm.client.test/x.tgz"}}}}"#,
            ),
        ),
        ("pypi.client.test", "/simple/belljar-probe/") => (
            "text/html",
            Bytes::from_static(br#"<a href="/files/belljar_probe-1.2.3-py3-none-any.whl">belljar_probe-1.2.3-py3-none-any.whl</a>"#),
        ),
        ("pypi.client.test", _) => ("application/zip", std::fs::read(folder.join("wheel"))?.into()),
        _ => ("text/plain", format!("welcome to {host}{path}\n").into()),
    };
    let mut response = Response::new(Full::new(content));
    let media_type = media_type.parse().map_err(std::io::Error::other)?;
    response.headers_mut().insert("content-type", media_type);
    Ok(response)
}

fn header(headers: &HeaderMap, name: &str) -> String {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_default().to_owned()
}

fn repository(folder: &Path) {
    let app = folder.join("acme/app.git");
    std::fs::create_dir_all(&app).unwrap();
    let git = |arguments: &[&str]| {
        let mut command = std::process::Command::new("git");
        command.arg("-C").arg(&app).args(arguments);
        testkit::run(&mut command)
    };
    git(&["init", "-q", "--bare", "-b", "main"]);
    git(&["config", "http.receivepack", "true"]);
}

/// Git's own server, which speaks CGI.
fn git(environment: &[(&str, String)], body: &[u8]) -> Result<Response<Full<Bytes>>, std::io::Error> {
    use std::io::Write;
    let mut child = std::process::Command::new("git")
        .arg("http-backend")
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()?;
    let mut input = child.stdin.take().ok_or(std::io::ErrorKind::BrokenPipe)?;
    let body = body.to_vec();
    let writing = std::thread::spawn(move || input.write_all(&body));
    let output = child.wait_with_output()?.stdout;
    let _ = writing.join();
    let end = output.windows(4).position(|window| window == b"\r\n\r\n");
    let end = end.ok_or(std::io::ErrorKind::InvalidData)?;
    let mut response = Response::new(Full::new(Bytes::copy_from_slice(&output[end + 4..])));
    for line in String::from_utf8_lossy(&output[..end]).lines() {
        let Some((name, value)) = line.split_once(": ") else {
            continue;
        };
        if name == "Status" {
            let code = value[..3].parse().map_err(std::io::Error::other)?;
            *response.status_mut() = code;
        } else {
            let name: http::HeaderName = name.parse().map_err(std::io::Error::other)?;
            let value = value.parse().map_err(std::io::Error::other)?;
            response.headers_mut().insert(name, value);
        }
    }
    Ok(response)
}
