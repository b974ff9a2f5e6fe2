//! How long nothing came of a call: a model may have thought meanwhile, and nobody told how much it was.

use std::time::{Duration, Instant};

/// The silence before the first word of a call, between two, and after the last, each in whole seconds: what is shorter than one is
/// the network's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Silence {
    since: Instant,
    before: Duration,
}

impl Silence {
    /// A call begins after this time.
    pub(crate) fn after(delay: Duration) -> Self {
        Self {
            since: Instant::now() + delay,
            before: Duration::ZERO,
        }
    }

    /// Something came.
    pub(crate) fn end(&mut self) {
        self.before = self.total();
        self.since = Instant::now();
    }

    /// All of it until now.
    pub(crate) fn total(&self) -> Duration {
        self.before + Duration::from_secs(self.since.elapsed().as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lies_between_words_and_begins_when_the_call_does() {
        let long_ago = |seconds| Instant::now() - Duration::from_secs(seconds);
        let mut silence = Silence::after(Duration::ZERO);
        silence.since = long_ago(30);
        silence.end();
        silence.end();
        assert_eq!(silence.total(), Duration::from_secs(30));
        silence.since = long_ago(12);
        assert_eq!(silence.total(), Duration::from_secs(42));
        assert_eq!(Silence::after(Duration::from_secs(60)).total(), Duration::ZERO);
    }
}
