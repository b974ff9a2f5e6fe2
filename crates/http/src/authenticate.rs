//! Who asks. Comes before everything else: a request without a good token learns nothing but that.

use std::time::Duration;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use control::ControlError;
use domain::Timestamp;
use secret::Secret;
use store::{Asker, Identity};

use crate::api::Doors;
use crate::error::ApiError;

/// The one path that answers everybody. It says nothing but that the process lives.
pub(crate) const OPEN_PATH: &str = "/healthz";

/// The path whose handler looks for a session's token itself: in the header, or in the body.
pub(crate) const SESSIONS_PATH: &str = "/api/proxy";

/// How soon a token that has expired is looked at again, where clocks disagree.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The user whose token came with the request.
#[derive(Clone)]
pub(crate) struct Caller(pub(crate) Identity);

impl Caller {
    /// Who asks, for the store and control.
    pub(crate) fn asker(&self) -> Asker {
        self.0.asker()
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parts.extensions.get::<Self>().cloned().ok_or(ApiError::NO_TOKEN)
    }
}

/// The token itself, for what goes on after the request was let in.
#[derive(Clone)]
pub(crate) struct Shown(Secret);

impl<S: Sync> FromRequestParts<S> for Shown {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parts.extensions.get::<Self>().cloned().ok_or(ApiError::NO_TOKEN)
    }
}

/// Returns when the token opens nothing any more: it was taken back, its user was removed, or it has expired.
pub(crate) async fn shut_out(doors: Doors, caller: Caller, shown: Shown) {
    // Before the first look, so that nothing falls between.
    let mut doubts = doors.doubts.subscribe();
    loop {
        // Where the store cannot say, the next doubt asks again.
        if let Err(ControlError::Unauthorized(_)) = doors.control.authenticate(&shown.0).await {
            return;
        }
        let expiry = async {
            match caller.0.expires {
                Some(expires) => {
                    let left = u64::try_from(expires.0 - Timestamp::now().0).unwrap_or(0);
                    tokio::time::sleep(Duration::from_millis(left).max(LOOK_AGAIN)).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            told = doubts.changed() => if told.is_err() { return },
            () = expiry => {}
        }
    }
}

/// Lets pass who shows a good token.
pub(crate) async fn authenticate(State(doors): State<Doors>, mut request: Request, next: Next) -> Response {
    if [OPEN_PATH, SESSIONS_PATH].contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let caller = match shown(&request) {
        Ok(token) => match doors.control.authenticate(&token).await {
            Ok(identity) => Ok((identity, token)),
            Err(error) => Err(ApiError::from(error)),
        },
        Err(error) => Err(error),
    };
    match caller {
        Ok((identity, token)) => {
            request.extensions_mut().insert(Caller(identity));
            request.extensions_mut().insert(Shown(token));
            next.run(request).await
        }
        Err(error) => error.into_response(),
    }
}

/// The token that a request shows: in the one place for it, and once.
fn shown(request: &Request) -> Result<Secret, ApiError> {
    offered(request)?.ok_or(ApiError::NO_TOKEN)
}

/// The token of a request's header, if it has one. One in the URL, or several, or one that is none, is refused.
pub(crate) fn offered(request: &Request) -> Result<Option<Secret>, ApiError> {
    if request.uri().query().is_some_and(carries_token) {
        return Err(ApiError::TOKEN_IN_URL);
    }
    let mut headers = request.headers().get_all(AUTHORIZATION).iter();
    let header = match (headers.next(), headers.next()) {
        (None, _) => return Ok(None),
        (Some(header), None) => header,
        (Some(_), Some(_)) => return Err(ApiError::NO_TOKEN),
    };
    let token = header.to_str().ok().and_then(|header| {
        let (scheme, token) = header.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
    });
    let token = token.filter(|token| !token.is_empty() && token.len() <= 200);
    token.map(|token| Some(Secret::new(token))).ok_or(ApiError::NO_TOKEN)
}

/// A URL is written into logs and histories: a token in it is refused, good or not, so that nobody gets used to it.
fn carries_token(query: &str) -> bool {
    const NAMES: [&str; 5] = ["token", "access_token", "api_key", "authorization", "bearer"];
    query
        .split('&')
        .filter_map(|pair| pair.split('=').next())
        .any(|name| NAMES.contains(&name.to_ascii_lowercase().as_str()))
}
