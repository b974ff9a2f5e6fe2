//! The models there are, and calls of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use domain::Message;
use http::HeaderMap;
use secret::Credential;
use tokio::time::Instant;

use crate::model::{Authorized, HttpTarget, Target};
use crate::refusal::Refusal;
use crate::stream::within;
use crate::transport::{self, Answer, ClientError};
use crate::{Model, ModelError, ModelProblem, ModelStream, RetryLimits, Timeouts};

mod relay;

pub use relay::{Relay, RelayCall, RelayEvent};

/// The most bytes of a provider's error that are read, and how long it may take to send them.
const ERROR_BYTES: usize = 64 << 10;
const ERROR_TIME: Duration = Duration::from_secs(5);

/// The models there are. Clones are cheap and share connections.
#[derive(Clone, Debug)]
pub struct Providers {
    models: Arc<HashMap<String, Arc<Model>>>,
    client: reqwest::Client,
    timeouts: Timeouts,
    retries: RetryLimits,
}

/// A call that is about to be made again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Retry {
    /// Why the attempt failed, in words for a person.
    pub reason: String,
    /// How long until the next.
    pub delay: Duration,
    /// The attempt may have to be paid for all the same: see [`ModelError::may_have_cost`].
    pub may_have_cost: bool,
}

/// Why models cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProvidersError {
    /// A model names another that is not there, or has the name of another.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Settings(Vec<ModelProblem>),
    /// There is no HTTP client.
    #[error("prepare the client of the models")]
    Client(#[from] ClientError),
}

impl Providers {
    /// Prepares the client of these models. Fallbacks must be among them.
    pub fn new(models: Vec<Model>, timeouts: Timeouts, retries: RetryLimits) -> Result<Self, ProvidersError> {
        let mut known = HashMap::new();
        let mut problems = Vec::new();
        let mut secure = false;
        for model in models {
            secure |= matches!(&model.target, Target::Http(http) if http.url.scheme() == "https");
            if let Some(twin) = known.insert(model.name.clone(), Arc::new(model)) {
                problems.push(problem(&twin, "name", "two models have this name".to_owned()));
            }
        }
        for model in known.values() {
            for fallback in model.fallback.iter().filter(|name| !known.contains_key(*name)) {
                problems.push(problem(model, "fallback", format!("there is no model {fallback:?}")));
            }
        }
        if !problems.is_empty() {
            problems.sort_by(|one, other| one.model.cmp(&other.model));
            return Err(ProvidersError::Settings(problems));
        }
        Ok(Self {
            models: Arc::new(known),
            client: transport::client(timeouts, secure)?,
            timeouts,
            retries,
        })
    }

    /// The model of that name, and of no name that resembles it.
    pub fn model(&self, name: &str) -> Result<&Arc<Model>, ModelError> {
        self.models.get(name).ok_or_else(|| ModelError::Unknown {
            model: name.chars().take(80).collect(),
            known: self.names().join(", "),
        })
    }

    /// Every model's name, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.models.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// The keys of all models.
    #[must_use]
    pub fn credentials(&self) -> Vec<Credential> {
        let models = self.models.values();
        models.filter_map(|model| model.target.key().cloned()).collect()
    }

    /// The model of that name and those that are asked when it fails, in order, each once. The caller asks one after the
    /// other while [`ModelError::next_model_may_help`], with a body made for each: they may speak another language and
    /// cost more. Fallbacks of fallbacks are not asked.
    pub fn chain(&self, name: &str) -> Result<Vec<Arc<Model>>, ModelError> {
        let first = self.model(name)?;
        let mut chain = vec![Arc::clone(first)];
        for name in &first.fallback {
            let next = self.model(name)?;
            if chain.iter().all(|model| model.name != next.name) {
                chain.push(Arc::clone(next));
            }
        }
        Ok(chain)
    }

    /// What a request to `model` carries for this message. Thoughts of a model go back to models of its own family and
    /// format only.
    #[must_use]
    pub fn encode(&self, model: &Model, message: &Message) -> Bytes {
        model.encode(message, |name| self.models.get(name).map(|model| &**model))
    }

    /// Asks a model, with a body that `llm::request_body` made for its format. Resolves when it has begun to speak; until
    /// then the call is made again where that may help, and `on_retry` hears of it.
    pub async fn stream(
        &self,
        model: &Arc<Model>,
        body: Bytes,
        mut on_retry: impl FnMut(Retry) + Send,
    ) -> Result<ModelStream, ModelError> {
        let deadline = Instant::now() + self.timeouts.total;
        let mut failures = 0;
        loop {
            let failure = match self.attempt(model, body.clone(), deadline).await {
                Ok(stream) => return Ok(stream),
                Err(failure) => failure,
            };
            failures += 1;
            let delay = self.retries.delay(failures, failure.retry_after(), rand::random());
            match delay.filter(|delay| failure.may_pass() && Instant::now() + *delay < deadline) {
                Some(delay) => {
                    on_retry(Retry {
                        reason: failure.to_string(),
                        delay,
                        may_have_cost: failure.may_have_cost(),
                    });
                    tokio::time::sleep(delay).await;
                }
                None => return Err(failure),
            }
        }
    }

    async fn attempt(&self, model: &Arc<Model>, body: Bytes, deadline: Instant) -> Result<ModelStream, ModelError> {
        let (answer, secrets) = match &model.target {
            Target::Http(http) => {
                let Authorized { headers, secrets } = http.authorized(&model.name)?;
                let asked = self.ask(model, http, headers, body, self.timeouts.first_byte, deadline);
                (asked.await?, secrets)
            }
            Target::Script(script) => {
                let answer = script.play(&body, model.format, true);
                (
                    answer.map_err(|message| ModelError::Script {
                        model: model.name.clone(),
                        message,
                    })?,
                    Vec::new(),
                )
            }
        };
        if !transport::is_success(answer.status) {
            let said = tokio::time::timeout(ERROR_TIME, transport::beginning(answer.body, ERROR_BYTES)).await;
            let refusal = Refusal {
                model: &model.name,
                status: answer.status,
                retry_after: answer.retry_after,
                secrets: &secrets,
            };
            return Err(refusal.for_body(&said.unwrap_or_default()));
        }
        ModelStream::new(Arc::clone(model), answer.body, secrets, self.timeouts, deadline)
            .begun()
            .await
    }

    async fn ask(
        &self,
        model: &Model,
        http: &HttpTarget,
        headers: HeaderMap,
        body: Bytes,
        first_byte: Duration,
        deadline: Instant,
    ) -> Result<Answer, ModelError> {
        let sent = transport::send(&self.client, http, headers, body);
        let answer = within(first_byte, deadline, &model.name, "answer", sent).await?;
        answer.map_err(|source| ModelError::Unreachable {
            model: model.name.clone(),
            address: http.url.origin().ascii_serialization(),
            source,
        })
    }
}

fn problem(model: &Model, key: &'static str, problem: String) -> ModelProblem {
    ModelProblem {
        model: model.name.clone(),
        key,
        problem,
    }
}
