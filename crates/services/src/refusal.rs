//! What an upstream says when it says no.

use std::borrow::Cow;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use serde_json::Value;

use crate::definition::{Failing, Pointer};
use crate::select::Json;
use crate::{Code, Failure};

/// The most bytes of an upstream's words that are repeated.
const LONGEST: usize = 500;

/// Where most upstreams put their words.
const USUAL_MESSAGES: [&str; 8] = [
    "/error/message",
    "/message",
    "/error_description",
    "/error",
    "/errors/0/message",
    "/errors/0/detail",
    "/detail",
    "/title",
];
/// Where most upstreams put their code.
const USUAL_CODES: [&str; 5] = [
    "/error/code",
    "/error/type",
    "/code",
    "/errors/0/extensions/code",
    "/errors/0/code",
];

/// A no, in the upstream's own terms.
pub(crate) struct Refusal<'a> {
    /// The method, in words.
    pub(crate) what: &'a str,
    /// How the service says no.
    pub(crate) failing: &'a Failing,
    pub(crate) status: StatusCode,
    pub(crate) retry_after: Option<Duration>,
    /// The upstream's headers say that its rate is used up.
    pub(crate) used_up: bool,
}

impl Refusal<'_> {
    /// The failure that it is, told from status and body. The body was freed of secrets before.
    pub(crate) fn failure(&self, body: &[u8]) -> Failure {
        let json = Json::check(body).ok();
        let said = json.map(|json| (self.code(json), self.message(json)));
        let (code, message) = match said {
            Some((code, Some(message))) => (code, words(message.into())),
            Some((code, None)) => (code, String::new()),
            None => (None, words(String::from_utf8_lossy(body))),
        };
        let is = |codes: &[String]| code.as_ref().is_some_and(|code| codes.contains(code));
        let status = self.status.as_u16();
        let kind = match status {
            _ if is(&self.failing.rate_limited) || self.used_up => Code::UpstreamRateLimited,
            _ if is(&self.failing.unauthorized) => Code::CredentialRefused,
            _ if is(&self.failing.not_found) => Code::NotFound,
            429 => Code::UpstreamRateLimited,
            401 | 403 | 407 => Code::CredentialRefused,
            404 | 410 => Code::NotFound,
            408 | 500.. => Code::UpstreamFailed,
            _ => Code::Refused,
        };
        let (tells, remedy) = match kind {
            Code::UpstreamRateLimited => (
                "the upstream's rate limit is reached",
                "wait, then ask for less at once",
            ),
            Code::CredentialRefused => (
                "the upstream does not let Belljar's credential do this",
                "an administrator checks what the credential may do; asking again does not help",
            ),
            Code::NotFound => ("the upstream knows no such thing", "check the ids in the arguments"),
            Code::UpstreamFailed => ("the upstream has a fault", "try again later"),
            _ => ("the upstream refuses the request", "correct the arguments"),
        };
        let code = code.map(|code| format!(", {}", words(code.into()))).unwrap_or_default();
        let colon = if message.is_empty() { "" } else { ": " };
        let what = self.what;
        Failure::new(kind, format!("{what}: {tells} ({status}{code}){colon}{message}"))
            .remedy(remedy)
            .after(self.retry_after)
    }

    fn code(&self, json: Json<'_>) -> Option<String> {
        first(json, &self.failing.code, &USUAL_CODES).and_then(|value| match value {
            Value::String(code) => Some(code),
            Value::Number(code) => Some(code.to_string()),
            _ => None,
        })
    }

    fn message(&self, json: Json<'_>) -> Option<String> {
        first(json, &self.failing.message, &USUAL_MESSAGES).map(|value| match value {
            Value::String(message) => message,
            other => other.to_string(),
        })
    }
}

/// The value at the first of these places that has one.
fn first(json: Json<'_>, places: &[Pointer], usual: &[&str]) -> Option<Value> {
    let places = places.iter().map(|pointer| pointer.0.as_str());
    places
        .chain(usual.iter().copied())
        .filter_map(|pointer| json.value_at(pointer))
        .find(|value| !value.is_null())
}

/// Whether headers say that the rate is used up; some say so with 403.
pub(crate) fn is_used_up(headers: &HeaderMap) -> bool {
    ["x-ratelimit-remaining", "ratelimit-remaining"]
        .iter()
        .any(|name| headers.get(*name).is_some_and(|left| left.as_bytes() == b"0"))
}

/// What may be repeated of an upstream's text: one line, no control characters, not too much.
pub(crate) fn words(text: Cow<'_, str>) -> String {
    let mut line = String::new();
    for word in text.split(|letter: char| letter.is_whitespace() || letter.is_control()) {
        if word.is_empty() {
            continue;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        if line.len() > LONGEST {
            line.truncate(line.floor_char_boundary(LONGEST));
            line.push('…');
            break;
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(status: u16, body: &str) -> Failure {
        let failing = Failing {
            code: vec![Pointer("/why".to_owned())],
            rate_limited: vec!["ratelimited".to_owned()],
            unauthorized: vec!["invalid_auth".to_owned()],
            not_found: vec!["channel_not_found".to_owned()],
            ..Failing::default()
        };
        Refusal {
            what: "chat.post",
            failing: &failing,
            status: StatusCode::from_u16(status).unwrap(),
            retry_after: None,
            used_up: false,
        }
        .failure(body.as_bytes())
    }

    #[test]
    fn a_no_is_told_by_the_definitions_codes_then_by_its_status() {
        for (status, body, code) in [
            (200, r#"{"why":"ratelimited"}"#, Code::UpstreamRateLimited),
            (200, r#"{"why":"invalid_auth"}"#, Code::CredentialRefused),
            (200, r#"{"why":"channel_not_found"}"#, Code::NotFound),
            (200, r#"{"why":"other"}"#, Code::Refused),
            (401, "", Code::CredentialRefused),
            (403, "", Code::CredentialRefused),
            (404, "<html>no</html>", Code::NotFound),
            (409, "{}", Code::Refused),
            (429, "{}", Code::UpstreamRateLimited),
            (503, "", Code::UpstreamFailed),
        ] {
            assert_eq!(failure(status, body).code, code, "{status} {body}");
        }
    }

    #[test]
    fn the_upstreams_words_are_found_and_kept_short() {
        let said = failure(400, r#"{"why":7,"error":{"message":"name\n is \u001b[31m bad"}}"#).to_string();
        assert_eq!(
            said,
            "chat.post: the upstream refuses the request (400, 7): name is [31m bad"
        );
        assert!(failure(400, &"wordü ".repeat(500)).message.len() < 700);
        assert!(failure(400, &"ü".repeat(5_000)).message.len() < 700);
    }
}
