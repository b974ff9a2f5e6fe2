//! Upstreams behind TLS.

use std::sync::{Arc, Mutex};

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use lifecycle::Tasks;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use services::{Code, Trust};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::rig::{HOST, KEY, Seen, Setting, app, ok};

const GET: &str = r#"
[methods.get]
summary = "One contact"
access = "read"
request = "GET /contacts"
"#;

pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn trust(&self) -> Trust {
        Trust::only(self.0.pem().as_bytes()).unwrap()
    }

    /// A certificate that has not ended, and its key, as files have them.
    pub(crate) fn pem(&self, host: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }

    fn certificate(&self, host: &str, until: i32) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2001, 1, 1);
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        let certificate = params.signed_by(&key, &self.0).unwrap();
        (
            certificate.der().clone(),
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
    }
}

/// An upstream with this certificate. What reached it is kept.
async fn serve(
    (certificate, key): (CertificateDer<'static>, PrivateKeyDer<'static>),
) -> (String, Arc<Mutex<Vec<Seen>>>, Tasks) {
    let mut config = ServerConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("https://{HOST}:{}", listener.local_addr().unwrap().port());
    let seen = Arc::<Mutex<Vec<Seen>>>::default();
    let app = app(Arc::clone(&seen), Arc::new(|_, _| ok(json!("secure"))));
    let tasks = Tasks::new();
    let connections = tasks.clone();
    tasks.spawn_until_stopped(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (acceptor, service) = (acceptor.clone(), TowerToHyperService::new(app.clone()));
            connections.spawn_until_stopped(async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    let _ = Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                }
            });
        }
    });
    (base, seen, tasks)
}

#[tokio::test]
async fn a_certificate_that_is_good_is_accepted() {
    let authority = Authority::new();
    let (base, seen, _tasks) = serve(authority.certificate(HOST, 2100)).await;
    let mut setting = Setting::new(&base, GET);
    setting.trust = authority.trust();
    assert_eq!(setting.build().get("get", json!({})).await, json!("secure"));
    assert_eq!(seen.lock().unwrap()[0].header("authorization"), format!("Bearer {KEY}"));
}

#[tokio::test]
async fn threat_056_a_certificate_that_is_not_good_is_refused_before_anything_is_sent() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let self_signed = {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![HOST.to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        (
            certificate.der().clone(),
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
    };
    for (certificate, words) in [
        (authority.certificate(HOST, 2002), "expired"),
        (authority.certificate("other.example.com", 2100), "other.example.com"),
        (stranger.certificate(HOST, 2100), ""),
        (self_signed, ""),
    ] {
        let (base, seen, _tasks) = serve(certificate).await;
        let mut setting = Setting::new(&base, GET);
        setting.trust = authority.trust();
        let failure = setting.build().fails("get", json!({}), Code::BadCertificate).await;
        assert_eq!(failure.status(), 502);
        assert!(failure.message.contains(words), "{failure}");
        assert!(failure.remedy.is_some());
        assert!(seen.lock().unwrap().is_empty());
    }
}
