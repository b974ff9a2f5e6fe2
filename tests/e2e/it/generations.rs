//! Repositories that every new session finds, from a real git server behind a password that no sandbox knows.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use testkit::clients::{self, HOSTS, KEY};
use testkit::{eventually_asked, miniature};

use crate::installation::Installation;
use crate::lots::{is_full, seed};
use crate::transitions::{Victim, nothing_is_nobodys};
use crate::world::World;

const SECTIONS: &str = r#"
[egress.rules.git]
hosts = ["git.client.test"]
networks = ["127.0.0.0/8"]
git = { repositories = ["acme/app"], secret = "env:CLIENT_KEY" }
"#;

const JOB: &str = r#"
steps:
  - when: { turn: 1 }
    text: "I look."
    tools:
      - name: exec
        input: { code: "return require('node:fs').readFileSync('/knowledge/built', 'utf8');" }
  - when: { turn: 2 }
    text: "It says {{ result.0.text }}"
"#;

/// Leaves a program behind, which has the output open.
const BUILD: &str = "(sleep 600 &)\ncp app/file built\n";

/// Makes the miniature an image whose recipe has a repository.
fn furnish(belljar: &Installation) {
    let folder = belljar.data().join("images").join(&miniature().digest);
    fs::remove_file(&folder).expect("remove a link");
    fs::create_dir(&folder).expect("make a folder");
    for entry in fs::read_dir(&miniature().folder).expect("read a folder") {
        let entry = entry.expect("read a folder");
        symlink(entry.path(), folder.join(entry.file_name())).expect("link a file");
    }
    let wanted = json!({
        "refresh": { "secs": 3600, "nanos": 0 },
        "time": { "secs": 120, "nanos": 0 },
        "repositories": [{
            "name": "app",
            "url": "https://git.client.test/acme/app.git",
            "branch": null,
            "host": ["git.client.test", 443],
        }],
        "build": ["sh app/build"],
        "ready": "test -s built",
        "egress": [],
    });
    fs::write(folder.join("knowledge.json"), wanted.to_string()).expect("write a file");
    let path = belljar.path("belljar.toml");
    let config = fs::read_to_string(&path).expect("read the configuration");
    fs::write(&path, config.replace(&miniature().digest, "miniature")).expect("write the configuration");
}

/// Commits files upstream.
fn commit(served: &Path, files: &[(&str, &str)]) {
    let work = tempfile::tempdir().expect("make a folder");
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        git.arg("-C").arg(work.path());
        git.args(["-c", "user.name=ada", "-c", "user.email=ada@example.com"]);
        let ran = git.args(arguments).output().expect("run git");
        assert!(ran.status.success(), "git {arguments:?}: {ran:?}");
    };
    let origin = served.join("git/acme/app.git");
    let origin = origin.to_str().expect("a path in UTF-8");
    git(&["init", "--quiet", "--initial-branch=main"]);
    git(&["remote", "add", "origin", origin]);
    if clients::pushed(served).exists() {
        git(&["pull", "--quiet", "origin", "main"]);
    }
    for (name, text) in files {
        fs::write(work.path().join(name), text).expect("write a file");
    }
    git(&["add", "--all"]);
    git(&["commit", "--quiet", "--message", "more"]);
    git(&["push", "--quiet", "origin", "main"]);
}

fn generations(belljar: &Installation) -> Vec<Value> {
    let lines = belljar.done(&["image", "generations", "--json"]);
    let lines = lines.lines();
    lines
        .map(|line| serde_json::from_str(line).expect("a line of JSON"))
        .collect()
}

/// What a session reads.
fn read(belljar: &Installation, session: &str, file: &str) -> String {
    let said = belljar.done(&["sandbox", "exec", session, "cat", file]);
    said.trim().to_owned()
}

/// Serves `acme/app` to an installation whose image has it.
fn installed(served: &Path, keys: &str) -> (Installation, World) {
    let folder = served.to_owned();
    let world = World::new(vec![(
        &HOSTS,
        Box::new(move |arrived| clients::answer(&folder, arrived)),
    )]);
    let mut belljar = Installation::prepare(JOB, &format!("{SECTIONS}---\n{keys}"));
    furnish(&belljar);
    belljar.live_in(&world, &[("CLIENT_KEY", KEY)]);
    belljar.start_host();
    belljar.start_serve();
    (belljar, world)
}

#[test]
fn new_sessions_find_what_is_upstream_and_old_ones_keep_what_they_had() {
    let served = tempfile::tempdir().expect("make a folder");
    clients::furnish(served.path());
    commit(served.path(), &[("file", "one\n"), ("build", BUILD)]);
    let (belljar, world) = installed(served.path(), "");

    belljar.done(&["image", "refresh"]);
    let said = belljar.done(&["run", "--session", "old", "look"]);
    assert!(said.contains("one"), "{said}");
    assert_eq!(read(&belljar, "old", "/knowledge/app/file"), "one");

    commit(served.path(), &[("file", "two\n")]);
    belljar.done(&["image", "refresh"]);
    belljar.done(&["run", "--session", "new", "look"]);
    assert_eq!(read(&belljar, "new", "/knowledge/app/file"), "two");
    belljar.remove_sandboxes();
    belljar.replace_host();
    belljar.replace_serve();
    assert_eq!(read(&belljar, "old", "/knowledge/app/file"), "one");
    assert_eq!(read(&belljar, "old", "/knowledge/built"), "one");
    assert_eq!(read(&belljar, "new", "/knowledge/built"), "two");

    // A build that fills the disk changes nothing for anybody.
    let newest = generations(&belljar)[0]["digest"].clone();
    commit(
        served.path(),
        &[("build", "dd if=/dev/zero of=large bs=1M count=200\n")],
    );
    let failed = belljar.run(&["image", "refresh"]);
    let said = String::from_utf8_lossy(&failed.stdout).into_owned();
    assert_eq!(failed.status.code(), Some(1), "{said}");
    let full = ["No space left", "Disk quota exceeded"]
        .iter()
        .any(|words| said.contains(words));
    assert!(said.contains("sh app/build") && full, "{said}");
    belljar.done(&["run", "--session", "newer", "look"]);
    assert_eq!(read(&belljar, "newer", "/knowledge/built"), "two");
    let all = generations(&belljar);
    assert_eq!(all[0]["state"], "failed", "{all:?}");
    assert!(
        all.iter().any(|row| row["newest"] == true && row["digest"] == newest),
        "{all:?}"
    );

    // The key was shown to the server, and is nowhere inside.
    let arrived = world.servers[0].arrived();
    assert!(
        arrived
            .iter()
            .any(|request| !request.header("authorization").is_empty())
    );
    let found = belljar.run(&["sandbox", "exec", "new", "grep", "-r", "-l", KEY, "/knowledge"]);
    assert_eq!(
        String::from_utf8_lossy(&found.stdout).trim(),
        "[exit code 1]",
        "the key is in a sandbox"
    );
    for log in ["serve", "host"] {
        assert!(!belljar.log(log).contains(KEY));
    }
}

/// The moment is drawn by lot, as in [`crate::transitions`].
#[test]
fn whoever_dies_in_a_refresh_leaves_a_whole_generation_and_nothing_behind() {
    let served = tempfile::tempdir().expect("make a folder");
    clients::furnish(served.path());
    commit(served.path(), &[("file", "first\n"), ("build", BUILD)]);
    let sleepy = "freeze_after = \"500ms\"\nhibernate_after = \"2s\"";
    let (belljar, _world) = installed(served.path(), sleepy);
    let begun = Instant::now();
    belljar.done(&["image", "refresh"]);
    let took = begun.elapsed();
    let mut random = StdRng::seed_from_u64(seed());
    let victims: Vec<Victim> = if is_full() {
        Victim::ALL.repeat(8)
    } else {
        Victim::ALL.sample(&mut random, 1).copied().collect()
    };
    for (number, victim) in victims.into_iter().enumerate() {
        commit(served.path(), &[("file", &format!("{number}\n"))]);
        let mut command = belljar.command(&["image", "refresh"]);
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("run belljar");
        let after = took.mul_f64(random.random_range(0.0..1.0));
        println!("{victim:?} after {after:?}");
        thread::sleep(after);
        victim.strike(&belljar);
        // Whoever asked a control plane that was killed may have been told so.
        let _ = child.wait().expect("wait for belljar");

        // What a session finds is the one or the other, whole.
        let session = format!("struck-{number}");
        belljar.done(&["run", "--session", &session, "look"]);
        let found = read(&belljar, &session, "/knowledge/app/file");
        assert_eq!(read(&belljar, &session, "/knowledge/built"), found);
        let before = number
            .checked_sub(1)
            .map_or("first".to_owned(), |before| before.to_string());
        assert!(found == before || found == number.to_string(), "{found}");

        eventually_asked("a refresh", || {
            belljar.run(&["image", "refresh"]).status.success().then_some(())
        });
        let session = format!("after-{number}");
        belljar.done(&["run", "--session", &session, "look"]);
        assert_eq!(read(&belljar, &session, "/knowledge/built"), number.to_string());
        let all = generations(&belljar);
        assert_eq!(all.iter().filter(|row| row["newest"] == true).count(), 1, "{all:?}");
        assert!(all.iter().all(|row| row["state"] != "building"), "{all:?}");
        nothing_is_nobodys(&belljar);
    }
}
