//! What comes out of sandboxes. The link says which sandbox it is; the token must agree; all else is believed of nobody.

use std::sync::Arc;

use async_trait::async_trait;
use domain::{Placement, SandboxId};
use link::server::{Carrier, LinkHandler, ServiceAnswer};
use protocol::{ModelRequest, Refusal, RefusalCode, ServiceFailure, ServiceRequest, ToControl, TurnReply, TurnRequest};
use secret::Secret;

use crate::Control;
use crate::housing::Shown;
use crate::live::{Live, lock};

/// The longest piece of a tool's output that those who watch are shown: an honest runtime's are shorter, and each session keeps
/// some hundreds of them for watchers who are slow. The whole output comes with the result.
const PIECE: usize = 32 << 10;
/// The most that a sandbox may say of why its loop ended.
const WORDS: usize = 2_000;

/// The beginning of what a sandbox says, in room of its own: what was sent may be much longer.
fn beginning(text: &str, most: usize) -> String {
    text[..text.floor_char_boundary(most)].to_owned()
}

#[async_trait]
impl LinkHandler for Control {
    async fn invoke_llm(&self, sandbox: SandboxId, token: &Secret, request: TurnRequest) -> Result<TurnReply, Refusal> {
        let live = self.authorized(sandbox, token).await?;
        if self.0.config.placement == Placement::ControlPlane {
            let words = "loops of this installation run in the control plane: a sandbox asks for no turns";
            return Err(Refusal::new(RefusalCode::Denied, words));
        }
        self.invoke(&live, request).await
    }

    async fn connect(
        &self,
        sandbox: SandboxId,
        token: &Secret,
        host: &str,
        port: u16,
    ) -> Result<Box<dyn Carrier>, Refusal> {
        let live = self.authorized(sandbox, token).await?;
        self.carry(&live, host, port).await
    }

    async fn resolve(&self, sandbox: SandboxId, token: &Secret, name: &str) -> Result<(), Refusal> {
        let live = self.authorized(sandbox, token).await?;
        self.name(&live, name).await
    }

    async fn service(
        &self,
        sandbox: SandboxId,
        token: &Secret,
        request: ServiceRequest,
    ) -> Result<ServiceAnswer, ServiceFailure> {
        let live = self.authorized(sandbox, token).await?;
        self.call_service(&live, request).await
    }

    async fn model(
        &self,
        sandbox: SandboxId,
        token: &Secret,
        request: ModelRequest,
    ) -> Result<ServiceAnswer, ServiceFailure> {
        let live = self.authorized(sandbox, token).await?;
        self.call_model(&live, request).await
    }

    async fn event(&self, sandbox: SandboxId, event: ToControl) {
        let Some(live) = self.0.housing.session_of(sandbox) else {
            return;
        };
        match event {
            ToControl::LoopEnded { run, epoch, failure } => {
                if let Some(active) = live
                    .active()
                    .filter(|active| active.run == run && active.epoch == epoch)
                {
                    let failure = failure.map(|words| beginning(&words, WORDS));
                    active.loop_ended.send_replace(Some(failure));
                }
            }
            ToControl::Progress { call, text } => {
                let known = live
                    .active()
                    .is_some_and(|active| lock(&active.calls).contains_key(&call));
                if known {
                    live.feed.progress(call, beginning(&text, PIECE));
                }
            }
            ToControl::HandsReplaced => tracing::info!(%sandbox, "a sandbox lost its hands and has new ones"),
            // Answers to orders are waited for where the order was given.
            ToControl::Claimed { .. }
            | ToControl::Result { .. }
            | ToControl::Stopped { .. }
            | ToControl::Transferred { .. } => {}
        }
    }
}

impl Control {
    /// Whose sandbox it is, if the token says so too.
    async fn authorized(&self, sandbox: SandboxId, token: &Secret) -> Result<Arc<Live>, Refusal> {
        if let Some(live) = self.0.housing.session_of(sandbox)
            && self.check_token(&live, sandbox, token).await == Shown::Good
        {
            return Ok(live);
        }
        Err(Refusal::new(
            RefusalCode::Unauthorized,
            "the token is not this sandbox's, or no longer good",
        ))
    }
}
