//! Installation tokens of a GitHub App.

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION};
use http::{HeaderMap, HeaderValue};
use jiff::Timestamp;
use scrub::Scrub;
use secret::Secret;
use serde::Deserialize;
use tokio::time::Instant;
use url::Url;

use super::rsa::Key;
use super::tokens::{Made, Slots};
use crate::client::Client;
use crate::refusal::words;
use crate::request::Outgoing;
use crate::{Code, Failure};

/// The token that asks for the token may live ten minutes, by GitHub's clock.
const LIVES: i64 = 540;
/// How much our clock may be ahead.
const BEFORE: i64 = 60;

#[derive(Deserialize)]
struct Answer {
    token: String,
    expires_at: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Refusal {
    message: String,
}

/// Asks for a token of the installation.
pub(super) async fn ask(
    service: &str,
    slots: &Slots,
    base: &Url,
    client: &Client,
    deadline: Instant,
) -> Result<Made, Failure> {
    let slot = |name: &str| slots.get(name).map(Secret::expose).unwrap_or_default();
    let installation = slot("installation_id");
    let unset = |what: &str, why: String| {
        Failure::new(Code::CredentialMissing, format!("{service}: auth.{what}: {why}"))
            .remedy(format!("an administrator sets services.{service}.auth.{what} anew"))
    };
    if installation.is_empty() || !installation.bytes().all(|letter| letter.is_ascii_digit()) {
        return Err(unset("installation_id", "it is no number".to_owned()));
    }
    let now = Timestamp::now().as_second();
    let claims = serde_json::json!({ "iat": now - BEFORE, "exp": now + LIVES, "iss": slot("app_id") });
    let proof = slots
        .get("private_key")
        .map_or(Err(super::rsa::KeyError::NotPem), Key::read)
        .and_then(|key| key.token(&claims))
        .map_err(|error| unset("private_key", error.to_string()))?;

    let mut url = base.clone();
    let path = base.path().trim_end_matches('/');
    url.set_path(&format!("{path}/app/installations/{installation}/access_tokens"));
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, HeaderValue::from_static("application/vnd.github+json"));
    // A token is made of letters that fit a header.
    if let Ok(mut value) = HeaderValue::from_str(&format!("Bearer {}", proof.expose())) {
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    let request = Outgoing {
        verb: http::Method::POST,
        url,
        headers,
        body: Bytes::new(),
    };
    let answer = client.small(request, deadline).await?;
    if answer.status.is_success() {
        let read: Answer = serde_json::from_slice(&answer.body).map_err(|_| {
            Failure::new(
                Code::AnswerMalformed,
                format!("{service}: GitHub answered a request for a token with something else"),
            )
        })?;
        // By the upstream's own clock, where it says what that is.
        let now = answer.date.unwrap_or_else(Timestamp::now);
        let ends = read.expires_at.parse::<Timestamp>().ok();
        return Ok(Made {
            token: Secret::new(read.token),
            lives: ends.map(|ends| ends.duration_since(now).try_into().unwrap_or_default()),
        });
    }
    let body = Scrub::of([&proof]).clean(answer.body);
    let refusal: Refusal = serde_json::from_slice(&body).unwrap_or_default();
    let (status, said) = (answer.status.as_u16(), words(refusal.message.into()));
    let message = format!("{service}: GitHub gives no installation token ({status}): {said}");
    Err(match status {
        429 => Failure::new(Code::UpstreamRateLimited, message).after(answer.retry_after),
        500.. => Failure::new(Code::UpstreamFailed, message).after(answer.retry_after),
        _ => Failure::new(Code::CredentialRefused, message).remedy(format!(
            "an administrator checks services.{service}.auth.app_id, installation_id and private_key, and that the app is still installed"
        )),
    })
}
