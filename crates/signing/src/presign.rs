//! Requests whose signature stands in their URL, so that whoever has the URL can make that one request.

use std::time::Duration;

use http::{HeaderMap, header};
use jiff::tz::TimeZone;
use percent_encoding::utf8_percent_encode;
use ring::hmac;

use crate::canonical::{STRICT, with};
use crate::{ALGORITHM, Keys, Request, Scope, SignError, key, payload_hash, value};

/// Signs a request at a time (seconds since 1970) for so long: the query to send. Every header of the request is signed and
/// must be sent exactly so; the body is bound only by what they say of it ([`crate::UNSIGNED`] is its hash).
///
/// # Errors
/// [`SignError`].
pub fn presign(
    request: &Request<'_>,
    keys: &Keys<'_>,
    scope: Scope<'_>,
    time: i64,
    good_for: Duration,
) -> Result<String, SignError> {
    let at = jiff::Timestamp::from_second(time).map_err(|_| SignError::NoDate(time))?;
    let at = at.to_zoned(TimeZone::UTC).strftime("%Y%m%dT%H%M%SZ").to_string();
    let day = at.split('T').next().unwrap_or_default();
    let range = format!("{day}/{}/{}/aws4_request", scope.region, scope.service);

    let mut headers: HeaderMap = request.headers.clone();
    headers.insert(header::HOST, value(request.host, "host")?);
    let mut names: Vec<&str> = headers.keys().map(header::HeaderName::as_str).collect();
    names.sort_unstable();
    let (credential, seconds) = (format!("{}/{range}", keys.access_key), good_for.as_secs().to_string());
    let mut pairs = vec![
        ("X-Amz-Algorithm", ALGORITHM),
        ("X-Amz-Credential", &credential),
        ("X-Amz-Date", &at),
        ("X-Amz-Expires", &seconds),
    ];
    let names = names.join(";");
    pairs.push(("X-Amz-SignedHeaders", &names));
    if let Some(token) = keys.session_token {
        pairs.push(("X-Amz-Security-Token", token.expose()));
    }
    let mut query: Vec<String> = request.query.map(str::to_owned).into_iter().collect();
    query.extend(
        pairs
            .into_iter()
            .map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, STRICT))),
    );
    let query = query.join("&");
    let unsigned = Request {
        query: Some(&query),
        ..*request
    };
    let (_, canonical) = with(&unsigned, &headers, scope.service, |_| true)?;
    let text = format!("{ALGORITHM}\n{at}\n{range}\n{}", payload_hash(canonical.as_bytes()));
    let key = hmac::Key::new(hmac::HMAC_SHA256, key(keys.secret_key, day, scope).as_ref());
    let signature = hex::encode(hmac::sign(&key, text.as_bytes()));
    Ok(format!("{query}&X-Amz-Signature={signature}"))
}
