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
    let named = rule.token_paths.as_ref().is_some_and(|paths| {
        Segments::parse(&head.path).is_none_or(|path| paths.iter().any(|pattern| pattern.matches(&path)))
    });
    let last = head.path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let last = percent_encoding::percent_decode_str(last)
        .decode_utf8_lossy()
        .to_ascii_lowercase();
    if !named && !ENDPOINTS.contains(&last.as_str()) {
        return TokenAnswers::Pass;
    }
    rule.tokens.unwrap_or(if rule.injects() || named {
        TokenAnswers::Replace
    } else {
        TokenAnswers::Pass
    })
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
