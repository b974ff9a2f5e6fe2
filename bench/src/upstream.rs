//! A server of the outside world on loopback, with or without TLS: what services and connections lead to.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use lifecycle::Tasks;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// The name in the certificate.
pub(crate) const NAME: &str = "upstream.bench.test";

/// The credential that no client knows.
pub(crate) const SECRET: &str = "bench-credential-7d1f0c";

/// Records of each kind, and those of a page.
pub(crate) const RECORDS: usize = 500;
pub(crate) const PAGE: usize = 100;

/// What is sent of a long body at a time.
const PIECE: usize = 64 << 10;

/// The server. Ends with its value.
///
/// | path | answer |
/// |---|---|
/// | `/small` | a small record |
/// | `/keyed` | the same, where the request brings [`SECRET`] as its bearer token; 401 elsewhere |
/// | `/big/N` | N bytes |
/// | `/records/KIND?cursor=N` | a page of records |
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    keyed: Arc<AtomicU64>,
    tasks: Tasks,
}

impl Upstream {
    /// Speaks plain HTTP.
    pub(crate) async fn plain() -> anyhow::Result<Self> {
        Self::start(None).await
    }

    /// Speaks TLS as [`NAME`]; the authority behind its certificate is written to a file.
    pub(crate) async fn behind_tls(authority: &Path) -> anyhow::Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // A certificate whose issuer has its own name passes for self-signed.
        params
            .distinguished_name
            .push(DnType::CommonName, "authority of the bench");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        std::fs::write(authority, issuer.pem())?;
        let key = KeyPair::generate()?;
        let certificate = CertificateParams::new(vec![NAME.to_owned()])?.signed_by(&key, &issuer)?;
        let private = PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?;
        let config = ServerConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], private)?;
        Self::start(Some(TlsAcceptor::from(Arc::new(config)))).await
    }

    async fn start(tls: Option<TlsAcceptor>) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (tasks, keyed) = (Tasks::new(), Arc::new(AtomicU64::new(0)));
        tasks.spawn_until_stopped(accept(listener, tls, Arc::clone(&keyed), tasks.clone()));
        Ok(Self { address, keyed, tasks })
    }

    /// How many requests brought the secret.
    pub(crate) fn keyed(&self) -> u64 {
        self.keyed.load(Ordering::SeqCst)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.tasks.stop().cancel();
    }
}

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, keyed: Arc<AtomicU64>, tasks: Tasks) {
    while let Ok((stream, _)) = listener.accept().await {
        let (tls, keyed) = (tls.clone(), Arc::clone(&keyed));
        tasks.spawn_until_stopped(async move {
            // Whoever hangs up knows why.
            let _ = stream.set_nodelay(true);
            match tls {
                None => serve(stream, keyed).await,
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        serve(stream, keyed).await;
                    }
                }
            }
        });
    }
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, keyed: Arc<AtomicU64>) {
    let service = service_fn(|request| std::future::ready(Ok::<_, Infallible>(answer(&request, &keyed))));
    let _ = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

fn answer(request: &Request<Incoming>, keyed: &AtomicU64) -> Response<UnsyncBoxBody<Bytes, Infallible>> {
    let parts: Vec<&str> = request.uri().path().split('/').skip(1).collect();
    let bears = request
        .headers()
        .get(AUTHORIZATION)
        .is_some_and(|value| value.as_bytes().strip_prefix(b"Bearer ") == Some(SECRET.as_bytes()));
    keyed.fetch_add(u64::from(bears), Ordering::SeqCst);
    match parts.as_slice() {
        ["small"] => whole(StatusCode::OK, &record("customers", 1)),
        ["keyed"] if bears => whole(StatusCode::OK, &record("customers", 1)),
        ["keyed"] => whole(StatusCode::UNAUTHORIZED, &json!({"error": "no key"})),
        ["big", length] => big(length.parse().unwrap_or_default()),
        ["records", kind] => whole(StatusCode::OK, &page(kind, request.uri().query().unwrap_or_default())),
        _ => whole(StatusCode::NOT_FOUND, &json!({"error": "nothing here"})),
    }
}

fn whole(status: StatusCode, body: &Value) -> Response<UnsyncBoxBody<Bytes, Infallible>> {
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())).boxed_unsync());
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn big(length: usize) -> Response<UnsyncBoxBody<Bytes, Infallible>> {
    static PATTERN: [u8; PIECE] = [0x5a; PIECE];
    let pieces = (0..length.div_ceil(PIECE)).map(move |piece| {
        let size = PIECE.min(length - piece * PIECE);
        Ok(Frame::data(Bytes::from_static(&PATTERN[..size])))
    });
    let mut response = Response::new(StreamBody::new(stream::iter(pieces)).boxed_unsync());
    response.headers_mut().insert(CONTENT_LENGTH, length.into());
    response
}

/// A page of the records of one kind, from the record that the query names on.
pub(crate) fn page(kind: &str, query: &str) -> Value {
    let cursor = query.split('&').find_map(|pair| pair.strip_prefix("cursor="));
    let first: usize = cursor.and_then(|cursor| cursor.parse().ok()).unwrap_or_default();
    let last = (first + PAGE).min(RECORDS);
    let items: Vec<Value> = (first..last).map(|number| record(kind, number)).collect();
    let next = (last < RECORDS).then(|| last.to_string());
    json!({"items": items, "next": next})
}

/// A record such as an API of its kind gives: most of it is of no use to the one who asks.
fn record(kind: &str, number: usize) -> Value {
    let common = json!({
        "object": kind, "createdAt": format!("2026-0{}-1{}T08:00:00Z", number % 9 + 1, number % 9),
        "url": format!("https://app.example.com/{kind}/{number:06}"), "archived": false,
    });
    let own = match kind {
        "customers" => json!({
            "id": format!("cus_{number:06}"), "name": format!("Customer {number} Limited"), "email": format!("office@customer{number}.example"),
            "owner": format!("owner-{}", number % 7), "phone": format!("+49 30 {number:07}"), "plan": (["free", "team", "business"][number % 3]),
        }),
        "tickets" => json!({
            "id": format!("tic_{number:06}"), "customer": format!("cus_{:06}", number * 7 % RECORDS), "subject": format!("Question number {number} about the last delivery"),
            "state": (["open", "waiting", "closed"][number % 3]), "priority": (["low", "normal", "urgent"][number % 5 % 3]), "tags": ["delivery", "europe"],
        }),
        _ => json!({
            "id": format!("inv_{number:06}"), "customer": format!("cus_{:06}", number * 3 % RECORDS), "total": 1_000 + number * 37 % 9_000,
            "currency": "eur", "state": (["paid", "open", "void"][number % 4 % 3]), "due": "2026-11-30", "lines": number % 9 + 1,
        }),
    };
    let mut record = common;
    if let (Some(record), Value::Object(own)) = (record.as_object_mut(), own) {
        record.extend(own);
    }
    record
}
