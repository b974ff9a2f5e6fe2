//! The loop in the control plane: the gateway is a function call, the hands are at the other end of the link.

use std::sync::Arc;
use std::time::Duration;

use agent::{Gateway, GatewayError, Hands, LoopEnd, TOGETHER, run_loop};
use causes::with_causes;
use domain::{RunLimits, SandboxId, ToolCall, ToolResult};
use link::server::LinkError;
use protocol::{EarlyResults, Grants, RefusalCode, TurnReply, TurnRequest};
use store::End;
use tokio::time::sleep;

use super::{Left, unhoused};
use crate::Control;
use crate::housing::{HousingError, Stay};
use crate::live::{Active, Live};

/// How often a turn that may go through later is asked for again.
const PATIENCE: u32 = 5;

struct Here<'a> {
    control: &'a Control,
    live: &'a Arc<Live>,
    active: &'a Active,
    /// The sandbox that was told what the run may use.
    told: tokio::sync::Mutex<Option<SandboxId>>,
}

impl Here<'_> {
    /// The session's sandbox, told what the run may use.
    async fn house(&self) -> Result<Stay, HousingError> {
        let mut told = self.told.lock().await;
        let stay = self.control.house(self.live).await?;
        if *told != Some(stay.id) {
            let grants = self.active.offer.grants.clone();
            stay.linked.prepare(true, grants).await.map_err(HousingError::Link)?;
            *told = Some(stay.id);
        }
        Ok(stay)
    }

    /// Has the sandbox forget what the run might use.
    async fn over(&self) {
        let Some(told) = *self.told.lock().await else { return };
        if let Some(stay) = self.control.stay(self.live).await
            && stay.id == told
            && let Err(error) = stay.linked.prepare(false, Grants::default()).await
        {
            tracing::debug!(sandbox = %told, error = with_causes(&error), "a sandbox was not told that its run is over");
        }
    }
}

impl Gateway for Here<'_> {
    async fn invoke_llm(&self, request: &TurnRequest) -> Result<TurnReply, GatewayError> {
        Ok(self.control.invoke(self.live, request.clone()).await?)
    }

    async fn hand_in(&self, results: &EarlyResults) -> bool {
        sleep(TOGETHER).await;
        self.control.keep_early(self.live, results.clone()).await.is_ok()
    }

    async fn pause(&self, attempt: u32) -> bool {
        if attempt >= PATIENCE {
            return false;
        }
        sleep(Duration::from_millis(200) * attempt * attempt).await;
        true
    }
}

impl Hands for Here<'_> {
    async fn use_tool(&self, call: &ToolCall, limits: &RunLimits) -> ToolResult {
        let stay = match self.house().await {
            Ok(stay) => stay,
            Err(error) => {
                let words = format!(
                    "There is no sandbox to do this in: {}. Nothing was done.",
                    with_causes(&error)
                );
                return ToolResult::error(call.id.clone(), words);
            }
        };
        let error = match stay.linked.call(call.clone(), *limits).await {
            Ok(result) => return result,
            Err(error) => error,
        };
        if matches!(error, LinkError::Lost { .. } | LinkError::Silent { .. }) {
            let why = with_causes(&error);
            self.control.lose_sandbox(self.live, stay.id, &why).await;
        }
        let words = format!(
            "This call was interrupted and may have taken effect: {}.",
            with_causes(&error)
        );
        ToolResult::error(call.id.clone(), words)
    }
}

/// Whether who refused a turn so has ended its run, or knows that somebody else did.
const fn ends_its_run(code: RefusalCode) -> bool {
    matches!(
        code,
        RefusalCode::Stale | RefusalCode::BudgetExhausted | RefusalCode::ModelFailed
    )
}

impl Control {
    /// Runs the loop in this process.
    pub(super) async fn loop_here(&self, live: &Arc<Live>, active: &Arc<Active>) -> Left {
        let here = Here {
            control: self,
            live,
            active,
            told: tokio::sync::Mutex::default(),
        };
        if !active.offer.tools.is_empty() {
            // Before the model is asked, so that what it costs is not spent on a run that cannot do anything.
            if let Err(error) = here.house().await {
                return unhoused(&error);
            }
        }
        let start = self.start_order(active);
        let end = run_loop(&here, &here, &start, active.over.cancelled()).await;
        here.over().await;
        match end {
            // The turn that was refused, or was the last, has ended the run.
            LoopEnd::Finished | LoopEnd::StepLimit | LoopEnd::Cancelled => Left::Ended,
            LoopEnd::Failed(GatewayError::Refused(refusal)) if ends_its_run(refusal.code) => Left::Ended,
            LoopEnd::Failed(error) => Left::Failed(End::failed("control_failed", with_causes(&error))),
        }
    }
}
