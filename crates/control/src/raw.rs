//! Calls of models that programs in a sandbox make by themselves: another harness, an SDK, a script.
//!
//! What they say is theirs; whether, which model, how much and who pays is decided here, as for a turn: the scope, the bound of
//! the input, the reservation against every cap, the ledger. But a call is made once, at the model that was asked for: such
//! programs try again by themselves. Each has a task of its own, so that it is paid whether or not who asked is still there.

use std::sync::Arc;

use futures::stream::{self, StreamExt};
use link::server::ServiceAnswer;
use llm::{Foreign, ForeignError, Format};
use policy::Outcome;
use protocol::{ModelRequest, ModelRoute, ServiceFailure};
use providers::Model;
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::Control;
use crate::attempts::{self, Target};
use crate::live::{Active, Live, lock};
use crate::rights::settled;

mod failure;
mod masked;
mod reserve;
mod talk;
mod told;

use failure::refused;
pub(crate) use told::Told;

/// The name by which a program asks for the model of the run that it works in.
const RUNS_OWN: &str = "default";

/// Whoever waits for an answer.
type Answer = oneshot::Sender<Result<ServiceAnswer, ServiceFailure>>;

/// A call that may be made.
struct Wanted<'b> {
    active: Arc<Active>,
    model: Arc<Model>,
    route: ModelRoute,
    format: Format,
    request: Foreign<'b>,
    betas: Vec<String>,
    /// The most tokens that its input may have.
    input: u64,
}

impl Control {
    /// Asks a model for a program.
    pub(crate) async fn call_model(
        &self,
        live: &Arc<Live>,
        request: ModelRequest,
    ) -> Result<ServiceAnswer, ServiceFailure> {
        let (answer, answered) = oneshot::channel();
        let (control, live) = (self.clone(), Arc::clone(live));
        self.0.tasks.spawn(async move {
            let told = control.serve_program(&live, request, answer).await;
            control.tell_call(&live, told).await;
        });
        answered.await.unwrap_or_else(|_| {
            Err(refused(
                503,
                "unavailable",
                "the control plane is shutting down; try again",
            ))
        })
    }

    async fn serve_program(&self, live: &Arc<Live>, request: ModelRequest, answer: Answer) -> Told {
        let ModelRequest { route, betas, body } = request;
        let mut told = Told::new(route);
        let wanted = match self.wanted(live, route, betas, &body, &mut told).await {
            Ok(wanted) => wanted,
            Err(failure) => {
                self.refuse_program(live, &mut told, &failure).await;
                // Nobody waits any more where this fails.
                let _ = answer.send(Err(failure));
                return told;
            }
        };
        if route == ModelRoute::CountTokens {
            told.is_count = true;
            let _ = answer.send(Ok(json(&serde_json::json!({"input_tokens": wanted.request.likely()}))));
            return told;
        }
        self.talk(live, wanted, answer, &mut told).await;
        told
    }

    /// The call as it may be made.
    async fn wanted<'b>(
        &self,
        live: &Arc<Live>,
        route: ModelRoute,
        betas: Vec<String>,
        body: &'b [u8],
        told: &mut Told,
    ) -> Result<Wanted<'b>, ServiceFailure> {
        let active = live.active().filter(|active| !active.over.is_cancelled());
        let Some(active) = active else {
            return Err(refused(
                403,
                "no_run",
                "models are asked while a run is under way, and none is",
            ));
        };
        told.run = Some(active.run);
        told.place = Some(active.calls_place());
        let format = match route {
            ModelRoute::Messages | ModelRoute::CountTokens => Format::AnthropicMessages,
            ModelRoute::Responses => Format::OpenaiResponses,
            ModelRoute::ChatCompletions => Format::OpenaiChat,
        };
        let request = Foreign::parse(format, body).map_err(|error| match error {
            ForeignError::Malformed(_) => refused(400, "invalid_request_error", error.to_string()),
            ForeignError::Refused { .. } => refused(403, "not_allowed", error.to_string()),
        })?;
        let name = request.model.as_deref();
        let name = name.filter(|name| *name != RUNS_OWN || self.0.providers.model(RUNS_OWN).is_ok());
        let name = name.unwrap_or(&active.model.name);
        told.names(name);
        let layers = self.layers(live).await.map_err(|error| {
            tracing::warn!(session = %live.session, %error, "nothing is known of a session's rights");
            refused(503, "unavailable", "what this session may do cannot be read at present")
        })?;
        let code = layers.tool("exec");
        // Where a person is asked before code runs, they were asked before this code did.
        let decision = match code.outcome {
            Outcome::Deny => code,
            Outcome::Allow | Outcome::Ask => settled(layers.model(name)),
        };
        let allowed = decision.is_allowed();
        told.decision = Some(decision);
        let model = self.0.providers.model(name).ok().filter(|_| allowed);
        let Some(model) = model else {
            return Err(no_model(name, &active));
        };
        if active.offer.is_capped() && model.price.is_none() {
            let words = format!("model {name} has no price, and a cap is set");
            return Err(refused(403, "price_missing", words).remedy("ask the operator to give it a price"));
        }
        if !active.offer.grants.models.contains(&model.name) {
            return Err(no_model(name, &active));
        }
        if !model.speaks(format) {
            return Err(other_language(model, route));
        }
        let beyond = lock(&live.beyond).get(&model.name).copied().unwrap_or_default();
        if self.0.secrecy.masks().are_in(body) {
            let words = "the request holds a secret of this installation, which no model is told";
            return Err(refused(400, "invalid_request_error", words).remedy("leave it out"));
        }
        Ok(Wanted {
            input: request.bound().saturating_add(beyond),
            model: Arc::clone(model),
            active,
            route,
            format,
            request,
            betas,
        })
    }

    /// A call that went nowhere is written down the first time in a while: nobody fills the books with them.
    async fn refuse_program(&self, live: &Live, told: &mut Told, failure: &ServiceFailure) {
        told.fail(failure);
        let target = Target::new(&told.model, failure.status, "model");
        told.is_news = self.0.attempts.is_news(live.session, &target);
        if !self.0.attempts.is_prompt(live.session) {
            sleep(attempts::WAITS).await;
        }
    }
}

/// An answer that is one piece of JSON.
fn json(value: &serde_json::Value) -> ServiceAnswer {
    whole(value.to_string().into())
}

fn whole(bytes: bytes::Bytes) -> ServiceAnswer {
    ServiceAnswer {
        media_type: "application/json".to_owned(),
        length: Some(bytes.len() as u64),
        body: stream::iter([Ok(bytes)]).boxed(),
    }
}

/// A model that is denied does not exist.
fn no_model(name: &str, active: &Active) -> ServiceFailure {
    let shown: String = name.chars().take(80).collect();
    let there = &active.offer.grants.models;
    let words = if there.is_empty() {
        format!("there is no model {shown:?} here: programs of this session may ask none")
    } else {
        format!(
            "there is no model {shown:?} here; there are: {}, and {RUNS_OWN} for the run's own",
            there.join(", ")
        )
    };
    refused(404, "not_found_error", words)
}

fn other_language(model: &Model, route: ModelRoute) -> ServiceFailure {
    let speaks = match model.format {
        Format::AnthropicMessages => ModelRoute::Messages,
        Format::OpenaiResponses => ModelRoute::Responses,
        Format::OpenaiChat => ModelRoute::ChatCompletions,
    };
    let words = format!(
        "model {} is asked by POST /v1/{}, not by /v1/{}",
        model.name,
        speaks.path(),
        route.path()
    );
    refused(400, "invalid_request_error", words).remedy("have the program speak that, or ask another model")
}
