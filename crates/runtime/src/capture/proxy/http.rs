//! An HTTP proxy: CONNECT, and requests with a whole URL.

use std::convert::Infallible;
use std::sync::Arc;

use ::http::header::CONTENT_TYPE;
use ::http::{HeaderValue, Method, Request, Response, StatusCode};
use bytes::Bytes;
use causes::with_causes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use lifecycle::Tasks;
use link::client::ClientError;
use protocol::RefusalCode;
use serde_json::json;
use tokio::net::TcpStream;
use tracing::debug;

use super::{OPENING, Proxy, RefusedError, carry, forward};

/// How long the head of a request may be.
const HEAD_BYTES: usize = 64 << 10;

pub(super) type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// Serves a connection until it ends.
pub(super) async fn serve(stream: TcpStream, proxy: Arc<Proxy>, tasks: &Tasks) {
    let service = service_fn(|request| answer(request, Arc::clone(&proxy), tasks.clone()));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(OPENING)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
    if let Err(error) = served {
        debug!(%error, "a connection to the proxy ended badly");
    }
}

async fn answer(request: Request<Incoming>, proxy: Arc<Proxy>, tasks: Tasks) -> Result<Response<Body>, Infallible> {
    Ok(if request.method() == Method::CONNECT {
        connect(request, &proxy, &tasks).await
    } else {
        forward::forward(request, &proxy, &tasks).await
    })
}

async fn connect(request: Request<Incoming>, proxy: &Proxy, tasks: &Tasks) -> Response<Body> {
    let target = request.uri().authority().cloned();
    let Some((host, port)) = target
        .as_ref()
        .filter(|target| !target.as_str().contains('@'))
        .and_then(|target| Some((target.host(), target.port_u16()?)))
    else {
        return malformed("CONNECT needs host:port");
    };
    match proxy.connect(host, port).await {
        Ok(far) => {
            tasks.spawn_until_stopped(async move {
                match hyper::upgrade::on(request).await {
                    Ok(near) => carry(TokioIo::new(near), far).await,
                    Err(error) => debug!(%error, "a tunnel did not open"),
                }
            });
            Response::new(Empty::new().map_err(|never| match never {}).boxed_unsync())
        }
        Err(error) => refuse(&error),
    }
}

/// The answer to who asked for what cannot be had.
pub(super) fn refuse(error: &RefusedError) -> Response<Body> {
    let RefusedError::Link(error) = error else {
        return malformed(&error.to_string());
    };
    let ClientError::Refused(refusal) = error else {
        return say(StatusCode::BAD_GATEWAY, "no_way_out", &with_causes(error), None, None);
    };
    let status = match refusal.code {
        RefusalCode::Denied | RefusalCode::Unauthorized => StatusCode::FORBIDDEN,
        RefusalCode::Invalid => StatusCode::BAD_REQUEST,
        RefusalCode::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::BAD_GATEWAY,
    };
    let denial = refusal.denial.as_ref();
    say(
        status,
        denial.map_or("denied", |denial| denial.reason.as_str()),
        &refusal.message,
        denial.and_then(|denial| denial.rule.as_deref()),
        denial.and_then(|denial| denial.remedy.as_deref()),
    )
}

pub(super) fn malformed(words: &str) -> Response<Body> {
    say(StatusCode::BAD_REQUEST, "malformed", words, None, None)
}

pub(super) fn broken(words: &str) -> Response<Body> {
    say(StatusCode::BAD_GATEWAY, "broken_off", words, None, None)
}

fn say(status: StatusCode, code: &str, message: &str, rule: Option<&str>, remedy: Option<&str>) -> Response<Body> {
    let error = json!({ "code": code, "rule": rule, "message": message, "remedy": remedy });
    let body = Full::new(Bytes::from(json!({ "error": error }).to_string()));
    let mut response = Response::new(body.map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
