//! When a call that failed is made again.

use std::time::Duration;

use http::HeaderMap;
use http::header::RETRY_AFTER;

/// How often, and how soon, a call that failed is made again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetryLimits {
    /// Attempts after the first.
    pub retries: u32,
    /// The first delay; each further one is twice as long, and a random half of it is left off.
    pub first_delay: Duration,
    /// The longest delay, ours or the provider's: where the provider asks for more, the call fails at once.
    pub longest_delay: Duration,
}

impl Default for RetryLimits {
    fn default() -> Self {
        Self {
            retries: 4,
            first_delay: Duration::from_millis(500),
            longest_delay: Duration::from_secs(60),
        }
    }
}

impl RetryLimits {
    /// How long to wait before the attempt after this many failures; `None`: it is not made. `chance` is from 0 to 1.
    pub(crate) fn delay(&self, failures: u32, retry_after: Option<Duration>, chance: f64) -> Option<Duration> {
        if failures > self.retries || retry_after.is_some_and(|wanted| wanted > self.longest_delay) {
            return None;
        }
        let doubled = self.first_delay.saturating_mul(1 << failures.saturating_sub(1).min(20));
        let ours = doubled.min(self.longest_delay).mul_f64(0.5 + chance / 2.0);
        // Never before the provider's own time, and not all at once after it.
        Some(retry_after.map_or(ours, |wanted| wanted + ours.min(wanted).mul_f64(0.1)))
    }
}

/// What the provider says of when to come back: seconds, or a date.
pub(crate) fn retry_after(headers: &HeaderMap, now: jiff::Timestamp) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let date = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
    // A date that has passed means now.
    Some(Duration::try_from(date.duration_since(now)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn delays_double_up_to_the_longest_and_end() {
        let limits = RetryLimits {
            retries: 4,
            first_delay: SECOND,
            longest_delay: 5 * SECOND,
        };
        let longest: Vec<_> = (1..=5).map(|failures| limits.delay(failures, None, 1.0)).collect();
        assert_eq!(
            longest,
            [Some(SECOND), Some(2 * SECOND), Some(4 * SECOND), Some(5 * SECOND), None]
        );
        assert_eq!(limits.delay(1, None, 0.0), Some(SECOND / 2));
    }

    #[test]
    fn the_provider_is_not_asked_before_its_time() {
        let limits = RetryLimits {
            retries: 1,
            first_delay: SECOND,
            longest_delay: 10 * SECOND,
        };
        for chance in [0.0, 0.5, 1.0] {
            assert!(limits.delay(1, Some(3 * SECOND), chance).unwrap() >= 3 * SECOND);
        }
        assert_eq!(limits.delay(1, Some(11 * SECOND), 0.5), None, "more than we wait");
        assert_eq!(limits.delay(1, Some(Duration::ZERO), 0.5), Some(Duration::ZERO));
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = "1994-11-06T08:49:07Z".parse().unwrap();
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, text.parse().unwrap());
            retry_after(&headers, now)
        };
        assert_eq!(read("20"), Some(20 * SECOND));
        assert_eq!(read("1.5"), Some(SECOND * 3 / 2));
        assert_eq!(read("Sun, 06 Nov 1994 08:49:37 GMT"), Some(30 * SECOND));
        assert_eq!(read("Sun, 06 Nov 1994 08:00:00 GMT"), Some(Duration::ZERO));
        assert_eq!(read("soon"), None);
        assert_eq!(read("-5"), None);
    }
}
