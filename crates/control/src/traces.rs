//! What a collector of traces is told: prompt, run, turns, calls of models and tools, services, steps of sandboxes. Names, numbers
//! and outcomes; nothing of what anybody said.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use domain::{RunId, SessionId, ToolCallId, ToolResult};
use policy::Decision;
use protocol::{CallTime, TurnRequest};
use store::{Accepted, Joined};
use telemetry::{Place, Trace};
use tokio::time::Instant;

use crate::Control;
use crate::housing::meters::Transition;
use crate::live::{Active, lock};
use crate::raw::Told;

/// Where the prompt that a run answers stands.
fn of_prompt(run: RunId) -> Place {
    Place::first(Trace(run.bits()), &["prompt"])
}

/// Where a run stands that was taken so often.
pub(crate) fn of_run(run: RunId, taken: i64) -> Place {
    of_prompt(run).beneath(&["run", &taken.to_string()])
}

impl Active {
    /// Where a turn stands.
    pub(crate) fn turn_place(&self, turn: u32) -> Place {
        self.place.beneath(&["turn", &turn.to_string()])
    }

    /// Where stands what is done by a call of the last reply, of which is not known by which; the run before there is one.
    pub(crate) fn calls_place(&self) -> Place {
        match self.done.load(Ordering::SeqCst) {
            0 => self.place,
            turn => self.turn_place(turn),
        }
    }

    /// Where a call of the last reply stands; the run where it is none of its calls.
    pub(crate) fn call_place(&self, call: Option<&ToolCallId>) -> Place {
        match call.filter(|call| lock(&self.calls).contains_key(*call)) {
            Some(call) => self
                .turn_place(self.done.load(Ordering::SeqCst))
                .beneath(&["call", &call.0]),
            None => self.place,
        }
    }
}

impl Control {
    /// A prompt was taken in.
    pub(crate) fn trace_prompt(&self, accepted: &Accepted, door: &'static str, began: Instant) {
        if accepted.repeated {
            return;
        }
        let place = of_prompt(accepted.run);
        // The first span of a trace is the prompt that its run was made for.
        let place = match accepted.joined {
            Joined::Steered => place.any_beneath(),
            Joined::Started | Joined::Queued => place,
        };
        let took = began.elapsed();
        let about = [
            ("belljar.session", accepted.session.to_string().as_str().into()),
            ("belljar.door", door.into()),
        ];
        self.0.traces.was("prompt", place, (took, took), None, about);
    }

    /// The calls of the reply before are done, and this is how long they took where they were made. Those whose results were kept
    /// before were told then.
    pub(crate) fn trace_calls(&self, active: &Active, request: &TurnRequest) {
        if request.times.is_empty() || active.traced.fetch_max(request.turn, Ordering::SeqCst) >= request.turn {
            return;
        }
        let early: HashSet<_> = lock(&active.early).keys().cloned().collect();
        let late = request.results.iter().filter(|result| !early.contains(&result.id));
        self.trace_results(active, late, &request.times);
    }

    /// Calls of the reply before are done. What is said of their times is believed within the time that the run has had.
    pub(crate) fn trace_results<'r>(
        &self,
        active: &Active,
        results: impl Iterator<Item = &'r ToolResult>,
        times: &[CallTime],
    ) {
        let most = active.began.elapsed();
        for result in results {
            let Some(time) = times.iter().find(|time| time.call == result.id) else {
                continue;
            };
            let Some(tool) = lock(&active.calls).get(&result.id).cloned() else {
                continue;
            };
            let place = active.call_place(Some(&result.id));
            // What a model calls a tool that there is not may be anything.
            let tool = if active.offer.has_tool(&tool) {
                tool.as_str()
            } else {
                "unknown"
            };
            let times = (
                Duration::from_micros(time.ago).min(most),
                Duration::from_micros(time.took),
            );
            let about = [("gen_ai.tool.name", tool.into())];
            self.0.traces.was("tool", place, times, failure(result), about);
        }
    }

    /// A program's own call of a model is over, of which this is known.
    pub(crate) fn trace_program(&self, told: &Told, took: Duration) {
        let Some(place) = told.place else { return };
        // What is denied may be called anything, and what there is not.
        let allowed = told.decision.as_ref().is_some_and(Decision::is_allowed);
        let model = match self.0.providers.model(&told.model) {
            _ if !allowed => "denied",
            Ok(model) => model.name.as_str(),
            Err(_) => "unknown",
        };
        let about = [
            ("gen_ai.request.model", model.into()),
            ("gen_ai.usage.input_tokens", told.usage.total_input().into()),
            ("gen_ai.usage.output_tokens", told.usage.output.into()),
            ("belljar.route", told.route.path().into()),
            ("http.response.status_code", i64::from(told.status).into()),
        ];
        let traces = &self.0.traces;
        traces.was("model", place.any_beneath(), (took, took), told.code.as_deref(), about);
    }

    /// A step in the life of a session's sandbox was tried, or of one that is nobody's yet: it is counted, and stands in the trace
    /// of the session's run, if one is on.
    pub(crate) fn stepped<T, E>(
        &self,
        session: SessionId,
        transition: Transition,
        began: Instant,
        outcome: &Result<T, E>,
    ) {
        let took = began.elapsed();
        self.0.housing.meters.tried(transition, took, outcome);
        if !self.0.traces.is_on() {
            return;
        }
        let place = match self.0.lives.find(session).and_then(|live| live.active()) {
            Some(active) => active.place.any_beneath(),
            None => Place::first(Trace::any(), &["sandbox"]),
        };
        let failure = outcome.is_err().then_some("failed");
        let about = [
            ("belljar.session", session.to_string().as_str().into()),
            ("belljar.transition", transition.name().into()),
        ];
        self.0.traces.was("sandbox", place, (took, took), failure, about);
    }
}

fn failure(result: &ToolResult) -> Option<&'static str> {
    result.is_error.then_some("error")
}
