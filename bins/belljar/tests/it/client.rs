//! The commands that ask a control plane.

use serde_json::{Value, json};
use tempfile::tempdir;
use testkit::model_server::{Answer, Speech};

use crate::program::{Came, ada, belljar, run, unread};
use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn a_job_prints_its_answer_and_says_what_it_took() {
    let world = World::new().await;
    let folder = tempdir().unwrap();
    std::fs::write(folder.path().join("notes.txt"), "some notes").unwrap();
    world.models.next(Answer::Say(Speech::text("Let me see. ").call(
        "c1",
        "exec",
        &json!({"code": "echo"}),
    )));
    world.models.next(Answer::text("It is \u{1b}]0;done\u{7}."));
    let came = ada(
        &world,
        folder.path(),
        &["run", "do it", "--file", "notes.txt", "--session", "mine"],
        "",
    )
    .await;
    assert_eq!(came.code, 0, "{came:?}");
    assert_eq!(
        came.out, "Let me see. \nIt is \u{1b}]0;done\u{7}.\n",
        "not a terminal: the answer as it is"
    );
    assert!(came.notes.contains("✓ exec echo "), "{came:?}");
    assert!(came.notes.lines().last().unwrap().starts_with('$'), "{came:?}");
    assert!(!came.notes.contains('\u{1b}'), "no colours but on a terminal: {came:?}");

    let files = ada(&world, folder.path(), &["files", "mine"], "").await;
    assert!(files.out.contains("notes.txt") && files.code == 0, "{files:?}");
    let got = ada(&world, folder.path(), &["get", "mine", "notes.txt", "-"], "").await;
    assert_eq!(got.out, "some notes");
    let got = ada(&world, folder.path(), &["get", "mine", "notes.txt", "copy.txt"], "").await;
    assert_eq!(
        (
            got.code,
            std::fs::read_to_string(folder.path().join("copy.txt")).unwrap()
        ),
        (0, "some notes".into())
    );
    assert_eq!(got.out, "copy.txt (10 bytes)\n");
    std::fs::write(folder.path().join("copy.txt"), "my own").unwrap();
    let refused = ada(&world, folder.path(), &["get", "mine", "notes.txt", "copy.txt"], "").await;
    assert!(refused.code == 2 && refused.notes.contains("--force"), "{refused:?}");
    assert_eq!(
        std::fs::read_to_string(folder.path().join("copy.txt")).unwrap(),
        "my own"
    );
    let words = ["get", "mine", "notes.txt", "copy.txt", "--force"];
    assert_eq!(ada(&world, folder.path(), &words, "").await.code, 0);
    assert_eq!(
        std::fs::read_to_string(folder.path().join("copy.txt")).unwrap(),
        "some notes"
    );

    let shown = ada(&world, folder.path(), &["show", "mine"], "").await;
    assert!(
        shown.out.starts_with("> do it\n") && shown.out.contains("It is"),
        "{shown:?}"
    );
    let listed = ada(&world, folder.path(), &["sessions"], "").await;
    assert!(listed.out.contains("mine") && listed.out.contains("done"), "{listed:?}");
    let usage = ada(&world, folder.path(), &["usage", "--session", "mine"], "").await;
    assert!(usage.out.contains('m') && usage.out.contains('$'), "{usage:?}");
    let calls = ada(
        &world,
        folder.path(),
        &["usage", "--calls", "--session", "mine", "--json"],
        "",
    )
    .await;
    let call: serde_json::Value = serde_json::from_str(calls.out.lines().next().unwrap()).unwrap();
    assert!(
        call["run"].is_string() && call["cost"].as_i64().unwrap() > 0 && call["number"] == 1,
        "{calls:?}"
    );
    let archived = ada(&world, folder.path(), &["archive", "mine"], "").await;
    assert_eq!((archived.code, archived.out.as_str()), (0, "archived\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_history_is_what_was_asked_for_and_nobody_need_read_any_command_to_its_end() {
    let world = World::new().await;
    let folder = tempdir().unwrap();
    std::fs::write(folder.path().join("notes.txt"), "some notes").unwrap();
    let call = Speech::text("Let me see. ").call("c1", "exec", &json!({"code": "echo"}));
    world.models.next(Answer::Say(call));
    world.models.next(Answer::text("It is done."));
    let words = ["run", "do it", "--file", "notes.txt", "--session", "mine"];
    assert_eq!(ada(&world, folder.path(), &words, "").await.code, 0);
    for words in [&["show", "mine"][..], &["events", "mine"]] {
        let shown = ada(&world, folder.path(), words, "").await;
        assert_eq!((shown.code, shown.notes.as_str()), (0, ""), "{shown:?}");
        let place = |part: &str| shown.out.find(part).unwrap_or_else(|| panic!("{part:?}: {shown:?}"));
        let places = ["> do it", "Let me see.", "✓ exec echo", "It is done."].map(place);
        assert!(places.is_sorted(), "{shown:?}");
    }

    let skills = concat!(env!("CARGO_MANIFEST_DIR"), "/../../skills");
    let services = concat!(env!("CARGO_MANIFEST_DIR"), "/../../services");
    world.models.next(Answer::text("Again."));
    world.models.next(Answer::text("And again."));
    for words in [
        &["show", "mine"][..],
        &["show", "mine", "--all"],
        &["events", "mine", "--json"],
        &["sessions"],
        &["usage"],
        &["usage", "--calls", "--json"],
        &["models"],
        &["files", "mine"],
        &["get", "mine", "notes.txt", "-"],
        &["token", "list"],
        &["approvals"],
        &["archive", "mine"],
        &["check", "--example"],
        &["skill", "list", skills],
        &["skill", "check", skills],
        &["service", "list", "--folder", services],
        &["service", "show", "crm", "--folder", services],
        &["service", "test", "crm", "--folder", services],
        &["run", "again", "--session", "mine"],
        &["page"],
        &["run", "--help"],
    ] {
        for deaf in [false, true] {
            let mut command = belljar(folder.path());
            command
                .env("BELLJAR_URL", &world.url)
                .env("BELLJAR_TOKEN", &world.ada)
                .args(words);
            assert_eq!(unread(command, deaf).await, (0, String::new()), "{words:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_was_put_away_is_found_by_its_key() {
    let world = World::new().await;
    let folder = tempdir().unwrap();
    std::fs::write(folder.path().join("notes.txt"), "some notes").unwrap();
    let does = async |words: &[&str]| {
        let came = ada(&world, folder.path(), words, "").await;
        assert_eq!(came.code, 0, "{words:?}: {came:?}");
        came.out
    };
    world.models.next(Answer::text("hello"));
    does(&["run", "do it", "--session", "mine"]).await;
    does(&["snapshot", "save", "mine", "--name", "good"]).await;
    for words in [
        &["events", "mine"][..],
        &["show", "mine"],
        &["files", "mine"],
        &["put", "mine", "notes.txt"],
        &["get", "mine", "notes.txt", "-"],
        &["snapshot", "list", "mine"],
        &["snapshot", "restore", "mine", "good"],
    ] {
        does(&["archive", "mine"]).await;
        let listed = does(&["sessions"]).await;
        assert!(!listed.contains("mine"), "it is put away: {listed}");
        does(words).await;
    }
    // Who begins anew with the key goes on with the session that has it.
    world.models.next(Answer::text("here again"));
    does(&["run", "again", "--session", "mine"]).await;
    let shown = does(&["show", "mine"]).await;
    assert!(shown.contains("do it") && shown.contains("again"), "{shown}");
}

/// Whether a command ended with a code, and told of it in values alone, one a line.
fn is_json(words: &[&str], came: &Came, code: i32) {
    assert_eq!(came.code, code, "{words:?}: {came:?}");
    assert!(!came.out.is_empty(), "{words:?}");
    for line in came.out.lines() {
        assert!(
            serde_json::from_str::<Value>(line).is_ok_and(|value| value.is_object()),
            "{words:?}: {line}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn json_is_a_value_a_line_everywhere() {
    let world = World::new().await;
    let folder = tempdir().unwrap();
    std::fs::write(folder.path().join("notes.txt"), "some notes").unwrap();
    let call = Speech::text("Let me see. ").call("c1", "exec", &json!({"code": "echo"}));
    world.models.next(Answer::Say(call));
    world.models.next(Answer::text("hello"));
    let of_a_user: &[&[&str]] = &[
        &["--json", "run", "do it", "--session", "mine"],
        &["sessions", "--json"],
        &["show", "mine", "--json"],
        &["events", "mine", "--json"],
        &["put", "mine", "notes.txt", "--json"],
        &["files", "mine", "--json"],
        &["get", "mine", "notes.txt", "copy.txt", "--json"],
        &["models", "--json"],
        &["usage", "--json"],
        &["usage", "--calls", "--json"],
        &["policy", "explain", "tool:exec", "--json"],
        &["token", "add", "another", "--json"],
        &["token", "list", "--json"],
        &["cancel", "mine", "--json"],
    ];
    for words in of_a_user {
        is_json(words, &ada(&world, folder.path(), words, "").await, 0);
    }
    let of_an_admin: &[&[&str]] = &[
        &["user", "add", "mallory", "--json"],
        &["user", "list", "--json"],
        &["user", "rm", "mallory", "--json"],
        &["sandbox", "list", "--json"],
        &["sandbox", "stats", "--json"],
        &["audit", "--json"],
        &["audit", "--limit", "3", "--json"],
        &["audit", "--verify", "--json"],
        &["backup", "copy.db", "--json"],
    ];
    for words in of_an_admin {
        let mut command = belljar(folder.path());
        command
            .env("BELLJAR_URL", &world.url)
            .env("BELLJAR_TOKEN", &world.admin)
            .args(*words);
        is_json(words, &run(command, "").await, 0);
    }
    let archive = &["archive", "mine", "--json"];
    is_json(archive, &ada(&world, folder.path(), archive, "").await, 0);
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let (services, skills) = (format!("{root}/services"), format!("{root}/skills"));
    std::fs::create_dir_all(folder.path().join("skills/bad")).unwrap();
    std::fs::write(folder.path().join("skills/bad/SKILL.md"), "Do it.\n").unwrap();
    let of_this_machine: &[(&[&str], i32)] = &[
        (&["check", "--json"], 0),
        (&["secret", "set", "crm", "--json"], 0),
        (&["secret", "list", "--json"], 0),
        (&["secret", "rm", "crm", "--json"], 0),
        (&["service", "list", "--folder", &services, "--json"], 0),
        (&["service", "show", "crm", "--folder", &services, "--json"], 0),
        (&["service", "test", "crm", "--folder", &services, "--json"], 0),
        (&["skill", "list", &skills, "--json"], 0),
        (&["skill", "check", "--json"], 1),
        (&["audit", "--verify", "--file", "copy.db", "--json"], 0),
    ];
    for (words, code) in of_this_machine {
        let mut command = belljar(folder.path());
        command
            .args(*words)
            .env("BELLJAR_SERVER_DATA", folder.path().join("data"));
        is_json(words, &run(command, "hunter2").await, *code);
    }
    let refused = ada(&world, folder.path(), &["--json", "show", "nothing"], "").await;
    let error: Value = serde_json::from_str(&refused.notes).unwrap();
    assert_eq!((refused.code, &error["error"]["code"]), (1, &json!("not_found")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_goes_on_line_by_line() {
    let world = World::new().await;
    let folder = tempdir().unwrap();
    world.models.next(Answer::text("first"));
    world.models.next(Answer::text("second"));
    let came = ada(&world, folder.path(), &["chat"], "one\n\ntwo\n").await;
    assert_eq!((came.code, came.out.as_str()), (0, "first\nsecond\n"), "{came:?}");
    let told = came.notes.lines().find_map(|line| line.strip_prefix("session "));
    let shown = ada(&world, folder.path(), &["show", told.unwrap()], "").await;
    assert!(shown.out.contains("second"), "{shown:?}");
    let piped = {
        world.models.next(Answer::text("third"));
        ada(&world, folder.path(), &["run"], "from stdin").await
    };
    assert_eq!((piped.code, piped.out.as_str()), (0, "third\n"), "{piped:?}");
    let told = piped.notes.lines().find_map(|line| line.strip_prefix("session "));
    let shown = ada(&world, folder.path(), &["show", told.unwrap()], "").await;
    assert!(shown.code == 0 && shown.out.contains("third"), "{shown:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn people_are_named_by_their_names() {
    let world = World::new().await;
    let folder = tempdir().unwrap();
    let admin = async |words: &[&str]| {
        let mut command = belljar(folder.path());
        command
            .env("BELLJAR_URL", &world.url)
            .env("BELLJAR_TOKEN", &world.admin)
            .args(words);
        run(command, "").await
    };
    assert_eq!(admin(&["user", "add", "carl"]).await.code, 0);
    let token = admin(&["token", "add", "laptop", "--user", "carl"]).await;
    assert_eq!(token.code, 0, "{token:?}");
    let mut own = belljar(folder.path());
    own.env("BELLJAR_URL", &world.url)
        .env("BELLJAR_TOKEN", token.out.trim())
        .args(["token", "list"]);
    let own = run(own, "").await;
    assert!(own.out.contains("laptop") && own.out.contains("carl"), "{own:?}");
    for words in [&["user", "rm", "karl"][..], &["token", "add", "x", "--user", "karl"]] {
        let unknown = admin(words).await;
        assert!(
            unknown.code == 1 && unknown.notes.contains("there is no user \"karl\""),
            "{unknown:?}"
        );
    }
    let theirs = admin(&["token", "list", "--user", "carl"]).await;
    let row: Vec<&str> = theirs.out.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(
        (row[1], row[2], *row.last().unwrap()),
        ("laptop", "carl", "good"),
        "{theirs:?}"
    );
    let not_own = admin(&["token", "revoke", "laptop"]).await;
    assert!(
        not_own.code == 1 && not_own.notes.contains("belljar token list --user"),
        "{not_own:?}"
    );
    for meant in ["laptop", row[0]] {
        let words = ["token", "revoke", meant, "--user", "carl"];
        let revoked = admin(&words).await;
        assert_eq!((revoked.code, revoked.out.as_str()), (0, "revoked\n"), "{revoked:?}");
    }
    let theirs = admin(&["token", "list", "--user", "carl"]).await;
    assert!(theirs.out.lines().nth(1).unwrap().ends_with("revoked"), "{theirs:?}");
    let mut anothers = belljar(folder.path());
    anothers
        .env("BELLJAR_URL", &world.url)
        .env("BELLJAR_TOKEN", &world.ada)
        .args(["token", "list", "--user", "carl"]);
    let anothers = run(anothers, "").await;
    assert_eq!(anothers.code, 3, "{anothers:?}");

    let words = ["policy", "explain", "tool:exec", "--user", "carl"];
    let known = admin(&words).await;
    assert!(!known.out.contains("notice"), "{known:?}");
    assert_eq!(admin(&["user", "rm", "carl"]).await.code, 0);
    let gone = admin(&words).await;
    assert!(gone.out.contains("nobody here is called \"carl\""), "{gone:?}");
    let method = admin(&["policy", "explain", "crm.nothing"]).await;
    assert!(
        method.out.contains("no service here has a method crm.nothing"),
        "{method:?}"
    );
    let host = admin(&["policy", "explain", "egress:example.com:443"]).await;
    assert!(
        host.out.contains("no rule of this installation names example.com"),
        "{host:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_explanation_has_a_line_of_each_layer_and_the_door_that_was_asked_about() {
    let scope = |scope: Value| serde_json::from_value(scope).unwrap();
    let world = World::with(|config| {
        let policies = &mut config.policies;
        policies
            .roles
            .insert("everybody".to_owned(), scope(json!({"tools": {"exec": "allow"}})));
        policies
            .doors
            .insert("webhook", scope(json!({"tools": {"exec": "deny"}})));
    })
    .await;
    let folder = tempdir().unwrap();
    let explain = async |door: &str| {
        let words = ["policy", "explain", "tool:exec", "--user", "ada", "--door", door];
        ada(&world, folder.path(), &words, "").await
    };
    let by_webhook = explain("webhook").await;
    assert_eq!(by_webhook.code, 3, "{by_webhook:?}");
    let lines: Vec<&str> = by_webhook.out.lines().collect();
    assert!(
        lines[0].starts_with("allow ") && lines[0].contains("everybody"),
        "{lines:?}"
    );
    assert!(
        lines[1].starts_with("deny ") && lines[1].contains("webhook"),
        "{lines:?}"
    );
    assert!(lines.last().unwrap().starts_with("deny: "), "{lines:?}");
    let by_api = explain("api").await;
    assert_eq!(by_api.code, 0, "{by_api:?}");
    assert!(!by_api.out.contains("deny"), "{by_api:?}");
    let unknown = explain("window").await;
    assert_eq!(unknown.code, 2, "{unknown:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_exit_code_says_how_it_ended() {
    let world = World::with(|config| config.caps.run = Some(domain::Money(1))).await;
    let folder = tempdir().unwrap();
    let over = ada(&world, folder.path(), &["run", "do it"], "").await;
    assert_eq!(over.code, 4, "{over:?}");
    let denied = ada(&world, folder.path(), &["audit"], "").await;
    assert_eq!(denied.code, 3, "{denied:?}");
    let unknown = ada(&world, folder.path(), &["show", "nothing"], "").await;
    assert_eq!(unknown.code, 1, "{unknown:?}");
    assert!(unknown.notes.contains("there is no session"), "{unknown:?}");
    let wrong = ada(&world, folder.path(), &["run", "--colour"], "").await;
    assert_eq!(wrong.code, 2, "{wrong:?}");
    let sessions = async || ada(&world, folder.path(), &["sessions", "--json"], "").await.out;
    let before = sessions().await;
    let folder_as_file = ada(&world, folder.path(), &["run", "x", "--file", "."], "").await;
    assert_eq!(folder_as_file.code, 2, "{folder_as_file:?}");
    for (name, scope) in [
        ("unknown.json", r#"{"colour": true}"#),
        ("no.json", "{"),
        ("fine.json", r#"{"models": []}"#),
    ] {
        std::fs::write(folder.path().join(name), scope).unwrap();
    }
    let long = "x".repeat(2 << 20);
    std::fs::write(folder.path().join("notes.txt"), "notes").unwrap();
    for (words, input, said) in [
        (&["run", "x", "--model", "wrong"][..], "", "\"wrong\""),
        (
            &[
                "run",
                "x",
                "--model",
                "wrong",
                "--session",
                "mine",
                "--file",
                "notes.txt",
            ],
            "",
            "\"wrong\"",
        ),
        (&["run", "x", "--model", "m", "--scope", "fine.json"], "", "model"),
        (&["run", "x", "--scope", "unknown.json"], "", "colour"),
        (&["run", "x", "--scope", "no.json"], "", "no JSON"),
        (
            &["run", "x", "--scope", "fine.json", "--delivery", "steer"],
            "",
            "leave out its scope",
        ),
        (&["run", "x", "--session", &"k".repeat(300)], "", "200 bytes"),
        (&["run", "-"], &long, "bytes"),
        (&["chat", "--model", "wrong"], "hello\n", "\"wrong\""),
        (&["chat", "--scope", "unknown.json"], "hello\n", "colour"),
    ] {
        let refused = ada(&world, folder.path(), words, input).await;
        assert!(
            refused.code != 0 && refused.notes.contains(said),
            "{words:?}: {refused:?}"
        );
    }
    assert_eq!(
        ada(&world, folder.path(), &["chat"], "").await.code,
        0,
        "nothing is said"
    );
    assert_eq!(sessions().await, before, "no session is made for a mistake");

    let mut stranger = belljar(folder.path());
    stranger
        .env("BELLJAR_URL", &world.url)
        .env("BELLJAR_TOKEN", "wrong")
        .arg("sessions");
    assert_eq!(run(stranger, "").await.code, 3);
    let mut nobody = belljar(folder.path());
    nobody
        .env("BELLJAR_URL", &world.url)
        .env("BELLJAR_SERVER_DATA", folder.path())
        .arg("sessions");
    let nobody = run(nobody, "").await;
    assert!(nobody.code == 3 && nobody.notes.contains("BELLJAR_TOKEN"), "{nobody:?}");
    let mut alone = belljar(folder.path());
    alone
        .env("BELLJAR_URL", format!("http://127.0.0.1:{}", testkit::free_port()))
        .env("BELLJAR_TOKEN", "x")
        .arg("sessions");
    let alone = run(alone, "").await;
    assert!(alone.code == 1 && alone.notes.contains("belljar up"), "{alone:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_stops_the_run_and_not_only_the_watching() {
    let world = World::new().await;
    let folder = tempdir().unwrap();
    world.models.next(Answer::Say(Speech::text("Hm. ").call(
        "c1",
        "exec",
        &json!({"code": "hang"}),
    )));
    let mut command = belljar(folder.path());
    command.env("BELLJAR_URL", &world.url).env("BELLJAR_TOKEN", &world.ada);
    command
        .args(["run", "do it", "--session", "mine"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let child = command.spawn().unwrap();
    let pid = rustix::process::Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
    testkit::eventually_async("the tool to hang", async || {
        let events = ada(&world, folder.path(), &["events", "mine", "--json"], "").await;
        events.out.contains("tool_started").then_some(())
    })
    .await;
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let ended = testkit::within("the command to end", child.wait_with_output())
        .await
        .unwrap();
    assert_eq!(ended.status.code(), Some(1));
    let listed = ada(&world, folder.path(), &["sessions"], "").await;
    assert!(listed.out.contains("cancelled"), "{listed:?}");
}
