//! A link in a temporary folder: a handler that remembers, a server, and a client.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use domain::{MessageId, RunId, SandboxId, ToolCallId};
use futures::stream::{self, StreamExt, TryStreamExt};
use lifecycle::Tasks;
use link::client::Client;
use link::server::{Carrier, Connection, FileSource, LinkHandler, Linked, ServiceAnswer};
use protocol::{
    EarlyResults, Refusal, RefusalCode, ServiceFailure, ServiceRequest, StopReason, SyncAnswer, SyncCall, ToControl,
    ToolChoice, TurnReply, TurnRequest,
};
use secret::Secret;
use tokio::sync::{Semaphore, mpsc};

/// Long enough for a slow machine, short enough for a person.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("nothing happened within a minute")
}

/// Lets `good.test` pass and echoes what is sent there; refuses every other token than `good`, and every other name.
pub(crate) struct Handler {
    pub(crate) seen: Mutex<Vec<String>>,
    made: Arc<AtomicUsize>,
    /// Requests about files that are answered at the moment, and how many may be.
    pub(crate) questions: Busy,
    /// The same of contents on their way.
    pub(crate) contents: Busy,
    events: mpsc::Sender<ToControl>,
}

/// What is under way, and is let go on one by one.
pub(crate) struct Busy {
    now: AtomicUsize,
    most: AtomicUsize,
    /// Lets one be answered.
    pub(crate) answers: Semaphore,
}

impl Default for Busy {
    fn default() -> Self {
        Self {
            now: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            answers: Semaphore::new(0),
        }
    }
}

impl Busy {
    /// How many are under way.
    pub(crate) fn now(&self) -> usize {
        self.now.load(Ordering::SeqCst)
    }

    /// How many there were at once, at most.
    pub(crate) fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }

    /// Begins; what is given back ends it.
    fn begin(&self) -> UnderWay<'_> {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        UnderWay(self)
    }
}

struct UnderWay<'b>(&'b Busy);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Bytes of the answer to `crm.large`.
pub(crate) const LARGE: usize = 64 << 20;
const PIECE: usize = 64 << 10;

impl Handler {
    /// Bytes of large answers that were made so far.
    pub(crate) fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }

    fn see(&self, token: &Secret, what: String) -> Result<(), Refusal> {
        self.seen.lock().unwrap().push(what);
        if token.expose() == "good" {
            return Ok(());
        }
        Err(Refusal::new(RefusalCode::Unauthorized, "this token opens nothing here"))
    }
}

#[async_trait]
impl LinkHandler for Handler {
    async fn invoke_llm(&self, _: SandboxId, token: &Secret, request: TurnRequest) -> Result<TurnReply, Refusal> {
        self.see(token, format!("turn {}", request.turn))?;
        if request.turn > 9 {
            return Err(Refusal::new(RefusalCode::Stale, "the run was taken over"));
        }
        Ok(TurnReply {
            message: MessageId::new(),
            calls: Vec::new(),
            stop: StopReason::EndTurn,
        })
    }

    async fn hand_in(&self, _: SandboxId, token: &Secret, early: EarlyResults) -> Result<(), Refusal> {
        self.see(token, format!("results {} {}", early.turn, early.results.len()))?;
        if early.turn > 9 {
            return Err(Refusal::new(RefusalCode::Stale, "the run was taken over"));
        }
        Ok(())
    }

    async fn connect(&self, _: SandboxId, token: &Secret, host: &str, port: u16) -> Result<Box<dyn Carrier>, Refusal> {
        self.see(token, format!("connect {host} {port}"))?;
        if host != "good.test" {
            return Err(Refusal::new(RefusalCode::Denied, "no rule allows it"));
        }
        Ok(Box::new(Echo))
    }

    async fn resolve(&self, _: SandboxId, token: &Secret, name: &str) -> Result<Option<u32>, Refusal> {
        self.see(token, format!("resolve {name}"))?;
        if name == "good.test" {
            return Ok(Some(7));
        }
        Err(Refusal::new(RefusalCode::Denied, "no rule allows it"))
    }

    async fn service(
        &self,
        _: SandboxId,
        token: &Secret,
        request: ServiceRequest,
    ) -> Result<ServiceAnswer, ServiceFailure> {
        let ServiceRequest {
            service,
            method,
            args,
            call,
            idempotency_key,
        } = request;
        let (call, key) = (call.unwrap(), idempotency_key.unwrap());
        self.see(token, format!("service {service}.{method} {call} {key}"))?;
        let body = match method.as_str() {
            "echo" => stream::iter([Ok(Bytes::from(args.to_string()))]).boxed(),
            "broken" => stream::iter([Ok(Bytes::from("half of ")), Err(std::io::Error::other("gone"))]).boxed(),
            "large" => {
                let made = Arc::clone(&self.made);
                let piece = move |_| {
                    made.fetch_add(PIECE, Ordering::Relaxed);
                    Ok(Bytes::from_static(&[b'x'; PIECE]))
                };
                stream::iter((0..LARGE / PIECE).map(piece)).boxed()
            }
            _ => {
                let words = "crm takes 10 calls a second";
                return Err(ServiceFailure {
                    retry_after: Some(7),
                    ..ServiceFailure::new(429, "rate_limited", words).remedy("wait a little")
                });
            }
        };
        Ok(ServiceAnswer {
            media_type: "application/json".to_owned(),
            length: None,
            body,
        })
    }

    async fn sync(&self, _: SandboxId, token: &Secret, _: SyncCall) -> Result<SyncAnswer, Refusal> {
        let _under_way = self.questions.begin();
        self.see(token, "sync".to_owned())?;
        self.questions.answers.acquire().await.unwrap().forget();
        Ok(SyncAnswer::Begun { missing: 0 })
    }

    async fn keep_object(
        &self,
        _: SandboxId,
        token: &Secret,
        url: &str,
        _: Option<u64>,
        body: FileSource,
    ) -> Result<(), Refusal> {
        let _under_way = self.contents.begin();
        self.see(token, format!("keep {url}"))?;
        let cut = |_| Refusal::new(RefusalCode::Unavailable, "it was cut");
        let bytes: Vec<Bytes> = body.try_collect().await.map_err(cut)?;
        self.see(token, format!("kept {}", bytes.concat().len()))
    }

    async fn event(&self, _: SandboxId, event: ToControl) {
        let _ = self.events.send(event).await;
    }
}

pub(crate) struct Rig {
    pub(crate) linked: Linked,
    pub(crate) client: Client,
    pub(crate) handler: Arc<Handler>,
    pub(crate) events: mpsc::Receiver<ToControl>,
    pub(crate) socket: PathBuf,
    pub(crate) tasks: Tasks,
    _folder: tempfile::TempDir,
}

/// A link whose client shows the token `good`.
pub(crate) fn rig() -> Rig {
    rig_for(rustix::process::geteuid().as_raw())
}

pub(crate) fn rig_for(uid: u32) -> Rig {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("link.sock");
    let tasks = Tasks::new();
    let (send, events) = mpsc::channel(64);
    let handler = Arc::new(Handler {
        seen: Mutex::default(),
        made: Arc::default(),
        questions: Busy::default(),
        contents: Busy::default(),
        events: send,
    });
    let listener = UnixListener::bind(&socket).unwrap();
    let erased: Arc<dyn LinkHandler> = handler.clone();
    let linked = link::server::serve(listener, SandboxId::new(), uid, erased, &tasks).unwrap();
    let client = Client::new(&socket, &tasks);
    client.set_token(Secret::new("good"));
    Rig {
        linked,
        client,
        handler,
        events,
        socket,
        tasks,
        _folder: folder,
    }
}

impl Rig {
    pub(crate) fn seen(&self) -> Vec<String> {
        self.handler.seen.lock().unwrap().clone()
    }
}

pub(crate) fn turn(turn: u32) -> TurnRequest {
    TurnRequest {
        run: RunId::new(),
        epoch: domain::Epoch(1),
        turn,
        results: vec![domain::ToolResult::text(
            ToolCallId("call".into()),
            "what the tool said",
        )],
        times: Vec::new(),
        tool_choice: ToolChoice::Auto,
    }
}

/// Sends back whatever comes.
struct Echo;

#[async_trait]
impl Carrier for Echo {
    async fn carry(self: Box<Self>, near: Box<dyn Connection>) {
        let (mut read, mut write) = tokio::io::split(near);
        let _ = tokio::io::copy(&mut read, &mut write).await;
        let _ = tokio::io::AsyncWriteExt::shutdown(&mut write).await;
    }
}
