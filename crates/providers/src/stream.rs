//! What a model says, as it says it.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use llm::{Decoder, Reply, StreamEvent};
use secret::Secret;
use tokio::time::{Instant, timeout, timeout_at};

use crate::refusal::Refusal;
use crate::transport::Body;
use crate::{Model, ModelError};

/// How long the end of a stream is waited for, once the model has finished, so that its connection can be used again.
pub(crate) const LAST_BYTES: Duration = Duration::from_millis(50);

/// How long a provider may be silent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeouts {
    /// Until there is a connection.
    pub connect: Duration,
    /// From the request to the answer's head.
    pub first_byte: Duration,
    /// Between two pieces of the stream.
    pub idle: Duration,
    /// From the first request to the reply's end, waiting included.
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

/// What a model says. Dropping it hangs up.
#[derive(Debug)]
pub struct ModelStream {
    pub(crate) model: Arc<Model>,
    pub(crate) body: Body,
    pub(crate) decoder: Decoder,
    pub(crate) timeouts: Timeouts,
    pub(crate) deadline: Instant,
    /// What its request carried, to be found in no error.
    secrets: Vec<Secret>,
    heard: VecDeque<StreamEvent>,
    /// What ended the stream; told once all that was heard before it has been.
    failure: Option<ModelError>,
    ended: bool,
}

impl ModelStream {
    pub(crate) fn new(
        model: Arc<Model>,
        body: Body,
        secrets: Vec<Secret>,
        timeouts: Timeouts,
        deadline: Instant,
    ) -> Self {
        Self {
            decoder: Decoder::new(model.format),
            model,
            body,
            timeouts,
            deadline,
            secrets,
            heard: VecDeque::new(),
            failure: None,
            ended: false,
        }
    }

    /// The model that speaks.
    #[must_use]
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The next thing it says; `StreamEvent::Done` is the last, and `None` follows it. After an error comes `None` too.
    /// Safe to drop and call again.
    pub async fn next(&mut self) -> Result<Option<StreamEvent>, ModelError> {
        self.listen().await;
        match (self.heard.pop_front(), self.failure.take()) {
            (Some(event), failure) => {
                self.failure = failure;
                Ok(Some(event))
            }
            (None, Some(failure)) => Err(failure),
            (None, None) => Ok(None),
        }
    }

    /// What it has said so far, for a call that was cut or broke: whole blocks, open texts as far as they came, and tokens
    /// as far as anybody counted them.
    #[must_use]
    pub fn partial(&self) -> Reply {
        self.decoder.partial()
    }

    /// Reads until there is something to tell: an event, a failure or the end.
    async fn listen(&mut self) {
        while self.heard.is_empty() && !self.ended {
            let awaited = "further words";
            match within(
                self.timeouts.idle,
                self.deadline,
                &self.model.name,
                awaited,
                self.body.piece(),
            )
            .await
            {
                Ok(Ok(Some(piece))) => self.take(|decoder, events| decoder.feed(&piece, events)),
                Ok(Ok(None)) => {
                    self.take(Decoder::end);
                    self.ended = true;
                }
                Ok(Err(source)) => self.fail(ModelError::Broken {
                    model: self.model.name.clone(),
                    source,
                }),
                Err(silent) => self.fail(silent),
            }
            if matches!(self.heard.back(), Some(StreamEvent::Done(_))) && !self.ended {
                self.ended = true;
                // Its connection goes back to the others only when it was read to its end.
                let _ = timeout(LAST_BYTES, async { while let Ok(Some(_)) = self.body.piece().await {} }).await;
            }
        }
    }

    /// Waits until the model has begun to speak: a failure before that is an error of the call, not of the stream.
    pub(crate) async fn begun(mut self) -> Result<Self, ModelError> {
        self.listen().await;
        match self.failure.take_if(|_| self.heard.is_empty()) {
            Some(failure) => Err(failure),
            None => Ok(self),
        }
    }

    fn take(&mut self, read: impl FnOnce(&mut Decoder, &mut Vec<StreamEvent>) -> Result<(), llm::DecodeError>) {
        let mut events = Vec::new();
        let read = read(&mut self.decoder, &mut events);
        self.heard.extend(events);
        if let Err(error) = read {
            let refusal = Refusal {
                model: &self.model.name,
                status: 200,
                retry_after: None,
                secrets: &self.secrets,
            };
            self.fail(refusal.for_stream(error));
        }
    }

    fn fail(&mut self, failure: ModelError) {
        self.failure = Some(failure);
        self.ended = true;
    }
}

/// Waits at most this long, and not beyond the deadline.
pub(crate) async fn within<F: Future>(
    limit: Duration,
    deadline: Instant,
    model: &str,
    awaited: &'static str,
    work: F,
) -> Result<F::Output, ModelError> {
    let end = Instant::now() + limit;
    let (end, limit, awaited) = if end > deadline {
        (deadline, deadline - Instant::now(), "end of the reply")
    } else {
        (end, limit, awaited)
    };
    timeout_at(end, work).await.map_err(|_| ModelError::Silent {
        model: model.to_owned(),
        awaited,
        limit,
    })
}
