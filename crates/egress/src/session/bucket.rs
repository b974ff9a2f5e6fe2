//! A rate with room for a burst.

use tokio::time::Instant;

#[derive(Debug)]
pub(crate) struct Bucket {
    most: f64,
    per_second: f64,
    left: f64,
    at: Instant,
}

impl Bucket {
    /// `burst` at once, then so many a second.
    pub(crate) fn new(burst: u32, per_second: f64) -> Self {
        Self {
            most: f64::from(burst),
            per_second,
            left: f64::from(burst),
            at: Instant::now(),
        }
    }

    /// Takes one; false where none is left.
    pub(crate) fn take(&mut self) -> bool {
        let now = Instant::now();
        let since = now.duration_since(self.at).as_secs_f64();
        self.left = (self.left + since * self.per_second).min(self.most);
        self.at = now;
        let there = self.left >= 1.0;
        if there {
            self.left -= 1.0;
        }
        there
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_then_a_rate() {
        let mut bucket = Bucket::new(3, 2.0);
        assert_eq!((0..5).filter(|_| bucket.take()).count(), 3);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!((0..5).filter(|_| bucket.take()).count(), 2);
        tokio::time::advance(Duration::from_secs(3_600)).await;
        assert_eq!((0..5).filter(|_| bucket.take()).count(), 3);
    }
}
