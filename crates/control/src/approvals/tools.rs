//! Calls of tools of which a person is asked first: the model's reply is held back until each is answered.

use std::sync::Arc;

use causes::with_causes;
use domain::{ApprovalId, ApprovalKind, ApprovalState, Event, ToolCall, ToolResult};
use policy::{Decision, Outcome};
use protocol::{Refusal, StopReason, TurnReply, TurnRequest};
use serde_json::json;
use store::{ApprovalFilter, Asker, TakenRun};

use super::{AskError, Waiting, Wanted, denied_words, with_approved};
use crate::Control;
use crate::live::{Active, Live, lock};
use crate::turns::{Speaking, stale, unavailable};

/// What came of a question about one call.
enum Said {
    Yes(ApprovalId),
    No(Option<ApprovalId>, String),
}

impl Control {
    /// Why a person is to be asked about a call of this tool, if one is.
    pub(crate) fn asks_about(&self, live: &Live, active: &Active, tool: &str) -> Option<Decision> {
        let decision = active.offer.asks_about(tool)?;
        let rights = lock(&live.rights);
        let (decision, _) = with_approved(rights.approved(), ApprovalKind::Tool, tool, decision);
        (decision.outcome == Outcome::Ask).then_some(decision)
    }

    /// Hands a reply on when a person has said yes or no to each of its calls that need it. What was denied is not called.
    pub(crate) async fn hold(
        &self,
        live: &Arc<Live>,
        active: &Arc<Active>,
        speaking: &Speaking,
        mut reply: TurnReply,
    ) -> Result<TurnReply, Refusal> {
        let asks: Vec<_> = reply
            .calls
            .iter()
            .filter_map(|call| Some((call.clone(), self.asks_about(live, active, &call.name)?)))
            .collect();
        if !asks.is_empty() && !active.over.is_cancelled() {
            let said = tokio::select! {
                biased;
                () = speaking.cut.cancelled() => return Err(stale()),
                // Who asks again finds the questions as they stand.
                () = self.0.tasks.stop().cancelled_owned() => return Err(unavailable()),
                said = self.ask_about(live, active, &asks) => said?,
            };
            let handed_on = said.iter().filter_map(|(_, said)| match said {
                Said::Yes(id) | Said::No(Some(id), _) => Some(*id),
                Said::No(None, _) => None,
            });
            let handed_on = self.0.store.handed_on(Asker::System, handed_on.collect()).await;
            handed_on.map_err(|_| unavailable())?;
            let mut started = Vec::new();
            for (call, said) in said {
                match said {
                    Said::Yes(_) => started.push(Event::ToolStarted {
                        call: call.id,
                        name: call.name,
                        input: call.input,
                    }),
                    Said::No(_, words) => {
                        reply.calls.retain(|other| other.id != call.id);
                        lock(&active.denied).insert(call.id, words);
                    }
                }
            }
            self.record(live, started).await;
            if reply.calls.is_empty() {
                // The model is told of it in the next turn.
                reply.stop = StopReason::Pause;
            }
        }
        active.waits.reply();
        Ok(reply)
    }

    async fn ask_about(
        &self,
        live: &Arc<Live>,
        active: &Arc<Active>,
        asks: &[(ToolCall, Decision)],
    ) -> Result<Vec<(ToolCall, Said)>, Refusal> {
        // All are asked before any is waited for.
        let mut asked = Vec::with_capacity(asks.len());
        for (call, decision) in asks {
            asked.push(self.ask_about_call(live, active, call, decision).await);
        }
        let _waiting = Waiting::begin(self, live, active).await;
        let mut said = Vec::with_capacity(asks.len());
        for ((call, decision), mut asked) in asks.iter().zip(asked) {
            let answer = loop {
                let id = match asked {
                    Ok(id) => id,
                    Err(AskError::Store(_)) => return Err(unavailable()),
                    Err(error) => break Said::No(None, format!("Nobody was asked whether this may be done: {error}.")),
                };
                let approval = self.answered(id, None).await.map_err(|_| unavailable())?;
                let goes = match approval.state {
                    ApprovalState::ApprovedOnce => self.0.store.use_approval(Asker::System, id).await,
                    state => Ok(state == ApprovalState::ApprovedAlways),
                };
                match goes {
                    Ok(true) => break Said::Yes(id),
                    Ok(false) if approval.state == ApprovalState::Withdrawn => return Err(stale()),
                    // That once was another call's: this one is asked for by itself.
                    Ok(false) if matches!(approval.state, ApprovalState::ApprovedOnce | ApprovalState::Used) => {
                        asked = self.ask_about_call(live, active, call, decision).await;
                    }
                    Ok(false) => {
                        let words = denied_words(&approval, &format!("this call of {}", call.name));
                        break Said::No(Some(id), format!("Not done: {words}."));
                    }
                    Err(_) => return Err(unavailable()),
                }
            };
            said.push((call.clone(), answer));
        }
        Ok(said)
    }

    async fn ask_about_call(
        &self,
        live: &Live,
        active: &Active,
        call: &ToolCall,
        decision: &Decision,
    ) -> Result<ApprovalId, AskError> {
        let wanted = Wanted {
            kind: ApprovalKind::Tool,
            subject: call.name.clone(),
            proposal: false,
            call: Some(call.id.clone()),
            request: json!({
                "session": live.session,
                "kind": ApprovalKind::Tool,
                "tool": call.name,
                "arguments": call.input,
            }),
            decision: decision.clone(),
        };
        Ok(self.ask(live, Some(active), wanted).await?.id)
    }

    /// Before the model goes on: whatever a call of a service left open is answered, or too late.
    pub(crate) async fn await_people(
        &self,
        live: &Arc<Live>,
        active: &Arc<Active>,
        speaking: &Speaking,
    ) -> Result<(), Refusal> {
        active.waits.turn();
        if !active.waits.has_asked() {
            return Ok(());
        }
        let filter = ApprovalFilter {
            session: Some(live.session),
            state: Some(ApprovalState::Pending),
        };
        let pending = self.0.store.approvals(Asker::System, filter, 200).await;
        let pending = pending.map_err(|error| {
            tracing::error!(run = %active.run, error = with_causes(&error), "could not read what people are asked");
            unavailable()
        })?;
        let waits_for = |approval: &store::Approval| {
            approval.run == Some(active.run) && approval.kind == ApprovalKind::Service && !approval.proposal
        };
        let answered = async {
            let _waiting = Waiting::begin(self, live, active).await;
            for approval in pending.into_iter().filter(waits_for) {
                self.answered(approval.id, None).await.map_err(|_| unavailable())?;
            }
            Ok(())
        };
        tokio::select! {
            biased;
            () = speaking.cut.cancelled() => Err(stale()),
            () = self.0.tasks.stop().cancelled_owned() => Err(unavailable()),
            answered = answered => answered,
        }?;
        active.waits.ask(false);
        active.waits.turn();
        Ok(())
    }

    /// What a dead process left of a reply that was held back: whether it still is, and what was denied of it.
    pub(crate) async fn left_held(
        &self,
        taken: &TakenRun,
        calls: &std::collections::HashMap<domain::ToolCallId, String>,
    ) -> Result<(bool, Vec<(domain::ToolCallId, String)>), store::StoreError> {
        if calls.is_empty() {
            return Ok((false, Vec::new()));
        }
        let questions = self.0.store.questions_of_calls(Asker::System, taken.run.id).await?;
        let (mut held, mut denied) = (false, Vec::new());
        for question in questions {
            let Some((call, tool)) = question.call.clone().and_then(|call| calls.get_key_value(&call)) else {
                continue;
            };
            match question.used {
                // Nothing of the reply was handed on before all its questions were answered.
                None => held |= question.state != ApprovalState::Withdrawn,
                Some(_) if question.state == ApprovalState::Denied => {
                    let words = denied_words(&question, &format!("this call of {tool}"));
                    denied.push((call.clone(), format!("Not done: {words}.")));
                }
                Some(_) => {}
            }
        }
        Ok((held, denied))
    }
}

/// Calls that a person denied have the result that says so, whatever a sandbox says of them.
pub(crate) fn answer_denied(request: &mut TurnRequest, active: &Active) {
    for (call, words) in lock(&active.denied).iter() {
        request.results.retain(|result| result.id != *call);
        request.results.push(ToolResult::error(call.clone(), words.clone()));
    }
}
