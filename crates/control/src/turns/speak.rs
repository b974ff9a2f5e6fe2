//! One turn from its claim to its reply.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use causes::with_causes;
use domain::{Author, Block, Event, Message, Money, Role, RunState, Timestamp};
use llm::{Reply, request_body};
use protocol::{Refusal, RefusalCode, StopReason, TurnReply, TurnRequest};
use providers::{Model, ModelError};
use store::{Asker, Charge, End, FinishTurn, Finished, TurnOutcome};

use super::begin::{Asked, Claim, bytes_of, head};
use super::listen::{Heard, Why};
use super::{Speaking, stale, unavailable};
use crate::Control;
use crate::compaction::Compacted;
use crate::history::dialect;
use crate::live::{Active, Live, lock};
use crate::money::{self, Meter};

/// A reply and who gave it.
struct Spoken {
    model: Arc<Model>,
    reply: Reply,
    /// It was cut: more was to come.
    cut: bool,
    /// Tokens of the input, where the provider counted them.
    counted: bool,
}

/// Why there is no reply.
enum Silence {
    Stale,
    Model(String, &'static str),
    Budget(String),
}

impl Control {
    /// Works on a turn to its end. What it cost is charged, however it ends.
    pub(super) async fn speak(
        &self,
        live: &Arc<Live>,
        active: &Arc<Active>,
        speaking: &Speaking,
        request: TurnRequest,
    ) -> Result<TurnReply, Refusal> {
        if request.turn > active.limits.steps {
            let words = format!("the run has used up its {} steps", active.limits.steps);
            let code = RefusalCode::BudgetExhausted;
            return Err(self.refuse(live, active, code, "step_limit", words).await);
        }
        self.await_people(live, active, speaking).await?;
        let claim = match self.claim_turn(live, active, speaking, &request).await? {
            Asked::Claimed(claim) => claim,
            Asked::Done(reply) => return self.hold(live, active, speaking, reply).await,
        };
        let mut charges = Vec::new();
        let spoken = self
            .converse(live, active, speaking, &request, &claim, &mut charges)
            .await;
        let answer = match spoken {
            Ok(spoken) => self.finish(live, active, &request, &claim, spoken, charges).await,
            Err(silence) => self.give_up(live, active, &claim, silence, charges).await,
        };
        self.0.freed.notify_waiters();
        self.hold(live, active, speaking, answer?).await
    }

    /// Asks the model, and those that stand in for it.
    async fn converse(
        &self,
        live: &Arc<Live>,
        active: &Active,
        speaking: &Speaking,
        request: &TurnRequest,
        claim: &Claim,
        charges: &mut Vec<Charge>,
    ) -> Result<Spoken, Silence> {
        let models = self.0.providers.chain(&active.model.name);
        let models = models.map_err(|error| Silence::Model(error.to_string(), "model_failed"))?;
        let mut failure = String::new();
        let mut compacted = false;
        for model in models.iter().filter(|model| active.offer.has_model(model)) {
            loop {
                let (messages, likely, bound) = self.told(live, active, model, request, claim).await?;
                let left = money::left(claim.reserved, charges);
                let Some(output) = affordable(active, model, bound, claim.output, left) else {
                    // Dearer than what is left of what was reserved for the first of the chain.
                    break;
                };
                if likely.saturating_add(output) > model.window && !compacted {
                    compacted = self.shorten(live, active, speaking, model).await?;
                    continue;
                }
                let opening = active.offer.opening(model);
                let head = head(&opening, model, &request.tool_choice, output);
                let body = request_body(&head, messages.iter().map(Bytes::as_ref));
                let meter = model
                    .price
                    .filter(|_| active.offer.is_capped())
                    .map(|price| Meter::new(price, likely, left));
                let opened = (claim.id, claim.opens);
                let (heard, unheard) = self.listen(live, speaking, opened, model, body, meter).await;
                let reserved = active.offer.is_capped().then_some(claim.reserved);
                match &heard {
                    Heard::Reply(reply) => charges.push(money::charge(model, reply, likely)),
                    Heard::Cut(Some(reply), _) | Heard::Failed(_, Some(reply)) => {
                        charges.push(money::cut(model, reply, likely, unheard.silence, reserved, charges));
                    }
                    Heard::Cut(None, _) | Heard::Failed(_, None) => {}
                }
                for silence in unheard.lost {
                    charges.push(money::lost(model, likely, silence, reserved, charges));
                }
                let (error, partial) = match heard {
                    Heard::Reply(reply) => {
                        let counted = !matches!(reply.counted, llm::Counted::ByUs);
                        let (model, cut) = (Arc::clone(model), false);
                        return Ok(Spoken {
                            model,
                            reply,
                            cut,
                            counted,
                        });
                    }
                    Heard::Cut(partial, why) => {
                        return match (why, partial) {
                            (Why::Budget, Some(mut reply)) => {
                                reply.stop = StopReason::BudgetExhausted;
                                let (model, cut, counted) = (Arc::clone(model), true, false);
                                Ok(Spoken {
                                    model,
                                    reply,
                                    cut,
                                    counted,
                                })
                            }
                            _ => Err(Silence::Stale),
                        };
                    }
                    Heard::Failed(error, partial) => (error, partial),
                };
                if matches!(error, ModelError::WindowFull { .. }) && !compacted {
                    compacted = self.shorten(live, active, speaking, model).await?;
                    continue;
                }
                failure = with_causes(&error);
                if matches!(error, ModelError::PictureRefused { .. }) {
                    let left_out = self.leave_out_pictures(live, model).await;
                    if left_out.map_err(|error| Silence::Model(error.to_string(), "history_unreadable"))? {
                        self.tell_retry(live, model, failure.clone());
                        continue;
                    }
                }
                let begun = partial.is_some_and(|partial| !partial.blocks.is_empty());
                if begun || !error.next_model_may_help() {
                    return Err(Silence::Model(failure, "model_failed"));
                }
                self.tell_retry(live, model, failure.clone());
                break;
            }
        }
        Err(Silence::Model(failure, "model_failed"))
    }

    /// What this model is to be told: the messages, the tokens that they likely are, and may be at most.
    async fn told(
        &self,
        live: &Live,
        active: &Active,
        model: &Arc<Model>,
        request: &TurnRequest,
        claim: &Claim,
    ) -> Result<(Vec<Bytes>, u64, u64), Silence> {
        let mut writing = live.writing.lock().await;
        let history = self.history(live, &mut writing, model).await;
        let history = history.map_err(|error| Silence::Model(error.to_string(), "history_unreadable"))?;
        let opening = active.offer.opening(model);
        let head = head(&opening, model, &request.tool_choice, claim.output);
        Ok((
            bytes_of(history),
            history.likely(model, &head),
            history.bound(model, &head),
        ))
    }

    /// Has the history summed up. False: only a part of what can be.
    async fn shorten(
        &self,
        live: &Arc<Live>,
        active: &Active,
        speaking: &Speaking,
        model: &Arc<Model>,
    ) -> Result<bool, Silence> {
        match self.compact(live, active, speaking, model).await {
            Compacted::Shorter { more } => Ok(!more),
            Compacted::Stale => Err(Silence::Stale),
            Compacted::OverCap(words) => Err(Silence::Budget(words)),
            Compacted::Failed(words) => Err(Silence::Model(words, "window_full")),
        }
    }

    async fn finish(
        &self,
        live: &Arc<Live>,
        active: &Active,
        request: &TurnRequest,
        claim: &Claim,
        spoken: Spoken,
        charges: Vec<Charge>,
    ) -> Result<TurnReply, Refusal> {
        let Spoken {
            model,
            reply,
            cut,
            counted,
        } = spoken;
        let usage = reply.usage;
        let blocks = self.0.secrecy.masks().said(reply.blocks);
        let calls = blocks.iter().filter_map(|block| match block {
            Block::ToolUse(call) => Some(call.clone()),
            _ => None,
        });
        let mut answer = TurnReply {
            message: claim.opens,
            stop: reply.stop,
            calls: calls.collect(),
        };
        let end = end_of(active, request, &answer);
        let begins = |tool: &str| end.is_none() && self.asks_about(live, active, tool).is_none();
        let started = answer.calls.iter().filter(|call| begins(&call.name));
        let events = started.map(|call| Event::ToolStarted {
            call: call.id.clone(),
            name: call.name.clone(),
            input: call.input.clone(),
        });
        let ends = end.is_some();
        let turn = FinishTurn {
            id: claim.id,
            message: Message {
                id: claim.opens,
                role: Role::Assistant,
                author: Author::Model {
                    name: model.name.clone(),
                },
                blocks,
                interrupted: cut,
                at: Timestamp::now(),
            },
            dialect: Some(dialect(&self.0.providers, &active.model)),
            reply: serde_json::value::to_raw_value(&answer).map_err(|_| unavailable())?,
            charges,
            events: events.collect(),
            end,
        };
        let mut patience = self.patience("a model's reply");
        let (mut writing, finished) = loop {
            let mut writing = live.writing.lock().await;
            let finished = match self.store_cancel(live, active, &mut writing).await {
                Ok(()) => self.0.store.finish_turn(Asker::System, turn.clone()).await,
                Err(error) => Err(error),
            };
            let error = match finished {
                Ok(finished) => break (writing, finished),
                Err(error) => error,
            };
            drop(writing);
            patience.again(error).await.map_err(|error| {
                tracing::error!(run = %active.run, error = with_causes(&error), "could not store a reply");
                unavailable()
            })?;
        };
        live.note(&mut writing, finished.events);
        if finished.outcome == TurnOutcome::Stale {
            return Err(stale());
        }
        if counted
            && Arc::ptr_eq(&model, &active.model)
            && let Some(history) = writing.history()
        {
            history.counted(&model, active.offer.opening(&model), usage.total_input(), usage.output);
        }
        active.done.fetch_max(request.turn, Ordering::SeqCst);
        *lock(&active.calls) = crate::live::calls(&answer);
        lock(&active.denied).clear();
        lock(&active.early).clear();
        if finished.goes_on {
            answer.stop = StopReason::Pause;
        } else if ends {
            active.over.cancel();
        }
        if let Some(next) = finished.next {
            self.begin_run(live.session, next);
        }
        Ok(answer)
    }

    /// Charges for a turn that has no reply, and ends its run where that is what it means.
    async fn give_up(
        &self,
        live: &Arc<Live>,
        active: &Active,
        claim: &Claim,
        silence: Silence,
        charges: Vec<Charge>,
    ) -> Result<TurnReply, Refusal> {
        let (end, refusal) = match silence {
            Silence::Stale => (None, stale()),
            Silence::Model(words, code) => (
                Some(End::failed(code, words.clone())),
                Refusal::new(RefusalCode::ModelFailed, words),
            ),
            Silence::Budget(words) => (
                Some(End::failed("budget_exhausted", words.clone())),
                Refusal::new(RefusalCode::BudgetExhausted, words),
            ),
        };
        let ends = end.is_some();
        let mut patience = self.patience("what a turn without a reply cost");
        loop {
            let mut writing = live.writing.lock().await;
            if ends {
                self.seal(live).await;
            }
            let failed = match self.store_cancel(live, active, &mut writing).await {
                Ok(()) => {
                    let (charges, end) = (charges.clone(), end.clone());
                    self.0.store.fail_turn(Asker::System, claim.id, charges, end).await
                }
                Err(error) => Err(error),
            };
            let error = match failed {
                Ok(Finished { next, events, .. }) => {
                    live.note(&mut writing, events);
                    if let Some(next) = next {
                        self.begin_run(live.session, next);
                    }
                    break;
                }
                Err(error) => error,
            };
            drop(writing);
            if let Err(error) = patience.again(error).await {
                tracing::error!(run = %active.run, error = with_causes(&error), "could not charge a turn without a reply");
                break;
            }
        }
        if ends {
            active.over.cancel();
        }
        Err(refusal)
    }
}

/// The most tokens, up to `output`, that this model may say for what is left; none where that is nothing of use.
fn affordable(active: &Active, model: &Model, bound: u64, output: u64, left: Money) -> Option<u64> {
    let output = output.min(model.max_output);
    match &model.price {
        Some(price) if active.offer.is_capped() => money::fits(price, bound, output, left),
        _ => Some(output),
    }
}

/// How the run ends with this reply; none where it goes on.
fn end_of(active: &Active, request: &TurnRequest, answer: &TurnReply) -> Option<End> {
    let done = |code: &str, reason: &str| End {
        state: RunState::Done,
        reason: Some(reason.to_owned()),
        code: Some(code.to_owned()),
    };
    if answer.stop == StopReason::BudgetExhausted {
        let words = "the model was cut off: what it said had cost what a cap allows";
        return Some(End::failed("budget_exhausted", words));
    }
    if answer.calls.is_empty() {
        return match answer.stop {
            StopReason::Pause => None,
            StopReason::MaxTokens => Some(done("max_tokens", "the model reached the most it may say in one reply")),
            StopReason::Refusal => Some(done("refusal", "the model declined to answer")),
            StopReason::WindowFull => Some(done("window_full", "the model's window is full")),
            StopReason::EndTurn | StopReason::ToolUse | StopReason::BudgetExhausted => Some(End::done()),
        };
    }
    (request.turn >= active.limits.steps).then(|| {
        let steps = active.limits.steps;
        End::failed("step_limit", format!("the run has used up its {steps} steps"))
    })
}
