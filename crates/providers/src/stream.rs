//! Calls of models.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use domain::Message;
use llm::{Reply, StreamEvent};

use crate::{Model, ModelError, ModelProblem, RetryLimits};

/// How long a provider may be silent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeouts {
    /// Until there is a connection.
    pub connect: Duration,
    /// From the request to the answer's first byte.
    pub first_byte: Duration,
    /// Between two pieces of the stream.
    pub idle: Duration,
    /// From the request to the reply's end.
    pub total: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            first_byte: Duration::from_secs(120),
            idle: Duration::from_secs(120),
            total: Duration::from_secs(1_800),
        }
    }
}

/// The models there are. Clones are cheap and share connections.
#[derive(Clone, Debug)]
pub struct Providers {
    models: Arc<[Arc<Model>]>,
}

/// A call that is about to be made again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Retry {
    /// Why the attempt failed, in words for a person.
    pub reason: String,
    /// How long until the next.
    pub delay: Duration,
}

impl Providers {
    /// Prepares the clients of these models. Fallbacks must be among them.
    pub fn new(models: Vec<Model>, timeouts: Timeouts, retries: RetryLimits) -> Result<Self, Vec<ModelProblem>> {
        let _ = (timeouts, retries);
        Ok(Self {
            models: models.into_iter().map(Arc::new).collect(),
        })
    }

    /// The model of that name.
    pub fn model(&self, name: &str) -> Result<&Arc<Model>, ModelError> {
        self.models
            .iter()
            .find(|model| model.name == name)
            .ok_or_else(|| ModelError::Unknown {
                model: name.to_owned(),
                known: self
                    .models
                    .iter()
                    .map(|model| model.name.as_str())
                    .collect::<Vec<_>>()
                    .join(", "),
            })
    }

    /// The model of that name and those that are asked when it fails, in order. The caller asks one after the other while
    /// [`ModelError::next_model_may_help`], with a body made for each: they may speak another language and cost more.
    pub fn chain(&self, name: &str) -> Result<Vec<Arc<Model>>, ModelError> {
        self.model(name).map(|model| vec![Arc::clone(model)])
    }

    /// What a request to `model` carries for this message ([`Model::encode`]).
    #[must_use]
    pub fn encode(&self, model: &Model, message: &Message) -> Bytes {
        let _ = (model, message);
        Bytes::new()
    }

    /// Asks a model. Resolves when it has begun to speak; until then the call is made again where that may help, and
    /// `on_retry` hears of it.
    pub async fn stream(
        &self,
        model: &Arc<Model>,
        body: Bytes,
        on_retry: impl FnMut(Retry) + Send,
    ) -> Result<ModelStream, ModelError> {
        let _ = (body, on_retry);
        Err(ModelError::Unknown {
            model: model.name.clone(),
            known: String::new(),
        })
    }
}

/// What a model says. Dropping it hangs up.
#[derive(Debug)]
pub struct ModelStream {}

impl ModelStream {
    /// The next thing it says; `StreamEvent::Done` is the last, and `None` follows it. Safe to drop and call again.
    pub async fn next(&mut self) -> Result<Option<StreamEvent>, ModelError> {
        Ok(None)
    }

    /// What it has said so far, for a call that was cut or broke: whole blocks, open texts as far as they came, and tokens
    /// as far as anybody counted them.
    #[must_use]
    pub fn partial(&self) -> Reply {
        llm::Decoder::new(llm::Format::OpenaiChat).partial()
    }
}
