//! The ways to a model: HTTP, or a script that is played.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use reqwest::redirect::Policy;
use rustls::{ClientConfig, RootCertStore};

use crate::Timeouts;
use crate::model::HttpTarget;
use crate::retry::retry_after;
use crate::scripted::Playback;

/// What came back to a request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) body: Body,
}

/// The bytes of an answer, as they come.
#[derive(Debug)]
pub(crate) enum Body {
    Http(reqwest::Response),
    Script(Playback),
}

impl Body {
    /// The next piece; `None` at the end. Safe to drop and call again.
    pub(crate) async fn piece(&mut self) -> Result<Option<Bytes>, reqwest::Error> {
        match self {
            Self::Http(response) => response.chunk().await.map_err(reqwest::Error::without_url),
            Self::Script(playback) => Ok(playback.piece().await),
        }
    }
}

/// Sends a request, and waits for the answer's head.
pub(crate) async fn send(
    client: &reqwest::Client,
    target: &HttpTarget,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Answer, reqwest::Error> {
    let request = client.post(target.url.clone()).headers(headers).body(body);
    let response = request.send().await.map_err(reqwest::Error::without_url)?;
    Ok(Answer {
        status: response.status().as_u16(),
        retry_after: retry_after(response.headers(), jiff::Timestamp::now()),
        body: Body::Http(response),
    })
}

/// The beginning of a body that is no stream; what an error says stands there.
pub(crate) async fn beginning(mut body: Body, limit: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Ok(Some(piece)) = body.piece().await {
        let room = limit - bytes.len();
        bytes.extend_from_slice(&piece[..piece.len().min(room)]);
        if bytes.len() == limit {
            break;
        }
    }
    bytes
}

/// Whether this status begins a stream.
pub(crate) fn is_success(status: u16) -> bool {
    StatusCode::from_u16(status).is_ok_and(|status| status.is_success())
}

/// One client for all models: connections are kept, redirects are not followed, the environment's proxies are not used.
pub(crate) fn client(timeouts: Timeouts, trust_authorities: bool) -> Result<reqwest::Client, ClientError> {
    let mut roots = RootCertStore::empty();
    if trust_authorities {
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            tracing::warn!(
                "this machine trusts no certificate authority, so no model can be reached over https: install the package ca-certificates"
            );
        }
    }
    let mut tls = ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .map_err(ClientError::Tls)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .redirect(Policy::none())
        .no_proxy()
        .tcp_nodelay(true)
        .connect_timeout(timeouts.connect)
        .user_agent(concat!("belljar/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(ClientError::Http)
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// TLS could not be set up.
    #[error("set up TLS for the models")]
    Tls(#[source] rustls::Error),
    /// The HTTP client could not be set up.
    #[error("set up the HTTP client for the models")]
    Http(#[source] reqwest::Error),
}
