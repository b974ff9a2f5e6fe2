//! Endpoints that hand out tokens: what they hand out does not reach the sandbox (threats 50, 51).

use bytes::Bytes;
use http::HeaderMap;
use protocol::PLACEHOLDER;
use serde::Deserialize;
use serde_json::Value;

use super::path::Segments;
use crate::inject::{Escape, Head};
use crate::{Code, Denied, Rule};

/// Bytes of a token endpoint's answer.
pub(super) const ANSWER: usize = 1 << 20;

/// How often a path may be encoded.
const ENCODED: usize = 4;

/// What happens at the endpoints of a rule's hosts that hand out tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenAnswers {
    /// Every token in an answer becomes `credential-brokered`.
    Replace,
    /// The request is refused.
    Deny,
    /// The answer passes as it is.
    Pass,
}

/// The last part of paths where tokens are handed out.
const ENDPOINTS: [&str; 9] = [
    "token",
    "tokens",
    "access_token",
    "access_tokens",
    "oauth_token",
    "refresh_token",
    "token.json",
    "registration-token",
    "api-token",
];

/// The fields that hold them.
const FIELDS: [&str; 12] = [
    "access_token",
    "refresh_token",
    "id_token",
    "token",
    "oauth_token",
    "oauth_token_secret",
    "auth_token",
    "jwt",
    "accessToken",
    "refreshToken",
    "idToken",
    "client_secret",
];

/// What happens to this request's answer.
pub(super) fn answers(rule: &Rule, head: &Head) -> TokenAnswers {
    let path = Segments::parse(&head.path);
    let named = rule.token_paths.as_ref().is_some_and(|patterns| {
        path.as_ref().is_none_or(|path| {
            let plain = path.without_parameters();
            patterns
                .iter()
                .any(|pattern| pattern.matches(path) || pattern.matches(&plain))
        })
    });
    let known = match &path {
        Some(path) => path
            .without_parameters()
            .as_slice()
            .iter()
            .rfind(|segment| !segment.is_empty())
            .is_some_and(|last| is_endpoint(last)),
        None => may_be_endpoint(&head.path),
    };
    if !named && !known {
        return TokenAnswers::Pass;
    }
    let answers = rule.tokens.unwrap_or(if rule.injects() || named {
        TokenAnswers::Replace
    } else {
        TokenAnswers::Pass
    });
    if answers == TokenAnswers::Replace && known && path.is_none() {
        return TokenAnswers::Deny;
    }
    answers
}

fn is_endpoint(segment: &str) -> bool {
    ENDPOINTS.contains(&segment.trim().to_ascii_lowercase().as_str())
}

/// Whether a path that servers read differently is a token endpoint for one of them: any part of it is, or it is encoded
/// more often than anybody has a reason to.
fn may_be_endpoint(path: &str) -> bool {
    let mut path = path.to_owned();
    for _ in 0..ENCODED {
        path = percent_encoding::percent_decode_str(&path)
            .decode_utf8_lossy()
            .into_owned();
    }
    percent_encoding::percent_decode_str(&path).ne(path.bytes())
        || path
            .split(|letter: char| !letter.is_ascii_alphanumeric() && !"-_.".contains(letter))
            .any(is_endpoint)
}

/// The refusal of a request for a token.
pub(super) fn denied(rule: &str) -> Denied {
    Denied::new(
        Code::TokenEndpoint,
        "this endpoint hands out tokens, which do not reach a sandbox",
        "make the request that the token is for without one: it is put in on the way",
    )
    .by(rule)
}

/// An answer with its tokens replaced.
pub(super) fn replace(headers: &HeaderMap, body: &[u8], rule: &str) -> Result<Bytes, Denied> {
    if body.is_empty() {
        return Ok(Bytes::new());
    }
    match Escape::of(headers) {
        Escape::Json => {
            let mut value: Value = serde_json::from_slice(body).map_err(|_| denied(rule))?;
            replace_in(&mut value);
            Ok(value.to_string().into())
        }
        Escape::Form => {
            let body = std::str::from_utf8(body).map_err(|_| denied(rule))?;
            let pairs: Vec<String> = body
                .split('&')
                .map(|pair| match pair.split_once('=') {
                    Some((name, _)) if FIELDS.contains(&name) => format!("{name}={PLACEHOLDER}"),
                    _ => pair.to_owned(),
                })
                .collect();
            Ok(pairs.join("&").into())
        }
        Escape::None => Err(denied(rule)),
    }
}

fn replace_in(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if FIELDS.contains(&name.as_str()) && value.is_string() {
                    *value = PLACEHOLDER.into();
                } else {
                    replace_in(value);
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(replace_in),
        _ => {}
    }
}
