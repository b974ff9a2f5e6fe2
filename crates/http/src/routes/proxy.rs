//! Services, for whoever holds a session's token.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{
    CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Json, extract::FromRequest};
use bytes::Bytes;
use control::{ServiceAnswer, ServiceFailure, ServiceRequest};
use futures::{StreamExt, stream};
use secret::Secret;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::api::Doors;
use crate::authenticate::offered;
use crate::body::JsonBody;
use crate::error::ApiError;

/// The largest call.
const LARGEST_CALL: usize = 1 << 20;

/// A call of a service's method.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProxyCall {
    /// The session's token, where it is not in the Authorization header. Which session it is, is known by it alone.
    #[schema(value_type = Option<String>)]
    token: Option<Secret>,
    /// The service's name.
    service: String,
    /// The method's name.
    method: String,
    /// Its arguments.
    #[serde(default)]
    #[schema(value_type = Object)]
    args: Value,
    /// The same for each repeat of the same call in the same run, at most 200 bytes: what changes something is done once for each key, and a repeat gets what came of it.
    idempotency_key: Option<String>,
}

/// What the method gave.
#[derive(Serialize, ToSchema)]
pub(crate) struct ProxyResult {
    /// As the method's types say. Where they say bytes, these are the answer, as they are.
    result: Value,
}

/// Call a method of a service as a session. Statuses: 401 the token is no living session's, 403 denied, 404 no such method,
/// 409 the key's call is under way, nobody knows what came of it (`state_unknown`), or the tool call that it names is over (`call_over`), 422 the arguments do not fit or the key is another call's, 429 too often (see `Retry-After`), 502 and 504 the service failed. Errors have a `remedy` where there is one.
#[utoipa::path(post, path = "/api/proxy", tag = "services", request_body = ProxyCall, responses((status = 200, description = "The result.", body = ProxyResult)))]
pub(crate) async fn proxy(State(doors): State<Doors>, request: Request) -> Response {
    let (header, call) = match read(request, &doors).await {
        Ok(read) => read,
        Err(error) => return error.into_response(),
    };
    let token = match (header, call.token) {
        (Some(token), None) | (None, Some(token)) => token,
        (Some(header), Some(body)) if header == body => header,
        _ => return ApiError::NO_TOKEN.into_response(),
    };
    let request = ServiceRequest {
        service: call.service,
        method: call.method,
        args: call.args,
        call: None,
        idempotency_key: call.idempotency_key,
    };
    match doors.control.proxy(&token, request).await {
        Ok(answer) => answered(answer),
        Err(failure) => failed(failure),
    }
}

/// The token of the header, and the call. A call without any token is none.
async fn read(request: Request, doors: &Doors) -> Result<(Option<Secret>, ProxyCall), ApiError> {
    let header = offered(&request)?;
    match JsonBody::<ProxyCall, LARGEST_CALL>::from_request(request, &()).await {
        Ok(JsonBody(call)) => Ok((header, call)),
        Err(error) => match &header {
            Some(token) if doors.control.knows_session(token).await => Err(error),
            // A stranger learns nothing of what would be a good call.
            _ => Err(ApiError::NO_TOKEN),
        },
    }
}

fn answered(answer: ServiceAnswer) -> Response {
    let text = |text: &'static [u8]| stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(text))]);
    let is_json = answer.media_type == "application/json";
    let body = if is_json {
        Body::from_stream(text(b"{\"result\":").chain(answer.body).chain(text(b"}")))
    } else {
        Body::from_stream(answer.body)
    };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    let media_type = HeaderValue::from_str(&answer.media_type);
    headers.insert(
        CONTENT_TYPE,
        media_type.unwrap_or(HeaderValue::from_static("application/octet-stream")),
    );
    // What an upstream sends is nobody's page.
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    if let Some(length) = answer.length.filter(|_| !is_json) {
        headers.insert(CONTENT_LENGTH, length.into());
    }
    response
}

fn failed(failure: ServiceFailure) -> Response {
    #[derive(Serialize)]
    struct Failed {
        error: ServiceFailure,
    }
    let status = StatusCode::from_u16(failure.status).unwrap_or(StatusCode::BAD_GATEWAY);
    let wait = failure.retry_after;
    let mut response = (status, Json(Failed { error: failure })).into_response();
    if let Some(seconds) = wait {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    if status == StatusCode::UNAUTHORIZED {
        response
            .headers_mut()
            .insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}
