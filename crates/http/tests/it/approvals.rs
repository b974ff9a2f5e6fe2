//! Questions to people over the API: who sees them, who may answer, and what with.

use reqwest::Method;
use serde_json::{Value, json};
use testkit::model_server::{Answer, Speech};

use crate::world::World;

/// A world where a person is asked about exec, and a question of Ada's session.
async fn asked() -> (World, String, Value) {
    let world = World::with(|config| {
        let role = serde_json::from_value(json!({"tools": {"exec": "ask"}})).unwrap();
        config.policies.roles.insert("everybody".to_owned(), role);
    })
    .await;
    let call = Speech::text("Let me see. ").call("c1", "exec", &json!({"code": "echo"}));
    world.models.next(Answer::Say(call));
    world.models.next(Answer::text("So be it."));
    let session = world.post("/api/v1/sessions", &world.ada, json!({})).await;
    let session = session["id"].as_str().unwrap().to_owned();
    let path = format!("/api/v1/sessions/{session}/prompts");
    world.post(&path, &world.ada, json!({"text": "work"})).await;
    let mut frames = world.frames(&session, &world.ada, "0", true).await;
    loop {
        let frame = frames.next().await.expect("a question");
        if frame.data["type"] == "approval_requested" {
            return (world, session, frame.data);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_is_answered_by_whoever_saw_it() {
    let (world, session, asked) = asked().await;
    let id = asked["approval"].as_str().unwrap();
    let path = format!("/api/v1/approvals/{id}");
    let listed = world.json("/api/v1/approvals", &world.ada).await;
    let listed = &listed["approvals"][0];
    assert_eq!(
        (&listed["id"], &listed["request"]),
        (&asked["approval"], &asked["request"])
    );
    assert_eq!(
        (listed["state"].as_str(), listed["subject"].as_str()),
        (Some("pending"), Some("exec"))
    );
    assert_eq!(listed["request"]["arguments"]["code"], "echo");
    let one = world.json(&path, &world.ada).await;
    assert_eq!(&one, listed);

    let answer = async |token: &str, body: Value| {
        let request = world.request(Method::POST, &path, token).json(&body);
        request.send().await.unwrap().status().as_u16()
    };
    let yes = json!({"decision": "once", "request_sha256": asked["sha256"]});
    assert_eq!(
        answer(&world.ada, json!({"decision": "once"})).await,
        400,
        "what was seen must be said"
    );
    assert_eq!(
        answer(
            &world.ada,
            json!({"decision": "once", "request_sha256": "00".repeat(32)})
        )
        .await,
        409
    );
    assert_eq!(
        answer(
            &world.ada,
            json!({"decision": "maybe", "request_sha256": asked["sha256"]})
        )
        .await,
        400
    );
    // Anothers' does not exist.
    assert_eq!(answer(&world.eve, yes.clone()).await, 404);
    assert_eq!(world.get(&path, &world.eve).await.status(), 404);
    let none = world.json("/api/v1/approvals", &world.eve).await;
    assert_eq!(none["approvals"], json!([]));
    let of_ada = format!("/api/v1/approvals?session={session}");
    assert_eq!(world.get(&of_ada, &world.eve).await.status(), 404);

    assert_eq!(answer(&world.ada, yes.clone()).await, 200);
    assert_eq!(answer(&world.ada, yes).await, 409, "once");
    let mut frames = world.frames(&session, &world.ada, "0", true).await;
    let mut seen = Vec::new();
    while let Some(frame) = frames.next().await {
        if frame.data["type"] == "approval_decided" {
            seen.push(frame.data["by"].clone());
        }
        if frame.data["type"] == "run" && frame.data["state"] == "done" {
            break;
        }
    }
    assert_eq!(seen, ["ada"]);
    assert_eq!(world.inside.made(), ["echo"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_078_the_token_of_a_session_answers_nothing() {
    let (world, _, asked) = asked().await;
    let (sandbox, _) = world.inside.newest();
    let token = world.inside.tokens(sandbox).pop().unwrap();
    let path = format!("/api/v1/approvals/{}", asked["approval"].as_str().unwrap());
    let yes = json!({"decision": "always", "request_sha256": asked["sha256"]});
    for path in ["/api/v1/approvals", &path] {
        assert_eq!(world.get(path, token.expose()).await.status(), 401, "{path}");
    }
    let answered = world
        .request(Method::POST, &path, token.expose())
        .json(&yes)
        .send()
        .await
        .unwrap();
    assert_eq!(answered.status(), 401);
    let one = world.json(&path, &world.ada).await;
    assert_eq!(one["state"], "pending");
}
