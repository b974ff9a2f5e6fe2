//! Services, scopes and decisions as callers of the API see them.

use lifecycle::Tasks;
use policy::Scope;
use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::world::World;
use crate::world::crm::{ANSWERED, CANARY, outside, upstream};

const PROXY: &str = "/api/proxy";

/// A world whose sessions may get contacts and not remove them, and the token of a session.
async fn world(tasks: &Tasks) -> (World, String, String) {
    let port = upstream(tasks).await;
    let scope: Scope =
        serde_json::from_value(json!({"services": {"allow": ["crm.*"], "deny": ["crm.remove"]}})).unwrap();
    let roles = |config: &mut control::Config| {
        config.policies.roles.insert("everybody".to_owned(), scope);
    };
    let world = World::with_outside(roles, |folder, tasks| outside(port, folder, tasks)).await;
    let session = world.post("/api/v1/sessions", &world.ada, json!({})).await;
    let session = session["id"].as_str().unwrap().to_owned();
    let speech = testkit::model_server::Speech::text("Let me see.").call("a", "exec", &json!({"code": "look"}));
    world.models.next(testkit::model_server::Answer::Say(speech));
    world.work(&session, "Done.").await;
    let (sandbox, _) = world.inside.newest();
    let token = world.inside.tokens(sandbox).pop().unwrap().expose().to_owned();
    (world, session, token)
}

async fn call(world: &World, token: &str, body: Value) -> Response {
    world
        .request(Method::POST, PROXY, token)
        .json(&body)
        .send()
        .await
        .unwrap()
}

async fn refused(response: Response) -> (u16, String) {
    let status = response.status().as_u16();
    let body: Value = response.json().await.unwrap();
    assert!(body["error"]["message"].is_string(), "{body}");
    assert!(!body.to_string().contains(CANARY), "{body}");
    (status, body["error"]["code"].as_str().unwrap().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_calls_services_by_its_token() {
    let tasks = Tasks::new();
    let _end = tasks.stop().drop_guard();
    let (world, _, token) = world(&tasks).await;
    let get = json!({"service": "crm", "method": "get", "args": {"id": "1"}});
    let answer = call(&world, &token, get.clone()).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["content-type"], "application/json");
    assert_eq!(
        answer.json::<Value>().await.unwrap(),
        json!({"result": {"name": ANSWERED}})
    );
    let mut in_body = get.clone();
    in_body["token"] = json!(token);
    assert_eq!(call(&world, "", in_body.clone()).await.status(), 200);
    assert_eq!(call(&world, &token, in_body).await.status(), 200);
    for (body, expected) in [
        (
            json!({"service": "crm", "method": "remove", "args": {"id": "1"}}),
            (403, "denied"),
        ),
        (json!({"service": "crm", "method": "gone"}), (404, "unknown_method")),
        (
            json!({"service": "crm", "method": "__proto__"}),
            (404, "unknown_method"),
        ),
        (json!({"service": "hr", "method": "get"}), (403, "denied")),
        (
            json!({"service": "crm", "method": "get", "args": {"id": 1}}),
            (422, "invalid_arguments"),
        ),
        (
            json!({"service": "crm", "method": "get", "args": ["1"]}),
            (422, "invalid_arguments"),
        ),
        (json!({"service": "crm"}), (400, "invalid")),
    ] {
        let (status, code) = refused(call(&world, &token, body.clone()).await).await;
        assert_eq!((status, code.as_str()), expected, "{body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_calls_too_often_is_told_when_to_come_again() {
    let tasks = Tasks::new();
    let _end = tasks.stop().drop_guard();
    let (world, _, token) = world(&tasks).await;
    let count = json!({"service": "crm", "method": "count"});
    assert_eq!(call(&world, &token, count.clone()).await.status(), 200);
    let response = call(&world, &token, count).await;
    let header = response.headers()["retry-after"].to_str().unwrap().to_owned();
    assert!((1..=60).contains(&header.parse::<u32>().unwrap()), "{header}");
    assert_eq!(response.status(), 429);
    let told: Value = response.json().await.unwrap();
    assert_eq!(told["error"]["code"], "rate_limited", "{told}");
    assert_eq!(told["error"]["retry_after"].to_string(), header, "{told}");
    // Another method is not held up.
    let get = json!({"service": "crm", "method": "get", "args": {"id": "1"}});
    assert_eq!(call(&world, &token, get).await.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_would_swell_while_it_is_read_is_refused() {
    let tasks = Tasks::new();
    let _end = tasks.stop().drop_guard();
    let (world, _, token) = world(&tasks).await;
    // Fewer parts than the link takes, and more.
    for (count, expected) in [(10_000, (422, "invalid_arguments")), (30_000, (400, "invalid"))] {
        let body = json!({"service": "crm", "method": "get", "args": vec![0; count]});
        let (status, code) = refused(call(&world, &token, body).await).await;
        assert_eq!((status, code.as_str()), expected, "{count}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_064_a_sessions_token_in_a_url_is_refused() {
    let tasks = Tasks::new();
    let _end = tasks.stop().drop_guard();
    let (world, _, token) = world(&tasks).await;
    let get = json!({"service": "crm", "method": "get", "args": {"id": "1"}});
    for shown in ["", &token] {
        let path = format!("{PROXY}?token={token}");
        let answer = world
            .request(Method::POST, &path, shown)
            .json(&get)
            .send()
            .await
            .unwrap();
        assert_eq!(refused(answer).await, (401, "token_in_url".to_owned()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_066_a_call_is_for_the_session_of_its_token_and_no_other() {
    let tasks = Tasks::new();
    let _end = tasks.stop().drop_guard();
    let (world, session, token) = world(&tasks).await;
    let unauthorized = (401, "unauthorized".to_owned());
    let get = json!({"service": "crm", "method": "get", "args": {"id": "1"}});
    for stranger in [&world.ada[..], &world.admin, "x", "' OR '1'='1", ""] {
        let mut body = get.clone();
        assert_eq!(
            refused(call(&world, stranger, body.clone()).await).await,
            unauthorized,
            "{stranger}"
        );
        body["token"] = json!(stranger);
        assert_eq!(
            refused(call(&world, "", body.clone()).await).await,
            unauthorized,
            "{stranger}"
        );
        // Two that differ are none.
        body["token"] = json!(token);
        if !stranger.is_empty() {
            assert_eq!(
                refused(call(&world, stranger, body).await).await,
                unauthorized,
                "{stranger}"
            );
        }
    }
    // Whose session it is stands nowhere in a call, so another's cannot either.
    for name in ["session", "session_id", "run", "user"] {
        let mut body = get.clone();
        body[name] = json!(session);
        assert_eq!(
            refused(call(&world, &token, body).await).await,
            (400, "invalid".to_owned()),
            "{name}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_078_a_session_changes_nothing_of_what_it_may_do() {
    let tasks = Tasks::new();
    let _end = tasks.stop().drop_guard();
    let (world, session, token) = world(&tasks).await;
    for (method, path, body) in [
        (Method::POST, "/api/v1/sessions".to_owned(), json!({"scope": {}})),
        (
            Method::POST,
            format!("/api/v1/sessions/{session}/prompts"),
            json!({"text": "allow it", "scope": {"services": ["**"]}}),
        ),
        (
            Method::POST,
            "/api/v1/users".to_owned(),
            json!({"name": "mallory", "admin": true}),
        ),
        (Method::POST, "/api/v1/tokens".to_owned(), json!({"label": "mine"})),
        (
            Method::GET,
            "/api/v1/policy/explain?question=crm.get".to_owned(),
            json!({}),
        ),
        (Method::GET, "/api/v1/audit".to_owned(), json!({})),
    ] {
        let answer = world.request(method, &path, &token).json(&body).send().await.unwrap();
        assert_eq!(refused(answer).await.0, 401, "{path}");
    }
    let (status, _) = refused(
        call(
            &world,
            &token,
            json!({"service": "crm", "method": "remove", "args": {"id": "1"}}),
        )
        .await,
    )
    .await;
    assert_eq!(status, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_076_a_scope_takes_away_and_an_explanation_says_so() {
    let tasks = Tasks::new();
    let _end = tasks.stop().drop_guard();
    let (world, _, _) = world(&tasks).await;
    let session = world
        .post(
            "/api/v1/sessions",
            &world.ada,
            json!({"scope": {"services": ["crm.remove", "hr.*"]}}),
        )
        .await;
    let session = session["id"].as_str().unwrap();
    for (question, outcome, rule) in [
        ("crm.get", "deny", "services.unlisted"),
        ("crm.remove", "deny", "services.deny:crm.remove"),
        ("hr.list", "deny", "services.unlisted"),
        ("tool:exec", "allow", "tools.allow:exec"),
    ] {
        let path = format!("/api/v1/policy/explain?question={question}&session={session}");
        let explained = world.json(&path, &world.ada).await;
        assert_eq!(explained["decision"]["outcome"], outcome, "{explained}");
        assert_eq!(explained["decision"]["rule"], rule, "{explained}");
        assert_eq!(explained["layers"].as_array().unwrap().len(), 2, "{explained}");
        assert_eq!(world.get(&path, &world.eve).await.status(), 404);
    }
    let others = "/api/v1/policy/explain?question=crm.get&user=ada";
    assert_eq!(world.get(others, &world.eve).await.status(), 403);
    assert_eq!(world.get(others, &world.admin).await.status(), 200);
    let nonsense = world.get("/api/v1/policy/explain?question=crm", &world.ada).await;
    assert!(refused(nonsense).await.1 == "invalid");
    // What is no scope is told with what would be one.
    let wrong = world
        .request(Method::POST, "/api/v1/sessions", &world.ada)
        .json(&json!({"scope": {"services": ["crm"]}}));
    let wrong = wrong.send().await.unwrap();
    assert_eq!(wrong.status(), 400);
    let words = wrong.text().await.unwrap();
    assert!(words.contains("service.method"), "{words}");
}
