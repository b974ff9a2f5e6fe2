//! `kill -9` at any moment: what was acknowledged is there.
//!
//! The test starts itself again as a child that writes and says on its standard output what was acknowledged, and kills it.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use domain::{Author, Delivery, MessageId, Role, RunId, SessionId};
use store::{Config, End, Prompt, Store, Target};

use crate::parts::{SYSTEM, begin, dialect, message, prompt, reply, text};

const FILE: &str = "BELLJAR_TEST_STORE";

/// Small and seeded: which delays are tried is the same each time.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Not a test of its own: what the child does until it is killed.
#[tokio::test]
#[ignore = "started by the test below"]
async fn child() {
    let Ok(path) = std::env::var(FILE) else { return };
    let store = Store::open(Config::new(path)).await.unwrap();
    let user = store.users(SYSTEM, false).await.unwrap()[0].id;
    println!("ready");
    let work = (0..8).map(|_| {
        let store = store.clone();
        async move {
            loop {
                let prompt: Prompt = prompt(user, Target::New { owner: user }, "go", Delivery::Restart);
                let id = prompt.message.id;
                let accepted = store.accept_prompt(SYSTEM, prompt).await.unwrap();
                println!("message {} {id}", accepted.session);
                let taken = store
                    .take_run(SYSTEM, accepted.run, "child", Duration::from_secs(60))
                    .await
                    .unwrap()
                    .unwrap();
                for number in 1..=3 {
                    let turn = begin(accepted.run, taken.run.epoch, number);
                    let opens = turn.opens;
                    let store::Begun::Yours { id, .. } = store.begin_turn(SYSTEM, turn).await.unwrap() else {
                        panic!("nobody else works on it");
                    };
                    let end = (number == 3).then(End::done);
                    store
                        .finish_turn(SYSTEM, reply(id, opens, "said", &[], end))
                        .await
                        .unwrap();
                    println!("turn {} {opens} {}", accepted.session, accepted.run);
                }
            }
        }
    });
    futures::future::join_all(work).await;
}

/// What the child said before it died.
#[derive(Default)]
struct Acknowledged {
    messages: Vec<(SessionId, MessageId)>,
    turns: Vec<RunId>,
}

fn run_and_kill(path: &std::path::Path, after: Duration) -> Acknowledged {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "durability::child",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(FILE, path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut acknowledged = Acknowledged::default();
    let mut begun = None;
    let output = BufReader::new(child.stdout.take().unwrap());
    for line in output.lines() {
        // What is in the pipe after the kill was acknowledged before it, and counts.
        let line = line.unwrap();
        if line.ends_with("ready") {
            begun = Some(Instant::now());
        }
        if begun.is_some_and(|begun| begun.elapsed() >= after) {
            child.kill().unwrap();
        }
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            ["message", session, id] if id.len() == 36 => {
                acknowledged
                    .messages
                    .push((session.parse().unwrap(), id.parse().unwrap()));
            }
            ["turn", session, id, run] if run.len() == 36 => {
                acknowledged
                    .messages
                    .push((session.parse().unwrap(), id.parse().unwrap()));
                acknowledged.turns.push(run.parse().unwrap());
            }
            _ => {}
        }
    }
    child.wait().unwrap();
    assert!(begun.is_some(), "the child did not start");
    acknowledged
}

#[tokio::test]
async fn what_was_acknowledged_survives_kill_9() {
    let rounds = if std::env::var_os("BELLJAR_TEST_FULL").is_some() {
        100
    } else {
        6
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("belljar.db");
    let store = Store::open(Config::new(&path)).await.unwrap();
    store.create_user(SYSTEM, "ada", false).await.unwrap();
    store.close().await;
    drop(store);
    let mut state = 0x5eed;
    let (mut messages, mut turns) = (HashSet::new(), Vec::new());
    for round in 0..rounds {
        let after = Duration::from_micros(random(&mut state) % 150_000);
        let child_path = path.clone();
        let said = tokio::task::spawn_blocking(move || run_and_kill(&child_path, after))
            .await
            .unwrap();
        messages.extend(said.messages);
        turns.extend(said.turns);
        let store = Store::open(Config::new(&path)).await.unwrap();
        let sessions: HashSet<_> = messages.iter().map(|(session, _)| *session).collect();
        for session in sessions {
            let stored = store.messages(SYSTEM, session, 0, 1_000).await.unwrap();
            let stored: HashSet<_> = stored.iter().map(|positioned| positioned.message.id).collect();
            for (_, message) in messages.iter().filter(|(of, _)| *of == session) {
                assert!(
                    stored.contains(message),
                    "round {round}: a message was acknowledged and is lost"
                );
            }
            crate::parts::told(&store, session).await;
            let spend = store.session_spend(SYSTEM, session).await.unwrap();
            assert_eq!(
                spend.reserved.0, 0,
                "round {round}: what the dead process had reserved is charged"
            );
        }
        store.close().await;
    }
    assert!(!turns.is_empty(), "the child got nowhere, so nothing was tried");
}

/// A line of the history that was never acknowledged is either whole or not there.
#[tokio::test]
async fn half_a_job_is_never_seen() {
    let place = crate::parts::Place::new().await;
    let session = place.start("x").await.session;
    let before = crate::parts::told(&place.store, session).await;
    // The event table refuses the job's second write; its first must not stay.
    place
        .tamper("CREATE TRIGGER no_events BEFORE INSERT ON events BEGIN SELECT RAISE(FAIL, 'no'); END")
        .await;
    let words = message(Role::User, Author::User { id: place.user }, text("y"));
    let prompt = Prompt {
        message: words,
        ..prompt(place.user, Target::Session(session), "", Delivery::Restart)
    };
    assert!(place.store.accept_prompt(place.asker(), prompt).await.is_err());
    place.tamper("DROP TRIGGER no_events").await;
    assert_eq!(crate::parts::told(&place.store, session).await, before);
    let history = place.store.history(SYSTEM, session, 0, &dialect()).await.unwrap();
    assert_eq!(history.entries.len(), 1);
    place.prompt(Target::Session(session), "z", Delivery::Restart).await;
}
