//! How long nothing came of a call: a model may have thought meanwhile, and nobody told how much it was.

use std::time::{Duration, Instant};

/// The silence before the first word of a call, between two, and after the last, each in whole seconds: what is shorter than one is
/// the network's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Silence {
    /// None: nobody listens.
    since: Option<Instant>,
    before: Duration,
    /// A model may think in it.
    counts: bool,
}

impl Silence {
    /// A call begins after this time. `counts`: its model may think, or speak, unseen.
    pub(crate) fn after(delay: Duration, counts: bool) -> Self {
        Self {
            since: Some(Instant::now() + delay),
            before: Duration::ZERO,
            counts,
        }
    }

    /// Whether the call was made by now.
    pub(crate) fn has_begun(&self) -> bool {
        self.since.is_none_or(|since| since <= Instant::now())
    }

    /// Whoever listens waits for the next word.
    pub(crate) fn begin(&mut self) {
        self.since.get_or_insert_with(Instant::now);
    }

    /// A word came. How long it takes to hand it on is not the model's.
    pub(crate) fn end(&mut self) {
        self.before = self.total();
        self.since = None;
    }

    /// All of it until now; none where it does not count.
    pub(crate) fn total(&self) -> Duration {
        if !self.counts {
            return Duration::ZERO;
        }
        let now = self.since.map_or(0, |since| since.elapsed().as_secs());
        self.before + Duration::from_secs(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lies_between_words_and_begins_when_the_call_does() {
        let long_ago = |seconds| Some(Instant::now() - Duration::from_secs(seconds));
        let mut silence = Silence::after(Duration::ZERO, true);
        assert!(silence.has_begun());
        silence.since = long_ago(30);
        silence.end();
        silence.begin();
        silence.end();
        assert_eq!(silence.total(), Duration::from_secs(30));
        silence.begin();
        silence.since = long_ago(12);
        silence.begin();
        assert_eq!(silence.total(), Duration::from_secs(42));
        silence.counts = false;
        assert_eq!(silence.total(), Duration::ZERO);
        let later = Silence::after(Duration::from_secs(60), true);
        assert_eq!(later.total(), Duration::ZERO);
        assert!(!later.has_begun());
    }
}
