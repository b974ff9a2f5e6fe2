//! The audit log at the command line.

use std::sync::Arc;

use lifecycle::Tasks;
use serde_json::{Value, json};
use tempfile::tempdir;
use testkit::model_server::{Answer, Speech};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::program::{Printing, ada, belljar, run};
use crate::world::World;
use crate::world::crm::{outside, upstream};

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_log_is_filtered_exported_and_verified_here_and_in_a_copy() {
    let world = World::new().await;
    let folder = tempdir().unwrap();
    for label in ["one", "two"] {
        ada(&world, folder.path(), &["token", "add", label], "").await;
    }
    let admin = async |words: &[&str]| {
        let mut command = belljar(folder.path());
        command
            .env("BELLJAR_URL", &world.url)
            .env("BELLJAR_TOKEN", &world.admin)
            .arg("audit")
            .args(words);
        run(command, "").await
    };
    let shown = admin(&["--user", "ada", "--action", "token.*", "--limit", "1"]).await;
    assert!(shown.code == 0 && shown.out.contains("token.created"), "{shown:?}");
    assert!(shown.out.contains("two") && !shown.out.contains("one"), "{shown:?}");
    let lines = admin(&["--user", "ada", "--action", "token.created", "--json"]).await;
    let labels = lines.out.lines().map(|line| {
        let entry: Value = serde_json::from_str(line).unwrap();
        entry["detail"]["label"].as_str().unwrap().to_owned()
    });
    assert_eq!(
        labels.collect::<Vec<_>>(),
        ["one", "two"],
        "the oldest first: {lines:?}"
    );
    for (words, code) in [
        (&["--since", "yesterday"][..], 2),
        (&["--user", "nobody"], 1),
        (&["--noted", "1:ab"], 2),
        (&["--verify", "--session", "mine"], 2),
    ] {
        let came = admin(words).await;
        assert_eq!(came.code, code, "{words:?}: {came:?}");
    }

    let whole = admin(&["--verify"]).await;
    let noted = whole.out.lines().last().unwrap().strip_prefix("note this: ").unwrap();
    assert_eq!(admin(&["--verify", "--noted", noted]).await.code, 0);
    let other = format!("1:{}", "0".repeat(64));
    let rewritten = admin(&["--verify", "--noted", &other]).await;
    assert!(
        rewritten.code == 1 && rewritten.out.contains("written anew"),
        "{rewritten:?}"
    );

    // A copy is verified without a token, a configuration or anything that runs.
    let copy = folder.path().join("copy.db");
    let request = world.request(reqwest::Method::POST, "/api/v1/backup", &world.admin);
    std::fs::write(&copy, request.send().await.unwrap().bytes().await.unwrap()).unwrap();
    let here = async |noted: &str| {
        let mut command = belljar(folder.path());
        command.args(["audit", "--verify", "--file", "copy.db", "--noted", noted]);
        run(command, "").await
    };
    let held = here(noted).await;
    assert!(held.code == 0 && held.out.starts_with("whole: "), "{held:?}");
    let later = here(&format!("9999:{}", "0".repeat(64))).await;
    assert!(later.code == 1 && later.out.contains("cut off"), "{later:?}");
}

/// A way to a server that breaks whatever goes over it when it is told to.
async fn breakable(world: &World, breaks: Arc<Notify>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = world.url.strip_prefix("http://").unwrap().to_owned();
    let tasks = world.tasks.clone();
    world.tasks.spawn_until_stopped(async move {
        loop {
            let (mut near, _) = listener.accept().await.unwrap();
            let mut far = TcpStream::connect(&server).await.unwrap();
            let breaks = Arc::clone(&breaks);
            tasks.spawn_until_stopped(async move {
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                    () = breaks.notified() => {}
                }
            });
        }
    });
    url
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_log_is_followed_and_a_break_loses_and_doubles_nothing() {
    let world = World::new().await;
    let folder = tempdir().unwrap();
    let add = async |label: &str| {
        let added = ada(&world, folder.path(), &["token", "add", label], "").await;
        assert_eq!(added.code, 0, "{added:?}");
    };
    for label in ["one", "two", "three"] {
        add(label).await;
    }
    let breaks = Arc::new(Notify::new());
    let mut follow = belljar(folder.path());
    follow
        .env("BELLJAR_URL", breakable(&world, Arc::clone(&breaks)).await)
        .env("BELLJAR_TOKEN", &world.admin)
        .args(["audit", "--follow", "--json", "--limit", "2"])
        .args(["--user", "ada", "--action", "token.created"]);
    let mut following = Printing::start(follow);
    let mut labels = async || {
        let entry: Value = serde_json::from_str(&following.line().await).unwrap();
        entry["detail"]["label"].as_str().unwrap().to_owned()
    };
    assert_eq!([labels().await, labels().await], ["two", "three"]);
    add("four").await;
    assert_eq!(labels().await, "four");
    breaks.notify_waiters();
    // What another did is not what was asked for.
    let other = world.request(reqwest::Method::POST, "/api/v1/tokens", &world.eve);
    let other = other.json(&json!({"label": "eve's"})).send().await.unwrap();
    assert!(other.status().is_success(), "{other:?}");
    add("five").await;
    add("six").await;
    assert_eq!([labels().await, labels().await], ["five", "six"]);
    assert!(following.goes_on());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_log_is_filtered_by_service_host_decision_and_time() {
    let tasks = Tasks::new();
    let _end = tasks.stop().drop_guard();
    let port = upstream(&tasks).await;
    let roles = |config: &mut control::Config| {
        let scope = json!({"services": {"allow": ["crm.*"], "deny": ["crm.remove"]}});
        let scope = serde_json::from_value(scope).unwrap();
        config.policies.roles.insert("everybody".to_owned(), scope);
    };
    let world = World::with_outside(roles, |folder, tasks| outside(port, folder, tasks)).await;
    let folder = tempdir().unwrap();
    let session = world.post("/api/v1/sessions", &world.ada, json!({})).await;
    let look = Speech::text("Let me see.").call("a", "exec", &json!({"code": "look"}));
    world.models.next(Answer::Say(look));
    world.work(session["id"].as_str().unwrap(), "Done.").await;
    let (sandbox, inside) = world.inside.newest();
    let token = world.inside.tokens(sandbox).pop().unwrap().expose().to_owned();
    for (method, status) in [("get", 200), ("remove", 403)] {
        let call = json!({"service": "crm", "method": method, "args": {"id": "1"}});
        let request = world.request(reqwest::Method::POST, "/api/proxy", &token).json(&call);
        assert_eq!(request.send().await.unwrap().status(), status, "{method}");
    }
    inside.connect("elsewhere.test", 443).await.unwrap_err();

    let found = async |words: &[&str]| -> Vec<Value> {
        let mut command = belljar(folder.path());
        command
            .env("BELLJAR_URL", &world.url)
            .env("BELLJAR_TOKEN", &world.admin)
            .args(["audit", "--json"])
            .args(words);
        let came = run(command, "").await;
        assert_eq!(came.code, 0, "{came:?}");
        came.out
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    let of_service = found(&["--service", "crm"]).await;
    assert_eq!(of_service.len(), 2, "{of_service:?}");
    assert!(
        of_service.iter().all(|entry| entry["service"] == "crm"),
        "{of_service:?}"
    );
    let denied = found(&["--service", "crm", "--decision", "deny"]).await;
    assert!(
        denied.len() == 1 && denied[0]["detail"]["method"] == "remove",
        "{denied:?}"
    );
    let allowed = found(&["--service", "crm", "--decision", "allow"]).await;
    assert!(
        allowed.len() == 1 && allowed[0]["detail"]["method"] == "get",
        "{allowed:?}"
    );
    let of_host = testkit::eventually_async("the denied connection to be audited", async || {
        Some(found(&["--host", "elsewhere.test"]).await).filter(|found| !found.is_empty())
    })
    .await;
    assert!(
        of_host.iter().all(|entry| entry["host"] == "elsewhere.test"),
        "{of_host:?}"
    );
    for (service, host) in [("elsewhere.test", "crm"), ("cr", "elsewhere")] {
        assert!(found(&["--service", service]).await.is_empty(), "{service}");
        assert!(found(&["--host", host]).await.is_empty(), "{host}");
    }
    for (words, count) in [
        (["--since", "1h"], 2),
        (["--until", "1h"], 0),
        (["--since", "2100-01-01"], 0),
        (["--until", "2100-01-01T10:00:00Z"], 2),
    ] {
        let words = [&["--service", "crm"][..], &words].concat();
        assert_eq!(found(&words).await.len(), count, "{words:?}");
    }
}
