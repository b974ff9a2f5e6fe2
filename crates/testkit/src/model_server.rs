//! A provider of models on this machine's loopback: speaks Anthropic Messages, OpenAI Responses and Chat Completions over
//! HTTP, refuses what the real ones refuse, and fails as they fail when told to.
//!
//! One server has one key and answers all three; it says what [`ModelServer::next`] lined up, and [`ModelServer::always`]
//! when there is nothing lined up. A request that a real provider would refuse gets a 400 with the reason, and the reason
//! is kept in [`Received::refused`]. Of Chat Completions it takes what most servers take, until it is told to be OpenAI's own.

mod check;
mod speak;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, Stream, StreamExt};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use lifecycle::Tasks;
use serde_json::{Value, json};
use tokio::net::TcpListener;

pub use speak::Speech;

/// The most requests that are remembered.
const REMEMBERED: usize = 1_000;

/// The three APIs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// `POST /v1/messages`.
    Anthropic,
    /// `POST /v1/responses`.
    Responses,
    /// `POST /v1/chat/completions`.
    Chat,
}

impl Protocol {
    fn of(path: &str) -> Option<Self> {
        match path {
            "/v1/messages" => Some(Self::Anthropic),
            "/v1/responses" => Some(Self::Responses),
            "/v1/chat/completions" => Some(Self::Chat),
            _ => None,
        }
    }
}

/// What the server does with a request that is in order.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Says it.
    Say(Speech),
    /// Answers with this status and an error of the protocol.
    Status {
        /// The status.
        status: u16,
        /// The `Retry-After` header.
        retry_after: Option<String>,
        /// The error's message.
        message: String,
    },
    /// Begins to say it, and breaks the connection after so many events.
    Break(Speech, usize),
    /// Begins to say it, and ends the stream in good order after so many events.
    End(Speech, usize),
    /// Begins to say it, and falls silent after so many events.
    Stall(Speech, usize),
    /// Says it, but the event after so many is only half there.
    Malformed(Speech, usize),
    /// Sends these bytes as the stream.
    Raw(String),
    /// Never answers.
    Silent,
    /// Closes the connection without an answer.
    HangUp,
    /// Sends the client elsewhere.
    Redirect(String),
}

impl Answer {
    /// An answer of words.
    #[must_use]
    pub fn text(text: &str) -> Self {
        Self::Say(Speech::text(text))
    }

    /// A failure with this status.
    #[must_use]
    pub fn status(status: u16) -> Self {
        Self::Status {
            status,
            retry_after: None,
            message: format!("the fake provider was told to answer {status}"),
        }
    }
}

/// A request that came.
#[derive(Clone, Debug)]
pub struct Received {
    /// Which API; `None` for a path that is none's.
    pub protocol: Option<Protocol>,
    /// Its headers.
    pub headers: hyper::HeaderMap,
    /// Its body as it came.
    pub bytes: Bytes,
    /// Its body; null where it is no JSON.
    pub body: Value,
    /// Why it was refused.
    pub refused: Option<String>,
}

/// The provider. Ends with its value.
#[derive(Debug)]
pub struct ModelServer {
    address: SocketAddr,
    state: Arc<State>,
    tasks: Tasks,
}

#[derive(Debug)]
struct State {
    key: String,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// The field of Chat Completions in which it is told the most that may be said.
    chat_limit: &'static str,
    next: VecDeque<Answer>,
    always: Answer,
    received: VecDeque<Received>,
    count: u64,
    connections: u64,
}

impl ModelServer {
    /// Listens on a free port of loopback.
    pub async fn start() -> Self {
        Self::start_on(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await
    }

    /// Listens on this address.
    pub async fn start_on(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address)
            .await
            .unwrap_or_else(|error| panic!("listen on {address}: {error}"));
        let address = listener
            .local_addr()
            .unwrap_or_else(|error| panic!("the listener's address: {error}"));
        let state = Arc::new(State {
            key: format!("sk-test-{}", domain::TokenId::new()),
            inner: Mutex::new(Inner {
                chat_limit: check::USUAL_LIMIT,
                next: VecDeque::new(),
                always: Answer::text("Hello."),
                received: VecDeque::new(),
                count: 0,
                connections: 0,
            }),
        });
        let tasks = Tasks::new();
        tasks.spawn_until_stopped(accept(listener, Arc::clone(&state), tasks.clone()));
        Self { address, state, tasks }
    }

    /// `http://127.0.0.1:<port>`.
    #[must_use]
    pub fn base_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The one key that is accepted.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.state.key
    }

    /// Takes Chat Completions as OpenAI's newer models do from now on: with `max_completion_tokens` alone.
    pub fn act_as_openai(&self) {
        self.state.inner().chat_limit = check::OPENAI_LIMIT;
    }

    /// Lines up an answer behind those that wait.
    pub fn next(&self, answer: Answer) {
        self.state.inner().next.push_back(answer);
    }

    /// The answer when none is lined up.
    pub fn always(&self, answer: Answer) {
        self.state.inner().always = answer;
    }

    /// The last 1,000 requests, oldest first.
    #[must_use]
    pub fn received(&self) -> Vec<Received> {
        self.state.inner().received.iter().cloned().collect()
    }

    /// How many requests came.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.state.inner().count
    }

    /// How many connections came.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.state.inner().connections
    }

    /// Panics if a request was refused for what stood in it.
    pub fn assert_nothing_refused(&self) {
        for received in &self.state.inner().received {
            if let Some(reason) = &received.refused {
                panic!(
                    "the provider refused a request: {reason}\n{}",
                    String::from_utf8_lossy(&received.bytes)
                );
            }
        }
    }
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        self.tasks.stop().cancel();
    }
}

impl State {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a request and decides what becomes of it.
    fn decide(&self, mut received: Received) -> Answer {
        let mut inner = self.inner();
        inner.count += 1;
        let answer = match check::check(&received, &self.key, inner.chat_limit) {
            Ok(()) => inner.next.pop_front().unwrap_or_else(|| inner.always.clone()),
            Err((status, message)) => {
                received.refused = Some(message.clone());
                Answer::Status {
                    status,
                    retry_after: None,
                    message,
                }
            }
        };
        if inner.received.len() == REMEMBERED {
            inner.received.pop_front();
        }
        inner.received.push_back(received);
        answer
    }
}

async fn accept(listener: TcpListener, state: Arc<State>, tasks: Tasks) {
    loop {
        let Ok((connection, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let _ = connection.set_nodelay(true);
        state.inner().connections += 1;
        let state = Arc::clone(&state);
        tasks.spawn_until_stopped(async move {
            let service = service_fn(move |request| answer(Arc::clone(&state), request));
            // A connection that breaks is what tests ask for.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(connection), service)
                .await;
        });
    }
}

/// The connection is broken on purpose.
#[derive(Debug, thiserror::Error)]
#[error("the fake provider was told to break the connection")]
struct Broken;

type Body = BoxBody<Bytes, Broken>;

async fn answer(state: Arc<State>, request: Request<Incoming>) -> Result<Response<Body>, Broken> {
    let (head, body) = request.into_parts();
    let bytes = body.collect().await.map_err(|_| Broken)?.to_bytes();
    let protocol = Protocol::of(head.uri.path()).filter(|_| head.method == hyper::Method::POST);
    let received = Received {
        protocol,
        headers: head.headers,
        body: serde_json::from_slice(&bytes).unwrap_or_default(),
        bytes,
        refused: None,
    };
    let answer = state.decide(received);
    let Some(protocol) = protocol else {
        return Ok(failure(404, None, "there is nothing here"));
    };
    let events = |speech: &Speech, count: usize| {
        speech
            .events(protocol)
            .into_iter()
            .take(count)
            .map(Ok)
            .collect::<Vec<_>>()
    };
    Ok(match answer {
        Answer::Say(speech) => whole(speech.events(protocol).concat()),
        Answer::Raw(text) => whole(text),
        Answer::Status {
            status,
            retry_after,
            message,
        } => failure(status, retry_after.as_deref(), &message),
        Answer::Redirect(location) => built(
            Response::builder().status(307).header("location", location),
            full(Bytes::new()),
        ),
        Answer::Silent => std::future::pending::<Response<Body>>().await,
        Answer::HangUp => return Err(Broken),
        Answer::End(speech, count) => streamed(stream::iter(events(&speech, count))),
        Answer::Break(speech, count) => {
            // What was said goes out before the connection breaks.
            let broken = stream::once(async {
                tokio::task::yield_now().await;
                Err(Broken)
            });
            streamed(stream::iter(events(&speech, count)).chain(broken))
        }
        Answer::Stall(speech, count) => streamed(stream::iter(events(&speech, count)).chain(stream::pending())),
        Answer::Malformed(speech, count) => {
            let mut said = speech.events(protocol);
            if let Some(event) = said.get_mut(count) {
                // Half of its JSON is missing.
                let begin = event.find('{').unwrap_or_default();
                let end = (begin + (event.len() - begin) / 2..).find(|end| event.is_char_boundary(*end));
                event.truncate(end.unwrap_or_default());
                event.push_str("\n\n");
            }
            whole(said.concat())
        }
    })
}

fn whole(text: String) -> Response<Body> {
    built(event_stream(), full(Bytes::from(text)))
}

fn streamed(events: impl Stream<Item = Result<String, Broken>> + Send + Sync + 'static) -> Response<Body> {
    let frames = events.map(|event| event.map(|event| Frame::data(Bytes::from(event))));
    built(event_stream(), BodyExt::boxed(StreamBody::new(frames)))
}

fn event_stream() -> hyper::http::response::Builder {
    Response::builder().header("content-type", "text/event-stream")
}

fn failure(status: u16, retry_after: Option<&str>, message: &str) -> Response<Body> {
    let kind = match status {
        401 => "authentication_error",
        404 => "not_found_error",
        429 => "rate_limit_error",
        529 => "overloaded_error",
        400..500 => "invalid_request_error",
        _ => "api_error",
    };
    let mut response = Response::builder()
        .status(status)
        .header("content-type", "application/json");
    if let Some(retry_after) = retry_after {
        response = response.header("retry-after", retry_after);
    }
    let body = json!({"type": "error", "error": {"type": kind, "message": message}}).to_string();
    built(response, full(Bytes::from(body)))
}

fn full(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never: Infallible| match never {}).boxed()
}

fn built(response: hyper::http::response::Builder, body: Body) -> Response<Body> {
    response
        .body(body)
        .unwrap_or_else(|error| panic!("an answer of the fake provider: {error}"))
}
