//! Objects in a service that speaks S3.
//!
//! Every request is presigned, so that the service itself holds it to one object and one method, and an upload to one length
//! and one checksum.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use domain::Timestamp;
use futures::{StreamExt, TryStreamExt};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode};
use rustls::{ClientConfig, RootCertStore};
use secret::{Credential, Secret};
use url::Url;

use crate::GOOD_FOR;
use crate::objects::{Key, ObjectError, Stream, unavailable};

const SIGN: &str = "sign a request";

/// The header with the checksum that the service holds an upload to.
const CHECKSUM: HeaderName = HeaderName::from_static("x-amz-checksum-sha256");

/// How long what has no body may take; all else may take as long as its URL is good.
const PROMPT: Duration = Duration::from_secs(30);

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(5);

/// Which service, and what is asked of it.
#[derive(Clone, Debug)]
pub struct S3Settings {
    /// Its address, `https://…`; that of AWS where left out.
    pub endpoint: Option<String>,
    /// The bucket.
    pub bucket: String,
    /// The region.
    pub region: String,
    /// What keys begin with; empty for nothing.
    pub prefix: String,
    /// The bucket stands in the path and not in the host's name.
    pub path_style: bool,
    /// The endpoint may be `http://`.
    pub plain_http: bool,
    /// The access key's id.
    pub access_key: Credential,
    /// The secret access key.
    pub secret_key: Credential,
    /// What comes with keys that are good for some hours only.
    pub session_token: Option<Credential>,
}

/// A request that needs no key any more. Its URL is a secret as long as it is good.
#[derive(Clone, Debug)]
pub struct Presigned {
    /// Where to, with the signature.
    pub url: Secret,
    /// The headers that must be sent exactly so.
    pub headers: HeaderMap,
}

#[derive(Clone, Debug)]
pub(crate) struct S3 {
    http: reqwest::Client,
    settings: Arc<S3Settings>,
    /// Scheme, host and the path before the prefix.
    base: Arc<Url>,
}

impl S3 {
    pub(crate) fn open(settings: S3Settings) -> Result<Self, ObjectError> {
        let wrong = |reason: String| ObjectError::Settings(reason);
        let endpoint = match &settings.endpoint {
            Some(endpoint) => endpoint.trim_end_matches('/').to_owned(),
            None => format!("https://s3.{}.amazonaws.com", settings.region),
        };
        let mut base: Url = endpoint
            .parse()
            .map_err(|_| wrong(format!("the endpoint {endpoint:?} is no URL: write https://HOST")))?;
        match base.scheme() {
            "https" => {}
            "http" if settings.plain_http => {}
            _ => {
                return Err(wrong(format!(
                    "the endpoint {endpoint:?} is not https://: contents of files could be read on the way; \
                     objects.plain_http allows it"
                )));
            }
        }
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
        let name = &settings.bucket;
        if name.is_empty() || !name.chars().all(plain) {
            return Err(wrong(format!("{name:?} is no name of a bucket")));
        }
        if !settings.prefix.chars().all(|letter| plain(letter) || letter == '/') {
            return Err(wrong(format!(
                "the prefix {:?} has more than letters, digits, dots, hyphens and slashes",
                settings.prefix
            )));
        }
        if settings.path_style {
            base.set_path(&format!("{}/{name}", base.path().trim_end_matches('/')));
        } else {
            let host = format!("{name}.{}", base.host_str().unwrap_or_default());
            base.set_host(Some(&host))
                .map_err(|_| wrong(format!("{host:?} is no host: objects.path_style may be what is meant")))?;
        }
        Ok(Self {
            http: client()?,
            settings: Arc::new(settings),
            base: Arc::new(base),
        })
    }

    /// What an upload is held to: its length and its checksum, and that it is nothing which a browser would show.
    pub(crate) fn held_to(key: Key, bytes: u64) -> Result<HeaderMap, ObjectError> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_LENGTH, bytes.into());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        let checksum = STANDARD.encode(key.sha256.0);
        let checksum = HeaderValue::from_str(&checksum).map_err(unavailable(SIGN))?;
        headers.insert(CHECKSUM, checksum);
        Ok(headers)
    }

    /// The keys are asked for with each request, so that a change counts at once.
    pub(crate) fn presign(
        &self,
        method: &Method,
        key: Key,
        headers: HeaderMap,
        now: Timestamp,
    ) -> Result<Presigned, ObjectError> {
        let S3Settings { region, prefix, .. } = &*self.settings;
        let access_key = self.settings.access_key.get().map_err(unavailable(SIGN))?;
        let secret_key = self.settings.secret_key.get().map_err(unavailable(SIGN))?;
        let session_token = self.settings.session_token.as_ref().map(Credential::get);
        let session_token = session_token.transpose().map_err(unavailable(SIGN))?;
        let mut url = (*self.base).clone();
        let parts = [url.path(), prefix.as_str(), &key.to_string()].map(|part| part.trim_matches('/').to_owned());
        let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        url.set_path(&parts.join("/"));
        let host = match (url.host_str().unwrap_or_default(), url.port()) {
            (host, Some(port)) => format!("{host}:{port}"),
            (host, None) => host.to_owned(),
        };
        let request = signing::Request {
            method,
            host: &host,
            path: url.path(),
            query: None,
            headers: &headers,
            payload: signing::UNSIGNED,
        };
        let keys = signing::Keys {
            access_key: access_key.expose(),
            secret_key: &secret_key,
            session_token: session_token.as_ref(),
        };
        let scope = signing::Scope { region, service: "s3" };
        let query = signing::presign(&request, &keys, scope, now.0 / 1_000, GOOD_FOR).map_err(unavailable(SIGN))?;
        url.set_query(Some(&query));
        Ok(Presigned {
            url: Secret::new(url.as_str()),
            headers,
        })
    }

    pub(crate) async fn put(&self, key: Key, bytes: u64, stream: Stream) -> Result<(), ObjectError> {
        let attempt = "upload an object";
        let cut = Arc::new(Mutex::new(None));
        let told = Arc::clone(&cut);
        let stream = stream.map_err(move |error| {
            let again = std::io::Error::new(error.kind(), "the bytes stopped coming");
            *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            again
        });
        let body = reqwest::Body::wrap_stream(stream);
        let answer = self
            .send(attempt, Method::PUT, key, Self::held_to(key, bytes)?, Some(body))
            .await;
        if let Some(source) = cut.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(ObjectError::Cut { key, source });
        }
        let answer = answer?;
        match answer.status() {
            status if status.is_success() => Ok(()),
            StatusCode::BAD_REQUEST => Err(ObjectError::Other {
                key,
                reason: said(answer).await,
            }),
            StatusCode::INSUFFICIENT_STORAGE => Err(ObjectError::Full {
                attempt,
                source: said(answer).await.into(),
            }),
            _ => Err(unavailable(attempt)(said(answer).await)),
        }
    }

    pub(crate) async fn get(&self, key: Key) -> Result<(u64, Stream), ObjectError> {
        let attempt = "download an object";
        let answer = self.send(attempt, Method::GET, key, HeaderMap::new(), None).await?;
        match (answer.status(), answer.content_length()) {
            (StatusCode::NOT_FOUND, _) => Err(ObjectError::NotFound(key)),
            (status, Some(bytes)) if status.is_success() => {
                let stream = answer
                    .bytes_stream()
                    .map_err(|error| std::io::Error::other(error.without_url()));
                Ok((bytes, stream.boxed()))
            }
            _ => Err(unavailable(attempt)(said(answer).await)),
        }
    }

    pub(crate) async fn head(&self, key: Key) -> Result<Option<u64>, ObjectError> {
        let attempt = "look for an object";
        let answer = self.send(attempt, Method::HEAD, key, HeaderMap::new(), None).await?;
        let length = answer.headers().get(CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
        match (answer.status(), length) {
            (StatusCode::NOT_FOUND, _) => Ok(None),
            (status, Some(bytes)) if status.is_success() => Ok(Some(bytes)),
            _ => Err(unavailable(attempt)(said(answer).await)),
        }
    }

    pub(crate) async fn delete(&self, key: Key) -> Result<(), ObjectError> {
        let attempt = "remove an object";
        let answer = self.send(attempt, Method::DELETE, key, HeaderMap::new(), None).await?;
        match answer.status() {
            StatusCode::NOT_FOUND => Ok(()),
            status if status.is_success() => Ok(()),
            // Who answers in this way has not handed it on to anybody who may do it yet.
            status if status.is_client_error() => Err(ObjectError::Refused {
                attempt,
                source: said(answer).await.into(),
            }),
            _ => Err(unavailable(attempt)(said(answer).await)),
        }
    }

    async fn send(
        &self,
        attempt: &'static str,
        method: Method,
        key: Key,
        headers: HeaderMap,
        body: Option<reqwest::Body>,
    ) -> Result<reqwest::Response, ObjectError> {
        let Presigned { url, headers } = self.presign(&method, key, headers, Timestamp::now())?;
        let has_body = matches!(method, Method::PUT | Method::GET);
        let mut request = self.http.request(method, url.expose()).headers(headers);
        if !has_body {
            request = request.timeout(PROMPT);
        }
        if let Some(body) = body {
            request = request.body(body);
        }
        // Its URL is a secret while it is good.
        request
            .send()
            .await
            .map_err(|error| unavailable(attempt)(error.without_url()))
    }
}

/// What the service says of its refusal.
async fn said(answer: reqwest::Response) -> String {
    let status = answer.status();
    let words = answer.text().await.unwrap_or_default();
    format!("the service answered {status}: {}", code(&words))
}

/// What a service's error is called.
fn code(words: &str) -> String {
    let code = words
        .split_once("<Code>")
        .and_then(|(_, rest)| rest.split_once("</Code>"));
    let code = code.map_or(words, |(code, _)| code);
    code.chars().filter(|letter| !letter.is_control()).take(200).collect()
}

fn client() -> Result<reqwest::Client, ObjectError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let tls = ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .map_err(unavailable("set up TLS"))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .connect_timeout(CONNECT)
        .timeout(GOOD_FOR)
        .user_agent(concat!("belljar/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(unavailable("set up HTTP"))
}
