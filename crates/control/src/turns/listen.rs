//! A model speaks: what it says is shown as it comes, kept from time to time, and metered.

use std::time::Duration;

use bytes::Bytes;
use causes::with_causes;
use domain::{Event, MessageId, TurnId};
use llm::{Reply, StreamEvent};
use providers::{Model, ModelError, ModelStream, Retry};
use store::Asker;
use telemetry::Span;
use tokio::time::{MissedTickBehavior, interval};

use super::Speaking;
use crate::Control;
use crate::live::{Live, lock};
use crate::masks::Words;
use crate::money::{Meter, Silence};

/// What is said is kept when it is this old, or this long.
const KEPT_EVERY: Duration = Duration::from_secs(1);
const KEPT_BYTES: usize = 4_096;
/// From this length on it is kept when it has grown by this part: the whole of it is written each time, and a provider that
/// writes without an end shall not keep the store from others.
const LONG: usize = 256 << 10;
const LONG_PART: usize = 32;

/// How much is to be said before all is kept again, after so much was kept.
const fn enough(kept: usize) -> usize {
    if kept < LONG { 0 } else { kept / LONG_PART }
}

/// What came of asking a model.
pub(super) enum Heard {
    /// It has finished.
    Reply(Reply),
    /// It was hung up on; this is what it had said.
    Cut(Option<Reply>, Why),
    /// It failed; this is what it had said, if it had begun.
    Failed(ModelError, Option<Reply>),
}

impl Heard {
    fn trace(&self, span: &mut Span) {
        match self {
            Self::Reply(reply) => {
                span.set("gen_ai.usage.input_tokens", reply.usage.total_input());
                span.set("gen_ai.usage.output_tokens", reply.usage.output);
            }
            Self::Cut(_, why) => span.fail(why.code()),
            Self::Failed(..) => span.fail("model_failed"),
        }
    }
}

/// What nobody heard of a model, and may have to be paid for.
#[derive(Default)]
pub(super) struct Unheard {
    /// How long it said nothing.
    pub(super) silence: Duration,
    /// The same of attempts of which nothing came back.
    pub(super) lost: Vec<Duration>,
}

/// Why a model was hung up on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Why {
    /// Nobody wants its answer any more.
    Stale,
    /// What was reserved is used up.
    Budget,
}

impl Why {
    const fn code(self) -> &'static str {
        match self {
            Self::Stale => "cut",
            Self::Budget => "budget_exhausted",
        }
    }
}

impl Control {
    /// Asks a model, and shows what it says as `message`.
    pub(super) async fn listen(
        &self,
        live: &Live,
        speaking: &Speaking,
        opened: (TurnId, MessageId),
        model: &std::sync::Arc<Model>,
        body: Bytes,
        meter: Option<Meter>,
    ) -> (Heard, Unheard) {
        if speaking.cut.is_cancelled() {
            return (Heard::Cut(None, Why::Stale), Unheard::default());
        }
        let mut span = self.0.traces.begin("model", speaking.place.any_beneath());
        span.set("gen_ai.request.model", model.name.as_str());
        let mut lost = Vec::new();
        let thinks = model.may_think_unseen();
        let mut silence = Silence::after(Duration::ZERO, thinks);
        let on_retry = |retry: Retry| {
            lost.extend(retry.may_have_cost.then(|| silence.total()));
            silence = Silence::after(retry.delay, thinks);
            self.tell_retry(live, model, retry.reason);
        };
        let asked = tokio::select! {
            biased;
            () = speaking.cut.cancelled() => None,
            asked = self.0.providers.stream(model, body, on_retry) => Some(asked),
        };
        let heard = match asked {
            Some(Ok(stream)) => {
                let masks = self.0.secrecy.masks();
                let mut shown = Shown {
                    live,
                    speaking,
                    message: opened.1,
                    text: masks.words(),
                    thinking: masks.words(),
                };
                let heard = self.hear(&mut shown, opened.0, stream, meter, &mut silence).await;
                shown.finish();
                heard
            }
            Some(Err(error)) => {
                lost.extend(error.may_have_cost().then(|| silence.total()));
                Heard::Failed(error, None)
            }
            // The provider has the request, and hanging up does not take it back; one that was to be made again it has not.
            None => {
                lost.extend(silence.has_begun().then(|| silence.total()));
                Heard::Cut(None, Why::Stale)
            }
        };
        heard.trace(&mut span);
        let silence = silence.total();
        (heard, Unheard { silence, lost })
    }

    async fn hear(
        &self,
        shown: &mut Shown<'_>,
        turn: TurnId,
        mut stream: ModelStream,
        mut meter: Option<Meter>,
        silence: &mut Silence,
    ) -> Heard {
        let speaking = shown.speaking;
        let (mut unkept, mut kept) = (0, 0);
        let mut ticks = interval(KEPT_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.reset();
        loop {
            silence.begin();
            let said = tokio::select! {
                biased;
                () = speaking.cut.cancelled() => return Heard::Cut(Some(stream.partial()), Why::Stale),
                said = stream.next() => said,
                _ = ticks.tick(), if unkept > enough(kept) => {
                    kept += unkept;
                    self.keep_words(speaking, turn).await;
                    unkept = 0;
                    continue;
                }
            };
            let event = match said {
                Ok(Some(event)) => event,
                Ok(None) => return Heard::Reply(stream.partial()),
                Err(error) => return Heard::Failed(error, Some(stream.partial())),
            };
            silence.end();
            let within = meter.as_mut().is_none_or(|meter| meter.hear(&event));
            match event {
                StreamEvent::Text(words) => unkept += shown.say(words),
                StreamEvent::Thinking(words) => unkept += shown.think(words),
                StreamEvent::ToolCallStarted { .. } => shown.finish(),
                StreamEvent::Unshown(_) => {}
                StreamEvent::Done(reply) => return Heard::Reply(reply),
            }
            if !within {
                return Heard::Cut(Some(stream.partial()), Why::Budget);
            }
            if unkept >= KEPT_BYTES.max(enough(kept)) {
                kept += unkept;
                self.keep_words(speaking, turn).await;
                unkept = 0;
                ticks.reset();
            }
        }
    }

    async fn keep_words(&self, speaking: &Speaking, turn: TurnId) {
        let (text, thinking) = {
            let said = lock(&speaking.said);
            (said.text.clone(), said.thinking.clone())
        };
        if let Err(error) = self.0.store.save_open(Asker::System, turn, &text, &thinking).await {
            tracing::warn!(
                error = with_causes(&error),
                "could not keep what a model has said so far"
            );
        }
    }

    /// Tells those who watch that a model is asked again; nobody waits for it.
    pub(super) fn tell_retry(&self, live: &Live, model: &Model, reason: String) {
        let Some(live) = self.0.lives.find(live.session) else {
            return;
        };
        let control = self.clone();
        let event = Event::ModelRetry {
            model: model.name.clone(),
            reason,
        };
        self.0.tasks.spawn(async move {
            control.record(&live, vec![event]).await;
        });
    }

    /// Stores events that tell of nothing else in the store, and shows them.
    pub(crate) async fn record(&self, live: &Live, events: Vec<Event>) {
        let mut writing = live.writing.lock().await;
        match self.0.store.record(Asker::System, live.session, events).await {
            Ok(events) => live.note(&mut writing, events),
            Err(error) => {
                tracing::warn!(session = %live.session, error = with_causes(&error), "could not store an event");
            }
        }
    }
}

/// What is shown of a reply under way, without a secret.
struct Shown<'l> {
    live: &'l Live,
    speaking: &'l Speaking,
    message: MessageId,
    text: Words,
    thinking: Words,
}

impl Shown<'_> {
    /// Shows words; gives how many bytes of them.
    fn say(&mut self, words: String) -> usize {
        // What it thought before is whole.
        let thought = self.thinking.finish();
        self.speaking.think(self.live, self.message, &thought);
        let words = self.text.push(words);
        self.speaking.say(self.live, self.message, &words);
        words.len()
    }

    fn think(&mut self, words: String) -> usize {
        let words = self.thinking.push(words);
        self.speaking.think(self.live, self.message, &words);
        words.len()
    }

    /// Shows what was held back: it is whole.
    fn finish(&mut self) {
        self.speaking.say(self.live, self.message, &self.text.finish());
        self.speaking.think(self.live, self.message, &self.thinking.finish());
    }
}

impl Speaking {
    fn say(&self, live: &Live, message: MessageId, words: &str) {
        if words.is_empty() {
            return;
        }
        // Shown under the lock, so that nothing is shown after the seal.
        let mut said = lock(&self.said);
        said.text.push_str(words);
        if said.sealed.is_none() {
            live.feed.text(message, words);
        }
    }

    fn think(&self, live: &Live, message: MessageId, words: &str) {
        if words.is_empty() {
            return;
        }
        let mut said = lock(&self.said);
        said.thinking.push_str(words);
        if said.sealed.is_none() {
            live.feed.thinking(message, words);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_without_an_end_are_not_written_again_and_again() {
        let (mut kept, mut written) = (0, 0_u64);
        while kept < 64 << 20 {
            kept += KEPT_BYTES.max(enough(kept));
            written += kept as u64;
        }
        // At each 4 kB it would be more than 500 GB.
        assert!(written < 3 << 30, "{written}");
        assert_eq!(enough(100_000), 0, "what is usual is kept each second");
    }
}
