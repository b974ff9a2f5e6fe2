//! With gVisor programs outlive the sandbox that nobody uses, and go on in another.

use std::fs;
use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};
use testkit::{eventually_asked, program};

use crate::installation::Installation;

/// `count` begins a program that counts for as long as it lives, with a file in memory open; `look` says how it is in a sandbox
/// in which that goes on.
const JOB: &str = r#"
steps:
  - when: { turn: 1, text: count }
    tools:
      - name: exec
        input:
          code: |
            return await background("exec 5> /tmp/log; n=0; while :; do n=$((n + 1)); echo $n >&5; echo $n > new; mv new count; sleep 0.05; done", { minutes: 60 });
  - when: { turn: 1, text: look }
    tools:
      - name: exec
        input:
          code: |
            const { execFileSync } = await import("node:child_process");
            const { promises: dns } = await import("node:dns");
            const { connect } = await import("node:net");
            const { writeFile } = await import("node:fs/promises");
            const says = (script) => execFileSync("sh", ["-c", script + "; true"]).toString().trim();
            const name = await dns.resolve4("nowhere.example").catch((error) => error.code);
            const connection = await new Promise((done) => {
              let end = "closed";
              connect(80, "192.0.2.1").on("error", (error) => { end = error.code; }).on("close", () => done(end));
            });
            await writeFile("looked", JSON.stringify({
              name, connection,
              logged: says('n=$(cat count) && [ "$(seq 1 $n)" = "$(head -n $n /tmp/log)" ] && echo whole'),
              namespaces: says("unshare --user true 2>/dev/null || echo refused"),
              trusted: says("test -s /run/belljar-trust/bundle.pem && echo there"),
            }));
            return "looked";
  - when: { text: count }
    text: "It counts."
  - when: { text: look }
    text: "Looked."
  - when: { text: nothing }
    text: "Nothing is done."
"#;

/// Whether it can be tried here.
fn is_tried() -> bool {
    let there = Command::new(program("runsc")).arg("--version").output().is_ok();
    let wanted = std::env::var_os("BELLJAR_TEST_FULL").is_some();
    if !(there && wanted) {
        println!("runsc is not here, or the big tests are not wanted: it is not tried");
    }
    there && wanted
}

fn states(belljar: &Installation, session: &str) -> Vec<String> {
    let events = belljar.transcript(session);
    let states = events.of("sandbox").filter_map(|event| event["state"].as_str());
    states.map(str::to_owned).collect()
}

#[test]
fn programs_go_on_that_gvisor_kept() {
    if !is_tried() {
        return;
    }
    let settings = format!("---\nruntime = {:?}\nper_user = 1\n", program("runsc"));
    let belljar = Installation::start_with(JOB, &settings);
    belljar.done(&["run", "--session", "s", "count"]);
    let count = || {
        eventually_asked("the program to count", || {
            let output = belljar.run(&["get", "s", "count", "-"]);
            String::from_utf8_lossy(&output.stdout).trim().parse::<u64>().ok()
        })
    };
    let before = count();
    // Another needs the only place.
    belljar.done(&["run", "--session", "t", "nothing"]);
    belljar.done(&["files", "t"]);
    eventually_asked("it to be suspended", || {
        (states(&belljar, "s").last()? == "suspended").then_some(())
    });
    let last = belljar.transcript("s");
    let last = last.of("sandbox").last().expect("a state");
    let why = last["reason"].as_str().unwrap_or_default();
    assert!(why.contains("its processes and its files are kept"), "{last}");
    let asleep = belljar.data().join("asleep").join(belljar.id("s"));
    assert!(asleep.is_dir(), "{}", asleep.display());

    let began = Instant::now();
    belljar.done(&["run", "--session", "s", "look"]);
    println!("a session was woken, and its run done, in {:?}", began.elapsed());
    assert_eq!(states(&belljar, "s"), ["starting", "running", "suspended", "running"]);
    assert!(!asleep.exists(), "what was kept is used, and there still");
    let looked: Value = serde_json::from_str(&belljar.file("s", "looked")).expect("JSON");
    let expected = json!({
        "name": "ENOTFOUND", "connection": "ECONNRESET", "logged": "whole", "namespaces": "refused", "trusted": "there",
    });
    assert_eq!(looked, expected);
    let after = count();
    assert!(after > before, "{before} and then {after}");
    eventually_asked("it to count on", || (count() > after).then_some(()));

    // By hand nothing is kept, and the session goes on with its files.
    belljar.remove_sandboxes();
    belljar.done(&["files", "s"]);
    assert_eq!(
        fs::read_dir(belljar.data().join("asleep")).map_or(0, Iterator::count),
        0
    );
}
