//! A control plane that remembers what it was asked, plays replies, and lets `good.test` through to an echo.

use std::collections::VecDeque;
use std::sync::Mutex;

use async_trait::async_trait;
use domain::{MessageId, SandboxId, ToolCall};
use lifecycle::Tasks;
use link::server::{Connection, LinkHandler};
use protocol::{Refusal, RefusalCode, StopReason, ToControl, TurnReply, TurnRequest};
use secret::Secret;
use tokio::sync::mpsc;

/// The token of every session here; it must be found nowhere.
pub(crate) const TOKEN: &str = "blj_0123456789abcdef_needle";

pub(crate) struct Handler {
    pub(crate) seen: Mutex<Vec<String>>,
    pub(crate) turns: Mutex<Vec<TurnRequest>>,
    pub(crate) replies: Mutex<VecDeque<TurnReply>>,
    pub(crate) events: mpsc::Sender<ToControl>,
    pub(crate) tasks: Tasks,
}

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
    fn see(&self, token: &Secret, what: String) -> Result<(), Refusal> {
        assert_eq!(token.expose(), TOKEN);
        self.seen.lock().unwrap().push(what);
        Ok(())
    }
}

fn denied() -> Refusal {
    Refusal::new(RefusalCode::Denied, "no rule allows it")
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

    async fn connect(
        &self,
        _: SandboxId,
        token: &Secret,
        host: &str,
        port: u16,
    ) -> Result<Box<dyn Connection>, Refusal> {
        self.see(token, format!("connect {host} {port}"))?;
        if host != "good.test" {
            return Err(denied());
        }
        let (near, far) = tokio::io::duplex(1 << 10);
        let (mut read, mut write) = tokio::io::split(far);
        self.tasks.spawn_until_stopped(async move {
            let _ = tokio::io::copy(&mut read, &mut write).await;
            let _ = tokio::io::AsyncWriteExt::shutdown(&mut write).await;
        });
        Ok(Box::new(near))
    }

    async fn resolve(&self, _: SandboxId, token: &Secret, name: &str) -> Result<(), Refusal> {
        self.see(token, format!("resolve {name}"))?;
        if name == "good.test" { Ok(()) } else { Err(denied()) }
    }

    async fn event(&self, _: SandboxId, event: ToControl) {
        let _ = self.events.send(event).await;
    }
}
