//! Calls whose request another program wrote: what is said is handed on event by event, and read beside, for whoever pays.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderValue;
use llm::{DecodeError, Decoder, Format, Reply, SseEvent, SseParser, StreamEvent};
use secret::Secret;
use tokio::time::{Instant, timeout};

use super::{ERROR_BYTES, ERROR_TIME, Providers};
use crate::model::{Authorized, Target};
use crate::refusal::Refusal;
use crate::stream::{LAST_BYTES, within};
use crate::transport::{self, Answer, Body};
use crate::{Model, ModelError, Timeouts};

/// The longest answer that is no stream.
const WHOLE_BYTES: usize = 32 << 20;

/// What a program may ask of an Anthropic model beyond the standard, without the date that follows: what costs no more and
/// reaches out to nobody.
const BETAS: [&str; 9] = [
    "claude-code-",
    "computer-use-",
    "context-management-",
    "effort-",
    "extended-cache-ttl-",
    "fine-grained-tool-streaming-",
    "interleaved-thinking-",
    "prompt-caching-",
    "structured-outputs-",
];

/// A request that another program wrote; its body is `llm::Foreign::body`.
#[derive(Clone, Debug)]
pub struct RelayCall {
    /// Its language: one that the model [speaks](Model::speaks).
    pub format: Format,
    /// Its body.
    pub body: Bytes,
    /// The answer is wanted as it is written; the body says so too.
    pub streams: bool,
    /// What it asks for beyond the standard. What is not known to be harmless is left out.
    pub betas: Vec<String>,
}

/// An event of an answer.
#[derive(Clone, PartialEq, Debug)]
pub struct RelayEvent {
    /// Its name; empty where the language has none.
    pub name: String,
    /// Its data, without a key of ours. Empty: there is nothing to hand on.
    pub data: String,
    /// What it says.
    pub said: Vec<StreamEvent>,
}

/// An answer as it is written. Dropping it hangs up.
#[derive(Debug)]
pub struct Relay {
    model: Arc<Model>,
    body: Body,
    parser: SseParser,
    decoder: Decoder,
    timeouts: Timeouts,
    deadline: Instant,
    secrets: Vec<Secret>,
    heard: VecDeque<RelayEvent>,
    failure: Option<ModelError>,
    ended: bool,
}

impl Model {
    /// Whether programs may ask it in this language.
    #[must_use]
    pub fn speaks(&self, format: Format) -> bool {
        self.format == format || matches!(self.target, Target::Script(_))
    }
}

impl Providers {
    /// Asks a model once, for a stream. Resolves with its first event: a failure before it is an error of the call.
    pub async fn relay(&self, model: &Arc<Model>, call: RelayCall) -> Result<Relay, ModelError> {
        let deadline = Instant::now() + self.timeouts.total;
        let format = call.format;
        let (answer, secrets) = self.opened(model, call, self.timeouts.first_byte, deadline).await?;
        let mut relay = Relay {
            model: Arc::clone(model),
            body: answer.body,
            parser: SseParser::default(),
            decoder: Decoder::new(format),
            timeouts: self.timeouts,
            deadline,
            secrets,
            heard: VecDeque::new(),
            failure: None,
            ended: false,
        };
        relay.listen().await;
        match relay.failure.take_if(|_| relay.heard.is_empty()) {
            Some(failure) => Err(failure),
            None => Ok(relay),
        }
    }

    /// Asks a model once, for the whole answer: its bytes, without a key of ours, and what was said of tokens.
    pub async fn relay_whole(&self, model: &Arc<Model>, call: RelayCall) -> Result<(Bytes, Reply), ModelError> {
        let deadline = Instant::now() + self.timeouts.total;
        let format = call.format;
        let (mut answer, secrets) = self.opened(model, call, self.timeouts.total, deadline).await?;
        let mut whole = Vec::new();
        loop {
            let awaited = "further words";
            let piece = within(self.timeouts.idle, deadline, &model.name, awaited, answer.body.piece()).await?;
            let piece = piece.map_err(|source| ModelError::Broken {
                model: model.name.clone(),
                source,
            })?;
            let Some(piece) = piece else { break };
            whole.extend_from_slice(&piece);
            if whole.len() > WHOLE_BYTES {
                return Err(ModelError::Stream {
                    model: model.name.clone(),
                    source: DecodeError::TooLong { limit: WHOLE_BYTES },
                });
            }
        }
        let reply = llm::whole_reply(format, &whole);
        Ok((cleaned(&String::from_utf8_lossy(&whole), &secrets).into(), reply))
    }

    /// An answer that is no refusal, and what must not stand in it.
    async fn opened(
        &self,
        model: &Arc<Model>,
        call: RelayCall,
        first_byte: std::time::Duration,
        deadline: Instant,
    ) -> Result<(Answer, Vec<Secret>), ModelError> {
        let (answer, secrets) = match &model.target {
            Target::Http(http) => {
                let Authorized { mut headers, secrets } = http.authorized(&model.name)?;
                let told = |secret: &Secret| holds(&call.body, secret);
                if secrets.iter().any(told) {
                    return Err(ModelError::Refused {
                        model: model.name.clone(),
                        status: 400,
                        message: "the request holds a secret of this installation".to_owned(),
                    });
                }
                let betas = call.betas.iter().filter(|beta| is_harmless(beta));
                let betas: Vec<&str> = betas.map(String::as_str).collect();
                if call.format == Format::AnthropicMessages
                    && !betas.is_empty()
                    && let Ok(betas) = HeaderValue::from_str(&betas.join(","))
                {
                    headers.append("anthropic-beta", betas);
                }
                let asked = self.ask(model, http, headers, call.body, first_byte, deadline);
                (asked.await?, secrets)
            }
            Target::Script(script) => {
                let answer = script.play(&call.body, call.format, call.streams);
                let failed = |message| ModelError::Script {
                    model: model.name.clone(),
                    message,
                };
                (answer.map_err(failed)?, Vec::new())
            }
        };
        if transport::is_success(answer.status) {
            return Ok((answer, secrets));
        }
        let said = timeout(ERROR_TIME, transport::beginning(answer.body, ERROR_BYTES)).await;
        let refusal = Refusal {
            model: &model.name,
            status: answer.status,
            retry_after: answer.retry_after,
            secrets: &secrets,
        };
        Err(refusal.for_body(&said.unwrap_or_default()))
    }
}

impl Relay {
    /// The next event; none at the end. After an error comes none too. Safe to drop and call again.
    pub async fn next(&mut self) -> Result<Option<RelayEvent>, ModelError> {
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

    /// What was said so far, for an answer that was cut: tokens as far as anybody counted them.
    #[must_use]
    pub fn partial(&self) -> Reply {
        self.decoder.partial()
    }

    async fn listen(&mut self) {
        while self.heard.is_empty() && self.failure.is_none() && !self.ended {
            let piece = self.body.piece();
            match within(
                self.timeouts.idle,
                self.deadline,
                &self.model.name,
                "further words",
                piece,
            )
            .await
            {
                Ok(Ok(Some(piece))) => self.take(&piece),
                Ok(Ok(None)) => self.end(),
                Ok(Err(source)) => {
                    let model = self.model.name.clone();
                    self.failure = Some(ModelError::Broken { model, source });
                }
                Err(silent) => self.failure = Some(silent),
            }
            let done = |event: &RelayEvent| matches!(event.said.last(), Some(StreamEvent::Done(_)));
            if self.heard.back().is_some_and(done) && !self.ended {
                self.ended = true;
                // Its connection goes back to the others only when it was read to its end.
                let _ = timeout(LAST_BYTES, async { while let Ok(Some(_)) = self.body.piece().await {} }).await;
            }
        }
    }

    fn take(&mut self, piece: &[u8]) {
        let Self {
            parser,
            decoder,
            heard,
            secrets,
            ..
        } = self;
        let read = parser.feed(piece, |event: SseEvent<'_>| {
            let mut said = Vec::new();
            decoder.take(event, &mut said)?;
            heard.push_back(RelayEvent {
                name: event.name.to_owned(),
                data: cleaned(event.data, secrets),
                said,
            });
            Ok(())
        });
        self.failed(read);
    }

    fn end(&mut self) {
        self.ended = true;
        let mut said = Vec::new();
        let read = self.decoder.end(&mut said);
        if !said.is_empty() {
            self.heard.push_back(RelayEvent {
                name: String::new(),
                data: String::new(),
                said,
            });
        }
        self.failed(read);
    }

    fn failed(&mut self, read: Result<(), DecodeError>) {
        if let Err(error) = read {
            let refusal = Refusal {
                model: &self.model.name,
                status: 200,
                retry_after: None,
                secrets: &self.secrets,
            };
            self.failure = Some(refusal.for_stream(error));
            self.ended = true;
        }
    }
}

fn is_harmless(beta: &str) -> bool {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    beta.len() <= 64 && beta.chars().all(plain) && BETAS.iter().any(|begins| beta.starts_with(begins))
}

fn holds(body: &[u8], secret: &Secret) -> bool {
    let secret = secret.expose().as_bytes();
    secret.len() >= 8 && body.windows(secret.len()).any(|window| window == secret)
}

/// A text without our keys.
fn cleaned(text: &str, secrets: &[Secret]) -> String {
    let mut clean = text.to_owned();
    for secret in secrets.iter().map(Secret::expose).filter(|secret| secret.len() >= 8) {
        if clean.contains(secret) {
            clean = clean.replace(secret, "[secret]");
        }
    }
    clean
}
