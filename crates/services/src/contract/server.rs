//! The server that plays recorded answers.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use lifecycle::Tasks;
use serde_json::{Map, Value};
use tokio::net::TcpListener;
use url::form_urlencoded;

use super::credential::Demand;
use super::{Script, tools};
use crate::Exchange;

/// The largest body that is read.
const MAX_BODY: usize = 16 << 20;

/// Listens on a free port of 127.0.0.1; the URL of what is there.
/// Where there are tools, it is an MCP server that has them.
pub(super) async fn listen(
    tasks: &Tasks,
    script: Arc<Mutex<Script>>,
    tools: Option<Arc<[Value]>>,
) -> std::io::Result<String> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    let connections = tasks.clone();
    tasks.spawn_until_stopped(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (script, tools) = (Arc::clone(&script), tools.clone());
            let answer = service_fn(move |request| {
                let (script, tools) = (Arc::clone(&script), tools.clone());
                async move { Ok::<_, Infallible>(answer(request, &script, tools.as_deref()).await) }
            });
            connections.spawn_until_stopped(async move {
                // A connection that breaks shows as a failure of the call.
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), answer)
                    .await;
            });
        }
    });
    Ok(format!("http://{address}"))
}

/// Checks a request against the next exchange, and gives the recorded answer. One that does not show the credential in
/// its place is refused.
async fn answer(request: Request<Incoming>, script: &Mutex<Script>, tools: Option<&[Value]>) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let body = Limited::new(body, MAX_BODY)
        .collect()
        .await
        .map(http_body_util::Collected::to_bytes)
        .unwrap_or_default();
    let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
    let made = format!("{} {target}", head.method);
    if let Ok(mut script) = script.lock()
        && let Some(objection) = script.demand.objection(&head)
    {
        script.wrong.push(format!("the request {made} {objection}"));
        // That these were not made follows from it.
        script.exchanges.clear();
        return status(401);
    }
    if let Some(tools) = tools {
        let message: Value = serde_json::from_slice(&body).unwrap_or_default();
        return match tools::reply(&message, tools, script) {
            Some(tools::Reply::Message(reply)) => json(&reply),
            Some(tools::Reply::Refusal(exchange)) => recorded(&exchange),
            None if head.method == http::Method::POST => status(202),
            // There is no stream of what nobody asked for.
            None => status(405),
        };
    }
    let kind = head
        .headers
        .get(http::header::CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
        .unwrap_or_default();
    let Ok(mut script) = script.lock() else {
        return Response::default();
    };
    let Some(exchange) = script.exchanges.pop_front() else {
        script
            .wrong
            .push(format!("the request {made} was made, and none was recorded"));
        return status(599);
    };
    if parted(&made, &script.demand) != parted(&exchange.request, &script.demand) {
        script
            .wrong
            .push(format!("the request was {made}, recorded is {}", exchange.request));
    }
    let must = [Method::POST, Method::PUT, Method::PATCH].contains(&head.method);
    script.hold(&made, exchange.body.as_ref(), &read(&body, kind), must);
    recorded(&exchange)
}

fn recorded(exchange: &Exchange) -> Response<Full<Bytes>> {
    let mut response = Response::builder().status(exchange.status);
    for (name, text) in &exchange.headers {
        response = response.header(name, text);
    }
    let has_kind = exchange.headers.iter().any(|(name, _)| name == "content-type");
    let (kind, body) = match &exchange.answer {
        Value::Null => return response.body(Full::default()).unwrap_or_default(),
        Value::String(text) => ("text/plain; charset=utf-8", text.clone()),
        json => ("application/json", json.to_string()),
    };
    if !has_kind {
        response = response.header(http::header::CONTENT_TYPE, kind);
    }
    response.body(Full::from(body)).unwrap_or_default()
}

fn json(value: &Value) -> Response<Full<Bytes>> {
    Response::builder()
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(Full::from(value.to_string()))
        .unwrap_or_default()
}

fn status(status: u16) -> Response<Full<Bytes>> {
    Response::builder()
        .status(status)
        .body(Full::default())
        .unwrap_or_default()
}

/// A body as a value: JSON, a form as an object of texts, or a text. None at all is null.
fn read(body: &[u8], kind: &str) -> Value {
    if kind.starts_with("application/x-www-form-urlencoded") {
        let pairs =
            form_urlencoded::parse(body).map(|(name, text)| (name.into_owned(), Value::from(text.into_owned())));
        return Value::Object(pairs.collect::<Map<_, _>>());
    }
    if body.is_empty() {
        return Value::Null;
    }
    serde_json::from_slice(body).unwrap_or_else(|_| String::from_utf8_lossy(body).into())
}

/// A request without the order of its parameters, and without the credential.
fn parted(request: &str, demand: &Demand) -> (String, Vec<(String, String)>) {
    let (path, query) = request.split_once('?').unwrap_or((request, ""));
    let pairs = form_urlencoded::parse(query.as_bytes()).into_owned();
    let mut pairs: Vec<_> = pairs.filter(|(name, _)| !demand.is_parameter(name)).collect();
    pairs.sort();
    (path.to_owned(), pairs)
}
