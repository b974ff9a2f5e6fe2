//! What comes out of sandboxes. The link says which sandbox it is; the token must agree; all else is believed of nobody.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use domain::{Placement, SandboxId};
use futures::StreamExt;
use link::server::{Carrier, FileSource, LinkHandler, ServiceAnswer};
use protocol::{
    EarlyResults, ModelRequest, Refusal, RefusalCode, ServiceFailure, ServiceRequest, SyncAnswer, SyncCall, ToControl,
    TurnReply, TurnRequest,
};
use secret::Secret;

use crate::Control;
use crate::housing::usage::{Using, Watched};
use crate::housing::{Resident, Shown};
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

/// Whose sandbox asks for something, which keeps it awake.
struct Guest {
    live: Arc<Live>,
    using: Using,
}

/// An answer that keeps the sandbox awake until its last byte is out.
fn in_use(answer: ServiceAnswer, using: Using) -> ServiceAnswer {
    let body = answer.body.map(move |piece| {
        let _held = &using;
        piece
    });
    ServiceAnswer {
        body: body.boxed(),
        ..answer
    }
}

#[async_trait]
impl LinkHandler for Control {
    async fn invoke_llm(&self, sandbox: SandboxId, token: &Secret, request: TurnRequest) -> Result<TurnReply, Refusal> {
        let Guest { live, using: _using } = self.authorized(sandbox, token).await?;
        self.loop_is_inside()?;
        self.invoke(&live, request).await
    }

    async fn hand_in(&self, sandbox: SandboxId, token: &Secret, results: EarlyResults) -> Result<(), Refusal> {
        let Guest { live, using: _using } = self.authorized(sandbox, token).await?;
        self.loop_is_inside()?;
        self.keep_early(&live, results).await
    }

    async fn connect(
        &self,
        sandbox: SandboxId,
        token: &Secret,
        host: &str,
        port: u16,
    ) -> Result<Box<dyn Carrier>, Refusal> {
        let resident = self.0.housing.resident(sandbox);
        let Guest { live, using: _using } = self.authorized(sandbox, token).await?;
        let carrier = self.carry(&live, host, port).await?;
        Ok(match resident {
            Some(Resident { usage, .. }) => Box::new(Watched { carrier, usage }),
            None => carrier,
        })
    }

    async fn resolve(&self, sandbox: SandboxId, token: &Secret, name: &str) -> Result<Option<u32>, Refusal> {
        let Guest { live, using: _using } = self.authorized(sandbox, token).await?;
        self.name(&live, name).await
    }

    async fn service(
        &self,
        sandbox: SandboxId,
        token: &Secret,
        request: ServiceRequest,
    ) -> Result<ServiceAnswer, ServiceFailure> {
        let Guest { live, using } = self.authorized(sandbox, token).await?;
        let answer = self.call_service(&live, request).await?;
        Ok(in_use(answer, using))
    }

    async fn model(
        &self,
        sandbox: SandboxId,
        token: &Secret,
        request: ModelRequest,
    ) -> Result<ServiceAnswer, ServiceFailure> {
        let Guest { live, using } = self.authorized(sandbox, token).await?;
        let answer = self.call_model(&live, request).await?;
        Ok(in_use(answer, using))
    }

    async fn sync(&self, sandbox: SandboxId, token: &Secret, call: SyncCall) -> Result<SyncAnswer, Refusal> {
        let Resident { live, .. } = self.resident(sandbox, token).await?;
        self.sync_files(&live, sandbox, call).await
    }

    async fn keep_object(
        &self,
        sandbox: SandboxId,
        token: &Secret,
        url: &str,
        bytes: Option<u64>,
        body: FileSource,
    ) -> Result<(), Refusal> {
        let Resident { live, .. } = self.resident(sandbox, token).await?;
        self.keep_content(&live, url, bytes, body).await
    }

    async fn fetch_object(&self, sandbox: SandboxId, token: &Secret, url: &str) -> Result<ServiceAnswer, Refusal> {
        let Guest { live, using } = self.authorized(sandbox, token).await?;
        let answer = self.kept_content(&live, url).await?;
        Ok(in_use(answer, using))
    }

    async fn event(&self, sandbox: SandboxId, event: ToControl) {
        let Some(Resident { live, usage }) = self.0.housing.resident(sandbox) else {
            if matches!(event, ToControl::Alive) {
                self.0.housing.warm.alive(sandbox);
            }
            return;
        };
        match event {
            ToControl::Alive => usage.alive(),
            ToControl::Background { seconds } => {
                // Only a run starts some.
                let granted = live.active().map(|active| active.offer.grants.background_seconds);
                usage.keep(Duration::from_secs(seconds), granted.map(Duration::from_secs));
            }
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
    /// A sandbox that has no loop of ours asks for no turns, and brings results to who ordered the calls only.
    fn loop_is_inside(&self) -> Result<(), Refusal> {
        if self.0.config.placement == Placement::ControlPlane {
            let words = "loops of this installation run in the control plane: a sandbox asks for no turns";
            return Err(Refusal::new(RefusalCode::Denied, words));
        }
        Ok(())
    }

    /// Whose sandbox it is, if the token says so too; it counts as used meanwhile.
    async fn authorized(&self, sandbox: SandboxId, token: &Secret) -> Result<Guest, Refusal> {
        let Resident { live, usage } = self.resident(sandbox, token).await?;
        let using = usage.using();
        if usage.is_frozen() {
            // It asked at the moment at which it was put to sleep.
            self.rouse(&live);
        }
        Ok(Guest { live, using })
    }

    /// Whose sandbox it is, if the token says so too. What it keeps of its files by itself is no use of it.
    async fn resident(&self, sandbox: SandboxId, token: &Secret) -> Result<Resident, Refusal> {
        if let Some(resident) = self.0.housing.resident(sandbox)
            && self.check_token(&resident.live, sandbox, token).await == Shown::Good
        {
            return Ok(resident);
        }
        Err(Refusal::new(
            RefusalCode::Unauthorized,
            "the token is not this sandbox's, or no longer good",
        ))
    }
}
