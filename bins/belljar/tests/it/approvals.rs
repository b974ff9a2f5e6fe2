//! What the agent wants a person to approve, at the command line.

use serde_json::{Value, json};
use tempfile::tempdir;
use testkit::model_server::{Answer, Speech};

use crate::program::{Came, Terminal, ada};
use crate::world::World;

async fn world() -> World {
    World::with(|config| {
        let role = serde_json::from_value(json!({"tools": {"exec": "ask"}})).unwrap();
        config.policies.roles.insert("everybody".to_owned(), role);
    })
    .await
}

fn will_call(world: &World, code: &str) {
    let call = Speech::text("Let me see. ").call("c1", "exec", &json!({ "code": code }));
    world.models.next(Answer::Say(call));
    world.models.next(Answer::text("So be it."));
}

/// Waits for the one question of the session `mine`.
async fn asked(world: &World, folder: &std::path::Path) -> Value {
    testkit::within("a question", async {
        loop {
            let listed = ada(world, folder, &["approvals", "--json"], "").await;
            if let Some(line) = listed.out.lines().next() {
                return serde_json::from_str(line).unwrap();
            }
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_says_what_it_waits_for_and_goes_on_when_it_is_answered() {
    let world = world().await;
    let folder = tempdir().unwrap();
    let folder = folder.path();
    will_call(&world, "print(\u{1b}]0;approved\u{7}\u{202e})");
    let run = ada(&world, folder, &["run", "do it", "--session", "mine"], "");
    let answers = async {
        let question = asked(&world, folder).await;
        let id = question["id"].as_str().unwrap().to_owned();
        let table = ada(&world, folder, &["approvals", "--session", "mine"], "").await;
        // As people name things: the session, whose it is, the question by its last digits.
        let row = table.out.lines().nth(1).unwrap_or_default();
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(cells[..5], [&id[24..], "mine", "ada", "tool", "exec"], "{table:?}");
        let none = ada(&world, folder, &["approve", "000000000000"], "").await;
        assert!(none.code == 1 && none.notes.contains("belljar approvals"), "{none:?}");
        // What nobody is shown, nobody approves.
        let unseen = ada(&world, folder, &["approve", &id], "y\n").await;
        assert!(
            unseen.code == 2 && unseen.notes.contains("approvals show"),
            "{unseen:?}"
        );
        let other = ada(&world, folder, &["approve", &id, "--hash", "0123456789ab"], "").await;
        assert!(
            other.code == 2 && other.notes.contains("and not 0123456789ab"),
            "{other:?}"
        );
        let whole = ada(&world, folder, &["approvals", "show", &id, "--json"], "").await;
        let whole: Value = serde_json::from_str(&whole.out).unwrap();
        assert_eq!(whole["state"], "pending");
        let sha256 = whole["sha256"].as_str().unwrap();
        let short = ada(&world, folder, &["approve", &id, "--hash", &sha256[..11]], "").await;
        assert!(short.code == 2 && short.notes.contains("at least 12"), "{short:?}");
        let shown = ada(&world, folder, &["approvals", "show", &id], "").await;
        assert!(
            shown.out.contains("print(\\u001b]0;approved\\u0007\u{fffd})") && shown.out.contains(&sha256[..16]),
            "{shown:?}"
        );
        let approved = ada(
            &world,
            folder,
            &["approve", cells[0], "--hash", &sha256[..12].to_uppercase()],
            "",
        )
        .await;
        let denied = ada(&world, folder, &["deny", &id], "").await;
        (id, approved, denied)
    };
    let (came, (id, approved, denied)): (Came, _) = tokio::join!(run, answers);
    assert_eq!(
        (approved.code, approved.out.as_str()),
        (0, "approved once\n"),
        "{approved:?}"
    );
    // The whole request, harmless.
    let harmless = "print(\\u001b]0;approved\\u0007\u{fffd})";
    assert!(approved.notes.contains(harmless), "{approved:?}");
    assert!(
        denied.code == 1 && denied.notes.contains("already, by ada"),
        "{denied:?}"
    );
    assert_eq!(came.code, 0, "{came:?}");
    assert!(
        came.notes.contains(&format!("belljar approve {id} --hash ")),
        "{came:?}"
    );
    assert!(
        came.notes.contains(harmless) && !came.notes.contains('\u{1b}'),
        "{came:?}"
    );
    assert!(came.out.ends_with("So be it.\n"), "{came:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn at_a_terminal_what_is_approved_is_shown_and_asked_about() {
    let world = world().await;
    let folder = tempdir().unwrap();
    let folder = folder.path();
    will_call(&world, "rm");
    let run = ada(&world, folder, &["run", "do it", "--session", "mine"], "");
    let answers = async {
        let question = asked(&world, folder).await;
        let id = question["id"].as_str().unwrap().to_owned();
        let at_terminal = async |typed: &str, code: i32| {
            let mut terminal = Terminal::open(&world, folder, &format!("approve {id}"));
            terminal.goes();
            terminal.shows("approve it?").await;
            assert!(terminal.seen().contains("\"code\": \"rm\""), "{:?}", terminal.seen());
            terminal.types(typed).await;
            assert_eq!(terminal.ends().await, code, "{:?}", terminal.seen());
        };
        at_terminal("perhaps\n", 1).await;
        assert_eq!(asked(&world, folder).await["state"], "pending");
        at_terminal("y\n", 0).await;
    };
    let (came, ()) = tokio::join!(run, answers);
    assert_eq!(came.code, 0, "{came:?}");
    assert_eq!(world.inside.made(), ["rm"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_denied_is_told_to_the_model_and_shown() {
    let world = world().await;
    let folder = tempdir().unwrap();
    let folder = folder.path();
    will_call(&world, "rm");
    let run = ada(&world, folder, &["run", "do it", "--session", "mine", "--json"], "");
    let answers = async {
        let question = asked(&world, folder).await;
        let id = question["id"].as_str().unwrap().to_owned();
        ada(&world, folder, &["deny", &id, "--reason", "not on a Sunday"], "").await
    };
    let (came, denied) = tokio::join!(run, answers);
    assert_eq!((denied.code, denied.out.as_str()), (0, "denied\n"), "{denied:?}");
    let events: Vec<Value> = came
        .out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of = |kind: &str| {
        events
            .iter()
            .find(|event| event["type"] == kind)
            .unwrap_or(&Value::Null)
    };
    assert_eq!(of("approval_requested")["request"]["arguments"]["code"], "rm");
    assert_eq!(of("approval_decided")["reason"], "not on a Sunday");
    let told = world.models.received().pop().unwrap().body.to_string();
    assert!(told.contains("ada denied this call of exec: not on a Sunday"), "{told}");
    let explained = ada(&world, folder, &["policy", "explain", "tool:exec"], "").await;
    assert!(
        explained.code == 0 && explained.out.contains("\nask: "),
        "{explained:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_typed_before_a_question_was_there_does_not_answer_it() {
    let world = world().await;
    let folder = tempdir().unwrap();
    will_call(&world, "rm");
    let mut terminal = Terminal::open(&world, folder.path(), "run 'do it' --session mine");
    // The terminal has it before the program begins.
    terminal.types("y\na\ny").await;
    terminal.shows("y\r\na\r\ny").await;
    terminal.goes();
    terminal.shows("approve it?").await;
    terminal.types("n not on a Sunday\n").await;
    terminal.shows("So be it.").await;
    assert_eq!(terminal.ends().await, 0);
    let told = world.models.received().pop().unwrap().body.to_string();
    assert!(told.contains("ada denied this call of exec: not on a Sunday"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_at_a_terminal_is_asked_and_answers_there() {
    let world = world().await;
    let folder = tempdir().unwrap();
    will_call(&world, "one\u{1b}[2J");
    let mut terminal = Terminal::open(&world, folder.path(), "run 'do it' --session mine");
    terminal.goes();
    terminal.shows("approve it?").await;
    terminal.types("perhaps\n").await;
    // What is no answer is asked for again.
    terminal.shows("approve it?").await;
    terminal.types("y\n").await;
    terminal.shows("So be it.").await;
    assert_eq!(terminal.ends().await, 0);
    assert_eq!(world.inside.made(), ["one\u{1b}[2J"]);
    assert!(!terminal.seen().contains("\u{1b}[2J"), "{:?}", terminal.seen());
}
