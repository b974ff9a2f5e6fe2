//! What is broken where nobody looks: no sandbox stays without a session, and no session is stuck without a sandbox.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::Value;
use testkit::eventually;

use crate::installation::Installation;
use crate::processes;
use crate::transitions::nothing_is_nobodys;

const JOB: &str = r#"
steps:
  - when: { turn: 1, text: write }
    tools:
      - name: write
        input: { path: "mark.txt", content: "x" }
  - when: { text: write }
    text: "Written."
  - when: { turn: 1, text: hold }
    tools:
      - name: exec
        input: { code: "await new Promise((done) => setTimeout(done, 600000));" }
  - when: { text: hold }
    text: "It was held, and goes on."
  - when: { text: again }
    text: "Here again."
"#;

/// What there is is compared as often as sandboxes are hibernated.
const SETTINGS: &str = "---\nfreeze_after = \"5s\"\nhibernate_after = \"10s\"\n";

fn place() -> Installation {
    let belljar = Installation::start_with(JOB, SETTINGS);
    belljar.done(&["run", "--session", "s", "write"]);
    belljar
}

/// Both halves: the session is served, with its files, and there is nothing else.
fn is_whole(belljar: &Installation) {
    belljar.done(&["run", "--session", "s", "again"]);
    assert_eq!(belljar.file("s", "mark.txt"), "x");
    nothing_is_nobodys(belljar);
    belljar.transcript("s").assert_whole();
}

/// The folders in which the host agent writes down what there is.
fn records(belljar: &Installation) -> Vec<PathBuf> {
    let folders = fs::read_dir(belljar.path("run/sandboxes")).expect("list the records");
    folders.map(|entry| entry.expect("a record").path()).collect()
}

#[test]
fn a_sandbox_that_died_between_two_runs_is_replaced() {
    let belljar = place();
    belljar.first_processes().into_iter().for_each(processes::kill);
    is_whole(&belljar);
    // Nor is it missed where nobody asks for it.
    belljar.first_processes().into_iter().for_each(processes::kill);
    nothing_is_nobodys(&belljar);
    is_whole(&belljar);
}

#[test]
fn a_host_agent_that_was_gone_for_a_while_is_waited_for() {
    let belljar = place();
    belljar.wait_for("s", "it to be frozen", |seen| {
        seen.of("sandbox").any(|event| event["state"] == "frozen")
    });
    belljar.stop_host();
    // What needs it says so, or goes on when it is back; the sandbox itself is still there.
    let mut command = belljar.command(&["run", "--session", "other", "write"]);
    let mut asked = command.stdout(Stdio::null()).spawn().expect("run belljar");
    belljar.wait_for("other", "it to need a sandbox", |seen| {
        seen.of("sandbox").next().is_some()
    });
    let both = [&["files", "s"][..], &["sandbox", "list"]].map(|words| {
        let mut command = belljar.command(words);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        (words, command.spawn().expect("run belljar"))
    });
    for (words, mut asked) in both {
        assert!(!asked.wait().expect("wait for belljar").success(), "{words:?}");
    }
    belljar.start_host();
    asked.wait().expect("wait for belljar");
    belljar.done(&["run", "--session", "other", "write"]);
    assert_eq!(belljar.file("other", "mark.txt"), "x");
    is_whole(&belljar);
    let seen = belljar.transcript("s");
    let lost = seen.of("sandbox").find(|event| event["state"] == "lost");
    assert_eq!(lost, None, "nobody knew what became of it");

    // One that dies meanwhile, and a control plane that begins when there is nobody to ask.
    belljar.stop_host();
    belljar.first_processes().into_iter().for_each(processes::kill);
    belljar.replace_serve();
    belljar.start_host();
    is_whole(&belljar);
}

#[test]
fn what_was_written_down_of_a_sandbox_is_lost() {
    let belljar = place();
    let first = belljar.first_processes();
    for folder in records(&belljar) {
        fs::remove_file(folder.join("record.json")).expect("remove a record");
    }
    belljar.replace_host();
    assert!(!first.is_empty());
    // They are looked for among all: what showed whose they were is unmounted, wherever they see it.
    eventually("what nobody knows to be ended", || {
        let left = processes::first_in_sandboxes();
        (!left.iter().any(|process| first.contains(process))).then_some(())
    });
    is_whole(&belljar);
}

#[test]
fn a_control_plane_dies_while_a_session_gets_its_sandbox() {
    let belljar = place();
    let mut command = belljar.command(&["run", "--session", "t", "write"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut asked = command.spawn().expect("run belljar");
    belljar.wait_for("t", "its sandbox to be made", |seen| {
        seen.of("sandbox").next().is_some()
    });
    belljar.replace_serve();
    asked.wait().expect("wait for belljar");
    belljar.done(&["run", "--session", "t", "write"]);
    assert_eq!(belljar.file("t", "mark.txt"), "x");
    is_whole(&belljar);
}

#[test]
fn a_run_whose_sandbox_is_taken_away_behind_it_gets_another() {
    let belljar = place();
    let mut command = belljar.command(&["run", "--session", "s", "hold"]);
    let mut held = command.stdout(Stdio::piped()).spawn().expect("run belljar");
    belljar.wait_for("s", "its tool to begin", |seen| {
        seen.of("tool_started").any(|event| event["name"] == "exec")
    });
    belljar.stop_host();
    belljar.first_processes().into_iter().for_each(processes::kill);
    for folder in records(&belljar) {
        fs::remove_file(folder.join("record.json")).expect("remove a record");
    }
    belljar.start_host();
    assert!(held.wait().expect("wait for belljar").success());
    is_whole(&belljar);
}

#[test]
fn what_a_runtime_said_is_read_when_the_host_agent_was_started_anew() {
    let belljar = Installation::start(JOB);
    belljar.done(&["run", "--session", "s", "write"]);
    let listed = belljar.done(&["sandbox", "list", "--json"]);
    let sandbox: Value = serde_json::from_str(listed.lines().next().expect("a sandbox")).expect("a line of JSON");
    let logs = || belljar.done(&["sandbox", "logs", sandbox["id"].as_str().expect("an id")]);
    let before = logs();
    assert!(before.contains("connected to the control plane"), "{before}");
    belljar.replace_host();
    let after = logs();
    assert!(after.starts_with(before.trim_end()), "{before}\n{after}");
}
