//! A provider of models on loopback that says at once what a script wants: the same for Belljar and for its peers.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use futures::stream::{self, StreamExt};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use lifecycle::Tasks;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::time::timeout;

/// What is billed for a token, in nano-dollars: $3 and $15 for a million.
pub(crate) const PRICE: (u64, u64) = (3_000, 15_000);

/// What an answer is billed as.
const OUTPUT_TOKENS: u64 = 20;

/// Requests that are remembered.
const REMEMBERED: usize = 256;

/// What the model says to a request.
pub(crate) enum Say {
    Words(&'static str),
    /// A call of a tool, after a few words.
    Call(&'static str, Value),
    /// Calls of several tools at once, after a few words.
    Calls(Vec<(String, Value)>),
    /// Many small pieces of text, with so long between them.
    Slowly {
        pieces: usize,
        every: Duration,
    },
    /// Some words after a while, for which all is billed that it may say at most.
    AtLength {
        after: Duration,
    },
}

/// Decides what is said, by the request's body.
pub(crate) type Script = fn(&[u8]) -> Say;

/// A request that came.
#[derive(Clone)]
pub(crate) struct Asked {
    pub(crate) number: u64,
    pub(crate) at: Instant,
    pub(crate) body: Bytes,
}

/// The provider. Ends with its value.
pub(crate) struct Models {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
    tasks: Tasks,
}

struct State {
    script: Script,
    count: AtomicU64,
    billed: AtomicU64,
    /// Requests over which it thinks before it answers at length.
    under_way: AtomicU64,
    asked: Mutex<VecDeque<Asked>>,
    came: Notify,
}

impl Models {
    pub(crate) async fn start(script: Script) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let state = Arc::new(State {
            script,
            count: AtomicU64::new(0),
            billed: AtomicU64::new(0),
            under_way: AtomicU64::new(0),
            asked: Mutex::default(),
            came: Notify::new(),
        });
        let tasks = Tasks::new();
        tasks.spawn_until_stopped(accept(listener, Arc::clone(&state), tasks.clone()));
        Ok(Self { address, state, tasks })
    }

    /// How many requests came.
    pub(crate) fn count(&self) -> u64 {
        self.state.count.load(Ordering::SeqCst)
    }

    /// Over how many it thinks now, before it answers at length.
    pub(crate) fn under_way(&self) -> u64 {
        self.state.under_way.load(Ordering::SeqCst)
    }

    /// What all of them cost, in nano-dollars, whether or not anybody heard the answer.
    pub(crate) fn billed(&self) -> u64 {
        self.state.billed.load(Ordering::SeqCst)
    }

    /// The first request after the first `after` that is so; waited for.
    pub(crate) async fn asked(&self, after: u64, is: impl Fn(&[u8]) -> bool) -> anyhow::Result<Asked> {
        let found = async {
            loop {
                let came = self.state.came.notified();
                let known = self
                    .state
                    .asked()
                    .iter()
                    .find(|asked| asked.number > after && is(&asked.body))
                    .cloned();
                match known {
                    Some(asked) => return asked,
                    None => came.await,
                }
            }
        };
        timeout(Duration::from_secs(60), found)
            .await
            .context("the model was not asked")
    }

    /// The last requests, oldest first.
    pub(crate) fn last(&self) -> Vec<Asked> {
        self.state.asked().iter().cloned().collect()
    }
}

impl Drop for Models {
    fn drop(&mut self) {
        self.tasks.stop().cancel();
    }
}

impl State {
    fn asked(&self) -> MutexGuard<'_, VecDeque<Asked>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, body: Bytes) -> u64 {
        let at = Instant::now();
        let mut asked = self.asked();
        let number = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        if asked.len() == REMEMBERED {
            asked.pop_front();
        }
        asked.push_back(Asked { number, at, body });
        drop(asked);
        self.came.notify_waiters();
        number
    }
}

/// A request that is thought over until this is dropped.
struct UnderWay(Arc<State>);

impl UnderWay {
    fn new(state: &Arc<State>) -> Self {
        state.under_way.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(state))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn accept(listener: TcpListener, state: Arc<State>, tasks: Tasks) {
    while let Ok((connection, _)) = listener.accept().await {
        let _ = connection.set_nodelay(true);
        let state = Arc::clone(&state);
        tasks.spawn_until_stopped(async move {
            let service = service_fn(move |request| answer(Arc::clone(&state), request));
            // A client that goes away is its own affair.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(connection), service)
                .await;
        });
    }
}

async fn answer(
    state: Arc<State>,
    request: Request<Incoming>,
) -> Result<Response<UnsyncBoxBody<Bytes, Infallible>>, hyper::Error> {
    let body = request.into_body().collect().await?.to_bytes();
    let input = body.len() as u64 / 4;
    let say = (state.script)(&body);
    let output = match say {
        Say::AtLength { .. } => most(&body),
        _ => OUTPUT_TOKENS,
    };
    let number = state.note(body);
    state
        .billed
        .fetch_add(input * PRICE.0 + output * PRICE.1, Ordering::SeqCst);
    let opening = opening(input);
    let closing = move |reason| closing(reason, output);
    let body = match say {
        Say::Words(words) => whole(opening + &text_begins() + &text(words) + &block_ends(0) + &closing("end_turn")),
        Say::Call(name, input) => {
            let words = text_begins() + &text("I look at it with a tool.") + &block_ends(0);
            whole(opening + &words + &call(number, 1, name, &input) + &closing("tool_use"))
        }
        Say::Calls(calls) => {
            let words = text_begins() + &text("I look at it with a tool.") + &block_ends(0);
            let calls = (1..)
                .zip(&calls)
                .map(|(place, (name, input))| call(number, place, name, input));
            whole(opening + &words + &calls.collect::<String>() + &closing("tool_use"))
        }
        Say::Slowly { pieces, every } => {
            let first = stream::once(async move { opening + &text_begins() });
            let middle = stream::iter(0..pieces).then(move |piece| async move {
                tokio::time::sleep(every).await;
                text(&format!("piece {piece} "))
            });
            let last = stream::once(async move { block_ends(0) + &closing("end_turn") });
            let frames = first
                .chain(middle)
                .chain(last)
                .map(|event| Ok(Frame::data(Bytes::from(event))));
            StreamBody::new(frames).boxed_unsync()
        }
        Say::AtLength { after } => {
            let under_way = UnderWay::new(&state);
            let first = stream::once(async move { opening });
            let rest = stream::once(async move {
                tokio::time::sleep(after).await;
                drop(under_way);
                text_begins() + &text("At length.") + &block_ends(0) + &closing("end_turn")
            });
            let frames = first.chain(rest).map(|event| Ok(Frame::data(Bytes::from(event))));
            StreamBody::new(frames).boxed_unsync()
        }
    };
    let mut response = Response::new(body);
    let event_stream = hyper::header::HeaderValue::from_static("text/event-stream");
    response.headers_mut().insert("content-type", event_stream);
    Ok(response)
}

fn whole(text: String) -> UnsyncBoxBody<Bytes, Infallible> {
    Full::new(Bytes::from(text)).boxed_unsync()
}

fn event(kind: &str, value: &Value) -> String {
    format!("event: {kind}\ndata: {value}\n\n")
}

fn opening(input: u64) -> String {
    let message = json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "fake", "content": [],
        "stop_reason": null, "usage": {"input_tokens": input, "output_tokens": 1}});
    event("message_start", &json!({"type": "message_start", "message": message}))
}

fn text_begins() -> String {
    let block = json!({"type": "text", "text": ""});
    event(
        "content_block_start",
        &json!({"type": "content_block_start", "index": 0, "content_block": block}),
    )
}

fn text(words: &str) -> String {
    let delta = json!({"type": "text_delta", "text": words});
    event(
        "content_block_delta",
        &json!({"type": "content_block_delta", "index": 0, "delta": delta}),
    )
}

fn block_ends(index: u32) -> String {
    event(
        "content_block_stop",
        &json!({"type": "content_block_stop", "index": index}),
    )
}

fn call(number: u64, place: u32, name: &str, input: &Value) -> String {
    let id = format!("toolu_{number}_{place}");
    let block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
    let delta = json!({"type": "input_json_delta", "partial_json": input.to_string()});
    event(
        "content_block_start",
        &json!({"type": "content_block_start", "index": place, "content_block": block}),
    ) + &event(
        "content_block_delta",
        &json!({"type": "content_block_delta", "index": place, "delta": delta}),
    ) + &block_ends(place)
}

/// The most tokens that a request wants.
fn most(body: &[u8]) -> u64 {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    body["max_tokens"].as_u64().unwrap_or(OUTPUT_TOKENS)
}

fn closing(reason: &str, output: u64) -> String {
    let delta = json!({"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": null},
        "usage": {"output_tokens": output}});
    event("message_delta", &delta) + &event("message_stop", &json!({"type": "message_stop"}))
}
