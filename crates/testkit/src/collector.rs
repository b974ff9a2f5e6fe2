//! A collector of traces on this machine's loopback: takes OTLP over HTTP as JSON, field by field as the protocol writes
//! it, and refuses what it does not know.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use lifecycle::Tasks;
use serde::{Deserialize, Deserializer, de};
use tokio::net::TcpListener;

use crate::eventually_async;

/// `ExportTraceServiceRequest`, as the protocol writes it in JSON: a field that it does not have is refused.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ExportRequest {
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ResourceSpans {
    #[serde(rename = "resource")]
    _resource: Resource,
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Resource {
    #[serde(rename = "attributes")]
    _attributes: Vec<Attribute>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScopeSpans {
    #[serde(rename = "scope")]
    _scope: Scope,
    spans: Vec<CollectedSpan>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Scope {
    #[serde(rename = "name")]
    _name: String,
    #[serde(rename = "version")]
    _version: String,
}

/// A span as a collector has read it.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct CollectedSpan {
    /// 16 bytes.
    #[serde(deserialize_with = "trace_id")]
    pub trace_id: Vec<u8>,
    /// 8 bytes.
    #[serde(deserialize_with = "span_id")]
    pub span_id: Vec<u8>,
    /// 8 bytes, or none.
    #[serde(deserialize_with = "parent_id")]
    pub parent_span_id: Vec<u8>,
    /// What it is.
    pub name: String,
    /// 1: within one program.
    pub kind: u8,
    /// When it began.
    #[serde(deserialize_with = "number")]
    pub start_time_unix_nano: u64,
    /// When it ended.
    #[serde(deserialize_with = "number")]
    pub end_time_unix_nano: u64,
    /// What is said of it.
    pub attributes: Vec<Attribute>,
    /// How it went.
    pub status: Status,
}

/// Something that is said of a span.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attribute {
    /// What.
    pub key: String,
    /// The value.
    pub value: AttributeValue,
}

/// A value of the kinds that we tell.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub enum AttributeValue {
    /// A text.
    StringValue(String),
    /// A number of 64 bits, which is a text.
    #[serde(deserialize_with = "number")]
    IntValue(u64),
}

/// How a span went; 2: it failed.
#[derive(Clone, Default, PartialEq, Eq, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Status {
    /// 0 where nothing is said.
    pub code: u8,
    /// Why.
    pub message: String,
}

fn identity<'d, D: Deserializer<'d>>(deserializer: D, bytes: usize) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let id = hex::decode(&text).map_err(de::Error::custom)?;
    if id.len() != bytes || id.iter().all(|byte| *byte == 0) {
        return Err(de::Error::custom(format!("{text:?} is no identity of {bytes} bytes")));
    }
    Ok(id)
}

fn trace_id<'d, D: Deserializer<'d>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    identity(deserializer, 16)
}

fn span_id<'d, D: Deserializer<'d>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    identity(deserializer, 8)
}

fn parent_id<'d, D: Deserializer<'d>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.is_empty() {
        return Ok(Vec::new());
    }
    identity(de::IntoDeserializer::into_deserializer(text), 8)
}

fn number<'d, D: Deserializer<'d>>(deserializer: D) -> Result<u64, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
}

/// How a collector takes what it is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Takes {
    /// All of it.
    All,
    /// It says that it has not taken so many spans of each request.
    AllBut(u64),
    /// It is out of order.
    Nothing,
    /// It never answers.
    Never,
}

/// The collector.
#[derive(Debug)]
pub struct Collector {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    tasks: Tasks,
}

#[derive(Debug)]
struct State {
    takes: Takes,
    requests: usize,
    spans: Vec<CollectedSpan>,
    /// What was no request.
    wrong: Vec<String>,
}

impl Collector {
    /// Listens on a free port of loopback.
    pub async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .expect("listen on the loopback");
        let address = listener.local_addr().expect("the listener's address");
        let state = Arc::new(Mutex::new(State {
            takes: Takes::All,
            requests: 0,
            spans: Vec::new(),
            wrong: Vec::new(),
        }));
        let tasks = Tasks::new();
        let (ours, serving) = (Arc::clone(&state), tasks.clone());
        tasks.spawn_until_stopped(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let state = Arc::clone(&ours);
                serving.spawn_until_stopped(async move {
                    let service = service_fn(move |request| answer(Arc::clone(&state), request));
                    // Whoever asks may hang up.
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(connection), service)
                        .await;
                });
            }
        });
        Self { address, state, tasks }
    }

    /// `http://127.0.0.1:<port>`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("http://{}", self.address)
    }

    /// How it takes what comes from now on.
    pub fn takes(&self, takes: Takes) {
        lock(&self.state).takes = takes;
    }

    /// How many requests came.
    #[must_use]
    pub fn requests(&self) -> usize {
        lock(&self.state).requests
    }

    /// Waits until spans have come of which this says that they are all.
    pub async fn spans(&self, are_all: impl Fn(&[CollectedSpan]) -> bool) -> Vec<CollectedSpan> {
        eventually_async("the spans", async || {
            let state = lock(&self.state);
            assert_eq!(state.wrong, Vec::<String>::new());
            are_all(&state.spans).then(|| state.spans.clone())
        })
        .await
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.tasks.stop().cancel();
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn answer(state: Arc<Mutex<State>>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let told = format!("{} {}", request.method(), request.uri().path());
    let is_json = request
        .headers()
        .get("content-type")
        .is_some_and(|kind| kind == "application/json");
    let body = request
        .into_body()
        .collect()
        .await
        .map(|body| body.to_bytes())
        .unwrap_or_default();
    let takes = {
        let mut state = lock(&state);
        state.requests += 1;
        match serde_json::from_slice::<ExportRequest>(&body) {
            Ok(request) if told == "POST /v1/traces" && is_json => {
                if matches!(state.takes, Takes::All | Takes::AllBut(_)) {
                    let scopes = request
                        .resource_spans
                        .into_iter()
                        .flat_map(|resource| resource.scope_spans);
                    state.spans.extend(scopes.flat_map(|scope| scope.spans));
                }
            }
            Ok(_) => state.wrong.push(told),
            Err(error) => state
                .wrong
                .push(format!("{told}: {error}: {}", String::from_utf8_lossy(&body))),
        }
        state.takes
    };
    let (status, said) = match takes {
        Takes::All => (200, "{}".to_owned()),
        Takes::AllBut(count) => (200, format!("{{\"partialSuccess\":{{\"rejectedSpans\":\"{count}\"}}}}")),
        Takes::Nothing => (503, String::new()),
        Takes::Never => std::future::pending().await,
    };
    let mut response = Response::new(Full::new(Bytes::from(said)));
    *response.status_mut() = hyper::StatusCode::from_u16(status).unwrap_or_default();
    Ok(response)
}
