//! A control plane that remembers what it was asked, plays replies, and lets `good.test` through to an echo.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

use async_trait::async_trait;
use bytes::Bytes;
use domain::{MessageId, SandboxId, ToolCall};
use futures::stream::{self, BoxStream, StreamExt};
use lifecycle::Tasks;
use link::server::{Carrier, Connection, FileSource, LinkHandler, ServiceAnswer};
use protocol::{
    Denial, ModelRequest, Refusal, RefusalCode, ServiceFailure, ServiceRequest, StopReason, SyncAnswer, SyncCall,
    ToControl, TurnReply, TurnRequest,
};
use secret::Secret;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Barrier, mpsc};

use crate::clients::outside::Outside;
use crate::sync::Keeps;

/// The token of every session here; it must be found nowhere.
pub(crate) const TOKEN: &str = "blj_0123456789abcdef_needle";

pub(crate) struct Handler {
    pub(crate) seen: Mutex<Vec<String>>,
    pub(crate) turns: Mutex<Vec<TurnRequest>>,
    pub(crate) replies: Mutex<VecDeque<TurnReply>>,
    /// Calls of services.
    pub(crate) asked: Mutex<Vec<ServiceRequest>>,
    /// What programs asked of models.
    pub(crate) models: Mutex<Vec<ModelRequest>>,
    /// The model `slow` goes on when this file is there.
    pub(crate) slow: Mutex<Option<PathBuf>>,
    pub(crate) together: Arc<Barrier>,
    /// Decides on names and connections, where there is one.
    pub(crate) outside: OnceLock<Outside>,
    /// Keeps files, where there is one.
    pub(crate) keeps: OnceLock<Keeps>,
    pub(crate) events: mpsc::Sender<ToControl>,
    pub(crate) tasks: Tasks,
}

/// Calls of `crm.together` that wait for one another.
pub(crate) const TOGETHER: usize = 16;

pub(crate) fn reply(calls: Vec<ToolCall>) -> TurnReply {
    TurnReply {
        message: MessageId::new(),
        stop: if calls.is_empty() {
            StopReason::EndTurn
        } else {
            StopReason::ToolUse
        },
        calls,
    }
}

impl Handler {
    pub(crate) fn new(events: mpsc::Sender<ToControl>) -> Self {
        Self {
            seen: Mutex::default(),
            turns: Mutex::default(),
            replies: Mutex::default(),
            asked: Mutex::default(),
            models: Mutex::default(),
            slow: Mutex::default(),
            together: Arc::new(Barrier::new(TOGETHER)),
            outside: OnceLock::new(),
            keeps: OnceLock::new(),
            events,
            tasks: Tasks::new(),
        }
    }

    fn see(&self, token: &Secret, what: String) -> Result<(), Refusal> {
        assert_eq!(token.expose(), TOKEN);
        self.seen.lock().unwrap().push(what);
        Ok(())
    }

    /// What keeps files: the runtime asks it by itself, and nobody waits for it.
    fn keeper(&self, token: &Secret) -> Result<&Keeps, Refusal> {
        assert_eq!(token.expose(), TOKEN);
        self.keeps.get().ok_or_else(denied)
    }
}

fn denied() -> Refusal {
    let denial = Denial {
        reason: "no_rule".to_owned(),
        rule: None,
        remedy: Some("ask for access".to_owned()),
    };
    Refusal::denied("no rule allows it", denial)
}

#[async_trait]
impl LinkHandler for Handler {
    async fn invoke_llm(&self, _: SandboxId, token: &Secret, request: TurnRequest) -> Result<TurnReply, Refusal> {
        self.see(token, format!("turn {}", request.turn))?;
        self.turns.lock().unwrap().push(request);
        self.replies
            .lock()
            .unwrap()
            .pop_front()
            .ok_or_else(|| Refusal::new(RefusalCode::Stale, "there are no more replies"))
    }

    async fn connect(&self, _: SandboxId, token: &Secret, host: &str, port: u16) -> Result<Box<dyn Carrier>, Refusal> {
        self.see(token, format!("connect {host} {port}"))?;
        if let Some(outside) = self.outside.get() {
            return outside.connect(host, port);
        }
        match host {
            "good.test" => Ok(Box::new(Echo)),
            "web.test" => Ok(Box::new(Web)),
            _ => Err(denied()),
        }
    }

    async fn sync(&self, _: SandboxId, token: &Secret, call: SyncCall) -> Result<SyncAnswer, Refusal> {
        self.keeper(token)?.answer(call)
    }

    async fn keep_object(
        &self,
        _: SandboxId,
        token: &Secret,
        url: &str,
        bytes: Option<u64>,
        body: FileSource,
    ) -> Result<(), Refusal> {
        self.see(token, "keep".to_owned())?;
        self.keeper(token)?.keep(url, bytes, body).await
    }

    async fn fetch_object(&self, _: SandboxId, token: &Secret, url: &str) -> Result<ServiceAnswer, Refusal> {
        self.see(token, "fetch".to_owned())?;
        self.keeper(token)?.fetch(url).await
    }

    async fn resolve(&self, _: SandboxId, token: &Secret, name: &str) -> Result<Option<u32>, Refusal> {
        self.see(token, format!("resolve {name}"))?;
        if let Some(outside) = self.outside.get() {
            return outside.resolve(name).map(|()| None);
        }
        match name {
            "good.test" => Ok(Some(4)),
            "web.test" => Ok(None),
            _ => Err(denied()),
        }
    }

    async fn service(
        &self,
        _: SandboxId,
        token: &Secret,
        request: ServiceRequest,
    ) -> Result<ServiceAnswer, ServiceFailure> {
        self.see(token, format!("service {}.{}", request.service, request.method))?;
        let answer = |media_type: &str, body: BoxStream<'static, std::io::Result<Bytes>>| ServiceAnswer {
            media_type: media_type.to_owned(),
            length: None,
            body,
        };
        let piece = |text: String| stream::iter([Ok(Bytes::from(text))]).boxed();
        let method = request.method.clone();
        let args = request.args.clone();
        let mut asked = self.asked.lock().unwrap();
        asked.push(request);
        match method.as_str() {
            "echo" => Ok(answer("application/json", piece(args.to_string()))),
            "text" => Ok(answer("text/csv; charset=utf-8", piece("a,b\n".to_owned()))),
            "bytes" => Ok(answer("application/octet-stream", piece("\u{1}\u{2}\u{3}".to_owned()))),
            "large" => {
                let pieces = args["pieces"].as_u64().unwrap_or(1);
                let piece = |_| Ok(Bytes::from_static(&[b'x'; 1 << 20]));
                Ok(answer("application/json", stream::iter((0..pieces).map(piece)).boxed()))
            }
            "cut" => {
                let pieces = [Ok(Bytes::from("[1,")), Err(std::io::Error::other("gone"))];
                Ok(answer("application/json", stream::iter(pieces).boxed()))
            }
            "together" => {
                // None is answered before so many wait.
                let together = Arc::clone(&self.together);
                let gather = stream::once(async move {
                    together.wait().await;
                    Ok(Bytes::from("true"))
                });
                Ok(answer("application/json", gather.boxed()))
            }
            "limited" => Err(ServiceFailure {
                retry_after: Some(7),
                ..ServiceFailure::new(429, "rate_limited", "crm takes 10 calls a second").remedy("Wait a little.")
            }),
            method => Err(ServiceFailure::new(
                403,
                "denied",
                format!("crm.{method} is not allowed"),
            )),
        }
    }

    async fn model(
        &self,
        _: SandboxId,
        token: &Secret,
        request: ModelRequest,
    ) -> Result<ServiceAnswer, ServiceFailure> {
        self.see(token, format!("model {}", request.route.path()))?;
        let slow = self.slow.lock().unwrap().take();
        self.models.lock().unwrap().push(request);
        let said = |text: &'static str| Ok(Bytes::from_static(text.as_bytes()));
        let body = match slow {
            None => stream::iter([said("data: {\"said\":1}\n\n"), said("data: [DONE]\n")]).boxed(),
            Some(file) => {
                let heard = stream::once(async move {
                    while !file.exists() {
                        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                    }
                    said("data: second\n\n")
                });
                stream::iter([said("data: first\n\n")]).chain(heard).boxed()
            }
        };
        Ok(ServiceAnswer {
            media_type: "text/event-stream".to_owned(),
            length: None,
            body,
        })
    }

    async fn event(&self, _: SandboxId, event: ToControl) {
        let _ = self.events.send(event).await;
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

/// Answers a request with its head.
struct Web;

#[async_trait]
impl Carrier for Web {
    async fn carry(self: Box<Self>, mut near: Box<dyn Connection>) {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match near.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(_) => return,
            }
        }
        let answer = format!(
            "HTTP/1.1 200 OK\r\nconnection: close\r\nproxy-connection: x\r\ncontent-length: {}\r\n\r\n",
            head.len()
        );
        let _ = near.write_all(answer.as_bytes()).await;
        let _ = near.write_all(&head).await;
        let _ = near.shutdown().await;
    }
}
