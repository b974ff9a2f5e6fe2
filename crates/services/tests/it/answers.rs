//! What becomes of answers.

use std::io::Write as _;

use axum::body::Body;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;
use services::{Code, Media};

use crate::rig::{KEY, Setting, Upstream, assert_clean, ok, status, with};

const METHODS: &str = r#"
[failure]
when = { at = "/ok", equals = false }
code = ["/error"]
rate_limited = ["ratelimited"]
unauthorized = ["invalid_auth"]
not_found = ["channel_not_found"]

[methods.get]
summary = "One contact"
access = "read"
request = "GET /contacts"

[methods.text]
summary = "A log"
access = "read"
request = "GET /log"
answer = "text"

[methods.export]
summary = "Everything"
access = "read"
request = "GET /export"
answer = "binary"

[methods.issues]
summary = "Issues"
access = "read"
request = "POST /graphql"
graphql = "query ($first: Int, $after: String) { issues(first: $first, after: $after) { nodes { id } pageInfo { endCursor hasNextPage } } }"
variables = { first = "{first}" }
arguments.properties.first.type = "integer"
[methods.issues.pages]
items = "/data/issues/nodes"
cursor = "body:after"
next = "/data/issues/pageInfo/endCursor"
more = "/data/issues/pageInfo/hasNextPage"
"#;

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn bytes(bytes: impl Into<Body>, media_type: &str) -> Response {
    with(Response::new(bytes.into()), "content-type", media_type)
}

#[tokio::test]
async fn a_text_is_a_string_and_bytes_flow() {
    let upstream = Upstream::start(|seen, _| match seen.target.as_str() {
        "/v1/log" => bytes("line \"1\"\nline 2\n", "text/plain"),
        _ => bytes(vec![0_u8, 159, 146, 150], "Application/X-Thing; charset=x"),
    })
    .await;
    let rig = Setting::new(&upstream.base(), METHODS).build();
    assert_eq!(rig.get("text", json!({})).await, json!("line \"1\"\nline 2\n"));
    let answer = rig.ask("export", json!({})).await.unwrap();
    assert_eq!(answer.media(), &Media::Bytes("application/x-thing".to_owned()));
    assert_eq!(answer.length(), None);
    assert_eq!(answer.whole().await.unwrap(), &[0_u8, 159, 146, 150][..]);
}

#[tokio::test]
async fn a_graphql_call_sends_its_document_and_variables() {
    let upstream = Upstream::start(|_, number| match number {
        0 => ok(json!({"data": {"issues": {
            "nodes": [{"id": "a"}], "pageInfo": {"endCursor": "c1", "hasNextPage": true}
        }}})),
        _ => ok(json!({"data": {"issues": null}, "errors": [
            {"message": "Cannot query field", "extensions": {"code": "GRAPHQL_VALIDATION_FAILED"}}
        ]})),
    })
    .await;
    let rig = Setting::new(&upstream.base(), METHODS).build();
    let page = rig.get("issues", json!({"first": 1, "cursor": "c0"})).await;
    assert_eq!(page, json!({"items": [{"id": "a"}], "next": "c1"}));
    let sent = upstream.one().json();
    assert!(sent["query"].as_str().unwrap().starts_with("query ("));
    assert_eq!(sent["variables"], json!({"first": 1, "after": "c0"}));
    let failure = rig.fails("issues", json!({}), Code::Refused).await;
    assert!(
        failure
            .message
            .contains("GRAPHQL_VALIDATION_FAILED): Cannot query field"),
        "{failure}"
    );
}

#[tokio::test]
async fn threat_075_no_argument_makes_a_query_a_mutation() {
    let upstream = Upstream::start(|_, _| ok(json!({"data": {"issues": {"nodes": []}}}))).await;
    let rig = Setting::new(&upstream.base(), METHODS).build();
    let hostile = "x\") { id } } mutation { deleteAll } #";
    rig.get("issues", json!({"cursor": hostile})).await;
    let sent = upstream.one().json();
    assert!(!sent["query"].as_str().unwrap().contains("mutation"));
    assert_eq!(sent["variables"]["after"], hostile);
    for arguments in [
        json!({"query": "mutation { deleteAll }"}),
        json!({"operationName": "x"}),
        json!([{"first": 1}, {"first": 2}]),
    ] {
        rig.fails("issues", arguments, Code::InvalidArguments).await;
    }
    assert_eq!(upstream.seen().len(), 1);
}

#[test]
fn threat_075_a_mutation_in_a_method_that_reads_is_a_mistake() {
    for document in [
        "mutation { deleteAll }",
        "query A { a } mutation B { b }",
        "{ a } subscription { b }",
        "# query\\nmutation { deleteAll }",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let crm = folder.path().join("crm");
        std::fs::create_dir(&crm).unwrap();
        let definition = format!(
            "name = \"crm\"\nkind = \"http\"\nsummary = \"x\"\nbase_url = \"https://api.example.com\"\n[methods.get]\nsummary = \"x\"\naccess = \"read\"\nrequest = \"POST /graphql\"\ngraphql = \"{document}\"\n"
        );
        std::fs::write(crm.join("service.toml"), definition).unwrap();
        let (catalogue, mistakes) = services::Catalogue::load(&[folder.path()]);
        assert!(catalogue.service("crm").is_none() && !mistakes.is_empty(), "{document}");
    }
}

#[tokio::test]
async fn a_no_with_a_good_status_is_a_no() {
    let upstream = Upstream::start(|_, number| {
        let error = ["ratelimited", "invalid_auth", "channel_not_found", "other"][number.min(3)];
        ok(json!({"ok": false, "error": error}))
    })
    .await;
    let rig = Setting::new(&upstream.base(), METHODS).build();
    // The first no may pass, and is asked again.
    rig.fails("get", json!({}), Code::CredentialRefused).await;
    rig.fails("get", json!({}), Code::NotFound).await;
    rig.fails("get", json!({}), Code::Refused).await;
}

#[tokio::test]
async fn threat_045_an_upstream_that_echoes_the_credential_gives_it_to_nobody() {
    let upstream = Upstream::start(|seen, _| {
        let key = seen.header("authorization").strip_prefix("Bearer ").unwrap().to_owned();
        let percent: String = key.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let spellings = json!({
            "headers": {"authorization": format!("Bearer {key}")},
            "base64": STANDARD.encode(&key),
            "shifted": STANDARD.encode(format!("me:{key}")),
            "url": URL_SAFE_NO_PAD.encode(format!("ab{key}cd")),
            "hex": hex::encode(&key),
            "HEX": hex::encode_upper(&key),
            "percent": percent,
            "encoded": key.replace('/', "%2F").replace('+', "%2B").replace('=', "%3D"),
            "list": [key.clone(), {"deep": format!("x{key}y")}],
        });
        match seen.target.as_str() {
            "/v1/contacts" => ok(spellings),
            "/v1/export" => {
                // Through a packing, and across the borders of pieces.
                with(
                    bytes(packed(spellings.to_string().as_bytes()), "text/plain"),
                    "content-encoding",
                    "gzip",
                )
            }
            _ => status(
                400,
                json!({"error": {"code": key, "message": format!("bad key {key} in {spellings}")}}),
            ),
        }
    })
    .await;
    let rig = Setting::new(&upstream.base(), METHODS).build();
    let answer = rig.get("get", json!({})).await;
    assert_clean(&answer.to_string());
    let masked = "*".repeat(KEY.len());
    assert_eq!(answer["list"][1]["deep"], format!("x{masked}y"));
    for method in ["export", "text"] {
        match rig.ask(method, json!({})).await {
            Ok(answer) => assert_clean(std::str::from_utf8(&answer.whole().await.unwrap()).unwrap()),
            Err(failure) => assert!(failure.message.contains("bad key *****"), "{failure}"),
        }
    }
}

#[tokio::test]
async fn threat_045_the_credential_is_found_across_the_borders_of_pieces() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}/v1", listener.local_addr().unwrap());
    let tasks = lifecycle::Tasks::new();
    let app = axum::Router::new().fallback(|| async {
        let text = format!("before {KEY} after");
        let letters: Vec<Result<String, std::io::Error>> = text.chars().map(|letter| Ok(letter.to_string())).collect();
        Response::new(Body::from_stream(futures::stream::iter(letters)))
    });
    tasks.spawn_until_stopped(async move { axum::serve(listener, app).await.unwrap() });
    let rig = Setting::new(&base, METHODS).build();
    let mut answer = rig.ask("export", json!({})).await.unwrap();
    let mut whole = Vec::new();
    while let Some(piece) = answer.piece().await.unwrap() {
        whole.extend_from_slice(&piece);
    }
    let whole = String::from_utf8(whole).unwrap();
    assert_eq!(whole, format!("before {} after", "*".repeat(KEY.len())));
}

#[tokio::test]
async fn packed_answers_are_unpacked() {
    let body = json!({"name": "ü".repeat(50_000)});
    let sent = body.clone();
    let upstream = Upstream::start(move |_, _| {
        with(
            bytes(packed(sent.to_string().as_bytes()), "application/json"),
            "content-encoding",
            "gzip",
        )
    })
    .await;
    let rig = Setting::new(&upstream.base(), METHODS).build();
    assert_eq!(rig.get("get", json!({})).await, body);
    assert_eq!(upstream.one().header("accept-encoding"), "gzip");
}

#[tokio::test]
async fn what_is_not_as_declared_is_said() {
    let upstream = Upstream::start(|_, number| match number {
        0 => bytes("<html>Sign in</html>", "application/json"),
        1 => bytes("{\"a\":", "application/json"),
        2 => bytes(vec![b'"', 255, b'"'], "application/json"),
        3 => bytes("[".repeat(5_000) + &"]".repeat(5_000), "application/json"),
        4 => with(bytes("{}", "application/json"), "content-encoding", "br"),
        _ => with(bytes("{}", "application/json"), "content-encoding", "gzip"),
    })
    .await;
    let rig = Setting::new(&upstream.base(), METHODS).build();
    for words in [
        "it is no JSON",
        "it is no JSON",
        "no UTF-8",
        "nested",
        "\"br\"",
        "unpacked",
    ] {
        let failure = rig.fails("get", json!({}), Code::AnswerMalformed).await;
        assert!(failure.message.contains(words), "{failure}");
    }
    let upstream = Upstream::start(|_, _| ok(json!({"data": 1}))).await;
    let rig = Setting::new(&upstream.base(), METHODS).build();
    let failure = rig.fails("issues", json!({}), Code::AnswerMalformed).await;
    assert!(failure.message.contains("/data/issues/nodes"), "{failure}");
}

#[tokio::test]
async fn threat_051_a_token_that_the_upstream_makes_is_not_handed_on() {
    let upstream = Upstream::start(|seen, _| match seen.target.as_str() {
        "/v1/log" => bytes(
            "<Credentials><SecretAccessKey>wJalr</SecretAccessKey></Credentials>",
            "text/xml",
        ),
        _ => ok(json!({"access_token": "ya29.made", "token_type": "bearer", "expires_in": 3600})),
    })
    .await;
    let rig = Setting::new(&upstream.base(), METHODS).build();
    let answer = rig.get("get", json!({})).await;
    assert_eq!(
        (answer["token_type"].as_str(), answer["expires_in"].as_u64()),
        (Some("bearer"), Some(3600))
    );
    assert!(!answer.to_string().contains("ya29"), "{answer}");
    let failure = rig.fails("text", json!({}), Code::AnswerWithheld).await;
    assert_eq!(failure.status(), 403);
    assert!(!failure.message.contains("wJalr"), "{failure}");
}
