//! AWS Signature Version 4 for requests that are made or carried on somebody's behalf.
//!
//! No IO and no clock: a request's head, the hash of its body, the keys and the time come in, the headers to set go out.
//! Signed are `host`, `content-type` and every `x-amz-` header, so that what a proxy may change on the way does not count.

mod canonical;
mod chunks;
mod presign;

use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use jiff::tz::TimeZone;
use ring::{digest, hmac};
use secret::Secret;

pub use chunks::Chunks;
pub use presign::presign;

/// The algorithm's name, first in every signature.
pub const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// The payload hash of a body that nobody hashed; S3 takes it over TLS.
pub const UNSIGNED: &str = "UNSIGNED-PAYLOAD";

/// The payload hash of a body whose chunks are signed one by one ([`Chunks`]).
pub const STREAMING: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";
/// The same, where trailers follow the chunks and are signed too.
pub const STREAMING_TRAILER: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER";

/// The header with the payload's hash, which S3 wants to see.
pub const CONTENT_HASH: HeaderName = HeaderName::from_static("x-amz-content-sha256");
/// The header with the time.
pub const DATE: HeaderName = HeaderName::from_static("x-amz-date");
/// The header with the token of temporary keys.
pub const SECURITY_TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");

/// Who signs.
#[derive(Clone, Debug)]
pub struct Keys<'a> {
    /// The access key's id, which is no secret.
    pub access_key: &'a str,
    /// The secret access key.
    pub secret_key: &'a Secret,
    /// The token that belongs to temporary keys.
    pub session_token: Option<&'a Secret>,
}

/// What a signature is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope<'a> {
    /// `eu-central-1`.
    pub region: &'a str,
    /// `s3`, `dynamodb`, …; it also decides how the path is written and whether the payload's hash is a header.
    pub service: &'a str,
}

/// A request that is complete but for its signature.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Its method.
    pub method: &'a Method,
    /// The host, with the port where it is not the scheme's own: what `Host` or `:authority` will say.
    pub host: &'a str,
    /// The path as it will be sent, percent-encoded.
    pub path: &'a str,
    /// The query as it will be sent, without `?`.
    pub query: Option<&'a str>,
    /// The other headers.
    pub headers: &'a HeaderMap,
    /// The hexadecimal SHA-256 of the body, or one of the words that stand for it ([`UNSIGNED`]).
    pub payload: &'a str,
}

/// Why a request cannot be signed.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// A key, region, service or token has bytes that no header may have.
    #[error("the {0} has characters that a header cannot carry; set it anew without line breaks")]
    NotAHeader(&'static str),
    /// A header that would be signed is not text.
    #[error("the header {0} is not ASCII text, so it cannot be signed")]
    NotText(HeaderName),
    /// A time far outside the calendar.
    #[error("the time {0} s since 1970 cannot be written as a date")]
    NoDate(i64),
}

/// The hexadecimal SHA-256 of a body.
#[must_use]
pub fn payload_hash(body: &[u8]) -> String {
    hex::encode(digest::digest(&digest::SHA256, body))
}

/// Signs a request at a time (seconds since 1970): the headers to set, each in place of any that stands there.
pub fn sign(
    request: &Request<'_>,
    keys: &Keys<'_>,
    scope: Scope<'_>,
    time: i64,
) -> Result<Vec<(HeaderName, HeaderValue)>, SignError> {
    sign_chunked(request, keys, scope, time).map(|(set, _)| set)
}

/// Signs a request whose body comes in chunks that are signed one by one. Gives the headers to set, and what signs the chunks.
///
/// # Errors
/// As [`sign`].
pub fn sign_chunked(
    request: &Request<'_>,
    keys: &Keys<'_>,
    scope: Scope<'_>,
    time: i64,
) -> Result<(Vec<(HeaderName, HeaderValue)>, Chunks), SignError> {
    let at = jiff::Timestamp::from_second(time).map_err(|_| SignError::NoDate(time))?;
    let at = at.to_zoned(TimeZone::UTC).strftime("%Y%m%dT%H%M%SZ").to_string();
    let day = at.split('T').next().unwrap_or_default();

    let mut set = vec![(DATE, value(&at, "time")?)];
    if scope.service == "s3" {
        set.push((CONTENT_HASH, value(request.payload, "payload hash")?));
    }
    if let Some(token) = keys.session_token {
        let mut token = value(token.expose(), "session token")?;
        token.set_sensitive(true);
        set.push((SECURITY_TOKEN, token));
    }
    let mut headers = request.headers.clone();
    headers.remove(header::HOST);
    for name in [DATE, CONTENT_HASH, SECURITY_TOKEN] {
        if name != CONTENT_HASH || scope.service == "s3" {
            headers.remove(name);
        }
    }
    headers.insert(header::HOST, value(request.host, "host")?);
    for (name, value) in &set {
        headers.insert(name, value.clone());
    }
    let (signed, canonical) = canonical::request(request, &headers, scope.service)?;

    let range = format!("{day}/{}/{}/aws4_request", scope.region, scope.service);
    let text = format!("{ALGORITHM}\n{at}\n{range}\n{}", payload_hash(canonical.as_bytes()));
    let key = hmac::Key::new(hmac::HMAC_SHA256, key(keys.secret_key, day, scope).as_ref());
    let signature = hex::encode(hmac::sign(&key, text.as_bytes()));
    let mut authorization = value(
        &format!(
            "{ALGORITHM} Credential={}/{range}, SignedHeaders={signed}, Signature={signature}",
            keys.access_key
        ),
        "access key, region or service",
    )?;
    authorization.set_sensitive(true);
    set.push((header::AUTHORIZATION, authorization));
    Ok((set, Chunks::new(key, &at, &range, signature)))
}

/// The key of one day, region and service.
fn key(secret: &Secret, day: &str, scope: Scope<'_>) -> hmac::Tag {
    let first = Secret::new(format!("AWS4{}", secret.expose()));
    let mut tag = mac(first.expose().as_bytes(), day.as_bytes());
    for part in [scope.region, scope.service, "aws4_request"] {
        tag = mac(tag.as_ref(), part.as_bytes());
    }
    tag
}

fn mac(key: &[u8], text: &[u8]) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text)
}

fn value(text: &str, what: &'static str) -> Result<HeaderValue, SignError> {
    HeaderValue::from_str(text).map_err(|_| SignError::NotAHeader(what))
}

#[cfg(test)]
mod tests;
