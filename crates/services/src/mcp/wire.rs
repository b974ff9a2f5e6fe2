//! The way to an MCP server at a URL: every message is a request of its own, with the credential, over the service's client.
//!
//! Model Context Protocol 2026-07-28 and 2025-11-25, "Transports", "Streamable HTTP".

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use lifecycle::Tasks;
use rmcp::model::{ClientJsonRpcMessage, ClientRequest, ErrorCode, ErrorData, RequestId, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};
use scrub::Scrub;
use sse_stream::{Sse, SseStream};
use tokio::time::Instant;
use url::Url;

use crate::body::{Bounds, Incoming};
use crate::client::{Client, host};
use crate::credentials::{Credentials, Given, Means};
use crate::definition::Failing;
use crate::refusal::{Refusal, is_used_up};
use crate::request::Outgoing;
use crate::retry::retry_after;
use crate::{Code, Failure};

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");

/// The most bytes of an answer that says no.
const REFUSAL_BYTES: u64 = 64 << 10;
/// What a server may tell of its own accord before the stream is opened anew, in bytes and time.
const UNASKED_BYTES: u64 = 1 << 20;
const UNASKED_TIME: Duration = Duration::from_secs(24 * 60 * 60);

/// Sends messages to one server. Clones share everything.
#[derive(Clone)]
pub(crate) struct Wire(pub(crate) Arc<Parts>);

/// What a [`Wire`] is made of.
pub(crate) struct Parts {
    /// The service, in words.
    pub(crate) what: String,
    pub(crate) base: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) client: Client,
    pub(crate) credentials: Credentials,
    pub(crate) tasks: Tasks,
    /// How long one answer may take, and how many bytes it may have.
    pub(crate) timeout: Duration,
    pub(crate) bytes: u64,
    /// Why streams broke off, until who asked has learnt of it.
    pub(crate) broken: Mutex<Vec<Failure>>,
}

/// The code of an answer that we made ourselves, as a stream broke off.
pub(super) const BROKEN: ErrorCode = ErrorCode(-32_099);
/// For how many of them it is kept why.
const KEPT: usize = 64;

/// Why a message was not answered, as the caller of the method is to read it.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) struct Told(pub(crate) Failure);

type WireError = StreamableHttpError<Told>;

impl Wire {
    /// Sends a request, with the credential; once more with a new one where the first was not accepted and another can be had.
    async fn send(&self, request: &Outgoing, deadline: Instant) -> Result<(reqwest::Response, Given), Failure> {
        let parts = &self.0;
        let mut renewed = false;
        loop {
            let mut sent = request.clone();
            let means = Means {
                client: &parts.client,
                base: &parts.base,
                tasks: &parts.tasks,
                deadline,
            };
            let given = parts.credentials.give(&mut sent, &means).await?;
            let response = parts.client.send(sent, deadline).await?;
            let refused = response.status() == StatusCode::UNAUTHORIZED;
            if refused && !renewed && parts.credentials.discard(&given).await {
                renewed = true;
                continue;
            }
            if response.status().is_redirection() {
                return Err(Failure::new(
                    Code::Redirected,
                    format!(
                        "{}: {} points elsewhere, which is not followed",
                        parts.what,
                        host(&parts.base)
                    ),
                )
                .remedy("if the server is somewhere else now, an administrator writes it as the service's base_url"));
            }
            return Ok((response, given));
        }
    }

    fn request(
        &self,
        verb: http::Method,
        body: Bytes,
        session: Option<&str>,
        more: HashMap<HeaderName, HeaderValue>,
    ) -> Outgoing {
        let mut headers = self.0.headers.clone();
        headers.extend(more);
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        if !body.is_empty() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
        }
        if let Some(session) = session.and_then(|session| HeaderValue::from_str(session).ok()) {
            headers.insert(SESSION, session);
        }
        Outgoing {
            verb,
            url: self.0.base.clone(),
            headers,
            body,
        }
    }

    fn incoming(
        &self,
        response: reqwest::Response,
        given: &Given,
        bytes: u64,
        deadline: Instant,
    ) -> Result<Incoming, Failure> {
        let bounds = Bounds {
            what: self.0.what.clone(),
            host: host(&self.0.base),
            bytes,
            deadline,
        };
        Incoming::new(response, self.0.client.clone(), &Scrub::of(&given.secrets), bounds)
    }

    /// What an answer that says no means. One that holds an error of the protocol is an answer.
    async fn refused(
        &self,
        response: reqwest::Response,
        given: &Given,
        message: &ClientJsonRpcMessage,
        deadline: Instant,
    ) -> Result<StreamableHttpPostResponse, WireError> {
        let status = response.status();
        let retry_after = retry_after(response.headers(), jiff::Timestamp::now());
        let used_up = status == StatusCode::FORBIDDEN && (retry_after.is_some() || is_used_up(response.headers()));
        let said = match self.incoming(response, given, REFUSAL_BYTES, deadline) {
            Ok(incoming) => incoming.whole().await.unwrap_or_default(),
            Err(_) => Bytes::new(),
        };
        let is_denied = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        if let Ok(error @ ServerJsonRpcMessage::Error(_)) = serde_json::from_slice(&said)
            && status.is_client_error()
            && !is_denied
        {
            return Ok(StreamableHttpPostResponse::Json(error, None));
        }
        // Who knows only the older handshake may refuse the newer in any way.
        if let ClientJsonRpcMessage::Request(request) = message
            && matches!(request.request, ClientRequest::DiscoverRequest(_))
            && status.is_client_error()
            && !is_denied
        {
            let error = ErrorData::invalid_request(format!("refused with {status}"), None);
            let error = ServerJsonRpcMessage::error(error, Some(request.id.clone()));
            return Ok(StreamableHttpPostResponse::Json(error, None));
        }
        let refusal = Refusal {
            what: &self.0.what,
            failing: &Failing::default(),
            status,
            retry_after,
            used_up,
        };
        Err(told(refusal.failure(&said)))
    }

    /// Keeps why a stream broke off; the message that answers what was asked by it.
    fn broken(&self, failure: Failure, id: &RequestId) -> String {
        let error = ErrorData::new(BROKEN, failure.message.clone(), None);
        let mut broken = self.0.broken.lock().unwrap_or_else(PoisonError::into_inner);
        if broken.len() == KEPT {
            broken.remove(0);
        }
        broken.push(failure);
        let message = ServerJsonRpcMessage::error(error, Some(id.clone()));
        serde_json::to_string(&message).unwrap_or_default()
    }

    /// Why the stream broke off that was answered by these words.
    pub(super) fn why(&self, words: &str) -> Option<Failure> {
        let mut broken = self.0.broken.lock().unwrap_or_else(PoisonError::into_inner);
        let found = broken.iter().position(|failure| failure.message == words)?;
        Some(broken.remove(found))
    }

    fn malformed(&self, why: impl std::fmt::Display) -> WireError {
        let Parts { what, base, .. } = &*self.0;
        told(Failure::new(
            Code::AnswerMalformed,
            format!(
                "{what}: {} answered with something that is no message: {why}",
                host(base)
            ),
        ))
    }
}

impl StreamableHttpClient for Wire {
    type Error = Told;

    async fn post_message(
        &self,
        _uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        _auth_header: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, WireError> {
        let body = serde_json::to_vec(&message)?;
        let request = self.request(http::Method::POST, body.into(), session.as_deref(), headers);
        let deadline = Instant::now() + self.0.timeout;
        let (response, given) = self.send(&request, deadline).await.map_err(told)?;
        let status = response.status();
        if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if status == StatusCode::NOT_FOUND && session.is_some() {
            return Err(StreamableHttpError::SessionExpired);
        }
        if !status.is_success() {
            return self.refused(response, &given, &message, deadline).await;
        }
        let session = response
            .headers()
            .get(SESSION)
            .and_then(|session| session.to_str().ok())
            .map(str::to_owned);
        let kind = media_type(response.headers());
        let incoming = self.incoming(response, &given, self.0.bytes, deadline).map_err(told)?;
        if kind == EVENTS {
            let asked = match &message {
                ClientJsonRpcMessage::Request(request) => Some((self.clone(), request.id.clone())),
                _ => None,
            };
            return Ok(StreamableHttpPostResponse::Sse(events(incoming, asked), session));
        }
        let body = incoming.whole().await.map_err(told)?;
        if kind != JSON {
            // Some answer a notification with a page of their framework.
            return match message {
                ClientJsonRpcMessage::Notification(_) => Ok(StreamableHttpPostResponse::Accepted),
                _ => Err(self.malformed(format_args!("it is {kind:?}"))),
            };
        }
        match serde_json::from_slice(&body) {
            Ok(answer) => Ok(StreamableHttpPostResponse::Json(answer, session)),
            Err(_) if matches!(message, ClientJsonRpcMessage::Notification(_)) => {
                Ok(StreamableHttpPostResponse::Accepted)
            }
            Err(error) => Err(self.malformed(error)),
        }
    }

    async fn delete_session(
        &self,
        _uri: Arc<str>,
        session: Arc<str>,
        _auth_header: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), WireError> {
        let request = self.request(http::Method::DELETE, Bytes::new(), Some(&session), headers);
        // Who keeps it for longer than we need it does no harm to us.
        self.send(&request, Instant::now() + self.0.timeout)
            .await
            .map(|_| ())
            .map_err(told)
    }

    async fn get_stream(
        &self,
        _uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        _auth_header: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, WireError> {
        let mut request = self.request(http::Method::GET, Bytes::new(), session.as_deref(), headers);
        if let Some(last) = last_event.and_then(|last| HeaderValue::from_str(&last).ok()) {
            request.headers.insert(LAST_EVENT, last);
        }
        let (response, given) = self
            .send(&request, Instant::now() + self.0.timeout)
            .await
            .map_err(told)?;
        if !response.status().is_success() || media_type(response.headers()) != EVENTS {
            return Err(StreamableHttpError::ServerDoesNotSupportSse);
        }
        let deadline = Instant::now() + UNASKED_TIME;
        let incoming = self.incoming(response, &given, UNASKED_BYTES, deadline).map_err(told)?;
        Ok(events(incoming, None))
    }
}

fn told(failure: Failure) -> WireError {
    StreamableHttpError::Client(Told(failure))
}

/// The events in a body, whose bytes are bounded. Where it breaks off, what was asked is answered by why: the SDK would open
/// the stream again and again.
fn events(incoming: Incoming, asked: Option<(Wire, RequestId)>) -> BoxStream<'static, Result<Sse, SseError>> {
    let events = SseStream::from_bytes_stream(pieces(incoming));
    events
        .map(move |event| match (event, &asked) {
            (Err(SseError::Body(error)), Some((wire, id))) => {
                let failure = match error.downcast::<Told>() {
                    Ok(told) => told.0,
                    Err(error) => Failure::new(Code::AnswerCut, error.to_string()),
                };
                Ok(Sse::default().data(wire.broken(failure, id)))
            }
            (event, _) => event,
        })
        .boxed()
}

fn pieces(incoming: Incoming) -> impl Stream<Item = Result<Bytes, Told>> + Send + 'static {
    futures::stream::unfold(Some(incoming), |incoming| async move {
        let mut incoming = incoming?;
        match incoming.piece().await {
            Ok(piece) => piece.map(|piece| (Ok(piece), Some(incoming))),
            Err(failure) => Some((Err(Told(failure)), None)),
        }
    })
}

/// The media type, without parameters, in lower case.
fn media_type(headers: &HeaderMap) -> String {
    let written = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let text: Cow<'_, str> = String::from_utf8_lossy(written);
    text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}
