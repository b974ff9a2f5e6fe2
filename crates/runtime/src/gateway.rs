//! The loop's way to the model: the link.

use std::time::Duration;

use agent::{Gateway, GatewayError, TOGETHER};
use link::client::{Client, ClientError};
use protocol::{EarlyResults, TurnReply, TurnRequest};
use tokio::time::sleep;

pub(crate) struct LinkGateway<'a>(pub(crate) &'a Client);

impl Gateway for LinkGateway<'_> {
    async fn invoke_llm(&self, request: &TurnRequest) -> Result<TurnReply, GatewayError> {
        match self.0.invoke_llm(request).await {
            Ok(reply) => Ok(reply),
            Err(ClientError::Refused(refusal)) => Err(GatewayError::Refused(refusal)),
            Err(error) => Err(GatewayError::NoAnswer(Box::new(error))),
        }
    }

    /// Again and again, as long as the loop waits for other calls: the control plane comes back.
    async fn hand_in(&self, results: &EarlyResults) -> bool {
        sleep(TOGETHER).await;
        let mut attempt = 0;
        loop {
            match self.0.hand_in(results).await {
                Ok(()) => return true,
                Err(ClientError::Refused(refusal)) if !refusal.code.may_retry() => return false,
                Err(_) => {}
            }
            attempt += 1;
            sleep(backoff(attempt)).await;
        }
    }

    /// For ever: the control plane comes back, and the run has a limit of its own.
    async fn pause(&self, attempt: u32) -> bool {
        sleep(backoff(attempt)).await;
        true
    }
}

/// How long to wait before the attempt after this one, counted from 1: 20 ms, doubled, at most two seconds.
pub(crate) fn backoff(attempt: u32) -> Duration {
    Duration::from_millis(20 << attempt.saturating_sub(1).min(7)).min(Duration::from_secs(2))
}
