//! One run from its taking to its end: a sandbox, the loop, and what happens when either is lost.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use causes::with_causes;
use domain::{Placement, RunId, RunState, SessionId, Timestamp};
use lifecycle::Stop;
use protocol::Start;
use store::{Asker, End, StoreError, TokenState};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::api::USER_REMOVED;
use crate::approvals::Waits;
use crate::dispatch::HOLDER;
use crate::housing::{HousingError, Stay};
use crate::live::{Active, Live, lock};
use crate::prompts::Settings;
use crate::rights::settled;
use crate::{Control, ControlError, traces};

mod here;

/// How long a loop whose run is over may take to say that it has ended, before it is stopped.
const WINDS_UP_WITHIN: Duration = Duration::from_secs(2);
/// How long a run that fails may go on while its end is stored.
const STORED_SOON: Duration = Duration::from_secs(1);
/// The first delay before a sandbox is tried for again.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(250);

/// What brings the process down each time must end some time.
const TAKEN_AT_MOST: i64 = 10;

/// How a loop was left.
enum Left {
    /// It has ended, or nothing of it counts any more.
    Ended,
    /// Its sandbox is gone, in the middle of it.
    Lost(String),
    /// It cannot go on.
    Failed(End),
}

impl Control {
    /// Works on a run until it has ended, or this process is to stop.
    pub(crate) async fn drive(&self, session: SessionId, run: RunId) {
        let live = match self.live(Asker::System, session).await {
            Ok(live) => live,
            Err(error) => {
                return tracing::error!(%run, error = with_causes(&error), "could not find the session of a run");
            }
        };
        // The run before, if it was interrupted, ends what it has in the sandbox.
        let _one = live.driving.lock().await;
        let active = match self.take(&live, run).await {
            Ok(Some(active)) => active,
            Ok(None) => return,
            Err(error) => {
                return tracing::error!(%run, error = with_causes(&error), "could not take a run; it is tried again");
            }
        };
        let mut span = self.0.traces.begin("run", active.place);
        span.set("belljar.session", session.to_string().as_str());
        span.set("gen_ai.request.model", active.model.name.as_str());
        let stop = self.0.tasks.stop();
        let end = tokio::select! {
            biased;
            () = active.over.cancelled() => None,
            // The next process takes it up where it stands.
            () = stop.cancelled() => return,
            end = self.attend(&live, &active) => end,
        };
        if let Some(end) = end {
            span.fail(end.code.as_deref().unwrap_or("failed"));
            self.end_and_stop(&live, &active, end).await;
        }
        drop(span);
        self.wind_up(&live, &active).await;
        self.insist_on_cancel(&live, &active).await;
        self.keep_after(&live, run).await;
        live.set_active(None);
        self.end_approvals(&live).await;
    }

    /// Takes the run in the store.
    async fn take(&self, live: &Arc<Live>, run: RunId) -> Result<Option<Arc<Active>>, ControlError> {
        let mut writing = live.writing.lock().await;
        let taken = self.0.store.take_run(Asker::System, run, HOLDER, self.0.config.lease);
        let Some(taken) = taken.await? else {
            return Ok(None);
        };
        live.note(&mut writing, taken.events.clone());
        writing.joining = 0;
        let run = &taken.run;
        if self.0.store.user(Asker::System, live.owner).await?.removed.is_some() {
            // It waited while that happened, or the process ended before all of them were cancelled.
            let ended = self.0.store.cancel_run(Asker::System, run.id, USER_REMOVED).await?;
            live.note(&mut writing, ended.events);
            return Ok(None);
        }
        let settings = Settings::read(&run.settings);
        let wanted = settings.model.as_deref().unwrap_or(&self.0.config.model);
        let model = match self.0.providers.model(wanted) {
            Ok(model) => Arc::clone(model),
            Err(error) => {
                // It was there when the prompt was accepted; the configuration has changed since.
                let end = End::failed("model_unknown", error.to_string());
                let ended = self.0.store.end_run(Asker::System, run.id, run.epoch, end).await?;
                live.note(&mut writing, ended.events);
                return Ok(None);
            }
        };
        let layers = self.layers_for(live, settings.door).await?;
        // This run's door may allow less than the one before: what that one opened ends here.
        self.recheck(live);
        let allowed = settled(layers.model(&model.name));
        if !allowed.is_allowed() {
            let end = End::failed("model_denied", allowed.reason);
            let ended = self.0.store.end_run(Asker::System, run.id, run.epoch, end).await?;
            live.note(&mut writing, ended.events);
            return Ok(None);
        }
        let kept = self.0.store.image_of(Asker::System, live.session).await?;
        let image = kept.unwrap_or_else(|| self.image());
        let offer = self.offer(layers, &run.trigger, image).await;
        let mut done = run.turn;
        let mut calls = HashMap::new();
        let mut last_reply = 0;
        if let Some(last) = &taken.last_turn
            && let Some(reply) = &last.reply
        {
            done = done.max(last.turn);
            last_reply = last.turn;
            if let Ok(reply) = serde_json::from_str::<protocol::TurnReply>(reply.get()) {
                calls = crate::live::calls(&reply);
            }
        }
        let (held, denied) = self.left_held(&taken, &calls).await?;
        if held {
            // Nothing of this reply was handed on: the loop asks for it once more.
            done = last_reply.saturating_sub(1);
        }
        let kept = taken.early.iter();
        let early = kept.map(|result| (result.id.clone(), self.results_bound(&model, [result])));
        let early = early.collect();
        let waits = Waits::default();
        waits.ask(run.state == RunState::Waiting);
        let active = Arc::new(Active {
            run: run.id,
            epoch: run.epoch,
            model,
            limits: offer.limits,
            door: settings.door,
            offer,
            place: traces::of_run(run.id, run.attempts),
            traced: AtomicU32::new(0),
            began: Instant::now(),
            started: run.started.unwrap_or_else(Timestamp::now),
            taken: run.attempts,
            done: AtomicU32::new(done),
            over: Stop::new(),
            cancelled: AtomicBool::new(false),
            cancel: Mutex::default(),
            loop_ended: watch::Sender::new(None),
            calls: Mutex::new(calls),
            denied: Mutex::new(denied.into_iter().collect()),
            early: Mutex::new(early),
            waits,
            waited: Duration::from_millis(u64::try_from(run.waited_until(Timestamp::now())).unwrap_or(0)),
        });
        live.set_active(Some(Arc::clone(&active)));
        Ok(Some(active))
    }

    /// Has the loop run until it ends or may not go on.
    async fn attend(&self, live: &Arc<Live>, active: &Arc<Active>) -> Option<End> {
        let passed = Timestamp::now().0.saturating_sub(active.started.0);
        let passed = Duration::from_millis(u64::try_from(passed).unwrap_or(0));
        let left = (active.limits.wall() + active.waited).saturating_sub(passed);
        tokio::select! {
            biased;
            end = self.attempts(live, active) => end,
            () = active.waits.worked(Instant::now(), left) => {
                let seconds = active.limits.wall_seconds;
                let words = format!("the run took longer than its limit of {seconds} s");
                Some(End::failed("wall_limit", words))
            }
        }
    }

    async fn attempts(&self, live: &Arc<Live>, active: &Arc<Active>) -> Option<End> {
        if active.taken > TAKEN_AT_MOST {
            let words = format!("the control plane went down {TAKEN_AT_MOST} times while it worked on this run");
            return Some(End::failed("taken_too_often", words));
        }
        let most = self.0.config.attempts.max(1);
        let mut reason = String::new();
        for attempt in 0..most {
            if attempt > 0 {
                sleep(TRY_AGAIN_AFTER * 2_u32.saturating_pow(attempt - 1)).await;
            }
            let left = match self.0.config.placement {
                Placement::Sandbox => self.loop_there(live, active).await,
                Placement::ControlPlane => self.loop_here(live, active).await,
            };
            match left {
                Left::Ended => return None,
                Left::Failed(end) => return Some(end),
                Left::Lost(why) => {
                    tracing::info!(run = %active.run, %why, "a sandbox was lost; the run goes on in another");
                    reason = why;
                }
            }
        }
        Some(End::failed(
            "sandbox_failed",
            format!("no sandbox lasted, in {most} attempts; the last one: {reason}"),
        ))
    }

    /// Runs the loop in the sandbox.
    async fn loop_there(&self, live: &Arc<Live>, active: &Arc<Active>) -> Left {
        let stay = match self.house(live).await {
            Ok(stay) => stay,
            Err(error) => return unhoused(&error),
        };
        active.loop_ended.send_replace(None);
        let start = self.start_order(active);
        let lost = || format!("the link of sandbox {} was closed", stay.id);
        if let Err(error) = stay.linked.start(start).await {
            return self.lost(live, &stay, with_causes(&error)).await;
        }
        let mut ended = active.loop_ended.subscribe();
        tokio::select! {
            biased;
            () = active.over.cancelled() => Left::Ended,
            words = async { ended.wait_for(Option::is_some).await.ok().and_then(|words| words.clone()).flatten() } => {
                self.ended_early(live, &stay, words).await
            }
            () = stay.linked.closed() => self.lost(live, &stay, lost()).await,
        }
    }

    /// The loop in a sandbox ended, and its run did not. Where the session's tokens were revoked meanwhile, that is why: the run
    /// goes on in another.
    async fn ended_early(&self, live: &Arc<Live>, stay: &Stay, words: Option<String>) -> Left {
        let token = self.0.store.session_token_state(Asker::System, live.session).await;
        if token.is_ok_and(|token| token == TokenState::Revoked) {
            return self.lost(live, stay, with_causes(&HousingError::Revoked)).await;
        }
        let words = words.as_deref().unwrap_or("it did not say why");
        let words = format!("the loop in the sandbox ended before the run did: {words}");
        Left::Failed(End::failed("loop_ended", words))
    }

    async fn lost(&self, live: &Arc<Live>, stay: &Stay, why: String) -> Left {
        self.lose_sandbox(live, stay.id, &why).await;
        Left::Lost(why)
    }

    fn start_order(&self, active: &Active) -> Start {
        Start {
            run: active.run,
            epoch: active.epoch,
            turn: active.next_turn(),
            tools: active.offer.tools.iter().map(|tool| tool.name.clone()).collect(),
            limits: active.limits,
            grants: active.offer.grants.clone(),
            traced: self.0.traces.is_on(),
        }
    }

    /// Ends a run in the store; where that takes long, what is done for it stops before.
    async fn end_and_stop(&self, live: &Arc<Live>, active: &Active, end: End) {
        let stored = Stop::new();
        let ending = async {
            self.end_run(live, active, end).await;
            stored.cancel();
        };
        // Beside each other: either may hold what the other waits for.
        let stopping = async {
            if timeout(STORED_SOON, stored.cancelled()).await.is_err() {
                active.over.cancel();
                self.wind_up(live, active).await;
            }
        };
        tokio::join!(ending, stopping);
    }

    /// Ends a run in the store; it may have ended already.
    pub(crate) async fn end_run(&self, live: &Live, active: &Active, end: End) {
        let mut patience = self.patience("the end of a run");
        loop {
            let mut writing = live.writing.lock().await;
            self.seal(live).await;
            let ended = match self.store_cancel(live, active, &mut writing).await {
                Ok(()) => {
                    let store = &self.0.store;
                    store
                        .end_run(Asker::System, active.run, active.epoch, end.clone())
                        .await
                }
                Err(error) => Err(error),
            };
            let error = match ended {
                Ok(ended) => {
                    active.over.cancel();
                    live.note(&mut writing, ended.events);
                    writing.joining = 0;
                    if let Some(next) = ended.next {
                        self.begin_run(live.session, next);
                    }
                    return;
                }
                Err(error) => error,
            };
            drop(writing);
            match patience.again(error).await {
                Ok(()) => continue,
                // Somebody else ended it, or took it: it is theirs.
                Err(StoreError::Stale { .. }) => {}
                Err(error) => {
                    tracing::error!(run = %active.run, error = with_causes(&error), "could not end a run; it is taken again");
                }
            }
            return active.over.cancel();
        }
    }

    /// Stores that a person stopped this run, where there was no room for it then; until it is stored nobody takes the run again.
    async fn insist_on_cancel(&self, live: &Live, active: &Active) {
        let mut patience = self.patience("that a run was stopped");
        loop {
            let mut writing = live.writing.lock().await;
            let stored = self.store_cancel(live, active, &mut writing).await;
            drop(writing);
            let Err(error) = stored else { return };
            if let Err(error) = patience.again(error).await {
                return tracing::error!(run = %active.run, error = with_causes(&error), "could not store that a run was stopped; it is taken again");
            }
        }
    }

    /// Lets a loop whose run is over come to its end, or stops it with all that it began.
    async fn wind_up(&self, live: &Arc<Live>, active: &Active) {
        if let Some(speaking) = live.speaking() {
            speaking.cut.cancel();
        }
        if self.0.config.placement == Placement::ControlPlane && !live.seat.is_taken() {
            return;
        }
        let Some(stay) = self.stay(live).await else { return };
        let cancelled = active.cancelled.load(Ordering::SeqCst);
        if !cancelled && lock(&active.calls).is_empty() {
            if self.0.config.placement == Placement::ControlPlane {
                return;
            }
            let mut ended = active.loop_ended.subscribe();
            let winding_up = timeout(WINDS_UP_WITHIN, ended.wait_for(Option::is_some)).await;
            if winding_up.is_ok() {
                return;
            }
        }
        let stopped = if cancelled {
            stay.linked.stop_all().await
        } else {
            stay.linked.stop().await
        };
        if let Err(error) = stopped {
            let why = format!("what ran in it could not be stopped: {}", with_causes(&error));
            self.lose_sandbox(live, stay.id, &why).await;
        }
    }
}

/// A loop could not begin because there was no sandbox for it.
fn unhoused(error: &HousingError) -> Left {
    let words = with_causes(error);
    if error.may_pass() {
        Left::Lost(words)
    } else {
        Left::Failed(End::failed("sandbox_failed", words))
    }
}
