//! The port of 127.0.0.1 at which programs find models and tools, in the languages that they know.
//!
//! | request | answer |
//! |---|---|
//! | `POST /v1/messages`, `/v1/messages/count_tokens`, `/v1/responses`, `/v1/chat/completions` | the model's |
//! | `GET /v1/models` | the models that may be asked |
//! | `POST /mcp` | the methods of services, as tools of the Model Context Protocol |
//!
//! A page in a browser inside reaches this port, so whatever comes from a page is refused: a request with an `Origin`, or for
//! another host than this. A token in an address would stand in histories and logs: it is refused too, and none is needed.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use causes::with_causes;
use futures::{StreamExt, stream};
use http::header::{CONTENT_TYPE, HOST, ORIGIN, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, BodyStream, Full, Limited, StreamBody};
use hyper::body::{Body as _, Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use link::client::{ClientError, ServiceResult};
use protocol::{BETA_HEADER, MODEL_REQUEST_BYTES, ModelRoute, ServiceFailure};
use sandbox::inside::HARNESS_PORT;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::body::throw_away;
use super::{Offered, mcp};

/// How long the head of a request may take, and how long it may be.
const HEAD_TIME: Duration = Duration::from_secs(10);
const HEAD_BYTES: usize = 32 << 10;

/// How long a program may pause while it sends a request.
const BODY_PAUSE: Duration = Duration::from_secs(30);

/// What may stand in an address: flags and pages, no secret.
const QUERY: [&str; 4] = ["after_id", "before_id", "beta", "limit"];

pub(super) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Serves the requests of one connection.
pub(super) async fn serve(stream: TcpStream, offered: Arc<Offered>) -> hyper::Result<()> {
    let service = service_fn(|request| answer(request, Arc::clone(&offered)));
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

async fn answer(request: Request<Incoming>, offered: Arc<Offered>) -> Result<Response<Body>, Infallible> {
    offered.pace.next().await;
    let (head, body) = request.into_parts();
    let mut body = Some(body);
    let path = head.uri.path().to_owned();
    let model = path.strip_prefix("/v1/").and_then(ModelRoute::of);
    let answer = match (head.method.as_str(), model) {
        _ if let Err(failure) = from_a_program(&head.uri, &head.headers) => Err(failure),
        ("POST", Some(route)) => offered.model(route, &head.headers, &mut body).await,
        ("GET", None) if path == "/v1/models" => Ok(json_body(StatusCode::OK, &offered.models())),
        ("POST", None) if path == "/mcp" => Ok(mcp::answer(&offered, &mut body).await),
        // No stream of the server's own, and no session to end.
        (_, None) if path == "/mcp" => Err(ServiceFailure::new(405, "no_method", "tools are called by POST /mcp")),
        _ => Err(no_route(&path)),
    };
    if let Some(unread) = body {
        throw_away(unread).await;
    }
    Ok(answer.unwrap_or_else(|failure| fail(model.unwrap_or(ModelRoute::ChatCompletions), &failure)))
}

/// Refuses what a page sent, what is meant for another host, and what carries a secret in its address.
fn from_a_program(address: &Uri, headers: &HeaderMap) -> Result<(), ServiceFailure> {
    let refused = |words: &str| Err(ServiceFailure::new(403, "refused", words));
    if headers.contains_key(ORIGIN) {
        return refused("this port is for programs: requests of web pages are refused");
    }
    let mut hosts = headers.get_all(HOST).iter();
    let host = hosts.next().and_then(|host| host.to_str().ok()).unwrap_or_default();
    let ours = ["127.0.0.1", "localhost"].map(|name| format!("{name}:{HARNESS_PORT}"));
    let addressed = address
        .authority()
        .is_none_or(|authority| ours.iter().any(|ours| ours == authority.as_str()));
    if hosts.next().is_some() || !addressed || !ours.iter().any(|ours| ours == host) {
        return refused("the request is for another host");
    }
    let unknown = |part: &str| !QUERY.contains(&part.split('=').next().unwrap_or_default());
    if address
        .query()
        .is_some_and(|query| query.split('&').filter(|part| !part.is_empty()).any(unknown))
    {
        return refused("the address carries what belongs in a header; no key is needed here at all");
    }
    Ok(())
}

impl Offered {
    /// A model's answer. The body is taken when it is read.
    async fn model(
        &self,
        route: ModelRoute,
        headers: &HeaderMap,
        body: &mut Option<Incoming>,
    ) -> Result<Response<Body>, ServiceFailure> {
        if self.models.is_empty() {
            return Err(ServiceFailure::new(
                404,
                "not_found_error",
                "programs of this run may ask no model",
            ));
        }
        let place = self.place().await?;
        let longest = u64::try_from(MODEL_REQUEST_BYTES).unwrap_or(u64::MAX);
        let Some(body) = body.take_if(|body| body.size_hint().lower() <= longest) else {
            let words = format!("the request is longer than {MODEL_REQUEST_BYTES} bytes");
            return Err(ServiceFailure::new(413, "request_too_large", words));
        };
        let betas = headers.get_all(BETA_HEADER).iter().cloned();
        let answer = self.client.model(route, betas, pieces(body)).await.map_err(failure)?;
        let ServiceResult { media_type, body, .. } = answer;
        let pieces = stream::try_unfold((body, place), |(mut body, place)| async move {
            match body.chunk().await {
                Ok(piece) => Ok(piece.map(|bytes| (Frame::data(bytes), (body, place)))),
                Err(error) => Err(io::Error::other(error)),
            }
        });
        let mut response = Response::new(BodyExt::boxed_unsync(StreamBody::new(pieces)));
        media_type.map(|value| response.headers_mut().insert(CONTENT_TYPE, value));
        Ok(response)
    }

    /// The models, as both families of clients read a list.
    fn models(&self) -> Value {
        let model = |name: &String| {
            json!({
                "id": name, "object": "model", "type": "model", "display_name": name, "owned_by": "belljar",
                "created": 0, "created_at": "1970-01-01T00:00:00Z",
            })
        };
        json!({
            "object": "list", "data": self.models.iter().map(model).collect::<Vec<_>>(), "has_more": false,
            "first_id": self.models.first(), "last_id": self.models.last(),
        })
    }
}

/// The bytes of a request as they come; one that pauses for too long is given up.
fn pieces(body: Incoming) -> stream::BoxStream<'static, io::Result<Bytes>> {
    let frames = BodyStream::new(Limited::new(body, MODEL_REQUEST_BYTES));
    let next = |mut frames: BodyStream<Limited<Incoming>>| async move {
        let piece = match timeout(BODY_PAUSE, frames.next()).await {
            Ok(None) => return None,
            Ok(Some(Ok(frame))) => Ok(frame.into_data().unwrap_or_default()),
            Ok(Some(Err(error))) => Err(io::Error::other(error)),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        };
        Some((piece, frames))
    };
    stream::unfold(frames, next).boxed()
}

fn failure(error: ClientError) -> ServiceFailure {
    match error {
        ClientError::Failed(failure) => failure,
        ClientError::Refused(refusal) => refusal.into(),
        ClientError::Silent { .. } => ServiceFailure::new(504, "timeout_error", "the model gave no answer in time"),
        error @ (ClientError::Unclaimed | ClientError::Connect { .. }) => {
            ServiceFailure::new(503, "unavailable", with_causes(&error))
        }
        error => ServiceFailure::new(502, "api_error", with_causes(&error)),
    }
}

fn no_route(path: &str) -> ServiceFailure {
    let shown: String = path.chars().take(80).collect();
    let words = format!("there is no route {shown:?} here");
    let routes = ModelRoute::ALL
        .map(|route| format!("POST /v1/{}", route.path()))
        .join(", ");
    ServiceFailure::new(404, "not_found_error", words)
        .remedy(format!("there are {routes}, GET /v1/models and POST /mcp"))
}

fn fail(route: ModelRoute, failure: &ServiceFailure) -> Response<Body> {
    let status = StatusCode::from_u16(failure.status).unwrap_or(StatusCode::BAD_GATEWAY);
    let mut response = json_body(status, &route.error(failure));
    if let Some(seconds) = failure.retry_after {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}

pub(super) fn json_body(status: StatusCode, value: &Value) -> Response<Body> {
    let body = Full::new(Bytes::from(value.to_string())).map_err(|never| match never {});
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = status;
    let media_type = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, media_type);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(address: &str, headers: &[(&str, &str)]) -> bool {
        let mut request = Request::builder().uri(address);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(()).unwrap_or_default();
        from_a_program(request.uri(), request.headers()).is_err()
    }

    #[test]
    fn threat_064_pages_other_hosts_and_tokens_in_addresses_are_refused() {
        let here = ("host", "127.0.0.1:3129");
        assert!(!refused("/v1/messages", &[here]));
        assert!(!refused("/v1/messages?beta=true", &[("host", "localhost:3129")]));
        assert!(!refused("http://127.0.0.1:3129/v1/models?limit=5", &[here]));
        assert!(refused("/v1/messages", &[]));
        for host in [
            "127.0.0.1",
            "evil.test",
            "evil.test:3129",
            "127.0.0.1:80",
            "localhost:3129.evil.test",
            "[::1]:3129",
        ] {
            assert!(refused("/v1/messages", &[("host", host)]), "{host}");
        }
        assert!(refused("/v1/messages", &[here, ("origin", "http://127.0.0.1:3129")]));
        assert!(refused("/v1/messages", &[here, ("origin", "null")]));
        assert!(refused("/v1/messages", &[here, ("host", "evil.test")]));
        assert!(refused("http://evil.test/v1/messages", &[here]));
        for query in ["key=x", "beta=true&api_key=x", "token", "access_token=x"] {
            assert!(refused(&format!("/v1/messages?{query}"), &[here]), "{query}");
        }
    }
}
