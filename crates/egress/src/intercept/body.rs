//! An answer's body on its way to the client, without what was put into the request.

use std::io::{self, Write as _};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use flate2::write::{GzDecoder, ZlibDecoder};
use http::{HeaderMap, HeaderValue};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use scrub::Scrub;
use tokio::sync::OwnedSemaphorePermit;

use super::pool::Load;
use super::upload::Meter;
use crate::{Denied, Outcome, Record};

/// How much is decoded at once, so that a small piece cannot become a huge one.
const DECODE: usize = 4 * 1024;

/// An answer's body.
pub(super) struct Download {
    source: Source,
    scrub: Scrub,
    cleaning: scrub::Stream,
    decoder: Option<Decoder>,
    undecoded: Bytes,
    trailers: Option<HeaderMap>,
    ended: bool,
    ledger: Option<Ledger>,
}

enum Source {
    Whole(Option<Bytes>),
    Upstream(Incoming),
}

impl Download {
    /// A body that is all there.
    pub(super) fn whole(bytes: Bytes) -> Self {
        Self::new(Source::Whole(Some(bytes)), Scrub::nothing(), None)
    }

    /// What the upstream sends, cleaned, and decoded before if it must be.
    pub(super) fn upstream(incoming: Incoming, scrub: Scrub, decoder: Option<Decoder>) -> Self {
        Self::new(Source::Upstream(incoming), scrub, decoder)
    }

    fn new(source: Source, scrub: Scrub, decoder: Option<Decoder>) -> Self {
        Self {
            source,
            cleaning: scrub.stream(),
            scrub,
            decoder,
            undecoded: Bytes::new(),
            trailers: None,
            ended: false,
            ledger: None,
        }
    }

    /// Keeps an account that is closed with the body.
    pub(super) fn keep(mut self, ledger: Ledger) -> Self {
        self.ledger = Some(ledger);
        self
    }

    const fn is_plain(&self) -> bool {
        self.scrub.is_nothing() && self.decoder.is_none()
    }

    fn poll_source(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, io::Error>>> {
        loop {
            if !self.undecoded.is_empty() {
                let piece = self.undecoded.split_to(self.undecoded.len().min(DECODE));
                if let Some(decoder) = &mut self.decoder {
                    return Poll::Ready(Some(decoder.push(&piece)));
                }
            }
            let data = match &mut self.source {
                Source::Whole(whole) => return Poll::Ready(whole.take().map(Ok)),
                Source::Upstream(incoming) => match ready!(Pin::new(incoming).poll_frame(context)) {
                    None => return Poll::Ready(self.decoder.take().map(Decoder::finish)),
                    Some(Err(error)) => return Poll::Ready(Some(Err(io::Error::other(error)))),
                    Some(Ok(frame)) => match frame.into_data() {
                        Ok(data) => data,
                        Err(frame) => {
                            self.trailers = frame.into_trailers().ok();
                            continue;
                        }
                    },
                },
            };
            if let Some(ledger) = &mut self.ledger {
                ledger.record.received += data.len() as u64;
            }
            if self.decoder.is_none() {
                return Poll::Ready(Some(Ok(data)));
            }
            self.undecoded = data;
        }
    }
}

impl Body for Download {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = self.get_mut();
        while !this.ended {
            let clean = match ready!(this.poll_source(context)) {
                Some(Ok(data)) => this.cleaning.push(data),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => {
                    this.ended = true;
                    this.cleaning.finish()
                }
            };
            if !clean.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(clean))));
            }
        }
        let trailers = this.trailers.take().map(|mut trailers| {
            clean_headers(&mut trailers, &this.scrub);
            Ok(Frame::trailers(trailers))
        });
        if trailers.is_none() {
            this.ledger = None;
        }
        Poll::Ready(trailers)
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Whole(whole) => whole.is_none(),
            Source::Upstream(incoming) => {
                incoming.is_end_stream() && (self.is_plain() || self.ended) && self.trailers.is_none()
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Whole(whole) => SizeHint::with_exact(whole.as_ref().map_or(0, |whole| whole.len() as u64)),
            Source::Upstream(incoming) if self.is_plain() => incoming.size_hint(),
            Source::Upstream(_) => SizeHint::default(),
        }
    }
}

/// Cleans the values of headers.
pub(super) fn clean_headers(headers: &mut HeaderMap, scrub: &Scrub) {
    if scrub.is_nothing() {
        return;
    }
    for value in headers.values_mut() {
        if let std::borrow::Cow::Owned(clean) = scrub.clean_slice(value.as_bytes()) {
            *value = HeaderValue::from_bytes(&clean).unwrap_or_else(|_| HeaderValue::from_static("*"));
        }
    }
}

/// Decodes what an upstream encoded without being asked to.
pub(super) enum Decoder {
    Gzip(GzDecoder<Vec<u8>>),
    Zlib(ZlibDecoder<Vec<u8>>),
}

impl Decoder {
    /// For a content coding; none where it is not known.
    pub(super) fn of(coding: &str) -> Option<Self> {
        match coding.trim().to_ascii_lowercase().as_str() {
            "gzip" | "x-gzip" => Some(Self::Gzip(GzDecoder::new(Vec::new()))),
            "deflate" => Some(Self::Zlib(ZlibDecoder::new(Vec::new()))),
            _ => None,
        }
    }

    /// What is left; an error where the end is missing.
    fn finish(self) -> io::Result<Bytes> {
        let rest = match self {
            Self::Gzip(decoder) => decoder.finish()?,
            Self::Zlib(decoder) => decoder.finish()?,
        };
        Ok(rest.into())
    }

    fn push(&mut self, piece: &[u8]) -> io::Result<Bytes> {
        let decoded = match self {
            Self::Gzip(decoder) => {
                decoder.write_all(piece)?;
                std::mem::take(decoder.get_mut())
            }
            Self::Zlib(decoder) => {
                decoder.write_all(piece)?;
                std::mem::take(decoder.get_mut())
            }
        };
        Ok(decoded.into())
    }
}

/// The account of one request, told to the audit when it is dropped.
pub(super) struct Ledger {
    record: Record,
    audit: Arc<dyn Fn(Record) + Send + Sync>,
    meter: Option<Arc<Meter>>,
    began: Instant,
    place: Option<OwnedSemaphorePermit>,
    load: Option<Load>,
}

impl Ledger {
    /// Opens an account.
    pub(super) fn new(record: Record, audit: Arc<dyn Fn(Record) + Send + Sync>) -> Self {
        Self {
            record,
            audit,
            meter: None,
            began: Instant::now(),
            place: None,
            load: None,
        }
    }

    /// Notes the rule and where the body is counted.
    pub(super) fn sends(&mut self, rule: &str, meter: Arc<Meter>) {
        self.record.rule = Some(rule.to_owned());
        self.meter = Some(meter);
    }

    /// Keeps a place among the session's requests until the account is closed.
    pub(super) fn holds(&mut self, place: OwnedSemaphorePermit) {
        self.place = Some(place);
    }

    /// Keeps a share in the upstream's connection until the account is closed.
    pub(super) fn shares(&mut self, load: Option<Load>) {
        self.load = load;
    }

    /// Notes what the client is told.
    pub(super) fn answered(&mut self, status: u16, injected: bool) {
        if let Some(request) = &mut self.record.request {
            request.status = status;
            request.injected = injected;
        }
    }

    /// Notes bytes that went by after the protocol changed.
    pub(super) fn tunnelled(&mut self, sent: u64, received: u64) {
        self.record.sent += sent;
        self.record.received += received;
    }

    /// Notes a refusal.
    pub(super) fn denied(&mut self, denied: &Denied) {
        self.record.rule.clone_from(&denied.rule);
        self.record.outcome = Outcome::Denied(denied.clone());
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        let mut record = self.record.clone();
        if let Some(meter) = &self.meter {
            record.sent += meter.sent();
            if let Some(denied) = meter.denied() {
                record.outcome = Outcome::Denied(denied);
            }
        }
        record.took = self.began.elapsed();
        (self.audit)(record);
    }
}
