//! Refusals as answers.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::json;

use super::body::Download;
use super::strict::Malformed;
use crate::{Code, Denied};

/// The status that says it best.
pub(super) const fn status(code: Code) -> StatusCode {
    match code {
        Code::Malformed | Code::InvalidHost => StatusCode::BAD_REQUEST,
        Code::OtherHost | Code::OtherServerName => StatusCode::MISDIRECTED_REQUEST,
        Code::Method => StatusCode::METHOD_NOT_ALLOWED,
        Code::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Code::TooManyRequests | Code::TooManyConnections | Code::TooManyCertificates => StatusCode::TOO_MANY_REQUESTS,
        Code::NoSecret | Code::Unreachable | Code::Untrusted | Code::BadAnswer | Code::Broken => {
            StatusCode::BAD_GATEWAY
        }
        Code::TooSlow => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::FORBIDDEN,
    }
}

/// A refusal as JSON. Where a connection carries one request at a time, nothing follows what could not be read.
pub(super) fn refusal(denied: &Denied, one_at_a_time: bool) -> Response<Download> {
    let mut response = Response::new(Download::whole(json(denied)));
    *response.status_mut() = status(denied.code);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if one_at_a_time && denied.code == Code::Malformed {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// The answer to bytes that are no request; nothing follows it.
pub(super) fn malformed(why: Option<Malformed>) -> Bytes {
    let (status, denied) = match why {
        Some(why) => (
            if why == Malformed::TooLong {
                "431 Request Header Fields Too Large"
            } else {
                "400 Bad Request"
            },
            Denied::new(
                Code::Malformed,
                why.words(),
                "send requests that follow RFC 9112 to the letter",
            ),
        ),
        None => (
            "408 Request Timeout",
            Denied::new(
                Code::Malformed,
                "the request's head did not come in time",
                "send it again",
            ),
        ),
    };
    let body = json(&denied);
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), &body].concat().into()
}

fn json(denied: &Denied) -> Bytes {
    let error = json!({
        "code": denied.code,
        "rule": denied.rule,
        "message": denied.reason,
        "remedy": denied.remedy,
    });
    format!("{}\n", json!({ "error": error })).into()
}
