//! What is written down of a call: never what was said.

use std::sync::Arc;
use std::time::Duration;

use causes::with_causes;
use domain::{Event, Money, RunId, Usage};
use policy::Decision;
use protocol::{ModelRoute, ServiceFailure};
use serde_json::json;
use store::{Asker, AuditEntry, Charge};
use telemetry::Place;
use tokio::time::Instant;

use crate::Control;
use crate::live::Live;

/// The longest name of a model that is written down.
const LONGEST_NAME: usize = 100;

/// A call, as far as it is known.
pub(crate) struct Told {
    pub(super) run: Option<RunId>,
    /// Where it stands in the run's trace.
    pub(crate) place: Option<Place>,
    pub(crate) route: ModelRoute,
    pub(crate) model: String,
    pub(crate) decision: Option<Decision>,
    pub(super) began: Instant,
    pub(crate) status: u16,
    pub(crate) code: Option<String>,
    /// Bytes of the answer that were handed on.
    pub(super) bytes: u64,
    pub(crate) usage: Usage,
    pub(super) cost: Money,
    /// It is worth writing down.
    pub(super) is_news: bool,
    /// Only tokens were to be counted.
    pub(super) is_count: bool,
}

impl Told {
    pub(super) fn new(route: ModelRoute) -> Self {
        Self {
            run: None,
            place: None,
            route,
            model: String::new(),
            decision: None,
            began: Instant::now(),
            status: 200,
            code: None,
            bytes: 0,
            usage: Usage::default(),
            cost: Money::ZERO,
            is_news: true,
            is_count: false,
        }
    }

    /// The model that was asked for, as an untrusted party wrote it.
    pub(super) fn names(&mut self, model: &str) {
        let plain = |letter: char| if letter.is_control() { '\u{fffd}' } else { letter };
        self.model = model.chars().take(LONGEST_NAME).map(plain).collect();
    }

    pub(super) fn fail(&mut self, failure: &ServiceFailure) {
        self.status = failure.status;
        self.code = Some(failure.code.clone());
    }

    pub(super) fn charged(&mut self, charges: &[Charge]) {
        self.cost = charges.iter().map(|charge| charge.cost).sum();
        if let Some(charge) = charges.first() {
            self.usage = charge.usage;
        }
    }
}

impl Control {
    /// Writes a call down, and shows it.
    pub(super) async fn tell_call(&self, live: &Arc<Live>, told: Told) {
        if told.is_count || !told.is_news {
            return;
        }
        let took = told.began.elapsed();
        self.trace_program(&told, took);
        let allowed = told.decision.as_ref().is_none_or(Decision::is_allowed);
        let action = if allowed { "model.called" } else { "model.denied" };
        let detail = json!({
            "model": told.model,
            "route": told.route.path(),
            "status": told.status,
            "code": told.code,
            "usage": told.usage,
        });
        let mut entry = AuditEntry::about(action, live.session, detail)
            .of(live.session, told.run)
            .carried(told.bytes, took);
        if let Some(decision) = &told.decision {
            entry = entry.decided(decision.outcome.as_str(), &decision.layer, &decision.rule);
        }
        entry.facts.cost = Some(told.cost);
        if let Err(error) = self.0.store.audit(Asker::Session(live.session), vec![entry]).await {
            tracing::error!(session = %live.session, error = with_causes(&error), "could not audit a program's call of a model");
        }
        let event = Event::ModelCalled {
            run: told.run,
            model: told.model,
            route: told.route.path().to_owned(),
            status: told.status,
            code: told.code,
            micros: micros(took),
            usage: told.usage,
            cost: told.cost,
        };
        self.record(live, vec![event]).await;
    }
}

fn micros(took: Duration) -> u64 {
    u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
}
