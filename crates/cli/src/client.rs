//! Requests to the HTTP API, and errors in words.

use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::{Method, RequestBuilder, Response};
use secret::Secret;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::Outcome;

/// How long an answer's beginning may take. Opening a file may have to wait for a sandbox.
const ANSWER: Duration = Duration::from_secs(60);

/// A request did not get what it wanted.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody answers there.
    #[error("cannot reach Belljar at {url}: is it running? `belljar up` starts it, BELLJAR_URL says where it is")]
    Unreachable {
        /// Where.
        url: String,
        /// Why.
        #[source]
        source: reqwest::Error,
    },
    /// The control plane said no.
    #[error("{message}")]
    Refused {
        /// In one word.
        code: String,
        /// In words.
        message: String,
    },
    /// What came back is not what this program understands.
    #[error("cannot understand the answer of {url}: are both sides the same release of Belljar?")]
    NotUnderstood {
        /// What was asked.
        url: String,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// The connection broke in the middle of an answer.
    #[error("the connection to {url} broke")]
    Broken {
        /// What was asked.
        url: String,
        /// Why.
        #[source]
        source: reqwest::Error,
    },
    /// The event stream broke and could not be joined again.
    #[error(
        "the event stream broke and cannot be joined again; what runs goes on, and `belljar events {session} --follow` shows it"
    )]
    StreamLost {
        /// The session.
        session: String,
    },
    /// A file of this machine cannot be used.
    #[error("cannot {attempt} {}", path.display())]
    File {
        /// What was tried.
        attempt: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// There is no token to show.
    #[error("no token: set BELLJAR_TOKEN, or run this as root on the machine where Belljar runs; there the first `belljar up` writes one ({})", tried.display())]
    NoToken {
        /// The file that holds the first token of this machine.
        tried: PathBuf,
    },
    /// There is no token to show to a control plane that is not this machine's own.
    #[error(
        "no token: BELLJAR_URL names {url}, which is not this machine's own control plane, and its first token is sent nowhere else: set BELLJAR_TOKEN to a token of the one that is asked"
    )]
    NoTokenThere {
        /// Its address.
        url: String,
    },
    /// Whoever read what a command prints reads no more. It is no mistake, and nobody is told.
    #[error("nobody reads what is printed any more")]
    Closed,
    /// What was typed makes no sense.
    #[error("{0}")]
    Usage(String),
}

impl ClientError {
    /// What the shell is told.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Refused { code, .. } => Outcome::of_code(code),
            Self::NoToken { .. } | Self::NoTokenThere { .. } => Outcome::Denied,
            Self::Usage(_) => Outcome::Usage,
            Self::Closed => Outcome::Done,
            _ => Outcome::Failed,
        }
    }

    pub(crate) fn file(attempt: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { attempt, path, source }
    }
}

/// Speaks to one control plane as one user.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    url: String,
    token: Secret,
}

impl Client {
    /// A client of the control plane at `url` (`http://127.0.0.1:7717`) that shows `token`.
    ///
    /// # Errors
    /// When `url` is no URL.
    pub fn new(url: &str, token: Secret) -> Result<Self, ClientError> {
        let url = url.trim_end_matches('/').to_owned();
        let parsed = reqwest::Url::parse(&url).ok().filter(reqwest::Url::has_host);
        let encrypted = match parsed.as_ref().map(reqwest::Url::scheme) {
            Some("https") => true,
            Some("http") => false,
            _ => {
                return Err(ClientError::Usage(format!(
                    "{url:?} is no address: write http://… or https://…"
                )));
            }
        };
        // The one TLS backend of this program; an error means that it is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut http = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(10))
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy();
        if !encrypted {
            // Nothing is encrypted, and to read whom this machine trusts takes longer than all the rest.
            http = http.tls_certs_only([]);
        }
        let http = http.build().map_err(|source| ClientError::Unreachable {
            url: url.clone(),
            source,
        })?;
        Ok(Self { http, url, token })
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http
            .request(method, format!("{}/api/v1{path}", self.url))
            .bearer_auth(self.token.expose())
    }

    /// Sends a request; the answer's head must come in time, its body may take as long as it takes.
    pub(crate) async fn send(&self, request: RequestBuilder) -> Result<Response, ClientError> {
        let unreachable = |source| ClientError::Unreachable {
            url: self.url.clone(),
            source,
        };
        let answer = tokio::time::timeout(ANSWER, request.send()).await;
        let response = match answer {
            Ok(response) => response.map_err(unreachable)?,
            Err(_) => {
                let message = format!("{} did not answer within {} s", self.url, ANSWER.as_secs());
                return Err(ClientError::Refused {
                    code: "timeout".into(),
                    message,
                });
            }
        };
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let body = response.text().await.unwrap_or_default();
        let error = serde_json::from_str::<Value>(&body)
            .ok()
            .and_then(|body| body.get("error").cloned());
        let part = |name: &str| {
            error
                .as_ref()
                .and_then(|error| error.get(name)?.as_str().map(str::to_owned))
        };
        Err(ClientError::Refused {
            code: part("code").unwrap_or_else(|| "unknown".into()),
            message: part("message").unwrap_or_else(|| format!("{} answered {status}, and nothing more", self.url)),
        })
    }

    pub(crate) async fn json<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, ClientError> {
        let response = self.send(request).await?;
        let url = response.url().path().to_owned();
        let body = response.bytes().await.map_err(|source| ClientError::Broken {
            url: url.clone(),
            source,
        })?;
        serde_json::from_slice(&body).map_err(|source| ClientError::NotUnderstood { url, source })
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.json(self.request(Method::GET, path)).await
    }

    pub(crate) async fn post<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, ClientError> {
        self.json(self.request(Method::POST, path).json(body)).await
    }
}
