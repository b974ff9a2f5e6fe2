//! Turns: one call of a model each, in order, whoever asks and however often.
//!
//! A turn is worked on by a task of its own, so that it ends whether or not whoever asked is still there; a repeat joins
//! it. Everything that a loop may say comes in here: which run, which turn, results of calls. All else is ours.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};

use causes::with_causes;
use domain::{Epoch, MessageId, ResultPart, RunId, ToolResult, TurnId};
use futures::FutureExt;
use lifecycle::Stop;
use protocol::{Refusal, RefusalCode, TurnReply, TurnRequest};
use store::Asker;
use telemetry::Place;
use tokio::sync::{OwnedMutexGuard, watch};
use tokio::time::sleep;

use crate::Control;
use crate::approvals;
use crate::live::{Active, Live, lock};

mod begin;
mod early;
mod listen;
mod speak;

pub(crate) use begin::head;

/// The most base64 that the pictures of one result may have together.
const PICTURES: usize = 8 << 20;

/// A turn under way.
#[derive(Debug)]
pub(crate) struct Speaking {
    pub(crate) run: RunId,
    epoch: Epoch,
    turn: u32,
    /// Told when nothing of it counts any more: the model is hung up on.
    pub(crate) cut: Stop,
    /// Where it stands in the run's trace.
    place: Place,
    said: Mutex<Said>,
    answer: watch::Receiver<Option<Result<TurnReply, Refusal>>>,
}

/// What a model has said so far.
#[derive(Debug, Default)]
struct Said {
    /// The claim, and the message that is written; none before it is claimed.
    opened: Option<(TurnId, MessageId)>,
    text: String,
    thinking: String,
    /// What was set aside for a summary that is asked for.
    summary: Option<TurnId>,
    /// So many bytes of both were shown when it was sealed: nothing is shown any more.
    sealed: Option<(usize, usize)>,
}

impl Speaking {
    fn is(&self, request: &TurnRequest) -> bool {
        (self.run, self.epoch, self.turn) == (request.run, request.epoch, request.turn)
    }

    /// Waits for the turn's end.
    async fn answer(&self) -> Result<TurnReply, Refusal> {
        let mut answer = self.answer.clone();
        match answer.wait_for(Option::is_some).await {
            Ok(answer) => answer.clone().unwrap_or_else(|| Err(unavailable())),
            Err(_) => Err(unavailable()),
        }
    }

    /// Ends what is shown, and gives what was said, for keeping.
    pub(crate) fn seal(&self) -> Option<(TurnId, String, String)> {
        let mut said = lock(&self.said);
        let shown = (said.text.len(), said.thinking.len());
        let (text, thinking) = *said.sealed.get_or_insert(shown);
        let (turn, _) = said.opened?;
        Some((turn, said.text[..text].to_owned(), said.thinking[..thinking].to_owned()))
    }

    /// Takes note of what was set aside for a summary, until that is settled.
    pub(crate) fn sum_up(&self, reserved: Option<TurnId>) {
        lock(&self.said).summary = reserved;
    }

    /// Shows on, from where it was sealed.
    pub(crate) fn unseal(&self, live: &Live) {
        let mut said = lock(&self.said);
        let Some((text, thinking)) = said.sealed.take() else {
            return;
        };
        if let Some((_, message)) = said.opened {
            live.feed.thinking(message, &said.thinking[thinking..]);
            live.feed.text(message, &said.text[text..]);
        }
    }
}

impl Control {
    /// The reply to a turn: a new one, the one of a turn under way, or the one it had.
    pub(crate) async fn invoke(&self, live: &Arc<Live>, mut request: TurnRequest) -> Result<TurnReply, Refusal> {
        let active = active_for(live, request.run, request.epoch)?;
        for result in &mut request.results {
            fit(result, &active);
        }
        approvals::answer_denied(&mut request, &active);
        let turn = tokio::select! {
            biased;
            answer = under_way(live, &request) => return answer,
            turn = Arc::clone(&live.turns).lock_owned() => turn,
        };
        let (sender, answer) = watch::channel(None);
        let speaking = Arc::new(Speaking {
            run: request.run,
            epoch: request.epoch,
            turn: request.turn,
            cut: active.over.child_token(),
            place: active.turn_place(request.turn),
            said: Mutex::default(),
            answer,
        });
        live.set_speaking(Some(Arc::clone(&speaking)));
        let ends = Ends {
            live: Arc::clone(live),
            _turn: turn,
        };
        let (control, live, task) = (self.clone(), Arc::clone(live), Arc::clone(&speaking));
        self.0.tasks.spawn(async move {
            control.trace_calls(&active, &request);
            let mut span = control.0.traces.begin("turn", task.place);
            span.set("belljar.turn", i64::from(request.turn));
            let spoken = tokio::select! {
                spoken = AssertUnwindSafe(control.speak(&live, &active, &task, request)).catch_unwind() => spoken,
                () = control.drained(&task) => Ok(Err(unavailable())),
            };
            let answer = match spoken {
                Ok(answer) => answer,
                Err(_) => {
                    control.charge_broken(&live, &active, &task).await;
                    Err(unavailable())
                }
            };
            if let Err(refusal) = &answer {
                span.fail(&format!("{:?}", refusal.code));
            }
            drop(span);
            // Whoever is told begins the next turn.
            drop(ends);
            sender.send_replace(Some(answer));
        });
        speaking.answer().await
    }
}

impl Control {
    /// A fault of our own ended a turn in the middle: what was set aside for it is charged, and it can be begun anew.
    async fn charge_broken(&self, live: &Live, active: &Active, speaking: &Speaking) {
        tracing::error!(run = %active.run, "a turn was given up by a fault; what was set aside for it is charged");
        let reserved = {
            let said = lock(&speaking.said);
            [said.opened.map(|(turn, _)| turn), said.summary]
        };
        for reserved in reserved.into_iter().flatten() {
            let mut patience = self.patience("what a turn that broke down cost");
            loop {
                let mut writing = live.writing.lock().await;
                let error = match self.0.store.charge_reservation(Asker::System, reserved).await {
                    Ok(events) => break live.note(&mut writing, events),
                    Err(error) => error,
                };
                drop(writing);
                if let Err(error) = patience.again(error).await {
                    break tracing::error!(run = %active.run, error = with_causes(&error), "could not charge a turn that broke down");
                }
            }
        }
        self.0.freed.notify_waiters();
    }

    /// Hangs up on the model when the process is to stop and the reply takes too long; for ever otherwise.
    async fn drained(&self, speaking: &Speaking) {
        self.0.tasks.stop().cancelled().await;
        sleep(self.0.config.drain).await;
        speaking.cut.cancel();
        // What it cost so far is charged now, if that is quick; at the next start otherwise.
        sleep(self.0.config.drain).await;
    }
}

/// A turn ends: the next may begin.
struct Ends {
    live: Arc<Live>,
    _turn: OwnedMutexGuard<()>,
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.live.set_speaking(None);
    }
}

/// The run under way, if it is this one under this hold.
fn active_for(live: &Live, run: RunId, epoch: Epoch) -> Result<Arc<Active>, Refusal> {
    live.active()
        .filter(|active| active.run == run && active.epoch == epoch && !active.over.is_cancelled())
        .ok_or_else(stale)
}

/// The answer of this very turn, if it is under way; for ever otherwise.
async fn under_way(live: &Live, request: &TurnRequest) -> Result<TurnReply, Refusal> {
    match live.speaking().filter(|speaking| speaking.is(request)) {
        Some(speaking) => speaking.answer().await,
        None => std::future::pending().await,
    }
}

/// Makes a result what it may be.
fn fit(result: &mut ToolResult, active: &Active) {
    refuse_result(result, active);
    bound_result(result, active);
}

/// The result of a tool that the run does not have is none, whatever a sandbox did.
fn refuse_result(result: &mut ToolResult, active: &Active) {
    let tool = lock(&active.calls).get(&result.id).cloned();
    if let Some(tool) = tool.filter(|tool| !active.offer.has_tool(tool)) {
        let names: Vec<&str> = active.offer.tools.iter().map(|tool| tool.name.as_str()).collect();
        let words = format!("There is no tool {tool:?} here. The tools are: {}.", names.join(", "));
        *result = ToolResult::error(result.id.clone(), words);
    }
}

/// A sandbox keeps to the limits by itself; one that does not is made to.
fn bound_result(result: &mut ToolResult, active: &Active) {
    agent::cut_result(result, active.limits.output_bytes);
    for part in &mut result.content {
        if let ResultPart::Image(image) = part
            && let Err(error) = pictures::look_at_base64(&image.media_type, &image.data)
        {
            let text = format!("[A picture was left out: {error}.]");
            *part = ResultPart::Text { text };
        }
    }
    let pictures = result.content.iter().map(|part| match part {
        ResultPart::Image(image) => image.data.len(),
        ResultPart::Text { .. } => 0,
    });
    if pictures.sum::<usize>() > PICTURES {
        *result = ToolResult::error(
            result.id.clone(),
            format!(
                "The pictures of this result are larger than {} MB together, and were left out.",
                PICTURES >> 20
            ),
        );
    }
}

pub(crate) fn stale() -> Refusal {
    Refusal::new(
        RefusalCode::Stale,
        "this run was taken over or has ended: there is nothing left to do for this loop",
    )
}

pub(crate) fn unavailable() -> Refusal {
    Refusal::new(
        RefusalCode::Unavailable,
        "the turn was given up by a fault; ask for it again",
    )
}
