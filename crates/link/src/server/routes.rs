//! The link's requests.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use http::header::{ACCEPT, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, UPGRADE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use protocol::{
    BETA_HEADER, EarlyResults, MODEL_REQUEST_BYTES, ModelRequest, ModelRoute, NameAnswer, NameRequest, Refusal,
    RefusalCode, SERVICE_REQUEST_BYTES, SERVICE_REQUEST_PARTS, SYNC_BYTES, SYNC_PARTS, ServiceError, ServiceFailure,
    ServiceRequest, SyncCall, TurnRequest,
};
use secret::Secret;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::timeout;
use tracing::debug;

use super::accept::Link;
use super::files::FileReader;
use super::{Carrier, ServiceAnswer, control};
use crate::lines;

/// What a turn may bring: the results of its calls, pictures included.
const TURN_BYTES: usize = 32 << 20;
const NAME_BYTES: usize = 1 << 10;

/// Where the routes of models are.
const MODELS: &str = "/v1/models/";

/// Where contents of files are: the only requests with a query, which is their signature.
const OBJECTS: &str = "/v1/objects/";

/// How long the body of a request may take.
const BODY_TIME: Duration = Duration::from_secs(60);

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// What a connection becomes after its request.
pub(super) enum Becomes {
    Control(OnUpgrade),
    Tunnel(OnUpgrade, Box<dyn Carrier>),
}

/// Marks an answer whose connection is for the next turn; all others are closed.
#[derive(Clone)]
struct Kept;

/// Answers one request.
pub(super) async fn answer(
    request: Request<Incoming>,
    link: Arc<Link>,
    becomes: mpsc::Sender<Becomes>,
) -> Result<Response<Body>, Infallible> {
    let is_tunnel = request.method() == Method::CONNECT;
    let mut answer = match route(request, &link, &becomes).await {
        Ok(answer) => answer,
        Err(refusal) => refuse(&refusal),
    };
    let goes_on = is_tunnel || answer.status() == StatusCode::SWITCHING_PROTOCOLS;
    if !goes_on && answer.extensions().get::<Kept>().is_none() {
        answer
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(answer)
}

async fn route(
    mut request: Request<Incoming>,
    link: &Arc<Link>,
    becomes: &mpsc::Sender<Becomes>,
) -> Result<Response<Body>, Refusal> {
    if request.uri().query().is_some() && !request.uri().path().starts_with(OBJECTS) {
        return Err(invalid(
            "the link's requests have no query; a token belongs in the Authorization header",
        ));
    }
    if request.method() == Method::CONNECT {
        return connect(request, link, becomes).await;
    }
    let path = request.uri().path().to_owned();
    match (request.method().as_str(), path.as_str()) {
        ("POST", "/v1/control") => {
            let upgrade = hyper::upgrade::on(&mut request);
            let _ = becomes.try_send(Becomes::Control(upgrade));
            let mut response = empty(StatusCode::SWITCHING_PROTOCOLS);
            response
                .headers_mut()
                .insert(CONNECTION, "upgrade".parse().map_err(|_| invalid("upgrade"))?);
            response
                .headers_mut()
                .insert(UPGRADE, "belljar-control".parse().map_err(|_| invalid("upgrade"))?);
            Ok(response)
        }
        ("POST", "/v1/turns") => {
            let token = token(&request)?;
            let _turn = link.turns.acquire().await.map_err(|_| unavailable())?;
            let turn: TurnRequest = read(request, TURN_BYTES).await?;
            let reply = link.handler.invoke_llm(link.sandbox, &token, turn).await?;
            let mut answer = json(StatusCode::OK, &reply);
            answer.extensions_mut().insert(Kept);
            Ok(answer)
        }
        ("POST", "/v1/results") => {
            let token = token(&request)?;
            let _place = link.results.acquire().await.map_err(|_| unavailable())?;
            let results: EarlyResults = read(request, TURN_BYTES).await?;
            link.handler.hand_in(link.sandbox, &token, results).await?;
            Ok(empty(StatusCode::NO_CONTENT))
        }
        ("POST", "/v1/names") => {
            let token = token(&request)?;
            // One of the release before understands a yes without anything.
            let numbers = request.headers().contains_key(ACCEPT);
            let asked: NameRequest = read(request, NAME_BYTES).await?;
            if !is_name(&asked.name) {
                return Err(invalid("this is no host name"));
            }
            let number = link.handler.resolve(link.sandbox, &token, &asked.name).await?;
            Ok(match number.filter(|_| numbers) {
                Some(number) => json(StatusCode::OK, &NameAnswer { number }),
                None => empty(StatusCode::NO_CONTENT),
            })
        }
        ("POST", "/v1/services") => Ok(service(request, link).await.unwrap_or_else(|failure| fail(&failure))),
        ("POST", path) if path.starts_with(MODELS) => {
            let route = ModelRoute::of(&path[MODELS.len()..]).ok_or_else(|| invalid("no model has such a route"))?;
            Ok(model(route, request, link)
                .await
                .unwrap_or_else(|failure| fail(&failure)))
        }
        ("POST", "/v1/sync") => {
            let token = token(&request)?;
            let _place = link.syncs.acquire().await.map_err(|_| unavailable())?;
            let asked: SyncCall = read_of(SYNC_PARTS, request, SYNC_BYTES).await?;
            let answer = link.handler.sync(link.sandbox, &token, asked).await?;
            Ok(json(StatusCode::OK, &answer))
        }
        ("GET", path) if path.starts_with(OBJECTS) => fetch_object(&request, link).await,
        ("PUT", path) if path.starts_with(OBJECTS) => keep_object(request, link).await,
        (method @ ("GET" | "PUT"), path) if path.starts_with("/v1/files/") => {
            token(&request)?;
            let number = path["/v1/files/".len()..]
                .parse()
                .map_err(|_| invalid("this is no transfer's number"))?;
            if method == "GET" {
                file_in(number, link)
            } else {
                file_out(request, number, link).await
            }
        }
        _ => Err(invalid("the link has no such route")),
    }
}

/// Runs what a connection has become, until it ends.
pub(super) async fn go_on(next: Becomes, link: &Arc<Link>) {
    match next {
        Becomes::Control(upgrade) => match upgrade.await {
            Ok(stream) => control::run(TokioIo::new(stream), link).await,
            Err(error) => debug!(sandbox = %link.sandbox, %error, "the control stream did not open"),
        },
        Becomes::Tunnel(upgrade, carrier) => match upgrade.await {
            Ok(near) => carrier.carry(Box::new(TokioIo::new(near))).await,
            Err(error) => debug!(sandbox = %link.sandbox, %error, "a tunnel did not open"),
        },
    }
}

async fn connect(
    mut request: Request<Incoming>,
    link: &Arc<Link>,
    becomes: &mpsc::Sender<Becomes>,
) -> Result<Response<Body>, Refusal> {
    let token = token(&request)?;
    let authority = request
        .uri()
        .authority()
        .ok_or_else(|| invalid("CONNECT needs host:port"))?;
    let port = authority.port_u16().ok_or_else(|| invalid("CONNECT needs a port"))?;
    let host = authority
        .host()
        .trim_start_matches('[')
        .trim_end_matches(']')
        .to_owned();
    if authority.as_str().contains('@') || !(host.parse::<std::net::IpAddr>().is_ok() || is_name(&host)) {
        return Err(invalid("this is neither a host name nor an address"));
    }
    let carrier = link.handler.connect(link.sandbox, &token, &host, port).await?;
    let _ = becomes.try_send(Becomes::Tunnel(hyper::upgrade::on(&mut request), carrier));
    Ok(empty(StatusCode::OK))
}

/// A service's answer, streamed.
async fn service(request: Request<Incoming>, link: &Arc<Link>) -> Result<Response<Body>, ServiceFailure> {
    let token = token(&request)?;
    let place = Arc::clone(&link.services).acquire_owned().await;
    let place = place.map_err(|_| unavailable())?;
    let asked: ServiceRequest = read_of(SERVICE_REQUEST_PARTS, request, SERVICE_REQUEST_BYTES).await?;
    let answer = link.handler.service(link.sandbox, &token, asked).await?;
    Ok(streamed(answer, place))
}

/// A model's answer to a program, streamed.
async fn model(
    route: ModelRoute,
    request: Request<Incoming>,
    link: &Arc<Link>,
) -> Result<Response<Body>, ServiceFailure> {
    let token = token(&request)?;
    let place = Arc::clone(&link.models).acquire_owned().await;
    let place = place.map_err(|_| unavailable())?;
    let betas = request.headers().get_all(BETA_HEADER).iter();
    let betas = betas
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    let betas = betas.map(|beta| beta.trim().to_owned()).collect();
    let body = timeout(
        BODY_TIME,
        Limited::new(request.into_body(), MODEL_REQUEST_BYTES).collect(),
    )
    .await
    .map_err(|_| ServiceFailure::new(408, "timeout", "the request took too long to be sent"))?
    .map_err(|_| {
        let words = format!("the request is longer than {MODEL_REQUEST_BYTES} bytes, or was cut");
        ServiceFailure::new(413, "request_too_large", words)
    })?;
    let asked = ModelRequest {
        route,
        betas,
        body: body.to_bytes(),
    };
    let answer = link.handler.model(link.sandbox, &token, asked).await?;
    Ok(streamed(answer, place))
}

fn streamed(answer: ServiceAnswer, place: OwnedSemaphorePermit) -> Response<Body> {
    let ServiceAnswer {
        media_type,
        length,
        body,
    } = answer;
    // The place is free again when the last byte is out, or nobody wants it any more.
    let body = body.map(move |piece| {
        let _held = &place;
        piece.map(Frame::data)
    });
    let mut response = Response::new(BodyExt::boxed_unsync(StreamBody::new(body)));
    let media_type =
        HeaderValue::from_str(&media_type).unwrap_or_else(|_| HeaderValue::from_static("application/octet-stream"));
    response.headers_mut().insert(CONTENT_TYPE, media_type);
    if let Some(length) = length {
        response.headers_mut().insert(CONTENT_LENGTH, length.into());
    }
    response
}

/// A content on its way in, as it comes.
async fn keep_object(request: Request<Incoming>, link: &Arc<Link>) -> Result<Response<Body>, Refusal> {
    let token = token(&request)?;
    let _place = link.objects.acquire().await.map_err(|_| unavailable())?;
    let url = request.uri().to_string();
    let bytes = request.headers().get(CONTENT_LENGTH);
    let bytes = bytes.and_then(|bytes| bytes.to_str().ok()?.parse().ok());
    let (reader, _done) = FileReader::new(request.into_body());
    let body = reader.into_stream();
    link.handler
        .keep_object(link.sandbox, &token, &url, bytes, body)
        .await?;
    Ok(empty(StatusCode::NO_CONTENT))
}

async fn fetch_object(request: &Request<Incoming>, link: &Arc<Link>) -> Result<Response<Body>, Refusal> {
    let token = token(request)?;
    let place = Arc::clone(&link.objects).acquire_owned().await;
    let place = place.map_err(|_| unavailable())?;
    let url = request.uri().to_string();
    let answer = link.handler.fetch_object(link.sandbox, &token, &url).await?;
    Ok(streamed(answer, place))
}

fn fail(failure: &ServiceFailure) -> Response<Body> {
    let status = StatusCode::from_u16(failure.status)
        .ok()
        .filter(|status| status.as_u16() >= 400);
    let error = ServiceError { error: failure.clone() };
    json(status.unwrap_or(StatusCode::BAD_GATEWAY), &error)
}

fn file_in(number: u64, link: &Link) -> Result<Response<Body>, Refusal> {
    let source = link
        .orders
        .take_source(number)
        .ok_or_else(|| invalid("no such transfer waits"))?;
    let body = StreamBody::new(source.map_ok(Frame::data));
    Ok(Response::new(BodyExt::boxed_unsync(body)))
}

async fn file_out(request: Request<Incoming>, number: u64, link: &Link) -> Result<Response<Body>, Refusal> {
    let (reader, done) = FileReader::new(request.into_body());
    if !link.orders.deliver(number, reader) {
        return Err(invalid("no such transfer waits"));
    }
    // Resolves, with an error, when the reader is dropped: at the file's end or before.
    let _ = done.await;
    Ok(empty(StatusCode::NO_CONTENT))
}

/// The token as it stands in the one place where it may.
fn token(request: &Request<Incoming>) -> Result<Secret, Refusal> {
    let mut shown = request.headers().get_all(AUTHORIZATION).iter();
    let token = shown
        .next()
        .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    match (token, shown.next()) {
        (Some(token), None) if !token.is_empty() => Ok(Secret::new(token)),
        _ => Err(Refusal::new(
            RefusalCode::Unauthorized,
            "the request shows no token: it belongs, once, in the Authorization header",
        )),
    }
}

/// Letters, digits, hyphens, underscores and dots: whatever else a name holds, it is not one of a host.
fn is_name(name: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    name.len() <= 253 && name.split('.').all(label)
}

async fn read<T: DeserializeOwned>(request: Request<Incoming>, longest: usize) -> Result<T, Refusal> {
    read_of(lines::PARTS, request, longest).await
}

async fn read_of<T: DeserializeOwned>(parts: usize, request: Request<Incoming>, longest: usize) -> Result<T, Refusal> {
    let body = timeout(BODY_TIME, Limited::new(request.into_body(), longest).collect())
        .await
        .map_err(|_| invalid("the request's body took too long"))?
        .map_err(|_| invalid("the request's body is too long, or was cut"))?;
    protocol::parse(parts, &body.to_bytes()).map_err(|error| {
        Refusal::new(
            RefusalCode::Invalid,
            format!("the request's body is malformed: {error}"),
        )
    })
}

fn invalid(message: &str) -> Refusal {
    Refusal::new(RefusalCode::Invalid, message)
}

fn unavailable() -> Refusal {
    Refusal::new(
        RefusalCode::Unavailable,
        "the control plane is shutting down; try again",
    )
}

fn refuse(refusal: &Refusal) -> Response<Body> {
    let status = match refusal.code {
        RefusalCode::Unauthorized => StatusCode::UNAUTHORIZED,
        RefusalCode::Stale => StatusCode::CONFLICT,
        RefusalCode::Invalid => StatusCode::BAD_REQUEST,
        RefusalCode::BudgetExhausted => StatusCode::PAYMENT_REQUIRED,
        RefusalCode::ModelFailed => StatusCode::BAD_GATEWAY,
        RefusalCode::Denied => StatusCode::FORBIDDEN,
        RefusalCode::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
    };
    json(status, refusal)
}

fn json(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    let body = Full::new(Bytes::from(serde_json::to_vec(value).unwrap_or_default()));
    let mut response = Response::new(body.map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn empty(status: StatusCode) -> Response<Body> {
    let body = http_body_util::Empty::new().map_err(|never| match never {});
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = status;
    response
}
