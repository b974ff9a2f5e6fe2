//! What the client is shown: the upstream's answer, without what was put into the request.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use scrub::Scrub;

use crate::intercept::body::{Decoder, Download, clean_headers};
use crate::intercept::tokens::{self, Handling};
use crate::{Code, Denied, Rule};

/// Headers that are between two neighbours only, or would lead the client round the broker (threats 4, 37).
const REMOVED: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::ALT_SVC,
    HeaderName::from_static("http2-settings"),
    HeaderName::from_static("proxy-authentication-info"),
];

/// An answer that is none.
pub(super) fn bad(rule: &str, what: &str) -> Denied {
    Denied::new(
        Code::BadAnswer,
        format!("the upstream's answer cannot be passed on: {what}"),
        "ask the upstream for a plain answer, whole and not encoded",
    )
    .by(rule)
}

/// The head of an answer that changes the protocol.
pub(super) fn switching(reply: &Response<Incoming>, scrub: &Scrub) -> Response<Download> {
    let mut response = Response::new(Download::whole(Bytes::new()));
    *response.status_mut() = reply.status();
    let mut headers = reply.headers().clone();
    headers.remove(header::ALT_SVC);
    clean_headers(&mut headers, scrub);
    *response.headers_mut() = headers;
    response
}

/// Cleans an answer.
pub(super) async fn clean(
    reply: Response<Incoming>,
    scrub: Scrub,
    tokens: Handling,
    rule: &Rule,
) -> Result<Response<Download>, Denied> {
    let (parts, incoming) = reply.into_parts();
    let mut headers = parts.headers;
    for name in &REMOVED {
        headers.remove(name);
    }
    let has_body = !http_body::Body::is_end_stream(&incoming);
    let must_read = !scrub.is_nothing() || matches!(tokens, Handling::Replace { .. });
    let mut decoder = None;
    if must_read {
        if parts.status == StatusCode::PARTIAL_CONTENT {
            return Err(bad(&rule.name, "it is a part of what was asked for"));
        }
        headers.remove(header::ACCEPT_RANGES);
        if has_body {
            decoder = decoder_for(&mut headers, rule)?;
        }
        clean_headers(&mut headers, &scrub);
    }
    let mut body = Download::upstream(incoming, scrub, decoder);
    if let Handling::Replace { aws } = tokens
        && has_body
    {
        let whole = Limited::new(body, tokens::ANSWER)
            .collect()
            .await
            .map_err(|_| bad(&rule.name, "a token endpoint said too much, or broke off"))?;
        let replaced = tokens::replace(&headers, &whole.to_bytes(), &rule.name, aws)?;
        headers.remove(header::CONTENT_LENGTH);
        headers.remove(header::ETAG);
        body = Download::whole(replaced);
    }
    let mut response = Response::new(body);
    *response.status_mut() = parts.status;
    *response.headers_mut() = headers;
    Ok(response)
}

/// Decodes what was encoded although it should not be; what cannot be decoded cannot be read, and does not pass.
fn decoder_for(headers: &mut HeaderMap, rule: &Rule) -> Result<Option<Decoder>, Denied> {
    let encoded = |headers: &HeaderMap, name: &str| {
        headers
            .get(name)
            .and_then(|coding| coding.to_str().ok())
            .map(str::to_owned)
            .filter(|coding| !coding.eq_ignore_ascii_case("identity"))
    };
    if let Some(coding) = encoded(headers, "grpc-encoding") {
        return Err(bad(&rule.name, &format!("its messages are encoded as {coding}")));
    }
    if headers.get_all(header::CONTENT_ENCODING).iter().count() > 1 {
        return Err(bad(&rule.name, "it is encoded more than once"));
    }
    let coding = encoded(headers, "content-encoding").map(|coding| match &rule.aws {
        Some(_) => without_framing(&coding),
        None => coding,
    });
    let Some(coding) = coding.filter(|coding| !coding.is_empty()) else {
        return Ok(None);
    };
    let decoder = Decoder::of(&coding).ok_or_else(|| bad(&rule.name, &format!("it is encoded as {coding}")))?;
    headers.remove(header::CONTENT_ENCODING);
    headers.remove(header::CONTENT_LENGTH);
    headers.remove(header::ETAG);
    Ok(Some(decoder))
}

/// A coding without the word for how the body once came: some services that speak S3 keep it with the object.
fn without_framing(coding: &str) -> String {
    let parts = coding.split(',').map(str::trim);
    let rest: Vec<&str> = parts.filter(|part| !part.eq_ignore_ascii_case("aws-chunked")).collect();
    rest.join(",")
}
