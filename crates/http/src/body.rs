//! What is read of a request: JSON and queries, each within a limit, each with a clear error.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::header::CONTENT_LENGTH;
use axum::http::request::Parts;
use bytes::{Bytes, BytesMut};
use domain::UserId;
use futures::StreamExt;
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use crate::authenticate::Caller;
use crate::error::ApiError;

/// The largest JSON body, where nothing else is said: some names and settings. While it is read it can become many times that.
const SMALL: usize = 64 << 10;
/// The most parts of a JSON body; what stands in a text counts once.
const PARTS: usize = control::SERVICE_REQUEST_PARTS;
/// The largest body of a prompt, with some pictures.
pub(crate) const LARGEST_PROMPT: usize = 24 << 20;
/// Bodies larger than [`USUAL`] that are in memory at the same time; more wait, until their time is over.
static LARGE: Semaphore = Semaphore::const_new(16);
/// Those of them that one user may have.
const SHARE: usize = 4;
static SHARES: Mutex<BTreeMap<UserId, Arc<Semaphore>>> = Mutex::new(BTreeMap::new());
/// Those of them that are read at the same time, which takes many times their size. Whoever sends slowly has no place here.
static READ: Semaphore = Semaphore::const_new(4);
/// What most prompts are smaller than.
const USUAL: usize = 1 << 20;
/// How much of a body that is too large is read and thrown away, so that the one who sends it gets to read the answer.
const DRAINED: usize = 64 << 20;
/// How long a JSON body may take to arrive.
const ARRIVES: Duration = Duration::from_secs(60);

/// A JSON body of at most so many bytes. An empty one is an object without members.
pub(crate) struct JsonBody<T, const LARGEST: usize = SMALL>(pub(crate) T);

impl<T: DeserializeOwned, S: Sync, const LARGEST: usize> FromRequest<S> for JsonBody<T, LARGEST> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let (body, place) = tokio::time::timeout(ARRIVES, read(request, LARGEST))
            .await
            .map_err(|_| ApiError::too_slow())??;
        let _being_read = match place {
            // It is never closed.
            Some(_) => READ.acquire().await.ok(),
            None => None,
        };
        let text = std::str::from_utf8(&body).map_err(|error| {
            ApiError::invalid(format!(
                "the body is not UTF-8: byte {} belongs to no character",
                error.valid_up_to()
            ))
        })?;
        let text = if text.trim().is_empty() { "{}" } else { text };
        let value = control::parse(PARTS, text.as_bytes())
            .map_err(|error| ApiError::invalid(format!("the body is not what is expected here: {error}")))?;
        Ok(Self(value))
    }
}

/// A place among the large bodies.
struct Place {
    _share: Option<OwnedSemaphorePermit>,
    _all: SemaphorePermit<'static>,
}

impl Place {
    /// Waits until one is free, of this user's own and of all.
    async fn of(user: Option<UserId>) -> Option<Self> {
        let share = user.map(|user| {
            let mut shares = SHARES.lock().unwrap_or_else(PoisonError::into_inner);
            let share = shares.entry(user).or_insert_with(|| Arc::new(Semaphore::new(SHARE)));
            Arc::clone(share)
        });
        let share = match share {
            Some(share) => Some(share.acquire_owned().await.ok()?),
            None => None,
        };
        let all = LARGE.acquire().await.ok()?;
        Some(Self {
            _share: share,
            _all: all,
        })
    }
}

/// The whole body, and its place among the large ones where it is one.
async fn read(request: Request, largest: usize) -> Result<(Bytes, Option<Place>), ApiError> {
    let user = request.extensions().get::<Caller>().map(|caller| caller.0.user.id);
    let declared = request
        .headers()
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if declared.is_some_and(|length| length > DRAINED) {
        return Err(ApiError::too_large(largest));
    }
    let mut body = BytesMut::new();
    let (mut length, mut place) = (0, None);
    let mut pieces = request.into_body().into_data_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|_| ApiError::invalid("the body broke off"))?;
        length += piece.len();
        if length > largest {
            // What is thrown away takes no place.
            (body, place) = (BytesMut::new(), None);
        } else {
            if length > USUAL && place.is_none() {
                place = Place::of(user).await;
            }
            body.extend_from_slice(&piece);
        }
        if length > DRAINED {
            break;
        }
    }
    if length > largest {
        Err(ApiError::too_large(largest))
    } else {
        Ok((body.freeze(), place))
    }
}

/// The query of a URL.
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        match axum::extract::Query::try_from_uri(&parts.uri) {
            Ok(axum::extract::Query(query)) => Ok(Self(query)),
            Err(error) => Err(ApiError::invalid(format!(
                "the query is not what is expected here: {}",
                error.body_text()
            ))),
        }
    }
}

/// A part of the path that is an id.
pub(crate) struct Id<T>(pub(crate) T);

impl<T, S> FromRequestParts<S> for Id<T>
where
    T: std::str::FromStr<Err: std::fmt::Display>,
    S: Send + Sync,
{
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = axum::extract::Path::<String>::from_request_parts(parts, state).await;
        let axum::extract::Path(text) = path.map_err(|error| ApiError::invalid(error.body_text()))?;
        text.parse()
            .map(Self)
            .map_err(|error: T::Err| ApiError::invalid(error.to_string()))
    }
}

/// Two parts of the path: an id, and what is called by an id or a name.
pub(crate) struct IdAndName<T>(pub(crate) T, pub(crate) String);

impl<T, S> FromRequestParts<S> for IdAndName<T>
where
    T: std::str::FromStr<Err: std::fmt::Display>,
    S: Send + Sync,
{
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = axum::extract::Path::<(String, String)>::from_request_parts(parts, state).await;
        let axum::extract::Path((id, name)) = path.map_err(|error| ApiError::invalid(error.body_text()))?;
        let id = id
            .parse()
            .map_err(|error: T::Err| ApiError::invalid(error.to_string()))?;
        Ok(Self(id, name))
    }
}
