//! How often something may be asked for.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Requests that may come at once, and how long each is apart from the next in the long run.
const BURST: u32 = 200;
const EVERY: Duration = Duration::from_millis(5);

/// Lets requests through, the first at once and the many one by one.
#[derive(Debug, Default)]
pub(super) struct Pace(Mutex<Option<Instant>>);

impl Pace {
    /// Waits until the next request may go on.
    pub(super) async fn next(&self) {
        let turn = {
            let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            let turn = last.map_or(now, |last| last.max(now)) + EVERY;
            *last = Some(turn);
            turn.checked_sub(EVERY * BURST).unwrap_or(now)
        };
        sleep_until(turn).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_go_at_once_and_the_many_one_by_one() {
        let (pace, begun) = (Pace::default(), Instant::now());
        for _ in 0..BURST {
            pace.next().await;
        }
        assert!(begun.elapsed() < EVERY * 2, "{:?}", begun.elapsed());
        for _ in 0..100 {
            pace.next().await;
        }
        assert!(begun.elapsed() >= EVERY * 99, "{:?}", begun.elapsed());
        // Who rests may begin anew.
        tokio::time::advance(EVERY * BURST).await;
        let rested = Instant::now();
        pace.next().await;
        assert_eq!(rested.elapsed(), Duration::ZERO);
    }
}
