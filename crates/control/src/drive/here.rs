//! The loop in the control plane: the gateway is a function call, the hands are at the other end of the link.

use std::sync::Arc;
use std::time::Duration;

use agent::{Gateway, GatewayError, Hands, LoopEnd, run_loop};
use causes::with_causes;
use domain::{RunLimits, ToolCall, ToolResult};
use link::server::LinkError;
use protocol::{RefusalCode, TurnReply, TurnRequest};
use store::End;
use tokio::time::sleep;

use super::{Left, unhoused};
use crate::Control;
use crate::live::{Active, Live};

/// How often a turn that may go through later is asked for again.
const PATIENCE: u32 = 5;

struct Here<'a> {
    control: &'a Control,
    live: &'a Arc<Live>,
}

impl Gateway for Here<'_> {
    async fn invoke_llm(&self, request: &TurnRequest) -> Result<TurnReply, GatewayError> {
        Ok(self.control.invoke(self.live, request.clone()).await?)
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
        let stay = match self.control.house(self.live).await {
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
            self.control.unhouse(self.live, Some(stay.id), "lost", Some(&why)).await;
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
        if !self.0.config.tools.is_empty() && !live.seat.is_taken() {
            // Before the model is asked, so that what it costs is not spent on a run that cannot do anything.
            if let Err(error) = self.house(live).await {
                return unhoused(&error);
            }
        }
        let here = Here { control: self, live };
        let start = self.start_order(active);
        match run_loop(&here, &here, &start, active.over.cancelled()).await {
            // The turn that was refused, or was the last, has ended the run.
            LoopEnd::Finished | LoopEnd::StepLimit | LoopEnd::Cancelled => Left::Ended,
            LoopEnd::Failed(GatewayError::Refused(refusal)) if ends_its_run(refusal.code) => Left::Ended,
            LoopEnd::Failed(error) => Left::Failed(End::failed("control_failed", with_causes(&error))),
        }
    }
}
