//! Calls that may change something: written down before their request leaves, settled after it, made once for each key.

use bytes::Bytes;
use causes::with_causes;
use domain::{MessageId, RunId};
use futures::StreamExt;
use futures::stream::once;
use link::server::ServiceAnswer;
use protocol::ServiceFailure;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use services::{Answer, Call, Changes, Failure};
use store::{Asker, NewWrite, NotMade, StoreError, WriteEnd, WriteKey, WriteResult};

use super::{Callable, Span, counted, failed, media_type};
use crate::Control;
use crate::approvals::canonical;

/// The longest key, in bytes.
const LONGEST_KEY: usize = 200;
/// What the audit log has of a write before it leaves.
pub(super) const BEGUN: &str = "service.begun";

/// What a write has failed with of which nothing else is known.
const BROKEN_OFF: &str = "broken_off";

/// A write that was begun, and is not settled.
pub(super) struct Begun {
    key: WriteKey,
    /// What came of it, as far as is known.
    end: WriteEnd,
}

impl Begun {
    /// What is to be said of a write of which nobody says anything any more.
    pub(super) fn unsaid(&self) -> Option<ServiceFailure> {
        let words = "nobody knows what came of it";
        matches!(self.end, WriteEnd::Unknown { .. }).then(|| ServiceFailure::new(502, BROKEN_OFF, words))
    }
}

/// Why a call was not made, or has no answer.
enum Unanswered {
    /// It failed.
    Failed(Failure),
    /// It is not to be made.
    NotMade(NotMade),
    /// It could not be written down, and so did not leave.
    Unwritten(StoreError),
}

impl From<Failure> for Unanswered {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// What an upstream's key is made of: a call's own in its run.
pub(super) fn sent_key(run: Option<RunId>, key: &str) -> String {
    let run = run.map(|run| run.to_string()).unwrap_or_default();
    format!("{run}:{key}")
}

impl Callable {
    /// The write that a call is; none where it only reads, or is of no method that there is.
    pub(super) fn write_of(
        &self,
        span: &Span,
        (service, method, arguments): (&str, &str, &Value),
        key: Option<&str>,
    ) -> Result<Option<NewWrite>, ServiceFailure> {
        let harmless = match self.services.changes(service, method) {
            Some(Changes::Each) => false,
            Some(Changes::Once) => true,
            Some(Changes::Nothing) | None => return Ok(None),
        };
        if key.is_some_and(|key| key.len() > LONGEST_KEY) {
            let words = format!("{service}.{method}: its idempotency_key has more than {LONGEST_KEY} bytes");
            return Err(ServiceFailure::new(422, "invalid_arguments", words).remedy("send a shorter one"));
        }
        let request = json!({ "service": service, "method": method, "arguments": arguments });
        Ok(Some(NewWrite {
            key: WriteKey {
                session: span.live.session,
                run: span.run,
                // One that nobody repeats.
                key: key.map_or_else(|| format!("own-{}", MessageId::new()), str::to_owned),
            },
            call: span.call.clone(),
            service: service.to_owned(),
            method: method.to_owned(),
            request: canonical(&request),
            harmless,
        }))
    }
}

impl Control {
    /// What an equal call with the same key came to before, where that is to be told instead of making it.
    pub(super) async fn earlier(&self, write: &NewWrite) -> Result<Option<NotMade>, ServiceFailure> {
        let earlier = self.0.store.earlier_write(Asker::System, write).await;
        earlier.map_err(|error| unwritten(&error))
    }

    /// Makes a call that may change something. It goes on when nobody waits for it any more, so that it is known what came of it.
    pub(super) async fn make_write(
        &self,
        callable: Callable,
        span: Span,
        write: NewWrite,
        arguments: Box<RawValue>,
    ) -> Result<ServiceAnswer, ServiceFailure> {
        let control = self.clone();
        let made = self
            .0
            .tasks
            .spawn(async move { control.write_now(&callable, span, write, &arguments).await });
        made.await.unwrap_or_else(|_| {
            let words = "what makes calls of services broke down; this one may have taken effect";
            Err(ServiceFailure::new(500, "state_unknown", words).remedy("look at the state of things first"))
        })
    }

    async fn write_now(
        &self,
        callable: &Callable,
        mut span: Span,
        write: NewWrite,
        arguments: &RawValue,
    ) -> Result<ServiceAnswer, ServiceFailure> {
        let (service, method) = (write.service.clone(), write.method.clone());
        let key = sent_key(write.key.run, &write.key.key);
        let call = Call {
            session: span.live.session,
            user: span.live.owner,
            service: &service,
            method: &method,
            arguments,
            idempotency_key: Some(&key),
        };
        let begun = self.begin_write(&mut span, write);
        let unanswered = match callable.services.call_after(call, begun).await {
            Ok(answer) => match self.received(answer, &mut span).await {
                Ok(Received::Whole(answer)) => return Ok(answer),
                Ok(Received::Flowing(answer)) => return Ok(counted(answer, span)),
                Err(failure) => Unanswered::Failed(failure),
            },
            Err(unanswered) => unanswered,
        };
        match unanswered {
            Unanswered::NotMade(why) => self.not_made(span, why).await,
            Unanswered::Unwritten(error) => {
                let failure = unwritten(&error);
                span.fail(&failure);
                Err(failure)
            }
            Unanswered::Failed(failure) if span.write.is_none() => self.failed(span, &failure).await,
            Unanswered::Failed(failure) => {
                let code = failure.code.as_str().to_owned();
                let end = if callable.services.did_nothing(&service, failure.code) {
                    WriteEnd::Failed { code }
                } else {
                    WriteEnd::Unknown { code }
                };
                let failure = failed(&failure);
                span.fail(&failure);
                span.ended(end);
                span.settle().await;
                Err(failure)
            }
        }
    }

    /// Writes a call down, and says whether it may leave.
    async fn begin_write(&self, span: &mut Span, write: NewWrite) -> Result<(), Unanswered> {
        let key = write.key.clone();
        let entry = span.entry(BEGUN, Some(&key.key));
        match self.0.store.begin_write(Asker::System, write, entry).await {
            Ok(None) => {
                let code = BROKEN_OFF.to_owned();
                let end = WriteEnd::Unknown { code };
                span.write = Some(Begun { key, end });
                Ok(())
            }
            Ok(Some(why)) => Err(Unanswered::NotMade(why)),
            Err(error) => Err(Unanswered::Unwritten(error)),
        }
    }

    /// The answer of a write. One that is whole is settled before anybody has it, so that a repeat gets the same.
    async fn received(&self, answer: Answer, span: &mut Span) -> Result<Received, Failure> {
        let media_type = media_type(&answer);
        if answer.length().is_none() {
            span.ended(WriteEnd::Done(WriteResult::new(media_type, None)));
            return Ok(Received::Flowing(answer));
        }
        let bytes = answer.whole().await?;
        span.bytes = bytes.len() as u64;
        span.ended(WriteEnd::Done(WriteResult::new(media_type.clone(), Some(&bytes))));
        span.settle().await;
        Ok(Received::Whole(whole(media_type, bytes)))
    }

    /// What a write is answered that is not made.
    pub(super) async fn not_made(&self, mut span: Span, why: NotMade) -> Result<ServiceAnswer, ServiceFailure> {
        let what = format!("{}.{}", span.service, span.method);
        let (status, code, words, remedy) = match why {
            NotMade::Done(WriteResult {
                media_type,
                bytes: Some(bytes),
            }) => {
                span.code = Some("repeated".to_owned());
                span.bytes = bytes.len() as u64;
                self.in_vain(&mut span).await;
                return Ok(whole(media_type, bytes.into()));
            }
            NotMade::Done(WriteResult { bytes: None, .. }) => (
                409,
                "result_not_kept",
                format!("{what} was done under this key before; its result was too long to be kept"),
                "it is not done again: ask the service for what you need of it",
            ),
            NotMade::UnderWay => (
                409,
                "under_way",
                format!("{what} is under way under this key"),
                "make the same call again in a while: it gets the same result",
            ),
            NotMade::Other => (
                422,
                "key_reused",
                format!(
                    "{what}: its idempotency_key was that of another call, of another method or with other arguments"
                ),
                "give each call a key of its own",
            ),
            NotMade::Unknown { code } => {
                let why = match code {
                    None => "the process that made it ended before the answer came".to_owned(),
                    Some(code) => format!("it failed with {code}"),
                };
                (
                    409,
                    "state_unknown",
                    format!("{what} was begun under this key before, and nobody knows whether it took effect: {why}"),
                    "look at the state of things first; if nothing was done, make the call again under another key",
                )
            }
            NotMade::CallOver => (
                409,
                "call_over",
                format!("{what} was not made: the tool call that it names is over"),
                "make it in a new call, and await it there",
            ),
        };
        let failure = ServiceFailure::new(status, code, words).remedy(remedy);
        span.fail(&failure);
        self.in_vain(&mut span).await;
        Err(failure)
    }
}

/// What a write came to that has an answer.
enum Received {
    Whole(ServiceAnswer),
    Flowing(Answer),
}

/// An answer that is there already.
fn whole(media_type: String, bytes: Bytes) -> ServiceAnswer {
    ServiceAnswer {
        media_type,
        length: Some(bytes.len() as u64),
        body: once(async { Ok(bytes) }).boxed(),
    }
}

fn unwritten(error: &StoreError) -> ServiceFailure {
    tracing::error!(error = with_causes(error), "could not write a call of a service down");
    let words = "the call cannot be written down at present, and was not made";
    ServiceFailure::new(503, "unavailable", words)
}

impl Span {
    /// Says what came of the write that this is.
    pub(super) fn ended(&mut self, end: WriteEnd) {
        if let Some(write) = &mut self.write {
            write.end = end;
        }
    }

    /// Writes down what came of a write.
    async fn settle(&mut self) {
        let Some(write) = self.write.take() else { return };
        self.forgotten = true;
        self.trace();
        let settled = self.settled(write);
        settled.await;
    }

    /// The same, for whoever has no time.
    pub(super) fn settled(&self, write: Begun) -> impl Future<Output = ()> + Send + 'static {
        let (control, live) = (self.control.clone(), std::sync::Arc::clone(&self.live));
        let entry = self.entry("service.called", Some(&write.key.key));
        let event = self.event();
        async move {
            let mut writing = live.writing.lock().await;
            let Begun { key, end } = write;
            match control
                .0
                .store
                .settle_write(Asker::System, key, end, entry, event)
                .await
            {
                Ok(events) => live.note(&mut writing, events),
                Err(error) => {
                    tracing::error!(session = %live.session, error = with_causes(&error), "could not settle a call of a service");
                }
            }
        }
    }
}
