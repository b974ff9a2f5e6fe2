//! The loop itself.

use std::future::Future;
use std::pin::pin;

use futures::future::{Either, select};
use protocol::{EarlyResults, Start, StopReason, ToolChoice, TurnReply, TurnRequest};

use crate::calls::make_calls;
use crate::{Gateway, GatewayError, Hands};

#[cfg(test)]
mod tests;

/// Why a loop ended.
#[derive(Debug)]
pub enum LoopEnd {
    /// The model has said all it wanted.
    Finished,
    /// The model wanted to go on, and the run's steps are used up. The calls of its last reply were not made.
    StepLimit,
    /// It was told to stop. Calls under way were dropped.
    Cancelled,
    /// A turn could not be had.
    Failed(GatewayError),
}

impl LoopEnd {
    /// Why, in words for a person; none where the model simply finished.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        match self {
            Self::Finished => None,
            Self::StepLimit => Some("the run has used up its steps".to_owned()),
            Self::Cancelled => Some("the run was told to stop".to_owned()),
            Self::Failed(error) => Some(error.to_string()),
        }
    }
}

/// Runs the loop until the model stops, a limit is met, a turn is refused, or `cancel` is there.
///
/// All calls of a reply are made at once. A result that is there while others are waited for is handed in ahead; the next turn
/// brings the rest, in the order of the calls. A call of a tool that is not in `start.tools`, or with arguments that are no
/// object, gets a result that says so and reaches no hands.
pub async fn run_loop(
    gateway: &impl Gateway,
    hands: &impl Hands,
    start: &Start,
    cancel: impl Future<Output = ()> + Send,
) -> LoopEnd {
    match select(pin!(cancel), pin!(turns(gateway, hands, start))).await {
        Either::Left(((), _)) => LoopEnd::Cancelled,
        Either::Right((end, _)) => end,
    }
}

async fn turns(gateway: &impl Gateway, hands: &impl Hands, start: &Start) -> LoopEnd {
    let mut request = TurnRequest {
        run: start.run,
        epoch: start.epoch,
        turn: start.turn,
        results: Vec::new(),
        times: Vec::new(),
        tool_choice: ToolChoice::Auto,
    };
    loop {
        let reply = match ask(gateway, &request).await {
            Ok(reply) => reply,
            Err(error) => return LoopEnd::Failed(error),
        };
        if reply.calls.is_empty() && reply.stop != StopReason::Pause {
            return LoopEnd::Finished;
        }
        if request.turn >= start.limits.steps {
            return LoopEnd::StepLimit;
        }
        request.turn += 1;
        let early = EarlyResults {
            run: request.run,
            epoch: request.epoch,
            turn: request.turn,
            results: Vec::new(),
            times: Vec::new(),
        };
        (request.results, request.times) = make_calls(gateway, hands, &reply.calls, start, &early).await;
    }
}

/// One turn, repeated until there is an answer or it was tried often enough.
async fn ask(gateway: &impl Gateway, request: &TurnRequest) -> Result<TurnReply, GatewayError> {
    let mut attempt = 0;
    loop {
        match gateway.invoke_llm(request).await {
            Err(error) if error.may_retry() => {
                attempt += 1;
                if !gateway.pause(attempt).await {
                    return Err(error);
                }
            }
            answer => return answer,
        }
    }
}
