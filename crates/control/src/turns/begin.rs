//! A turn is claimed, and what it may cost reserved.

use std::sync::Arc;

use bytes::Bytes;
use causes::with_causes;
use domain::{Author, Block, Message, MessageId, Money, Role, Timestamp, ToolResult, TurnId};
use llm::{Head, Opening};
use protocol::{Refusal, RefusalCode, StopReason, ToolChoice, TurnReply, TurnRequest};
use providers::Model;
use store::{Asker, BeginTurn, Begun, End, OverCap, StoreError, WRITES_TOLD};
use tokio::time::{Instant, timeout_at};

use super::{Speaking, stale, unavailable};
use crate::Control;
use crate::history::{Cached, dialect};
use crate::live::{Active, Live, lock};
use crate::money::{self, Remedy};

/// The most tokens of the result that the store gives a call which has none.
const INTERRUPTED: u64 = 400;
/// Calls that may be clamped anew because others reserved meanwhile.
const CLAMPS: usize = 20;

/// A turn that is ours to work on.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) id: TurnId,
    pub(super) opens: MessageId,
    /// What was reserved.
    pub(super) reserved: Money,
    /// The most tokens that the model may say.
    pub(super) output: u64,
}

/// What came of asking for a turn.
pub(super) enum Asked {
    Claimed(Claim),
    Done(TurnReply),
}

/// Everything of a request but the messages.
pub(crate) fn head<'a>(opening: &'a Opening, model: &Model, tool_choice: &'a ToolChoice, output: u64) -> Head<'a> {
    Head {
        opening,
        tool_choice,
        max_tokens: output,
        chat_limit: model.chat_limit,
        thinking: model.thinking,
    }
}

impl Control {
    /// Claims the turn, or finds its reply; waits for reserved money to come free where that helps.
    pub(super) async fn claim_turn(
        &self,
        live: &Live,
        active: &Active,
        speaking: &Speaking,
        request: &TurnRequest,
    ) -> Result<Asked, Refusal> {
        let model = &active.model;
        let capped = active.offer.is_capped();
        if capped && model.price.is_none() {
            let words = format!(
                "model {} has no price, and a cap is set: give it a price in the configuration, or take the caps away",
                model.name
            );
            return Err(self
                .refuse(live, active, RefusalCode::BudgetExhausted, "price_missing", words)
                .await);
        }
        let mut output = model.max_output;
        let mut waiting = None;
        let mut appended = false;
        let mut clamps = 0;
        loop {
            let freed = self.0.freed.notified();
            let over = match self
                .try_claim(live, active, speaking, request, output, clamps > 0, appended)
                .await?
            {
                Ok(asked) => return Ok(asked),
                Err(over) => over,
            };
            appended = true;
            let Some(price) = &model.price else {
                return Err(unavailable());
            };
            let input = over.input;
            match money::remedy(&over.over, price, input, output) {
                Remedy::Clamp(tokens) if clamps < CLAMPS => {
                    output = tokens;
                    clamps += 1;
                }
                Remedy::Clamp(_) | Remedy::Wait => {
                    if waiting.is_none() {
                        let Ok(place) = self.0.budget_queue.try_acquire() else {
                            return Err(self.refuse_busy(live, active, &over.over).await);
                        };
                        waiting = Some((place, Instant::now() + self.0.config.budget_wait));
                    }
                    let until = waiting.as_ref().map_or_else(Instant::now, |(_, until)| *until);
                    tokio::select! {
                        () = speaking.cut.cancelled() => return Err(stale()),
                        freed = timeout_at(until, freed) => {
                            if freed.is_err() {
                                return Err(self.refuse_busy(live, active, &over.over).await);
                            }
                        }
                    }
                    output = model.max_output;
                    clamps = 0;
                }
                Remedy::None => {
                    let words = over.over.to_string();
                    let code = RefusalCode::BudgetExhausted;
                    return Err(self.refuse(live, active, code, "budget_exhausted", words).await);
                }
            }
        }
    }

    #[allow(
        clippy::too_many_arguments,
        reason = "one attempt of the loop above, which is where they stand"
    )]
    async fn try_claim(
        &self,
        live: &Live,
        active: &Active,
        speaking: &Speaking,
        request: &TurnRequest,
        output: u64,
        exact: bool,
        appended: bool,
    ) -> Result<Result<Asked, Over>, Refusal> {
        let model = &active.model;
        let mut writing = live.writing.lock().await;
        if speaking.cut.is_cancelled() {
            return Err(stale());
        }
        let joining = writing.joining;
        let history = match self.history(live, &mut writing, model).await {
            Ok(history) => history,
            Err(error) => return Err(Refusal::new(RefusalCode::Unavailable, error.to_string())),
        };
        let new = if appended {
            0
        } else {
            self.new_bound(active, model, request)
        };
        let opening = active.offer.opening(model);
        let head = head(&opening, model, &request.tool_choice, output);
        let input = history.bound(model, &head).saturating_add(new).saturating_add(joining);
        let reserve = match &model.price {
            Some(price) if active.offer.is_capped() => {
                // A stream is cut by our own count, which is rather too high: an answer of full length must fit it.
                let output = if exact {
                    output
                } else {
                    output.saturating_add(output / 2)
                };
                money::worst(price, input, output)
            }
            _ => Money::ZERO,
        };
        let opens = MessageId::new();
        let begun = self
            .0
            .store
            .begin_turn(
                Asker::System,
                BeginTurn {
                    run: active.run,
                    epoch: active.epoch,
                    turn: request.turn,
                    results: request.results.clone(),
                    opens,
                    model: model.name.clone(),
                    price_version: money::version(model.price.as_ref()),
                    reserve,
                    caps: active.offer.caps.clone(),
                    dialect: Some(dialect(&self.0.providers, model)),
                },
            )
            .await;
        match begun {
            Ok(Begun::Yours { id, events }) => {
                lock(&speaking.said).opened = Some((id, opens));
                writing.joining = 0;
                live.note(&mut writing, events);
                Ok(Ok(Asked::Claimed(Claim {
                    id,
                    opens,
                    reserved: reserve,
                    output,
                })))
            }
            Ok(Begun::Done { reply }) => repeated(&reply).map(|reply| Ok(Asked::Done(reply))),
            Ok(Begun::Held { .. }) => Err(unavailable()),
            Ok(Begun::OverCap { over, events }) => {
                writing.joining = 0;
                live.note(&mut writing, events);
                Ok(Err(Over { over, input }))
            }
            Err(StoreError::Stale { .. }) => Err(stale()),
            Err(error @ StoreError::SessionFull { .. }) => {
                drop(writing);
                let code = RefusalCode::BudgetExhausted;
                Err(self.refuse(live, active, code, "session_full", error.to_string()).await)
            }
            Err(error @ StoreError::Invalid { .. }) => Err(Refusal::new(RefusalCode::Invalid, error.to_string())),
            Err(error) => {
                tracing::error!(run = %active.run, error = with_causes(&error), "could not begin a turn");
                Err(Refusal::new(
                    RefusalCode::Unavailable,
                    "the turn could not be stored; ask for it again",
                ))
            }
        }
    }

    /// The most tokens that the results of this turn add, those that were kept before it and those that are missing included.
    fn new_bound(&self, active: &Active, model: &Arc<Model>, request: &TurnRequest) -> u64 {
        let early = lock(&active.early);
        let brought = request.results.iter().filter(|result| !early.contains_key(&result.id));
        let given = early.len() + brought.clone().count();
        let missing = lock(&active.calls).len().saturating_sub(given) as u64;
        // What failed calls changed outside is told with them; no token has less than a byte.
        let failed = brought.clone().filter(|result| result.is_error).count() + early.len();
        let telling = if self.0.services.is_some() {
            missing + failed as u64
        } else {
            0
        };
        let kept = early.values().fold(0, |sum: u64, bound| sum.saturating_add(*bound));
        self.results_bound(model, brought)
            .saturating_add(kept)
            .saturating_add(missing * INTERRUPTED)
            .saturating_add(telling * WRITES_TOLD as u64)
    }

    /// The most tokens that these results are.
    pub(crate) fn results_bound<'r>(
        &self,
        model: &Arc<Model>,
        results: impl IntoIterator<Item = &'r ToolResult>,
    ) -> u64 {
        let message = Message {
            id: MessageId::new(),
            role: Role::User,
            author: Author::Sandbox,
            blocks: results.into_iter().cloned().map(Block::ToolResult).collect(),
            interrupted: false,
            at: Timestamp::now(),
        };
        let encoded: Bytes = self.0.providers.encode(model, &message);
        llm::message_bound(model.format, &message, &encoded)
    }

    async fn refuse_busy(&self, live: &Live, active: &Active, over: &OverCap) -> Refusal {
        let words = format!("{over}; they did not end in time, so try again later");
        self.refuse(live, active, RefusalCode::BudgetExhausted, "budget_busy", words)
            .await
    }

    /// Ends the run, since its next call is not made.
    pub(super) async fn refuse(
        &self,
        live: &Live,
        active: &Active,
        code: RefusalCode,
        word: &str,
        words: String,
    ) -> Refusal {
        self.end_run(live, active, End::failed(word, words.clone())).await;
        Refusal::new(code, words)
    }
}

/// A cap that said no to a call with so much input.
struct Over {
    over: OverCap,
    input: u64,
}

/// The reply of a turn that was done before, while its run goes on.
fn repeated(stored: &serde_json::value::RawValue) -> Result<TurnReply, Refusal> {
    let mut reply: TurnReply = serde_json::from_str(stored.get()).map_err(|error| {
        tracing::error!(%error, "a stored reply cannot be read");
        unavailable()
    })?;
    if reply.calls.is_empty() {
        // The run has not ended with it: a prompt had joined.
        reply.stop = StopReason::Pause;
    }
    Ok(reply)
}

/// Takes the bytes of a history for one request.
pub(super) fn bytes_of(history: &Cached) -> Vec<Bytes> {
    history.lines().iter().map(|line| line.bytes.clone()).collect()
}
