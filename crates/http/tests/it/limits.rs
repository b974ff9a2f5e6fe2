//! Bad input: a clear error, and nothing is done.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn prompts_that_are_none_are_refused_in_words() {
    let world = World::new().await;
    let session = world.post("/api/v1/sessions", &world.ada, json!({})).await;
    let session = session["id"].as_str().unwrap();
    let path = format!("/api/v1/sessions/{session}/prompts");
    let huge = format!("{{\"text\": \"{}\"}}", "x".repeat(50 << 20)).into_bytes();
    let large = format!("{{\"text\": \"{}\"}}", "x".repeat(2 << 20)).into_bytes();
    let cases: Vec<(Vec<u8>, u16, &str)> = vec![
        (b"".to_vec(), 400, "missing field `text`"),
        (b"{\"text\": \"\"}".to_vec(), 400, ""),
        (b"{\"text\": \" \\n \"}".to_vec(), 400, ""),
        (b"{\"text\": \"a\xff\"}".to_vec(), 400, "not UTF-8: byte 11"),
        (b"{\"text\": 3}".to_vec(), 400, "invalid type"),
        (b"{\"text\": \"a\", \"txet\": 1}".to_vec(), 400, "unknown field `txet`"),
        (b"{\"text\": \"a\"".to_vec(), 400, "EOF"),
        (b"{\"text\": \"a\", \"model\": \"gpt-99\"}".to_vec(), 400, "gpt-99"),
        (b"{\"text\": \"a\", \"delivery\": \"pigeon\"}".to_vec(), 400, "pigeon"),
        (large, 413, "at most 1048576"),
        (huge, 413, "25165824 bytes at most"),
    ];
    for (body, status, words) in cases {
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        let response = world
            .request(Method::POST, &path, &world.ada)
            .body(body)
            .send()
            .await
            .unwrap();
        let found = response.status().as_u16();
        let error: Value = response.json().await.unwrap();
        let message = error["error"]["message"].as_str().unwrap();
        assert_eq!(found, status, "{shown}: {message}");
        assert!(message.contains(words) && !message.is_empty(), "{shown}: {message}");
    }
    let after = world.json(&format!("/api/v1/sessions/{session}"), &world.ada).await;
    assert!(after["run"].is_null() && after["messages"] == 0, "{after}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_exist_and_what_is_malformed_is_told_apart() {
    let world = World::new().await;
    let unknown = "0192f0c1-2d3e-7abc-8def-0123456789ab";
    let cases = [
        (Method::GET, format!("/api/v1/sessions/{unknown}"), 404, "not_found"),
        (Method::GET, "/api/v1/sessions/..%2f..%2fetc".into(), 400, "invalid"),
        (Method::GET, "/api/v1/sessions?limit=many".into(), 400, "invalid"),
        (Method::GET, "/api/v1/sessions?lmit=3".into(), 400, "invalid"),
        (Method::GET, "/api/v1/sessions?after=here".into(), 400, "invalid"),
        (
            Method::GET,
            format!("/api/v1/sessions/{unknown}/events?after=x"),
            400,
            "invalid",
        ),
        (Method::DELETE, "/api/v1/sessions".into(), 405, "invalid"),
        (Method::GET, "/api/v1/nothing".into(), 404, "not_found"),
        (Method::DELETE, format!("/api/v1/tokens/{unknown}"), 404, "not_found"),
        (Method::GET, "/api/v1/users".into(), 403, "denied"),
        (Method::GET, "/api/v1/audit".into(), 403, "denied"),
        (Method::POST, "/api/v1/backup".into(), 403, "denied"),
    ];
    for (method, path, status, code) in cases {
        let response = world.request(method.clone(), &path, &world.ada).send().await.unwrap();
        let found = response.status().as_u16();
        let error: Value = response.json().await.unwrap();
        assert_eq!(
            (found, error["error"]["code"].as_str()),
            (status, Some(code)),
            "{method} {path}: {error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_without_end_is_cut_off() {
    let world = World::new().await;
    let response = world
        .request(Method::GET, "/api/v1/me", &world.ada)
        .header("x-long", "x".repeat(200 << 10))
        .send()
        .await;
    // The server answers 431 or, where the client is still sending, hangs up.
    if let Ok(response) = response {
        assert_eq!(response.status(), 431);
    }
    assert_eq!(world.get("/api/v1/me", &world.ada).await.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_holds_names_alone_is_small() {
    let world = World::new().await;
    // Read as a key it would become a hundred times as large.
    let swelling = format!("{{\"key\":{{\"kind\":\"cli\",\"x\":[{}0]}}}}", "0,".repeat(2 << 20));
    for path in ["/api/v1/sessions", "/api/v1/users", "/api/v1/tokens"] {
        let request = world.request(Method::POST, path, &world.admin).body(swelling.clone());
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 413, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_sends_large_prompts_slowly_keeps_nobody_elses_out() {
    let world = World::new().await;
    let session = world.post("/api/v1/sessions", &world.ada, json!({})).await;
    let address = world.url.strip_prefix("http://").unwrap();
    let head = format!(
        "POST /api/v1/sessions/{}/prompts HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {}\r\ncontent-length: 3000000\r\n\r\n",
        session["id"].as_str().unwrap(),
        world.ada
    );
    let begin = [head.into_bytes(), vec![b' '; 1_500_000]].concat();
    let mut begun = Vec::new();
    for _ in 0..20 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // Once they have no place the server reads no further.
        let _ = tokio::time::timeout(Duration::from_millis(200), stream.write_all(&begin)).await;
        begun.push(stream);
    }
    let session = world.post("/api/v1/sessions", &world.eve, json!({})).await;
    let path = format!("/api/v1/sessions/{}/prompts", session["id"].as_str().unwrap());
    let large = format!("{{\"text\": \"{}\"}}", "x".repeat(2 << 20));
    for _ in 0..20 {
        let request = world.request(Method::POST, &path, &world.eve).body(large.clone());
        assert_eq!(request.send().await.unwrap().status(), 413, "it was read");
    }
}
