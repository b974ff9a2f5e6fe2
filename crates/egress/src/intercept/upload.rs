//! A request's body on its way to the upstream: counted, limited, searched, and filled in where a rule says so.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use protocol::PLACEHOLDER;
use tokio::sync::OwnedSemaphorePermit;

use super::method_key::MethodKey;
use crate::inject::Substitute;
use crate::inject::chunked::Resign;
use crate::inject::placeholder::Scan;
use crate::{Code, Denied};

/// How far a body has come, seen from beside it.
#[derive(Debug, Default)]
pub(super) struct Meter {
    sent: AtomicU64,
    denied: OnceLock<Denied>,
}

impl Meter {
    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Why the body was cut short, if it was.
    pub(super) fn denied(&self) -> Option<Denied> {
        self.denied.get().cloned()
    }
}

/// A body was not sent to its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum UploadError {
    /// The client stopped.
    #[error("the client's body broke off")]
    Client(#[source] hyper::Error),
    /// It was refused; the meter says why.
    #[error("the client's body was refused")]
    Refused,
}

/// What is looked for in a body, and how it is refused when it comes.
pub(super) struct Watch {
    wanted: Wanted,
    denied: fn(&str) -> Denied,
}

enum Wanted {
    Word(Scan),
    MethodKey(MethodKey),
}

impl Watch {
    /// For the placeholder, in a body that no rule fills in.
    pub(super) fn placeholder() -> Self {
        Self {
            wanted: Wanted::Word(Scan::new(PLACEHOLDER.as_bytes())),
            denied: unbound_in_body,
        }
    }

    /// For a form's field that asks for another method.
    pub(super) fn method() -> Self {
        Self {
            wanted: Wanted::Word(Scan::new(b"_method")),
            denied: other_method,
        }
    }

    /// The same in JSON.
    pub(super) fn method_key() -> Self {
        Self {
            wanted: Wanted::MethodKey(MethodKey::default()),
            denied: other_method,
        }
    }

    fn finds(&mut self, piece: &Bytes) -> bool {
        match &mut self.wanted {
            Wanted::Word(scan) => scan.found(piece),
            Wanted::MethodKey(key) => key.found(piece),
        }
    }
}

fn unbound_in_body(rule: &str) -> Denied {
    super::exchange::unbound("body", rule)
}

/// A form, or JSON, asks for another method than its request has.
pub(super) fn other_method(rule: &str) -> Denied {
    Denied::new(
        Code::NotInRule,
        "the body asks for another method than the request has",
        format!("leave _method out, or ask for the rule {rule} to allow every method"),
    )
    .by(rule)
}

/// A rule would change chunks that say how long they are.
pub(super) fn filled_chunks(rule: &str) -> Denied {
    Denied::new(
        Code::Signature,
        "the request's body is signed chunk by chunk, and the rule puts a credential into bodies",
        "send the body unsigned or hashed as a whole",
    )
    .by(rule)
}

fn bad_chunks(words: &str, rule: &str) -> Denied {
    Denied::new(
        Code::Malformed,
        format!("the request's body, signed chunk by chunk, cannot be signed anew: {words}"),
        "send it again as Signature Version 4 writes chunks, or unsigned",
    )
    .by(rule)
}

/// A body on its way.
pub(super) struct Upload {
    source: Source,
    meter: Arc<Meter>,
    rule: Arc<str>,
    limit: u64,
    watches: Vec<Watch>,
    substitute: Option<Substitute>,
    resign: Option<Resign>,
    /// The places of what it holds.
    places: Option<OwnedSemaphorePermit>,
}

enum Source {
    Whole(Option<Bytes>),
    Client(Incoming),
}

impl Upload {
    /// A client's body as it comes, of at most so many bytes.
    pub(super) fn new(incoming: Incoming, rule: &str, limit: u64, watches: Vec<Watch>) -> Self {
        Self {
            source: Source::Client(incoming),
            meter: Arc::default(),
            rule: rule.into(),
            limit,
            watches,
            substitute: None,
            resign: None,
            places: None,
        }
    }

    /// Keeps places as long as it is under way.
    pub(super) fn hold(&mut self, places: OwnedSemaphorePermit) {
        self.places = Some(places);
    }

    /// Whether it has the places of a body that is held.
    pub(super) const fn holds(&self) -> bool {
        self.places.is_some()
    }

    /// Whether there is nothing of it.
    pub(super) fn is_over(&self) -> bool {
        match &self.source {
            Source::Whole(whole) => whole.is_none(),
            Source::Client(incoming) => incoming.is_end_stream(),
        }
    }

    /// What will tell how far it has come.
    pub(super) fn meter(&self) -> Arc<Meter> {
        Arc::clone(&self.meter)
    }

    /// Replaces the placeholder on the way, rather than looking for it.
    pub(super) fn fill(&mut self, substitute: Substitute) {
        self.substitute = Some(substitute);
    }

    /// Signs its chunks anew on the way. Its length stays.
    pub(super) fn sign(&mut self, resign: Resign) {
        self.resign = Some(resign);
    }

    /// Whether its length stays what the client announced.
    pub(super) const fn keeps_length(&self) -> bool {
        self.substitute.is_none()
    }

    /// Takes all of it, of at most so many bytes, through every check. It can be sent still.
    pub(super) async fn gather(&mut self, most: u64) -> Result<Bytes, Denied> {
        self.limit = self.limit.min(most);
        let mut whole = BytesMut::new();
        while let Some(frame) = self.frame().await {
            let frame = frame.map_err(|_| {
                self.meter.denied().unwrap_or_else(|| {
                    Denied::new(Code::Malformed, "the request's body broke off", "send it again").by(&*self.rule)
                })
            })?;
            if let Ok(data) = frame.into_data() {
                whole.extend_from_slice(&data);
            }
        }
        let whole = whole.freeze();
        self.source = Source::Whole(Some(whole.clone()));
        self.substitute = None;
        self.watches.clear();
        self.limit = u64::MAX;
        self.meter.sent.store(0, Ordering::Relaxed);
        Ok(whole)
    }

    fn refuse<T>(&self, denied: Denied) -> Poll<Option<Result<T, UploadError>>> {
        // The first reason stays.
        let _ = self.meter.denied.set(denied);
        Poll::Ready(Some(Err(UploadError::Refused)))
    }

    fn poll_source(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, UploadError>>> {
        loop {
            return match &mut self.source {
                Source::Whole(whole) => Poll::Ready(whole.take().filter(|whole| !whole.is_empty()).map(Ok)),
                Source::Client(incoming) => match ready!(Pin::new(incoming).poll_frame(context)) {
                    Some(Ok(frame)) => match frame.into_data() {
                        Ok(data) => Poll::Ready(Some(Ok(data))),
                        // Trailers of requests are dropped: nothing needs them, and they could say what a head may not.
                        Err(_) => continue,
                    },
                    Some(Err(error)) => Poll::Ready(Some(Err(UploadError::Client(error)))),
                    None => Poll::Ready(None),
                },
            };
        }
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        let this = self.get_mut();
        loop {
            let Some(data) = ready!(this.poll_source(context)).transpose()? else {
                if this.resign.take().is_some_and(|resign| !resign.is_over()) {
                    let denied = bad_chunks("it ends in the middle", &this.rule);
                    return this.refuse(denied);
                }
                let rest = this.substitute.take().map(|mut substitute| substitute.finish());
                return Poll::Ready(rest.filter(|rest| !rest.is_empty()).map(|rest| Ok(Frame::data(rest))));
            };
            let sent = this.meter.sent.fetch_add(data.len() as u64, Ordering::Relaxed) + data.len() as u64;
            if sent > this.limit {
                return this.refuse(
                    Denied::new(
                        Code::TooLarge,
                        format!("the request's body is longer than {} bytes", this.limit),
                        format!("send less at once, or ask for a higher limit in the rule {}", this.rule),
                    )
                    .by(&*this.rule),
                );
            }
            let found = this
                .watches
                .iter_mut()
                .find_map(|watch| watch.finds(&data).then_some(watch.denied));
            if let Some(denied) = found {
                let denied = denied(&this.rule);
                return this.refuse(denied);
            }
            let data = match &mut this.substitute {
                Some(substitute) => substitute.push(&data),
                None => data,
            };
            let data = match this.resign.as_mut().map(|resign| resign.push(&data)) {
                None => data,
                Some(Ok(signed)) => signed,
                Some(Err(words)) => {
                    let denied = bad_chunks(words, &this.rule);
                    return this.refuse(denied);
                }
            };
            if !data.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Whole(whole) => whole.as_ref().is_none_or(Bytes::is_empty),
            // What is signed anew is over when its last chunk was there.
            Source::Client(incoming) => incoming.is_end_stream() && self.resign.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Whole(whole) => SizeHint::with_exact(whole.as_ref().map_or(0, |whole| whole.len() as u64)),
            Source::Client(incoming) if self.substitute.is_none() => incoming.size_hint(),
            Source::Client(_) => SizeHint::default(),
        }
    }
}
