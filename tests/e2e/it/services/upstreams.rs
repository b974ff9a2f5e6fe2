//! What the vendors' servers say: what was recorded of them, to whoever shows the right key.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use http::Response;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use serde_json::Value;
use testkit::upstream::{AnswerBody, Arrived, answered};

pub(super) const CRM_KEY: &str = "crm-key-of-a-test-4b7c1f";
pub(super) const SUPPORT_KEY: &str = "support-key-of-a-test-92ad0e";
pub(super) const ISSUES_KEY: &str = "issues-key-of-a-test-5538fa";

const JSON: [(&str, &str); 1] = [("content-type", "application/json")];
const PIECE: usize = 64 << 10;

/// Every exchange that is recorded of a service.
fn recorded(service: &str) -> Vec<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../services")
        .join(service)
        .join("fixtures");
    let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("list {}: {error}", folder.display()));
    let read = |path| -> Value {
        let text = fs::read_to_string(path).expect("read a fixture");
        serde_json::from_str(&text).expect("a fixture is JSON")
    };
    let mut fixtures: Vec<_> = files.flatten().map(|file| file.path()).collect();
    fixtures.sort();
    fixtures
        .into_iter()
        .flat_map(|path| read(path).as_array().cloned().unwrap_or_default())
        .flat_map(|fixture| fixture["exchanges"].as_array().cloned().unwrap_or_default())
        .collect()
}

static CRM: LazyLock<Vec<Value>> = LazyLock::new(|| recorded("crm"));
static SUPPORT: LazyLock<Vec<Value>> = LazyLock::new(|| recorded("support"));
static ISSUES: LazyLock<Vec<Value>> = LazyLock::new(|| recorded("issues"));

pub(super) fn answer(arrived: &Arrived) -> Response<AnswerBody> {
    let shown = arrived.header("authorization");
    match arrived.host.as_str() {
        "crm.api.test" if shown == format!("Bearer {CRM_KEY}") => play(&CRM, arrived),
        "support.api.test" if shown == format!("Bearer {SUPPORT_KEY}") => play(&SUPPORT, arrived),
        "issues.api.test" if shown == ISSUES_KEY => play(&ISSUES, arrived),
        "odd.api.test" if shown == format!("Bearer {CRM_KEY}") => odd(arrived),
        "renewed.api.test" => renewed(arrived),
        _ => answered(401, &JSON, "{\"message\":\"who are you?\"}"),
    }
}

/// The good answer of the exchange whose request this is.
fn play(recorded: &[Value], arrived: &Arrived) -> Response<AnswerBody> {
    let request = format!("{} {}", arrived.method, arrived.target);
    let body: Value = serde_json::from_slice(&arrived.body).unwrap_or_default();
    let fitting = |exchange: &&Value| exchange["request"] == request && exchange["status"] == 200;
    let same = recorded
        .iter()
        .filter(fitting)
        .find(|exchange| exchange["body"] == body);
    let any = || {
        recorded
            .iter()
            .filter(fitting)
            .find(|exchange| exchange["body"].is_null())
    };
    let Some(exchange) = same.or_else(any) else {
        let message = format!("nothing is recorded of {request} {body}");
        return answered(404, &JSON, serde_json::json!({ "message": message }).to_string());
    };
    answered(200, &JSON, exchange["answer"].to_string())
}

fn odd(arrived: &Arrived) -> Response<AnswerBody> {
    let pieces = |count: usize| stream::iter((0..count).map(|_| Ok(Frame::data(Bytes::from(vec![b'x'; PIECE])))));
    let streamed = |status: u16, body: AnswerBody| {
        let answer = Response::builder().status(status).header("content-type", "text/plain");
        answer.body(body).expect("an answer")
    };
    match arrived.path() {
        "/short" => answered(
            200,
            &[("content-type", "application/json"), ("content-length", "1000000")],
            "{\"a\":",
        ),
        "/endless" => {
            let first = stream::iter([Ok(Frame::data(Bytes::from_static(b"and then, ")))]);
            streamed(200, BodyExt::boxed(StreamBody::new(first.chain(stream::pending()))))
        }
        "/large" => streamed(200, BodyExt::boxed(StreamBody::new(pieces((1 << 30) / PIECE)))),
        "/file" => streamed(200, BodyExt::boxed(StreamBody::new(pieces((8 << 20) / PIECE)))),
        "/circle" => answered(302, &[("location", "https://odd.api.test/circle")], ""),
        _ => answered(404, &JSON, "{}"),
    }
}

/// Hands out a token once. The first request with it is served; then it is worth nothing, and there is no other.
fn renewed(arrived: &Arrived) -> Response<AnswerBody> {
    static TOKENS: AtomicUsize = AtomicUsize::new(0);
    static SERVED: AtomicUsize = AtomicUsize::new(0);
    if arrived.path() == "/oauth/token" {
        if TOKENS.fetch_add(1, Ordering::Relaxed) > 0 {
            return answered(400, &JSON, "{\"error\":\"invalid_grant\"}");
        }
        return answered(
            200,
            &JSON,
            "{\"access_token\":\"a-token-of-a-test\",\"token_type\":\"bearer\",\"expires_in\":3600}",
        );
    }
    if SERVED.fetch_add(1, Ordering::Relaxed) > 0 {
        return answered(401, &JSON, "{\"message\":\"the token was revoked\"}");
    }
    answered(200, &JSON, "{}")
}
