//! What comes back of what was put in: nothing.

use std::sync::Mutex;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use bytes::Bytes;
use futures::stream;
use http::{HeaderMap, HeaderValue, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;

use super::house::{House, PLACEHOLDER, SECRET, get, read, request, request2};
use super::upstream::{Answer, Seen, echo, text};

const HOST: &str = "api.bound.test";
const BASIC: &str = r#"inject = [
    { kind = "basic", user = "me", secret = "env:TOKEN" },
    { kind = "query", name = "key", secret = "env:TOKEN" },
]"#;

fn spellings() -> Vec<String> {
    let percent: String = SECRET.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let json = serde_json::to_string(SECRET).unwrap();
    vec![
        SECRET.to_owned(),
        STANDARD.encode(SECRET),
        URL_SAFE.encode(SECRET),
        hex(SECRET),
        hex(SECRET).to_uppercase(),
        percent.to_uppercase(),
        percent,
        "tok-5f%2F8e%2B21%26b%22c%5C7d".to_owned(),
        json[1..json.len() - 1].to_owned(),
    ]
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

fn assert_clean(text: &str) {
    for spelling in spellings() {
        let core = spelling.trim_end_matches('=');
        assert!(!text.contains(&core[..core.len() - 1]), "{spelling} is in {text}");
    }
}

/// An answer in pieces, with trailers.
fn in_pieces(pieces: Vec<String>, trailers: Option<HeaderMap>) -> Answer {
    let frames = pieces
        .into_iter()
        .map(|piece| Frame::data(Bytes::from(piece)))
        .chain(trailers.map(Frame::trailers))
        .map(Ok);
    Answer::new(StreamBody::new(stream::iter(frames.collect::<Vec<_>>())).boxed_unsync())
}

#[tokio::test]
async fn threat_045_an_echo_shows_the_request_without_the_secret() {
    let house = House::new(&[("bound", BASIC)]);
    let bound = house.upstream(HOST, echo).await;
    let reply = house.ask(HOST, get(HOST, "/debug?a=b")).await;
    assert!(reply.body.contains("GET /debug?a=b&key=***"), "{}", reply.body);
    assert_clean(&reply.body);
    let composed = STANDARD.encode(format!("me:{SECRET}"));
    assert!(bound.only().header("authorization")[0].ends_with(&composed));
    assert!(!reply.body.contains(&composed[6..]), "{}", reply.body);
}

#[tokio::test]
async fn threat_045_every_spelling_is_scrubbed_at_every_border_of_pieces() {
    let house = House::new(&[("bound", BASIC)]);
    let _bound = house
        .upstream(HOST, |seen| {
            let cut: usize = seen.header("x-cut")[0].parse().unwrap();
            let pieces = spellings().into_iter().flat_map(|spelling| {
                let cut = cut.min(spelling.len());
                [format!("<{}", &spelling[..cut]), format!("{}>", &spelling[cut..])]
            });
            in_pieces(pieces.collect(), None)
        })
        .await;
    let mut client = house.many(HOST).await;
    let longest = spellings().iter().map(String::len).max().unwrap();
    for cut in 0..=longest {
        let cut = cut.to_string();
        let asked = request2("GET", "https://api.bound.test/", &[("x-cut", &cut)], "");
        let reply = read(client.send_request(asked).await.unwrap()).await;
        assert_clean(&reply.body);
        assert_eq!(
            reply.body.len(),
            spellings().iter().map(|spelling| spelling.len() + 2).sum::<usize>()
        );
    }
}

#[tokio::test]
async fn threat_045_headers_and_trailers_are_scrubbed() {
    let house = House::new(&[("bound", BASIC)]);
    let _bound = house
        .upstream(HOST, |_| {
            let mut trailers = HeaderMap::new();
            trailers.insert("x-trailer", HeaderValue::from_str(&format!("a {SECRET} z")).unwrap());
            let mut answer = in_pieces(vec!["body".to_owned()], Some(trailers));
            *answer.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            let headers = answer.headers_mut();
            headers.insert(
                "set-cookie",
                HeaderValue::from_str(&format!("t={}", hex(SECRET))).unwrap(),
            );
            headers.insert(
                "location",
                HeaderValue::from_str("/?key=tok-5f%2F8e%2B21%26b%22c%5C7d&x=y").unwrap(),
            );
            answer
        })
        .await;
    let mut client = house.many(HOST).await;
    let asked = request2("GET", "https://api.bound.test/", &[("te", "trailers")], "");
    let reply = read(client.send_request(asked).await.unwrap()).await;
    assert_eq!(reply.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(reply.trailers["x-trailer"], format!("a {} z", "*".repeat(SECRET.len())));
    assert_eq!(reply.headers["location"], format!("/?key={}&x=y", "*".repeat(29)));
    assert_clean(&format!("{:?} {:?}", reply.headers, reply.trailers));
}

/// Keeps what it is asked to keep, and shows it to whoever asks.
fn keeper() -> impl Fn(&Seen) -> Answer + Send + Sync + 'static {
    let kept = Mutex::new(String::new());
    move |seen| {
        let mut kept = kept.lock().unwrap();
        if seen.method == "PUT" {
            *kept = format!("{} {}", seen.target, seen.text());
            return text("kept");
        }
        text(kept.clone())
    }
}

#[tokio::test]
async fn threat_045_what_one_request_left_with_the_upstream_is_not_read_by_the_next() {
    let path = r#"inject = [{ kind = "path", secret = "env:TOKEN" }]"#;
    let header = r#"inject = [
        { kind = "header", name = "x-key", secret = "env:OTHER", mode = "placeholder" },
        { kind = "body", secret = "env:TOKEN" },
    ]"#;
    let put = format!("methods = [\"PUT\"]\n{path}");
    let unresolved = r#"methods = ["DELETE"]
        inject = [{ kind = "bearer", secret = "env:NOBODY" }]"#;
    let get = "methods = [\"GET\"]";
    for rules in [
        vec![("bound", path)],
        vec![("bound", header)],
        vec![("put", &*put), ("get", get), ("unresolved", unresolved)],
    ] {
        let house = House::new(&rules);
        let bound = house.upstream(HOST, keeper()).await;
        let target = format!("/{PLACEHOLDER}");
        let asked = if rules[0].1 == header {
            request("PUT", HOST, "/", &[], PLACEHOLDER)
        } else {
            request("PUT", HOST, &target, &[], "")
        };
        let reply = house.ask(HOST, asked).await;
        assert_eq!((reply.status, reply.body.as_str()), (StatusCode::OK, "kept"));
        // The coding keeps a body from being filled, so nothing at all is put into this request.
        let asked = request("GET", HOST, "/", &[("content-encoding", "identity")], "");
        let reply = house.ask(HOST, asked).await;
        assert!(
            reply.body.starts_with('/') && reply.body.contains("***"),
            "{}",
            reply.body
        );
        assert_clean(&reply.body);
        assert_eq!(bound.seen()[1].header("accept-encoding"), ["identity"]);
        let injected: Vec<bool> = house
            .records(2)
            .await
            .into_iter()
            .map(|record| record.request.unwrap().injected)
            .collect();
        assert_eq!(
            injected,
            [true, false],
            "the record says what was put into each request"
        );
    }
}

#[tokio::test]
async fn threat_045_trace_is_denied() {
    let house = House::new(&[("bound", BASIC)]);
    let bound = house.upstream(HOST, echo).await;
    for method in ["TRACE", "TRACK", "track"] {
        let reply = house.ask(HOST, request(method, HOST, "/", &[], "")).await;
        assert_eq!(
            (reply.status, reply.code().as_str()),
            (StatusCode::METHOD_NOT_ALLOWED, "method"),
            "{method}"
        );
    }
    assert!(bound.seen().is_empty());
}

#[tokio::test]
async fn threat_046_an_answer_is_asked_for_whole_and_plain() {
    let house = House::new(&[("bound", BASIC), ("plain", "")]);
    let bound = house.upstream(HOST, |_| text("fine")).await;
    let headers = [
        ("accept-encoding", "gzip, br, zstd"),
        ("range", "bytes=3-9"),
        ("if-range", "\"a\""),
    ];
    house.ask(HOST, request("GET", HOST, "/", &headers, "")).await;
    let seen = bound.only();
    assert_eq!(seen.header("accept-encoding"), ["identity"]);
    assert!(seen.header("range").is_empty() && seen.header("if-range").is_empty());

    house.change(2, &[("plain", "")]);
    house.ask(HOST, request("GET", HOST, "/", &headers, "")).await;
    assert_eq!(
        bound.seen()[1].header("range"),
        ["bytes=3-9"],
        "nothing was put in, so nothing is held back"
    );
}

#[tokio::test]
async fn threat_046_what_is_encoded_all_the_same_is_decoded_or_refused() {
    use std::io::Write as _;
    let house = House::new(&[("bound", BASIC)]);
    let _bound = house
        .upstream(HOST, |seen| {
            let plain = format!("{}{SECRET}{}", "a".repeat(100_000), "b".repeat(100_000));
            let coding = seen.header("x-coding")[0].clone();
            let body = match coding.as_str() {
                "gzip" => {
                    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
                    encoder.write_all(plain.as_bytes()).unwrap();
                    encoder.finish().unwrap()
                }
                "deflate" => {
                    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
                    encoder.write_all(plain.as_bytes()).unwrap();
                    encoder.finish().unwrap()
                }
                _ => plain.into_bytes(),
            };
            let mut answer = text(body);
            if coding == "part" {
                *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
            } else {
                answer.headers_mut().insert("content-encoding", coding.parse().unwrap());
            }
            answer
        })
        .await;
    for coding in ["gzip", "deflate"] {
        let reply = house
            .ask(HOST, request("GET", HOST, "/", &[("x-coding", coding)], ""))
            .await;
        assert_eq!(
            (reply.status, reply.body.len()),
            (StatusCode::OK, 200_000 + SECRET.len()),
            "{coding}"
        );
        assert!(reply.headers.get("content-encoding").is_none());
        assert_clean(&reply.body);
    }
    for coding in ["br", "zstd", "gzip, gzip", "part"] {
        let reply = house
            .ask(HOST, request("GET", HOST, "/", &[("x-coding", coding)], ""))
            .await;
        assert_eq!(
            (reply.status, reply.code().as_str()),
            (StatusCode::BAD_GATEWAY, "bad_answer"),
            "{coding}"
        );
    }
}

#[tokio::test]
async fn threat_004_nothing_leads_the_client_round_the_broker() {
    let house = House::new(&[("plain", "methods = [\"GET\"]")]);
    let _bound = house
        .old_upstream(HOST, |_| {
            let mut answer = text("fine");
            answer
                .headers_mut()
                .insert("alt-svc", "h3=\":443\"; ma=2592000".parse().unwrap());
            answer.headers_mut().insert("upgrade", "h2c".parse().unwrap());
            answer
        })
        .await;
    let reply = house.ask(HOST, get(HOST, "/")).await;
    assert_eq!(reply.body, "fine");
    assert!(reply.headers.get("alt-svc").is_none() && reply.headers.get("upgrade").is_none());
}

#[tokio::test]
async fn threat_038_a_redirect_is_shown_and_not_followed() {
    let house = House::new(&[("bound", BASIC)]);
    let evil = house.upstream("evil.test", echo).await;
    let _bound = house
        .upstream(HOST, |_| {
            let mut answer = text("");
            *answer.status_mut() = StatusCode::FOUND;
            answer
                .headers_mut()
                .insert("location", "https://evil.test/".parse().unwrap());
            answer
        })
        .await;
    let reply = house.ask(HOST, get(HOST, "/")).await;
    assert_eq!(
        (reply.status, reply.headers["location"].to_str().unwrap()),
        (StatusCode::FOUND, "https://evil.test/")
    );
    assert_eq!(evil.connections(), 0);
}
