//! The closed list of routes.

use std::borrow::Cow;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use causes::with_causes;
use domain::ToolCallId;
use futures::stream;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use link::client::{ClientError, ServiceResult};
use protocol::{ServiceError, ServiceFailure};
use serde::Deserialize;
use tokio::net::UnixStream;

use super::Offered;
use super::body::throw_away;
use super::span::Span;
use crate::gateway::backoff;

/// How long the head of a request may take, and how long it may be.
const HEAD_TIME: Duration = Duration::from_secs(10);
const HEAD_BYTES: usize = 16 << 10;

/// How often a control plane that is not there is tried for: some ten seconds.
const TRIES: u32 = 10;

type Body = UnsyncBoxBody<Bytes, io::Error>;

/// What of a request matters here; the rest is the control plane's to judge.
#[derive(Deserialize)]
struct Asked<'a> {
    #[serde(borrow)]
    service: Cow<'a, str>,
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(default)]
    call: Option<ToolCallId>,
}

/// A program that is to go on in the background.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AskedBackground {
    command: String,
    /// As long as it may where it is left out.
    #[serde(default)]
    seconds: Option<u64>,
}

/// Serves one request of one connection.
pub(super) async fn serve(stream: UnixStream, offered: Arc<Offered>) -> hyper::Result<()> {
    let service = service_fn(|request| answer(request, Arc::clone(&offered)));
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

async fn answer(request: Request<Incoming>, offered: Arc<Offered>) -> Result<Response<Body>, Infallible> {
    offered.pace.next().await;
    let (head, mut body) = request.into_parts();
    let answer = match (head.method.as_str(), head.uri.path()) {
        ("POST", "/v1/services") => offered.call(&mut body).await,
        ("POST", "/v1/background") => offered.background(&mut body).await,
        ("GET", "/v1/services") => Ok(text(offered.lines())),
        ("GET", path) => offered.types(path.strip_prefix("/v1/services/").unwrap_or_default()),
        _ => Err(no_route()),
    };
    if answer.is_err() {
        throw_away(body).await;
    }
    Ok(answer.unwrap_or_else(|failure| fail(&failure)))
}

impl Offered {
    async fn call(&self, body: &mut Incoming) -> Result<Response<Body>, ServiceFailure> {
        let place = self.place().await?;
        let body = super::body::call(body).await?;
        let asked: Asked<'_> = serde_json::from_slice(&body)
            .map_err(|error| ServiceFailure::new(400, "invalid", format!("the call is malformed: {error}")))?;
        let mut span = Span::begin(&self.hands, &self.outbox, asked.call, &asked.service, &asked.method);
        let result = self.ask(&body).await.inspect_err(|failure| span.fail(failure))?;
        let ServiceResult {
            media_type,
            length,
            body,
        } = result;
        let pieces = stream::try_unfold((body, span, place), |(mut body, mut span, place)| async move {
            match body.chunk().await {
                Ok(Some(bytes)) => {
                    span.add(bytes.len());
                    Ok(Some((Frame::data(bytes), (body, span, place))))
                }
                Ok(None) => {
                    span.end();
                    Ok(None)
                }
                Err(error) => {
                    span.break_off();
                    Err(io::Error::other(error))
                }
            }
        });
        let mut response = Response::new(BodyExt::boxed_unsync(StreamBody::new(pieces)));
        let headers = response.headers_mut();
        media_type.map(|value| headers.insert(CONTENT_TYPE, value));
        length.map(|value| headers.insert(CONTENT_LENGTH, value));
        Ok(response)
    }

    /// Asks the control plane. While it is not there nothing was asked, so it is asked again.
    pub(super) async fn ask(&self, request: &Bytes) -> Result<ServiceResult, ServiceFailure> {
        let mut tries = 0;
        loop {
            match self.client.service(request.clone()).await {
                Err(ClientError::Connect { .. }) if tries < TRIES => {
                    tries += 1;
                    tokio::time::sleep(backoff(tries)).await;
                }
                answer => return answer.map_err(failure),
            }
        }
    }

    /// Starts a program that goes on when the call that it was started from is over. It is never asked for between runs: there
    /// is no socket then, so none keeps itself for ever by another of its kind.
    async fn background(&self, body: &mut Incoming) -> Result<Response<Body>, ServiceFailure> {
        if self.background.is_zero() {
            return Err(no_route());
        }
        let _place = self.place().await?;
        let body = super::body::call(body).await?;
        let asked: AskedBackground = serde_json::from_slice(&body)
            .map_err(|error| ServiceFailure::new(400, "invalid", format!("the request is malformed: {error}")))?;
        if asked.command.trim().is_empty() || asked.command.contains('\0') || asked.seconds == Some(0) {
            let words = "a command has some letters and no zero byte, and runs for a second or more";
            return Err(ServiceFailure::new(400, "invalid", words));
        }
        let time = asked
            .seconds
            .map_or(self.background, Duration::from_secs)
            .min(self.background);
        self.hands.background(asked.command, time).await?;
        let granted = serde_json::json!({ "seconds": time.as_secs() });
        Ok(whole("application/json", granted.to_string()))
    }

    fn lines(&self) -> String {
        let line = |service: &protocol::ServiceGrant| format!("{}: {}\n", service.name, service.summary);
        self.services.iter().map(line).collect()
    }

    fn types(&self, name: &str) -> Result<Response<Body>, ServiceFailure> {
        let service = self.services.iter().find(|service| service.name == name);
        service.map(|service| text(service.types.clone())).ok_or_else(no_route)
    }
}

fn failure(error: ClientError) -> ServiceFailure {
    let uncertain = "look whether it has taken effect before you repeat it";
    match error {
        ClientError::Failed(failure) => failure,
        ClientError::Refused(refusal) => refusal.into(),
        ClientError::Silent { .. } => {
            ServiceFailure::new(504, "no_answer", "the service gave no answer in time").remedy(uncertain)
        }
        error @ (ClientError::Unclaimed | ClientError::Connect { .. }) => {
            ServiceFailure::new(503, "unavailable", with_causes(&error)).remedy("nothing was done: try again later")
        }
        error => ServiceFailure::new(502, "link_lost", with_causes(&error)).remedy(uncertain),
    }
}

fn no_route() -> ServiceFailure {
    ServiceFailure::new(404, "unknown", "there is no such service or route here")
}

fn fail(failure: &ServiceFailure) -> Response<Body> {
    let error = ServiceError { error: failure.clone() };
    let mut response = whole("application/json", serde_json::to_vec(&error).unwrap_or_default());
    *response.status_mut() = StatusCode::from_u16(failure.status).unwrap_or(StatusCode::BAD_GATEWAY);
    if let Some(seconds) = failure.retry_after {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}

fn text(text: String) -> Response<Body> {
    whole("text/plain; charset=utf-8", text)
}

fn whole(media_type: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    let body = Full::new(body.into()).map_err(|never| match never {});
    let mut response = Response::new(body.boxed_unsync());
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}
