//! What the API is for.

use reqwest::Method;
use serde_json::{Value, json};
use testkit::model_server::Answer;

use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn a_key_finds_its_session_again_and_pages_follow_each_other() {
    let world = World::new().await;
    let open = async |key: &str| world.post("/api/v1/sessions", &world.ada, json!({"key": key})).await["id"].clone();
    let first = open("one").await;
    assert_eq!(open("one").await, first);
    let mut all = vec![first.clone(), open("two").await, open("three").await];
    let found = world.json("/api/v1/sessions?key=one", &world.ada).await;
    assert_eq!(found["sessions"][0]["id"], first);
    assert!(found["sessions"].as_array().unwrap().len() == 1 && found["next"].is_null());

    let mut listed = Vec::new();
    let mut after = String::new();
    loop {
        let page = world
            .json(&format!("/api/v1/sessions?limit=1{after}"), &world.ada)
            .await;
        listed.extend(
            page["sessions"]
                .as_array()
                .unwrap()
                .iter()
                .map(|session| session["id"].clone()),
        );
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    listed.sort_by_key(Value::to_string);
    all.sort_by_key(Value::to_string);
    assert_eq!(listed, all);

    let first = first.as_str().unwrap();
    world
        .post(&format!("/api/v1/sessions/{first}/archive"), &world.ada, json!({}))
        .await;
    let page = world.json("/api/v1/sessions?archived=true", &world.ada).await;
    assert_eq!(page["sessions"][0]["id"], first);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_go_in_and_come_out_as_they_were() {
    let world = World::new().await;
    let session = world.worked("hello").await;
    let bytes: Vec<u8> = (0..300_000_u32)
        .map(|number| number.to_le_bytes()[0] ^ number.to_le_bytes()[1])
        .collect();
    let path = format!("/api/v1/sessions/{session}/file?path=data%20set.bin");
    let put = world
        .request(Method::PUT, &path, &world.ada)
        .body(bytes.clone())
        .send()
        .await
        .unwrap();
    assert_eq!(put.status(), 200, "{}", put.text().await.unwrap());
    let got = world.get(&path, &world.ada).await;
    assert_eq!(got.headers()["content-disposition"], "attachment");
    assert_eq!(got.headers()["x-content-type-options"], "nosniff");
    assert!(got.bytes().await.unwrap() == bytes);
    let listed = world
        .json(&format!("/api/v1/sessions/{session}/files"), &world.ada)
        .await;
    assert_eq!(listed["files"][0]["path"], "data set.bin");
    assert_eq!(listed["files"][0]["bytes"], 300_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_is_sent_again_is_done_once() {
    let world = World::new().await;
    let session = world.post("/api/v1/sessions", &world.ada, json!({})).await["id"]
        .as_str()
        .unwrap()
        .to_owned();
    world.models.next(Answer::text("once"));
    let mut runs = Vec::new();
    for _ in 0..2 {
        let request = world.request(Method::POST, &format!("/api/v1/sessions/{session}/prompts"), &world.ada);
        let answer = request
            .header("idempotency-key", "a")
            .json(&json!({"text": "do it"}))
            .send()
            .await
            .unwrap();
        let answer: Value = answer.json().await.unwrap();
        runs.push((answer["run"].clone(), answer["repeated"].clone()));
    }
    assert_eq!(runs[0].0, runs[1].0);
    assert_eq!((&runs[0].1, &runs[1].1), (&json!(false), &json!(true)));
}

#[tokio::test(flavor = "multi_thread")]
async fn money_people_and_what_happened_can_be_asked_for() {
    let world = World::new().await;
    let session = world.worked("hello").await;
    let usage = world
        .json(&format!("/api/v1/usage?session={session}&by=model"), &world.ada)
        .await;
    assert_eq!(usage["sums"][0]["name"], "m");
    assert!(usage["sums"][0]["cost"].as_i64().unwrap() > 0, "{usage}");

    // One by one, page by page; nobody else's.
    let calls =
        async |query: &str, token: &str| -> Value { world.json(&format!("/api/v1/usage/calls{query}"), token).await };
    let first = calls("?limit=1", &world.ada).await;
    assert_eq!(
        (&first["calls"][0]["model"], &first["calls"][0]["cost"]),
        (&json!("m"), &usage["sums"][0]["cost"])
    );
    assert_eq!(
        calls(&format!("?after={}", first["next"]), &world.ada).await["calls"],
        json!([])
    );
    assert_eq!(calls("", &world.eve).await["calls"], json!([]));

    let new = world
        .post("/api/v1/tokens", &world.ada, json!({"label": "laptop"}))
        .await;
    let secret = new["secret"].as_str().unwrap();
    assert_eq!(world.get("/api/v1/me", secret).await.status(), 200);
    let listed = world.get("/api/v1/tokens", &world.ada).await.text().await.unwrap();
    assert!(listed.contains("laptop") && !listed.contains(secret));
    let id = new["id"].as_str().unwrap();
    let revoked = world
        .request(Method::DELETE, &format!("/api/v1/tokens/{id}"), &world.ada)
        .send()
        .await
        .unwrap();
    assert_eq!(revoked.status(), 200);
    assert_eq!(world.get("/api/v1/me", secret).await.status(), 401, "from now on");

    let user = world.post("/api/v1/users", &world.admin, json!({"name": "bob"})).await;
    let removed = world.request(
        Method::DELETE,
        &format!("/api/v1/users/{}", user["id"].as_str().unwrap()),
        &world.admin,
    );
    assert_eq!(removed.send().await.unwrap().status(), 200);
    let audit = world
        .get("/api/v1/audit?limit=200", &world.admin)
        .await
        .text()
        .await
        .unwrap();
    assert!(
        audit.contains("token") && audit.contains("user") && !audit.contains(secret),
        "{audit}"
    );
    let verdict = world.json("/api/v1/audit/verify", &world.admin).await;
    assert!(verdict["broken_at"].is_null() && verdict["entries"].as_i64().unwrap() > 0);
    let by_trigger = world.json("/api/v1/usage?by=trigger", &world.ada).await;
    assert_eq!(by_trigger["sums"][0]["name"], "api:test", "the label of ada's token");
    // What she makes with it counts there too, whatever it is called and says that it is.
    let other = world.post("/api/v1/tokens", &world.ada, json!({"label": "free"})).await;
    let other = other["secret"].as_str().unwrap();
    let session = world.post("/api/v1/sessions", other, json!({})).await;
    world.models.next(Answer::text("done"));
    let path = format!("/api/v1/sessions/{}/prompts", session["id"].as_str().unwrap());
    let accepted = world.post(&path, other, json!({"text": "go", "door": "cli"})).await;
    let audited = format!(
        "/api/v1/audit?action=prompt.accepted&run={}",
        accepted["run"].as_str().unwrap()
    );
    let audited = world.json(&audited, &world.admin).await;
    assert_eq!(audited["entries"][0]["detail"]["trigger"], "cli:test", "{audited}");
}

/// The lines of an answer, as JSON.
async fn lines(response: reqwest::Response) -> Vec<Value> {
    let text = response.text().await.unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_log_is_asked_for_by_what_its_entries_say_and_given_whole_in_lines() {
    let world = World::new().await;
    for number in 0..600 {
        let label = format!("token {number}");
        world
            .post("/api/v1/tokens", &world.ada, json!({ "label": label }))
            .await;
    }
    let me = world.json("/api/v1/me", &world.ada).await;
    let ada = me["user"]["id"].as_str().or(me["id"].as_str()).unwrap().to_owned();
    let page = world
        .json(
            &format!("/api/v1/audit?action=token.*&user={ada}&limit=2"),
            &world.admin,
        )
        .await;
    let entries = page["entries"].as_array().unwrap();
    assert_eq!((entries.len(), &page["last"]), (2, &json!(false)));
    assert_eq!(entries[0]["detail"]["label"], "token 599");
    assert_eq!(entries[0]["user"], ada);
    assert_eq!(entries[0]["hash"].as_str().unwrap().len(), 64);

    let of_ada = format!("/api/v1/audit/stream?action=token.created&user={ada}");
    let response = world.get(&of_ada, &world.admin).await;
    assert_eq!(response.headers()["content-type"], "application/x-ndjson");
    let all = lines(response).await;
    assert_eq!(all.len(), 600, "more than one read of the store");
    let numbers: Vec<i64> = all.iter().map(|entry| entry["number"].as_i64().unwrap()).collect();
    assert!(numbers.is_sorted_by(|one, other| one < other));
    let rest = lines(
        world
            .get(&format!("{of_ada}&after={}", numbers[590]), &world.admin)
            .await,
    )
    .await;
    assert_eq!(rest, all[591..], "nothing lost and nothing doubled");

    for (path, words) in [
        ("/api/v1/audit?after=1&before=2", "leave one out"),
        ("/api/v1/audit?follow=true", "audit/stream"),
        ("/api/v1/audit/stream?limit=3", "neither before nor limit"),
        ("/api/v1/audit?action=A", "`egress.denied`"),
        ("/api/v1/audit?decision=maybe", "maybe"),
        ("/api/v1/audit/verify?number=3", "give both"),
        ("/api/v1/audit/verify?number=3&hash=abc", "64 hexadecimal digits"),
    ] {
        let response = world.get(path, &world.admin).await;
        let status = response.status();
        let error: Value = response.json().await.unwrap();
        let message = error["error"]["message"].as_str().unwrap();
        assert!(status == 400 && message.contains(words), "{path}: {message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_follows_the_audit_log_sees_what_is_written_next() {
    use futures::StreamExt;
    let world = World::new().await;
    let verdict = world.json("/api/v1/audit/verify", &world.admin).await;
    let path = format!("/api/v1/audit/stream?follow=true&after={}", verdict["entries"]);
    let mut following = world.get(&path, &world.admin).await.bytes_stream();
    world
        .post("/api/v1/tokens", &world.ada, json!({ "label": "later" }))
        .await;
    let line = testkit::within("the entry to come", following.next())
        .await
        .unwrap()
        .unwrap();
    let entry: Value = serde_json::from_slice(&line).unwrap();
    assert_eq!(
        (&entry["action"], &entry["detail"]["label"]),
        (&json!("token.created"), &json!("later"))
    );

    let noted = format!(
        "number={}&hash={}",
        verdict["entries"],
        verdict["head"].as_str().unwrap()
    );
    let held = world.json(&format!("/api/v1/audit/verify?{noted}"), &world.admin).await;
    assert!(held["broken_at"].is_null(), "{held}");
    let other = format!("number=1&hash={}", "0".repeat(64));
    let held = world.json(&format!("/api/v1/audit/verify?{other}"), &world.admin).await;
    assert_eq!(held["broken_at"], 1);
    assert!(held["broken"].as_str().unwrap().contains("written anew"), "{held}");
}

#[tokio::test(flavor = "multi_thread")]
async fn figures_are_in_prometheus_format_and_a_copy_of_the_store_opens() {
    let world = World::new().await;
    let session = world.worked("hello").await;
    let metrics = world.get("/metrics", &world.ada).await.text().await.unwrap();
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(!name.is_empty() && value.parse::<f64>().is_ok(), "{line}");
    }
    assert!(
        metrics.contains("belljar_store_up 1\n") && metrics.contains("belljar_http_answers_total{status=\"2xx\"}"),
        "{metrics}"
    );
    for part in [
        "# TYPE belljar_sandbox_transition_seconds histogram\n",
        "belljar_sandbox_transition_seconds_bucket{transition=\"create\",le=\"+Inf\"} 1\n",
        "belljar_sandbox_transition_failures_total{transition=\"freeze\"} 0\n",
        "belljar_trace_spans_dropped_total 0\n",
    ] {
        assert!(metrics.contains(part), "{part}: {metrics}");
    }

    let copy = world
        .request(Method::POST, "/api/v1/backup", &world.admin)
        .send()
        .await
        .unwrap();
    assert_eq!(copy.status(), 200);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("copy");
    std::fs::write(&file, copy.bytes().await.unwrap()).unwrap();
    let path = folder.path().join("store.db");
    store::restore(&file, &path).await.unwrap();
    let store = store::Store::open(store::Config::new(path)).await.unwrap();
    assert!(
        store
            .session(store::Asker::System, session.parse().unwrap())
            .await
            .is_ok()
    );
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn users_and_sessions_are_told_by_their_names_beside_their_ids() {
    let world = World::new().await;
    let opened = world
        .post("/api/v1/sessions", &world.ada, json!({"key": "report"}))
        .await;
    let session = opened["id"].as_str().unwrap();
    assert_eq!(opened["owner_name"], "ada");
    world.work(session, "hello").await;
    let fork = world
        .post(&format!("/api/v1/sessions/{session}/fork"), &world.ada, json!({}))
        .await;
    assert_eq!(
        (&fork["sessions"][0]["parent"], &fork["sessions"][0]["parent_key"]),
        (&json!(session), &json!("report"))
    );
    let listed = world.json("/api/v1/sessions", &world.admin).await;
    let all = listed["sessions"].as_array().unwrap();
    assert!(all.iter().all(|session| session["owner_name"] == "ada"), "{listed}");

    let sums = async |by: &str| world.json(&format!("/api/v1/usage?by={by}"), &world.admin).await["sums"][0].clone();
    let by_session = sums("session").await;
    assert_eq!(
        (&by_session["name"], &by_session["called"]),
        (&json!(session), &json!("report"))
    );
    let by_user = sums("user").await;
    assert_eq!(
        (&by_user["name"], &by_user["called"]),
        (&opened["owner"], &json!("ada"))
    );
    assert_eq!(sums("model").await["called"], Value::Null);
    let calls = world.json("/api/v1/usage/calls", &world.ada).await;
    let call = &calls["calls"][0];
    assert_eq!(
        (&call["user_name"], &call["session_key"]),
        (&json!("ada"), &json!("report"))
    );
    let tokens = world.json("/api/v1/tokens", &world.ada).await;
    assert_eq!(tokens["tokens"][0]["user_name"], "ada");
    let sandboxes = world.json("/api/v1/sandboxes", &world.admin).await;
    assert_eq!(sandboxes["sandboxes"][0]["session_key"], "report");

    for path in ["audit?action=prompt.accepted", "audit/stream?action=prompt.accepted"] {
        let text = world
            .get(&format!("/api/v1/{path}"), &world.admin)
            .await
            .text()
            .await
            .unwrap();
        let answer: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        let entry = answer["entries"].get(0).unwrap_or(&answer);
        let told = ["actor_name", "subject_name", "user_name", "session_key"].map(|name| entry[name].clone());
        assert_eq!(told, ["ada", "report", "ada", "report"], "{path}: {entry}");
        assert_eq!(
            entry["actor"],
            json!(format!("user:{}", opened["owner"].as_str().unwrap()))
        );
    }
}
