//! Every no: its status, its code, its words. Chosen here, once.

use axum::Json;
use axum::http::header::WWW_AUTHENTICATE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use causes::with_causes;
use control::ControlError;
use serde::Serialize;
use utoipa::ToSchema;

/// What a request gets instead of what it asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
}

/// An error as it is sent.
#[derive(Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    error: ErrorDetail,
}

/// What is wrong.
#[derive(Serialize, ToSchema)]
struct ErrorDetail {
    /// For programs: `unauthorized`, `denied`, `not_found`, `invalid`, `conflict`, `too_large`, `too_many`, `budget_exhausted`, `unavailable`, `internal`…
    code: &'static str,
    /// For people: what was wrong, and what would be right.
    message: String,
}

impl ApiError {
    /// No token, or nothing that could be one.
    pub(crate) const NO_TOKEN: Self = Self {
        status: StatusCode::UNAUTHORIZED,
        code: "unauthorized",
        message: String::new(),
    };
    /// A token where others may read it.
    pub(crate) const TOKEN_IN_URL: Self = Self {
        status: StatusCode::UNAUTHORIZED,
        code: "token_in_url",
        message: String::new(),
    };

    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
        }
    }

    /// The request makes no sense.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid", message)
    }

    /// The request is larger than is accepted.
    pub(crate) fn too_large(most: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "too_large",
            format!("the body of this request may have {most} bytes at most"),
        )
    }

    /// There are as many as there may be.
    pub(crate) fn too_many(message: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many", message)
    }

    /// The body did not come in time.
    pub(crate) fn too_slow() -> Self {
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            "timeout",
            "the body of the request did not arrive in time",
        )
    }

    /// A fault of this server. It is logged here, since its cause is not for whoever asked.
    pub(crate) fn fault(attempt: &str, error: &dyn std::error::Error) -> Self {
        tracing::error!(attempt, error = with_causes(error), "failed");
        let message = format!("Belljar could not {attempt}: a fault of its own, which its log explains");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }

    /// There is no such path.
    pub(crate) fn no_path() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "not_found",
            "there is nothing at this path: docs/api.md lists what there is",
        )
    }

    /// The path does not do that.
    pub(crate) fn no_method() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "invalid",
            "this path does not answer to this method: docs/api.md says what it does",
        )
    }
}

impl From<ControlError> for ApiError {
    fn from(error: ControlError) -> Self {
        let (status, code) = match &error {
            ControlError::NotFound { .. } => (StatusCode::NOT_FOUND, "not_found"),
            ControlError::Unauthorized(_) => (StatusCode::UNAUTHORIZED, "unauthorized"),
            ControlError::Denied(_) => (StatusCode::FORBIDDEN, "denied"),
            ControlError::Invalid(_) => (StatusCode::BAD_REQUEST, "invalid"),
            ControlError::Conflict(_) => (StatusCode::CONFLICT, "conflict"),
            ControlError::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
            ControlError::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
            ControlError::Internal { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
        };
        Self::new(status, code, error.to_string())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let message = match (self.code, self.message) {
            ("token_in_url", _) => "a token goes into the Authorization header, never into a URL, where others can read it: take this one back".to_owned(),
            ("unauthorized", message) if message.is_empty() => "who are you? Send the header Authorization: Bearer <token>".to_owned(),
            (_, message) => message,
        };
        let body = ErrorBody {
            error: ErrorDetail {
                code: self.code,
                message,
            },
        };
        let mut response = (self.status, Json(body)).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            response
                .headers_mut()
                .insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
