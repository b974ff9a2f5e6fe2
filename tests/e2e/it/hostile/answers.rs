//! What the world's servers say: those that are given keys say what they were told, in every spelling that people use.

use std::io::Write;
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::stream;
use http::{HeaderMap, HeaderValue, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use testkit::upstream::{AnswerBody, Arrived, answered};

use crate::canaries::canary;

/// The token that every token endpoint hands out.
pub(super) static ISSUED: LazyLock<String> = LazyLock::new(canary);

/// A server that is given keys.
pub(super) fn bound(arrived: &Arrived) -> Response<AnswerBody> {
    let path = arrived.path().to_owned();
    // An API's own base is of no interest here.
    let segments: Vec<&str> = path.split('/').filter(|part| !["", "v1"].contains(part)).collect();
    let text = arrived.text();
    match segments.as_slice() {
        ["echo", how, ..] => echo(how, &text),
        ["acme", ..] => echo(arrived.header("x-how"), &text),
        ["status", status, ..] => {
            let status = status.parse().ok().filter(|status| (200..600).contains(status));
            answered(status.unwrap_or(500), &[("retry-after", "0")], json(&text))
        }
        ["redirect", to, ..] => {
            let to = match *to {
                "free" => "https://pass.free.test/drop".to_owned(),
                "plain" => "http://plain.free.test/drop".to_owned(),
                "circle" => format!("https://{}{path}", arrived.host),
                _ => "https://unbound.test/drop".to_owned(),
            };
            let told = percent_encode(text.as_bytes(), NON_ALPHANUMERIC);
            answered(302, &[("location", &format!("{to}?told={told}"))], text)
        }
        ["chat", "completions"] => completion(&text, arrived.body.windows(13).any(|part| part == b"\"stream\":true")),
        [.., "access_tokens"] => {
            let body = format!("{{\"token\":\"{}\",\"expires_at\":\"2099-01-01T00:00:00Z\"}}", &*ISSUED);
            answered(201, &[("content-type", "application/json")], body)
        }
        ["cut", ..] => answered(200, &[("content-length", "1000000")], text),
        [.., "token" | "access_token"] => {
            let token = &*ISSUED;
            let body = format!(
                "{{\"access_token\":\"{token}\",\"refresh_token\":\"{token}\",\"token_type\":\"bearer\",\"expires_in\":3600}}"
            );
            answered(200, &[("content-type", "application/json")], body)
        }
        _ => echo("raw", &text),
    }
}

/// A server that takes everything.
pub(super) fn free(_: &Arrived) -> Response<AnswerBody> {
    answered(200, &[("content-type", "text/plain")], "taken")
}

/// A model that says what it was asked with, its key too; streamed, in pieces that divide it.
fn completion(text: &str, is_streamed: bool) -> Response<AnswerBody> {
    let usage = serde_json::json!({ "prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2 });
    if !is_streamed {
        let choice = serde_json::json!({ "index": 0, "finish_reason": "stop", "message": { "role": "assistant", "content": text } });
        let body = serde_json::json!({ "id": "1", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage });
        return answered(200, &[("content-type", "application/json")], body.to_string());
    }
    let letters: Vec<char> = text.chars().collect();
    let pieces = letters
        .chunks(7)
        .map(|piece| serde_json::json!({ "content": piece.iter().collect::<String>() }));
    let mut events: Vec<serde_json::Value> = pieces
        .map(|delta| serde_json::json!({ "index": 0, "delta": delta }))
        .collect();
    events.push(serde_json::json!({ "index": 0, "delta": {}, "finish_reason": "stop" }));
    let event = |choice| {
        let event = serde_json::json!({ "id": "1", "object": "chat.completion.chunk", "model": "m", "choices": [choice], "usage": usage });
        format!("data: {event}\n\n")
    };
    let body: String = events.into_iter().map(event).collect();
    answered(200, &[("content-type", "text/event-stream")], body + "data: [DONE]\n\n")
}

fn json(text: &str) -> String {
    serde_json::json!({ "error": { "message": text } }).to_string()
}

fn echo(how: &str, text: &str) -> Response<AnswerBody> {
    let bytes = text.as_bytes();
    let percent = || percent_encode(bytes, NON_ALPHANUMERIC).to_string();
    let one_line = text.replace(['\r', '\n'], " ");
    let body = match how {
        "base64" => STANDARD.encode(bytes),
        "base64-1" => STANDARD.encode(format!("x{text}")),
        "base64-2" => STANDARD.encode(format!("xy{text}")),
        "base64url" => URL_SAFE.encode(bytes),
        "hex" => hex::encode(bytes),
        "HEX" => hex::encode_upper(bytes),
        "PERCENT" => bytes.iter().map(|byte| format!("%{byte:02X}")).collect(),
        "percent" => bytes.iter().map(|byte| format!("%{byte:02x}")).collect(),
        "form" => percent(),
        "json" => json(text),
        "html" => text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&#34;"),
        "gzip" => return zipped(bytes),
        "chunks" => return streamed(bytes, None),
        "location" => {
            let location = format!("https://pass.free.test/drop?told={}", percent());
            return answered(302, &[("location", &location), ("content-location", &location)], "");
        }
        "cookie" => {
            let cookie = format!("told={}; path=/", one_line.replace(';', ","));
            let headers = [
                ("set-cookie", cookie.as_str()),
                ("etag", &one_line),
                ("link", &one_line),
                ("warning", &one_line),
            ];
            return answered(200, &headers, "");
        }
        "reason" => {
            let mut answer = answered(200, &[("content-type", "text/plain")], "");
            if let Ok(reason) = hyper::ext::ReasonPhrase::try_from(one_line.into_bytes()) {
                answer.extensions_mut().insert(reason);
            }
            return answer;
        }
        "trailer" => {
            let value = HeaderValue::from_str(&one_line).unwrap_or(HeaderValue::from_static("x"));
            return streamed(
                b"the rest is in the trailer",
                Some(HeaderMap::from_iter([(http::HeaderName::from_static("x-told"), value)])),
            );
        }
        _ => text.to_owned(),
    };
    answered(200, &[("content-type", "text/plain"), ("x-told", &one_line)], body)
}

/// Compressed, although nobody asked for it.
fn zipped(bytes: &[u8]) -> Response<AnswerBody> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    let zipped = encoder.write_all(bytes).and_then(|()| encoder.finish());
    let headers = [("content-encoding", "gzip"), ("content-type", "text/plain")];
    answered(200, &headers, zipped.expect("memory takes everything"))
}

/// Byte by byte.
fn streamed(bytes: &[u8], trailers: Option<HeaderMap>) -> Response<AnswerBody> {
    let pieces: Vec<Frame<Bytes>> = bytes
        .iter()
        .map(|byte| Frame::data(Bytes::from(vec![*byte])))
        .chain(trailers.map(Frame::trailers))
        .collect();
    let body = StreamBody::new(stream::iter(pieces.into_iter().map(Ok::<_, std::io::Error>)));
    let answer = Response::builder()
        .header("content-type", "text/plain")
        .header("trailer", "x-told");
    answer.body(BodyExt::boxed(body)).expect("an answer")
}
