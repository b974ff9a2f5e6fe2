//! Requests to the vault: to its own address only, with a deadline, and nothing of them in errors.

use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Method, Url};
use rustls::{ClientConfig, RootCertStore};
use secret::Secret;
use serde::de::DeserializeOwned;
use serde_json::Value;
use zeroize::Zeroizing;

use super::failure::Failure;
use super::wire::Errors;
use super::{VaultConfig, VaultError};

/// The longest answer.
const MOST_BYTES: usize = 1 << 20;
/// How much of what an error says is repeated.
const MOST_SAID: usize = 200;

pub(super) struct Client {
    http: reqwest::Client,
    address: Url,
    namespace: Option<HeaderValue>,
}

impl Client {
    pub(super) fn new(config: &VaultConfig) -> Result<Self, VaultError> {
        let address = address(&config.address, config.plain_http)?;
        let namespace = config.namespace.as_deref().map(HeaderValue::from_str);
        Ok(Self {
            http: http(config.deadline)?,
            address,
            namespace: namespace.transpose().map_err(|_| VaultError::Namespace)?,
        })
    }

    /// Asks for what lies at a path below `/v1/`, as whom the token says.
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        token: Option<&Secret>,
        body: Option<&Value>,
    ) -> Result<T, Failure> {
        let mut address = self.address.clone();
        address.set_path(&format!("v1/{path}"));
        let mut headers = HeaderMap::new();
        // What an agent or proxy before the vault may insist on: a browser that was tricked cannot set it.
        headers.insert("x-vault-request", HeaderValue::from_static("true"));
        if let Some(namespace) = &self.namespace {
            headers.insert("x-vault-namespace", namespace.clone());
        }
        if let Some(token) = token {
            let mut value = HeaderValue::from_str(token.expose()).map_err(|_| Failure::LoginRefused {
                status: 0,
                said: ": the token has letters that no token has".to_owned(),
            })?;
            value.set_sensitive(true);
            headers.insert("x-vault-token", value);
        }
        let mut request = self.http.request(method, address).headers(headers);
        if let Some(body) = body {
            request = request.json(body);
        }
        let mut response = request.send().await.map_err(|error| unreachable(&error))?;
        let status = response.status().as_u16();
        let mut bytes = Zeroizing::new(Vec::with_capacity(4_096));
        while let Some(piece) = response.chunk().await.map_err(|error| unreachable(&error))? {
            if bytes.len() + piece.len() > MOST_BYTES {
                return Err(Failure::Malformed);
            }
            bytes.extend_from_slice(&piece);
        }
        match status {
            // A success without a body is an empty object.
            204 => serde_json::from_str("{}").map_err(|_| Failure::Malformed),
            200..=299 => serde_json::from_slice(&bytes).map_err(|_| Failure::Malformed),
            404 => Err(Failure::Missing),
            400 | 401 | 403 | 405 => Err(Failure::Refused {
                status,
                said: said(&bytes),
            }),
            _ => Err(Failure::NotReady {
                status,
                said: said(&bytes),
            }),
        }
    }
}

/// What the vault says of an error, on one line.
fn said(bytes: &[u8]) -> String {
    let Errors { errors } = serde_json::from_slice(bytes).unwrap_or_default();
    let words = errors.join("; ");
    let plain: String = words
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .take(MOST_SAID)
        .collect();
    match plain.trim() {
        "" => String::new(),
        plain => format!(": {plain}"),
    }
}

fn unreachable(error: &reqwest::Error) -> Failure {
    Failure::Unreachable(if error.is_timeout() {
        "no answer in time"
    } else if error.is_connect() {
        "no connection, or its certificate is not trusted"
    } else {
        "the connection broke"
    })
}

fn address(text: &str, plain_http: bool) -> Result<Url, VaultError> {
    let url = Url::parse(text).map_err(|_| VaultError::Address)?;
    let plain = url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none()
        && url.path() == "/";
    let here = url.host_str().is_some_and(|host| {
        let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    });
    match url.scheme() {
        "https" | "http" if !plain => Err(VaultError::Address),
        "http" if !here && !plain_http => Err(VaultError::PlainHttp),
        "https" | "http" => Ok(url),
        _ => Err(VaultError::Address),
    }
}

/// A client of its own: redirects are not followed, since they would carry the token along, and no proxy is taken from the environment.
fn http(deadline: Duration) -> Result<reqwest::Client, VaultError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let tls = ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .map_err(VaultError::Tls)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .redirect(Policy::none())
        .no_proxy()
        .timeout(deadline)
        .user_agent(concat!("belljar/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(VaultError::Http)
}
