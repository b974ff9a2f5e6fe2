//! When a request that failed is made again.

use std::time::Duration;

use http::HeaderMap;
use http::header::RETRY_AFTER;

use crate::{Code, Failure};

/// Attempts after the first.
const REPEATS: u32 = 2;
/// The first delay; the next is twice as long, and a random half of each is left off.
const FIRST_DELAY: Duration = Duration::from_millis(250);

/// How long to wait before the attempt after this many failures; none: it is not made. `chance` is from 0 to 1.
pub(crate) fn delay(failures: u32, failure: &Failure, chance: f64) -> Option<Duration> {
    let may_pass = match failure.code {
        Code::UpstreamRateLimited | Code::UpstreamFailed | Code::Unreachable | Code::AnswerCut => true,
        Code::UnknownService
        | Code::UnknownMethod
        | Code::InvalidArguments
        | Code::ArgumentsTooLarge
        | Code::RateLimited
        | Code::Busy
        | Code::CredentialMissing
        | Code::CredentialRefused
        | Code::AddressRefused
        | Code::BadCertificate
        | Code::Redirected
        | Code::NotFound
        | Code::Refused
        | Code::AnswerTooLarge
        | Code::AnswerMalformed
        | Code::AnswerWithheld
        | Code::SchemaChanged
        | Code::Timeout => false,
    };
    if !may_pass || failures > REPEATS {
        return None;
    }
    let ours = FIRST_DELAY * 2_u32.pow(failures.saturating_sub(1));
    let ours = ours.mul_f64(0.5 + chance / 2.0);
    // Never before the upstream's own time, and not all at once after it.
    Some(
        failure
            .retry_after
            .map_or(ours, |wanted| wanted + ours.min(wanted.mul_f64(0.1))),
    )
}

/// What an upstream says of when to come back: seconds, or a date.
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
    fn delays_double_and_end() {
        let failure = Failure::new(Code::UpstreamFailed, "");
        assert_eq!(delay(1, &failure, 1.0), Some(FIRST_DELAY));
        assert_eq!(delay(1, &failure, 0.0), Some(FIRST_DELAY / 2));
        assert_eq!(delay(2, &failure, 1.0), Some(2 * FIRST_DELAY));
        assert_eq!(delay(3, &failure, 1.0), None);
        assert_eq!(delay(1, &Failure::new(Code::Refused, ""), 1.0), None);
    }

    #[test]
    fn the_upstream_is_not_asked_before_its_time() {
        let failure = |after| Failure::new(Code::UpstreamRateLimited, "").after(Some(after));
        for chance in [0.0, 0.5, 1.0] {
            assert!(delay(1, &failure(3 * SECOND), chance).unwrap() >= 3 * SECOND);
        }
        assert_eq!(delay(1, &failure(Duration::ZERO), 0.5), Some(Duration::ZERO));
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
