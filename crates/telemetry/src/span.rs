//! Spans, and what tells one from another.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::Traces;

/// The longest text of a span; the rest is cut.
const LONGEST: usize = 200;

/// A trace: everything that was done for one run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Trace(pub u128);

/// A span of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SpanId(pub(crate) u64);

/// Where a span stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// In which trace.
    pub trace: Trace,
    /// Which it is.
    pub span: SpanId,
    /// Beneath which; none is above the first of a trace.
    pub parent: Option<SpanId>,
}

/// A value that a span holds.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// A name or a code.
    Text(String),
    /// A number.
    Whole(i64),
}

/// Something that is under way. It ends when this is dropped.
#[derive(Debug)]
pub struct Span {
    traces: Traces,
    began: Instant,
    data: Option<Box<Data>>,
}

/// A span as it is told.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Data {
    pub(crate) place: Place,
    pub(crate) name: &'static str,
    /// Nanoseconds since 1970.
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) attributes: Vec<(&'static str, Value)>,
    pub(crate) failure: Option<String>,
}

impl Trace {
    /// The span that these words name: the same ones name the same span in every process.
    #[must_use]
    pub fn span(self, words: &[&str]) -> SpanId {
        // FNV-1a: nobody gains anything by two spans of his own run that have one number.
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let bytes = words.iter().flat_map(|word| word.bytes().chain([0]));
        for byte in self.0.to_be_bytes().into_iter().chain(bytes) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        SpanId(hash.max(1))
    }

    /// A span like no other.
    #[must_use]
    pub fn any_span(self) -> SpanId {
        SpanId(random().max(1))
    }

    /// A trace like no other, of what is done for no run.
    #[must_use]
    pub fn any() -> Self {
        Self((u128::from(random()) << 64) | u128::from(random()))
    }
}

impl Place {
    /// The first of a trace, by these words.
    #[must_use]
    pub fn first(trace: Trace, words: &[&str]) -> Self {
        Self {
            trace,
            span: trace.span(words),
            parent: None,
        }
    }

    /// Beneath this one, by these words.
    #[must_use]
    pub fn beneath(self, words: &[&str]) -> Self {
        Self {
            trace: self.trace,
            span: self.trace.span(words),
            parent: Some(self.span),
        }
    }

    /// Beneath this one, like no other.
    #[must_use]
    pub fn any_beneath(self) -> Self {
        Self {
            trace: self.trace,
            span: self.trace.any_span(),
            parent: Some(self.span),
        }
    }
}

fn random() -> u64 {
    static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    static COUNT: AtomicU64 = AtomicU64::new(0);
    KEYS.hash_one(COUNT.fetch_add(1, Ordering::Relaxed))
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text[..text.floor_char_boundary(LONGEST)].to_owned())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Whole(number)
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Whole(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl Span {
    pub(crate) fn new(traces: &Traces, name: &'static str, place: Place) -> Self {
        let began = Instant::now();
        let data = traces.is_on().then(|| {
            Box::new(Data {
                place,
                name,
                start: nanos(SystemTime::now()),
                end: 0,
                attributes: Vec::new(),
                failure: None,
            })
        });
        Self {
            traces: traces.clone(),
            began,
            data,
        }
    }

    /// Says something of it.
    pub fn set(&mut self, key: &'static str, value: impl Into<Value>) {
        if let Some(data) = &mut self.data {
            data.attributes.push((key, value.into()));
        }
    }

    /// It has failed, with this code.
    pub fn fail(&mut self, code: &str) {
        if let Some(data) = &mut self.data {
            data.failure = Some(code[..code.floor_char_boundary(LONGEST)].to_owned());
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(mut data) = self.data.take() {
            // By a clock that nobody can set: a span never ends before it began.
            data.end = data.start.saturating_add(as_nanos(self.began.elapsed()));
            self.traces.tell(*data);
        }
    }
}

/// What was over before it was heard of: it began so long ago and took so long.
pub(crate) fn past(name: &'static str, place: Place, ago: Duration, took: Duration) -> Data {
    let start = nanos(SystemTime::now()).saturating_sub(as_nanos(ago));
    Data {
        place,
        name,
        start,
        end: start.saturating_add(as_nanos(took.min(ago))),
        attributes: Vec::new(),
        failure: None,
    }
}

fn nanos(time: SystemTime) -> u64 {
    as_nanos(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn as_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_found_again_by_its_words() {
        let run = Place::first(Trace(7), &["run"]);
        assert_eq!(run, Place::first(Trace(7), &["run"]));
        assert_ne!(run.span, Trace(8).span(&["run"]));
        assert_ne!(Trace(7).span(&["a", "b"]), Trace(7).span(&["ab"]));
        let call = run.beneath(&["call", "1"]);
        assert_eq!((call.trace, call.parent), (run.trace, Some(run.span)));
        assert_ne!(run.any_beneath(), run.any_beneath());
    }

    #[test]
    fn what_is_over_ends_before_it_is_heard_of() {
        let place = Place::first(Trace(1), &[]);
        let before = nanos(SystemTime::now());
        let told = past("tool", place, Duration::from_secs(3), Duration::from_secs(9));
        assert!(told.start <= nanos(SystemTime::now()) - 3_000_000_000 && told.start >= before - 3_000_000_000);
        assert_eq!(told.end - told.start, 3_000_000_000);
    }
}
