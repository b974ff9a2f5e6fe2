//! When the window fills, a summary takes the place of the older messages in what a model is sent. The originals stay in
//! the store, a call is never parted from its result, and what is sent afterwards begins the same way each time.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use causes::with_causes;
use domain::{Author, Block, Message, MessageId, Money, Role, Timestamp, TurnId};
use lifecycle::Stop;
use llm::{Reply, StreamEvent, head_bound, request_body};
use protocol::ToolChoice;
use providers::{Model, ModelError, ModelStream, Retry};
use store::{Asker, Charge, NewCompaction, StoreError};

use crate::Control;
use crate::history::Line;
use crate::live::{Active, Live};
use crate::money::{self, Meter, Silence};
use crate::turns::{Speaking, head};

/// The most that a summary may say.
const SUMMARY_TOKENS: u64 = 4_096;

#[cfg(test)]
mod tests;

const ASKED: &str = "The conversation is about to exceed what you can be shown at once. Write a summary that takes the \
    place of everything above: what the user wants, in their own words where these matter; what was decided and why; what \
    was done, with the names of files, commands and figures that are needed to go on; what is still open, and the next \
    step. Write only the summary.";

const INTRODUCED: &str = "What follows is a summary of this conversation up to here; the messages themselves are stored \
    and no longer shown.\n\n";

/// What came of shortening a history.
pub(crate) enum Compacted {
    /// A summary stands for the older part, or for as much of it as the model could be shown at once: then there is more.
    Shorter {
        more: bool,
    },
    Stale,
    /// A cap says no, in these words.
    OverCap(String),
    Failed(String),
}

/// Where the older part of a history ends: what follows keeps about `keep` likely tokens, and begins with no result of a
/// call that was left behind. None where there is nothing to gain.
fn boundary(lines: &[Line], keep: u64) -> Option<usize> {
    let mut kept = 0_u64;
    let mut end = lines.len();
    while end > 0 && kept < keep {
        end -= 1;
        kept = kept.saturating_add(lines[end].likely());
    }
    let parts_nothing = |end: &usize| !lines[*end - 1].calls;
    let later = (end.max(1)..lines.len()).find(parts_nothing);
    let earlier = || (1..end).rev().find(parts_nothing);
    // A summary of one message gains nothing.
    later.or_else(earlier).filter(|end| *end > 1)
}

/// Where the beginning of the older part ends that has at most `room` likely tokens and parts nothing. None where that is one
/// message or less, of which a summary gains nothing.
fn piece(older: &[Line], room: u64) -> Option<usize> {
    let mut told = 0_u64;
    let mut end = 0;
    for (place, line) in older.iter().enumerate() {
        told = told.saturating_add(line.likely());
        if told > room {
            break;
        }
        if !line.calls {
            end = place + 1;
        }
    }
    Some(end).filter(|end| *end > 1)
}

impl Control {
    /// Has the model sum up the older part of the history, or as much of it from its beginning as fits its window: a model that
    /// stands in may have a smaller one than the model that the conversation was held with.
    pub(crate) async fn compact(
        &self,
        live: &Live,
        active: &Active,
        speaking: &Speaking,
        model: &Arc<Model>,
    ) -> Compacted {
        let output = SUMMARY_TOKENS.min(model.max_output);
        let choice = ToolChoice::None;
        let opening = active.offer.opening(model);
        let head = head(&opening, model, &choice, output);
        let (older, through, bound, likely, more) = {
            let mut writing = live.writing.lock().await;
            let history = match self.history(live, &mut writing, model).await {
                Ok(history) => history,
                Err(error) => return Compacted::Failed(error.to_string()),
            };
            let lines = history.lines();
            let Some(whole) = boundary(lines, model.window / 4) else {
                return Compacted::Failed(
                    "the last message alone does not fit the model's window: ask for less at once".to_owned(),
                );
            };
            let (bound, likely) = (history.bound(model, &head), history.likely(model, &head));
            let kept: u64 = lines[whole..].iter().map(Line::likely).sum();
            let room = model.window.saturating_sub(output);
            let end = if likely.saturating_sub(kept) <= room {
                whole
            } else {
                let first = head_bound(&head).div_ceil(3);
                let Some(end) = piece(&lines[..whole], room.saturating_sub(first)) else {
                    return Compacted::Failed(format!(
                        "the window of model {} is full, and a message of the conversation does not fit it alone: ask for less at once, or \
                         go on with a model that has a larger window",
                        model.name
                    ));
                };
                end
            };
            let older: Vec<Bytes> = lines[..end].iter().map(|line| line.bytes.clone()).collect();
            (older, lines[end - 1].position, bound, likely.min(room), end < whole)
        };
        let reserve = match &model.price {
            Some(price) if active.offer.is_capped() => money::worst(price, bound, output),
            _ => Money::ZERO,
        };
        let version = money::version(model.price.as_ref());
        let reserved = self
            .0
            .store
            .reserve(
                Asker::System,
                active.run,
                active.epoch,
                &model.name,
                &version,
                reserve,
                active.offer.caps.clone(),
            )
            .await;
        let reserved = match reserved {
            Ok(reserved) => reserved,
            Err(StoreError::OverCap(over)) => return Compacted::OverCap(over.to_string()),
            Err(StoreError::Stale { .. }) => return Compacted::Stale,
            Err(error) => return Compacted::Failed(with_causes(&error)),
        };
        speaking.sum_up(Some(reserved.id));
        let asked = self.0.providers.encode(model, &message(ASKED.to_owned()));
        let body = request_body(&head, older.iter().map(Bytes::as_ref).chain([asked.as_ref()]));
        let capped = active.offer.is_capped().then_some(reserve);
        let (summary, charges) = self.summary(model, body, likely, capped, &speaking.cut).await;
        self.settle(live, reserved.id, charges).await;
        speaking.sum_up(None);
        self.0.freed.notify_waiters();
        let summary = match summary {
            Ok(summary) => summary,
            Err(refused) => return refused,
        };
        let compaction = NewCompaction {
            run: active.run,
            epoch: active.epoch,
            through,
            summary: message(self.0.secrecy.masks().text(format!("{INTRODUCED}{summary}"))),
        };
        let mut patience = self.patience("the summary of a conversation");
        loop {
            let mut writing = live.writing.lock().await;
            let error = match self.0.store.compact(Asker::System, compaction.clone()).await {
                Ok(events) => {
                    live.note(&mut writing, events);
                    writing.forget_history();
                    return Compacted::Shorter { more };
                }
                Err(StoreError::Stale { .. }) => return Compacted::Stale,
                Err(error) => error,
            };
            drop(writing);
            let again = tokio::select! {
                biased;
                () = speaking.cut.cancelled() => return Compacted::Stale,
                again = patience.again(error) => again,
            };
            if let Err(error) = again {
                return Compacted::Failed(with_causes(&error));
            }
        }
    }

    /// Charges what a reserved call cost.
    pub(crate) async fn settle(&self, live: &Live, reserved: TurnId, charges: Vec<Charge>) {
        let mut patience = self.patience("what a call of a model cost");
        loop {
            let mut writing = live.writing.lock().await;
            let error = match self.0.store.settle(Asker::System, reserved, charges.clone()).await {
                Ok(events) => return live.note(&mut writing, events),
                Err(error) => error,
            };
            drop(writing);
            if let Err(error) = patience.again(error).await {
                return tracing::error!(session = %live.session, error = with_causes(&error), "could not settle a call of a model");
            }
        }
    }

    /// Asks for the summary, within what was reserved. What it cost is charged, whatever came of it.
    async fn summary(
        &self,
        model: &Arc<Model>,
        body: Bytes,
        likely: u64,
        reserved: Option<Money>,
        cut: &Stop,
    ) -> (Result<String, Compacted>, Vec<Charge>) {
        let mut lost = Vec::new();
        let thinks = model.may_think_unseen();
        let mut silence = Silence::after(Duration::ZERO, thinks);
        let on_retry = |retry: Retry| {
            lost.extend(retry.may_have_cost.then(|| silence.total()));
            silence = Silence::after(retry.delay, thinks);
        };
        let asked = tokio::select! {
            biased;
            () = cut.cancelled() => None,
            asked = self.0.providers.stream(model, body, on_retry) => Some(asked),
        };
        let mut charges = Vec::new();
        let summary = match asked {
            None => {
                lost.extend(silence.has_begun().then(|| silence.total()));
                Err(Compacted::Stale)
            }
            Some(Err(error)) => {
                lost.extend(error.may_have_cost().then(|| silence.total()));
                Err(none_could_be_had(&error))
            }
            Some(Ok(mut stream)) => {
                let meter = model.price.zip(reserved);
                let meter = meter.map(|(price, reserved)| Meter::new(price, likely, reserved));
                let (summary, reply) = sum_up(&mut stream, meter, &mut silence, cut).await;
                charges.push(match &summary {
                    Ok(_) => money::charge(model, &reply, likely),
                    Err(_) => money::cut(model, &reply, likely, silence.total(), reserved, &[]),
                });
                summary.and_then(|text| {
                    if text.trim().is_empty() {
                        let words = "the window is full, and the model gave no summary".to_owned();
                        return Err(Compacted::Failed(words));
                    }
                    Ok(text)
                })
            }
        };
        for silence in lost {
            charges.push(money::lost(model, likely, silence, reserved, &charges));
        }
        (summary, charges)
    }
}

/// Hears a summary to its end, or until it is cut.
async fn sum_up(
    stream: &mut ModelStream,
    mut meter: Option<Meter>,
    silence: &mut Silence,
    cut: &Stop,
) -> (Result<String, Compacted>, Reply) {
    let mut text = String::new();
    loop {
        silence.begin();
        let said = tokio::select! {
            biased;
            () = cut.cancelled() => return (Err(Compacted::Stale), stream.partial()),
            said = stream.next() => said,
        };
        let event = match said {
            Ok(Some(event)) => event,
            Ok(None) => return (Ok(text), stream.partial()),
            Err(error) => return (Err(none_could_be_had(&error)), stream.partial()),
        };
        silence.end();
        let within = meter.as_mut().is_none_or(|meter| meter.hear(&event));
        match event {
            StreamEvent::Text(words) => text.push_str(&words),
            StreamEvent::Done(reply) => return (Ok(text), reply),
            StreamEvent::Thinking(_) | StreamEvent::ToolCallStarted { .. } | StreamEvent::Unshown(_) => {}
        }
        if !within {
            let words = "the model was cut off in a summary: what it said had cost what a cap allows";
            return (Err(Compacted::OverCap(words.to_owned())), stream.partial());
        }
    }
}

fn none_could_be_had(error: &ModelError) -> Compacted {
    let why = with_causes(error);
    Compacted::Failed(format!("the window is full, and no summary could be had: {why}"))
}

fn message(text: String) -> Message {
    Message {
        id: MessageId::new(),
        role: Role::User,
        author: Author::ControlPlane,
        blocks: vec![Block::Text { text }],
        interrupted: false,
        at: Timestamp::now(),
    }
}
