//! Every endpoint as nobody and as somebody else. The list is the description's.

use reqwest::Method;
use serde_json::{Value, json};

use crate::world::World;

/// Every operation: its method, its path as described, and whether the description says that it is for admins only.
fn described() -> Vec<(Method, String, bool)> {
    let description = serde_json::to_value(http_api::description()).unwrap();
    let mut operations = Vec::new();
    for (path, item) in description["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let is_admins = operation.to_string().contains("Admins only");
            operations.push((method.to_uppercase().parse().unwrap(), path.clone(), is_admins));
        }
    }
    assert!(operations.len() >= 20, "{operations:?}");
    operations
}

/// Every operation: its method, its path as described.
fn operations() -> impl Iterator<Item = (Method, String)> {
    described().into_iter().map(|(method, path, _)| (method, path))
}

/// A request that would go well for whoever may make it.
async fn ask(world: &World, method: &Method, path: &str, token: &str) -> (u16, String) {
    let body = match path.rsplit('/').next() {
        Some("prompts") => json!({"text": "do it"}),
        Some("users") => json!({"name": "mallory", "admin": true}),
        Some("tokens") => json!({"label": "mine"}),
        Some("name") => json!({"name": "mine"}),
        Some("exec") => json!({"command": "ls"}),
        _ if path.contains("/approvals/") => json!({"decision": "once", "request_sha256": "00".repeat(32)}),
        _ => json!({}),
    };
    let path = &match path {
        "/api/v1/policy/explain" => format!("{path}?question=tool:exec"),
        _ => path.to_owned(),
    };
    let mut request = world.request(method.clone(), path, token);
    if *method == Method::POST || *method == Method::PUT {
        request = request.json(&body);
    }
    // Streams end by themselves, so that they can be read whole.
    if path.ends_with("/events") {
        request = world.request(method.clone(), &format!("{path}?follow=false"), token);
    }
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_endpoint_answers_a_stranger() {
    let world = World::new().await;
    let session = world.worked("hello").await;
    for (method, path) in operations() {
        let path = path.replace("{session}", &session).replace(['{', '}'], "");
        let expected = if path == "/healthz" { 200 } else { 401 };
        let forged = format!("{}x", world.admin);
        for token in ["", "x", "' OR '1'='1", &forged] {
            let (status, body) = ask(&world, &method, &path, token).await;
            assert_eq!(status, expected, "{method} {path} with {token:?}: {body}");
            assert!(!body.contains(&session), "{method} {path}: {body}");
        }
    }
    for path in ["/", "/api/v1", "/api/v1/nothing", "/api/v2/sessions", "/.git/config"] {
        assert_eq!(
            world.get(path, "").await.status(),
            401,
            "a stranger learns of no path, {path} neither"
        );
        assert_eq!(world.get(path, &world.ada).await.status(), 404, "{path}");
    }
    assert_eq!(world.get("/healthz", "").await.text().await.unwrap(), "ok\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_062_a_bearer_value_is_only_ever_a_key_to_look_up() {
    let world = World::new().await;
    for token in [
        "' OR '1'='1",
        "'; DROP TABLE tokens; --",
        "%",
        "*",
        "null",
        "\u{fffd}",
        "bj_\\x00",
    ] {
        let response = world
            .request(Method::GET, "/api/v1/me", "")
            .header("authorization", format!("Bearer {token}").into_bytes());
        assert_eq!(response.send().await.unwrap().status(), 401, "{token}");
    }
    assert_eq!(world.get("/api/v1/me", &world.ada).await.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_064_a_token_in_a_url_is_refused() {
    let world = World::new().await;
    for name in ["token", "access_token", "Token", "api_key"] {
        for shown in ["", &world.ada] {
            let path = format!("/api/v1/me?{name}={}", world.ada);
            let response = world.get(&path, shown).await;
            assert_eq!(response.status(), 401, "{name}");
            let body: Value = response.json().await.unwrap();
            assert_eq!(body["error"]["code"], "token_in_url");
            assert!(!body.to_string().contains(&world.ada));
        }
    }
    let referred = world
        .request(Method::GET, "/api/v1/me", "")
        .header("referer", format!("http://x/?token={}", world.ada));
    assert_eq!(referred.send().await.unwrap().status(), 401);
    let twice = world
        .request(Method::GET, "/api/v1/me", &world.ada)
        .bearer_auth(&world.eve);
    assert_eq!(twice.send().await.unwrap().status(), 401, "two tokens are none");
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_066_what_is_anothers_does_not_exist() {
    let world = World::new().await;
    let session = world.worked("my little secret").await;
    let me = world.json("/api/v1/me", &world.ada).await;
    let ada = me["id"].as_str().unwrap();
    let tokens = world.json("/api/v1/tokens", &world.ada).await;
    let token = tokens["tokens"][0]["id"].as_str().unwrap();
    let sandboxes = world.json("/api/v1/sandboxes", &world.admin).await;
    let sandbox = sandboxes["sandboxes"][0]["id"].as_str().unwrap();
    assert_eq!(sandboxes["sandboxes"][0]["state"], "running");
    // One is made when a run ends.
    let path = format!("/api/v1/sessions/{session}/snapshots");
    let kept = testkit::eventually_async("a snapshot", async || {
        let listed = world.json(&path, &world.ada).await;
        listed["snapshots"].get(0).cloned()
    })
    .await;
    let snapshot = kept["id"].as_str().unwrap();

    for (method, described, is_admins) in described() {
        let path = described
            .replace("{session}", &session)
            .replace("{user}", ada)
            .replace("{token}", token)
            .replace("{sandbox}", sandbox)
            .replace("{snapshot}", snapshot)
            .replace("{image}", "base")
            // No question was asked; tests of approvals ask one.
            .replace("{approval}", &session);
        assert!(
            !path.contains('{'),
            "a new kind of thing: give it here what is Ada's: {path}"
        );
        let (status, body) = ask(&world, &method, &path, &world.eve).await;
        if described.contains('{') {
            assert_eq!(status, 404, "{method} {described}: {body}");
        } else {
            // A person's token is no session's.
            let expected: &[u16] = match described.as_str() {
                "/api/proxy" => &[401],
                _ if is_admins => &[403],
                _ => &[200, 201, 202, 204],
            };
            assert!(expected.contains(&status), "{method} {described}: {status} {body}");
        }
        for anothers in [&session[..], token, sandbox, snapshot, "little secret"] {
            let allowed = described.contains('{') && body.starts_with("{\"error\"");
            assert!(
                allowed || !body.contains(anothers),
                "{method} {described} tells {anothers}: {body}"
            );
        }
    }
    for query in [
        format!("sessions?owner={ada}"),
        format!("usage?session={session}"),
        format!("usage?user={ada}"),
        format!("tokens?user={ada}"),
    ] {
        let response = world.get(&format!("/api/v1/{query}"), &world.eve).await;
        assert!(
            matches!(response.status().as_u16(), 403 | 404),
            "{query}: {}",
            response.text().await.unwrap()
        );
    }
    // Nothing of it did anything: nobody was let in, and all of Ada's is as it was.
    let users = world.json("/api/v1/users", &world.admin).await;
    assert!(
        users["users"]
            .as_array()
            .unwrap()
            .iter()
            .all(|user| user["name"] != "mallory"),
        "{users}"
    );
    let there = world.json("/api/v1/sandboxes", &world.admin).await;
    assert_eq!(there["sandboxes"][0]["id"], sandbox, "{there}");
    assert_eq!(
        world
            .get(&format!("/api/v1/sessions/{session}"), &world.ada)
            .await
            .status(),
        200
    );
    let again = world.json(&format!("/api/v1/sessions/{session}"), &world.ada).await;
    assert!(again["archived"].is_null(), "{again}");
}
