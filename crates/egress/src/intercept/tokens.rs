//! Endpoints that hand out tokens: what they hand out does not reach the sandbox (threats 50, 51).

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, header};
use memchr::memmem;
use percent_encoding::percent_decode;
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

/// What is done with one request's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Handling {
    Pass,
    Deny,
    /// Its tokens are replaced.
    Replace {
        /// It is an API of AWS, whose answers also hold other things, in JSON or XML by what it is called.
        aws: bool,
    },
}

/// Services of AWS that hand out credentials, by their name in signatures.
const AWS_SERVICES: [&str; 7] = [
    "codeartifact",
    "cognito-identity",
    "ecr",
    "ecr-public",
    "s3express",
    "sso",
    "sts",
];

/// The last part of paths where tokens are handed out, or what follows its last colon.
const ENDPOINTS: [&str; 5] = ["token", "tokens", "generateaccesstoken", "generateidtoken", "signjwt"];

/// How it ends where it says which tokens: `access_tokens`, `registration-token`.
const ENDINGS: [&str; 4] = ["_token", "_tokens", "-token", "-tokens"];

/// What follows the name of a token that is given out anew.
const ROTATE: &str = "rotate";

/// The fields that hold them.
const FIELDS: [&str; 20] = [
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
    "signedJwt",
    "authorizationToken",
    "authorization_token",
    "SecretAccessKey",
    "secretAccessKey",
    "SecretKey",
    "SessionToken",
    "sessionToken",
];

/// What happens to this request's answer.
pub(super) fn handling(rule: &Rule, head: &Head) -> Handling {
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
        Some(path) => {
            let plain = path.without_parameters();
            let mut segments = plain.as_slice().iter().filter(|segment| !segment.is_empty());
            let is_named = |segment: &String| is_endpoint(segment, &head.method);
            segments
                .next_back()
                .is_some_and(|last| is_named(last) || (last.eq_ignore_ascii_case(ROTATE) && segments.any(is_named)))
        }
        None => may_be_endpoint(&head.path),
    };
    if !named && !known {
        return Handling::Pass;
    }
    let answers = rule.tokens.unwrap_or(if rule.injects() || named {
        TokenAnswers::Replace
    } else {
        TokenAnswers::Pass
    });
    match answers {
        TokenAnswers::Replace if known && path.is_none() => Handling::Deny,
        TokenAnswers::Replace => Handling::Replace { aws: false },
        TokenAnswers::Deny => Handling::Deny,
        TokenAnswers::Pass => Handling::Pass,
    }
}

/// What happens to the answer of a request that is signed for this service of AWS. Its path says nothing: there is one for all.
pub(super) fn handling_of_aws(rule: &Rule, service: &str, by_path: Handling) -> Handling {
    if !AWS_SERVICES.contains(&service) {
        return by_path;
    }
    match rule.tokens.unwrap_or(TokenAnswers::Replace) {
        TokenAnswers::Replace => Handling::Replace { aws: true },
        TokenAnswers::Deny => Handling::Deny,
        TokenAnswers::Pass => Handling::Pass,
    }
}

/// How a refresh token is called, in lower case.
const REFRESH: [&[u8]; 2] = [b"refresh_token", b"refreshtoken"];

/// Whether a request to an endpoint that hands out tokens speaks of a refresh token, or may do so where nobody can read it.
pub(super) fn carries_refresh_token(head: &Head, body: &[u8]) -> bool {
    let says = |text: &[u8]| {
        let text = text.to_ascii_lowercase();
        REFRESH.iter().any(|word| memmem::find(&text, word).is_some())
    };
    let says_encoded = |text: &[u8]| says(text) || says(&percent_decode(text).collect::<Vec<u8>>());
    let is_plain = |encoding: &HeaderValue| encoding.as_bytes().eq_ignore_ascii_case(b"identity");
    let mut encodings = head.headers.get_all(header::CONTENT_ENCODING).iter();
    head.query
        .as_deref()
        .is_some_and(|query| says_encoded(query.as_bytes()))
        || says_encoded(body)
        || serde_json::from_slice::<Value>(body).is_ok_and(|body| says(body.to_string().as_bytes()))
        || (!body.is_empty() && !encodings.all(is_plain))
}

/// A request that would have a refresh token leave the sandbox.
pub(super) fn refresh_token(rule: &str) -> Denied {
    Denied::new(
        Code::TokenEndpoint,
        "the request asks for tokens by a refresh token, and none leaves a sandbox",
        format!("use a service that renews its tokens itself, or ask for tokens = \"pass\" in the rule {rule}"),
    )
    .by(rule)
}

fn is_endpoint(segment: &str, method: &Method) -> bool {
    let last = segment
        .rsplit(':')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    // Servers take what follows a dot for the form of the answer. What is got under such a name is a file as a rule.
    let (name, form) = last.split_once('.').unwrap_or((&last, ""));
    let is_file = *method == Method::GET && !matches!(form, "" | "json" | "xml");
    !is_file && (ENDPOINTS.contains(&name) || ENDINGS.iter().any(|end| name.ends_with(end)))
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
            .any(|part| is_endpoint(part, &Method::POST))
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

/// An answer with its tokens replaced. What cannot be read is refused, as is XML of AWS that holds some.
pub(super) fn replace(headers: &HeaderMap, body: &[u8], rule: &str, aws: bool) -> Result<Bytes, Denied> {
    if body.is_empty() {
        return Ok(Bytes::new());
    }
    let escape = match body.trim_ascii_start().first() {
        // AWS calls its JSON by names of its own.
        Some(b'{' | b'[') if aws => Escape::Json,
        Some(b'<') if aws => return without_tokens(body, rule),
        _ => Escape::of(headers),
    };
    match escape {
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

/// XML without an element that holds a token.
fn without_tokens(body: &[u8], rule: &str) -> Result<Bytes, Denied> {
    let text = std::str::from_utf8(body).map_err(|_| denied(rule))?;
    if FIELDS.iter().any(|name| text.contains(&format!("{name}>"))) {
        return Err(denied(rule));
    }
    Ok(Bytes::copy_from_slice(body))
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
