//! OAuth 2.0: client credentials and refresh tokens (RFC 6749).

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};
use scrub::Scrub;
use secret::Secret;
use serde::Deserialize;
use tokio::time::Instant;
use url::Url;

use super::tokens::{Made, Slots};
use crate::client::Client;
use crate::definition::{Auth, ClientPlace, Grant};
use crate::refusal::words;
use crate::request::{Outgoing, encode, write};
use crate::{Code, Failure};

#[derive(Deserialize)]
struct Answer {
    access_token: String,
    #[serde(default)]
    expires_in: Option<Seconds>,
    #[serde(default)]
    refresh_token: Option<String>,
}

/// Some say it as a text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Seconds {
    Number(f64),
    Text(String),
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Refusal {
    error: Option<String>,
    error_description: Option<String>,
}

/// Who asks, and how.
pub(super) struct Asking<'a> {
    pub(super) service: &'a str,
    pub(super) auth: &'a Auth,
    pub(super) client: &'a Client,
    pub(super) deadline: Instant,
}

/// A token, and the refresh token that counts from now on, where another does.
pub(super) struct Granted {
    pub(super) made: Made,
    pub(super) refresh_token: Option<Secret>,
}

/// Asks the token endpoint, with these secrets.
pub(super) async fn ask(asking: &Asking<'_>, slots: &Slots) -> Result<Granted, Failure> {
    let Asking {
        service,
        auth,
        client,
        deadline,
    } = *asking;
    let request = request(service, auth, slots)?;
    let host = request.url.host_str().unwrap_or_default().to_owned();
    let answer = client.small(request, deadline).await?;
    let scrub = Scrub::of(slots.values());
    if answer.status.is_success() {
        let read: Answer = serde_json::from_slice(&answer.body).map_err(|_| {
            Failure::new(
                Code::AnswerMalformed,
                format!("{service}: {host} answered a request for a token with something else"),
            )
        })?;
        let lives = read.expires_in.and_then(|seconds| match seconds {
            Seconds::Number(seconds) => Duration::try_from_secs_f64(seconds).ok(),
            Seconds::Text(text) => Duration::try_from_secs_f64(text.trim().parse().ok()?).ok(),
        });
        return Ok(Granted {
            made: Made {
                token: Secret::new(read.access_token),
                lives,
            },
            refresh_token: read.refresh_token.filter(|token| !token.is_empty()).map(Secret::new),
        });
    }
    let body = scrub.clean(answer.body);
    let refusal: Refusal = serde_json::from_slice(&body).unwrap_or_default();
    let said = [refusal.error.as_deref(), refusal.error_description.as_deref()];
    let said = said.into_iter().flatten().collect::<Vec<_>>().join(": ");
    let said = words(if said.is_empty() {
        String::from_utf8_lossy(&body)
    } else {
        said.into()
    });
    let status = answer.status.as_u16();
    Err(match status {
        429 => Failure::new(
            Code::UpstreamRateLimited,
            format!("{service}: {host} gives no token now ({status}): {said}"),
        )
        .after(answer.retry_after),
        500.. => Failure::new(
            Code::UpstreamFailed,
            format!("{service}: {host} gives no token, it has a fault ({status}): {said}"),
        )
        .after(answer.retry_after),
        _ => Failure::new(
            Code::CredentialRefused,
            format!("{service}: {host} gives no token ({status}): {said}"),
        )
        .remedy(remedy(service, auth, refusal.error.as_deref())),
    })
}

fn remedy(service: &str, auth: &Auth, error: Option<&str>) -> String {
    match auth {
        Auth::OAuth2 {
            grant: Grant::RefreshToken,
            ..
        } if !matches!(error, Some("invalid_client" | "unauthorized_client")) => format!(
            "it does so no more until somebody signs in with it again: an administrator does that, and sets \
             services.{service}.auth.refresh_token to the refresh token that comes of it, which counts with the next call (the \
             one before may have expired, been revoked, or been used by another program)"
        ),
        _ => format!("an administrator sets services.{service}.auth.client_id and client_secret anew"),
    }
}

fn request(service: &str, auth: &Auth, slots: &Slots) -> Result<Outgoing, Failure> {
    let Auth::OAuth2 {
        token_url,
        grant,
        scopes,
        parameters,
        client_in,
    } = auth
    else {
        return Err(Failure::new(
            Code::CredentialMissing,
            format!("{service}: it does not use OAuth"),
        ));
    };
    let url: Url = token_url.parse().map_err(|_| {
        Failure::new(
            Code::CredentialMissing,
            format!("{service}: the token_url of its definition is no URL"),
        )
    })?;
    let slot = |name: &str| slots.get(name).map(Secret::expose);
    let mut form: Vec<(String, String)> = Vec::new();
    let mut add = |name: &str, value: &str| form.push((name.to_owned(), value.to_owned()));
    match grant {
        Grant::ClientCredentials => add("grant_type", "client_credentials"),
        Grant::RefreshToken => {
            add("grant_type", "refresh_token");
            add("refresh_token", slot("refresh_token").unwrap_or_default());
        }
    }
    if !scopes.is_empty() {
        add("scope", &scopes.join(" "));
    }
    for (name, value) in parameters {
        add(name, value);
    }
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/x-www-form-urlencoded"),
    );
    let id = slot("client_id").unwrap_or_default();
    match (client_in, slot("client_secret")) {
        (ClientPlace::Basic, Some(secret)) => {
            // RFC 6749, section 2.3.1: both are encoded as in a form first.
            let mut both: String = encode(id).collect();
            both.push(':');
            both.extend(encode(secret));
            let text = format!("Basic {}", STANDARD.encode(both));
            // Base64 always fits a header.
            if let Ok(mut value) = HeaderValue::from_str(&text) {
                value.set_sensitive(true);
                headers.insert(AUTHORIZATION, value);
            }
        }
        (ClientPlace::Body, Some(secret)) => {
            add("client_id", id);
            add("client_secret", secret);
        }
        (_, None) => add("client_id", id),
    }
    Ok(Outgoing {
        verb: http::Method::POST,
        url,
        headers,
        body: Bytes::from(write(&form)),
    })
}
