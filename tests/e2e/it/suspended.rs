//! Processes that are kept while their sandbox sleeps, by a kernel of its own (gVisor): with BELLJAR_TEST_FULL=1, which builds it.

use std::fs;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;
use testkit::eventually_asked;

use crate::installation::Installation;
use crate::lots::{is_full, seed};
use crate::transitions::Victim;

/// `begin` begins a program that counts in its own memory; `look` says how far it is.
const JOB: &str = r#"
steps:
  - when: { turn: 1, text: begin }
    tools:
      - name: exec
        input:
          code: |
            return await background("n=0; while :; do n=$((n + 1)); echo $n > new; mv new counted; sleep 0.05; done");
  - when: { turn: 1, text: look }
    tools:
      - name: exec
        input:
          code: |
            return Number(require("node:fs").readFileSync("counted", "utf8"));
  - when: { text: begin }
    text: "Begun."
  - when: { text: nothing }
    text: "Nothing is done."
  - when: { text: look }
    text: "It is at {{ result.0.text }}"
"#;

/// Whoever uses another session sends the first to sleep, with what goes on in it.
const ROOM_FOR_ONE: &str = "per_user = 1\n";

/// How long a transition may take until it is struck.
const LONGEST: Duration = Duration::from_millis(800);

/// Waits until the session's sandbox is in this state.
fn is_now(belljar: &Installation, expected: &str) {
    eventually_asked(expected, || {
        let events = belljar.transcript("s");
        (events.of("sandbox").last()?["state"] == expected).then_some(())
    });
}

/// Has it make room for a new one.
fn suspend(belljar: &Installation, other: &str) {
    belljar.done(&["run", "--session", other, "nothing"]);
    belljar.done(&["files", other]);
    is_now(belljar, "suspended");
}

/// The session's sandbox.
fn sandbox(belljar: &Installation) -> Value {
    let session = belljar.id("s");
    let listed = belljar.done(&["sandbox", "list", "--json"]);
    let sandboxes = listed
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line of JSON"));
    let mut own = sandboxes.filter(|sandbox: &Value| sandbox["session"] == session);
    own.next().expect("a sandbox")["id"].clone()
}

/// How far the program is.
fn count(belljar: &Installation) -> u64 {
    belljar.done(&["run", "--session", "s", "look"]);
    let said = belljar.transcript("s").said();
    let (_, count) = said.rsplit_once("It is at ").expect("how far it is");
    count.trim().parse().expect("a number")
}

#[test]
fn what_is_suspended_goes_on_in_another_sandbox_and_is_served_whoever_is_killed() {
    if !is_full() {
        println!("gVisor is tried with BELLJAR_TEST_FULL=1");
        return;
    }
    let settings = format!("---\nruntime = \"runsc\"\n{ROOM_FOR_ONE}");
    let belljar = Installation::start_with(JOB, &settings);
    belljar.done(&["run", "--session", "s", "begin"]);
    let first = sandbox(&belljar);
    suspend(&belljar, "other");

    let woken = count(&belljar);
    assert_ne!(sandbox(&belljar), first);
    eventually_asked("the program to go on", || (count(&belljar) > woken).then_some(()));

    // Its session's token and its way to us are those of the new sandbox.
    let file = belljar.path("later");
    fs::write(&file, "put later").expect("write a file");
    belljar.done(&["put", "s", &file.to_string_lossy(), "later"]);
    assert_eq!(belljar.file("s", "later"), "put later");

    let mut random = StdRng::seed_from_u64(seed());
    for (number, victim) in Victim::ALL.repeat(3).into_iter().enumerate() {
        suspend(&belljar, &format!("other-{number}"));
        let mut command = belljar.command(&["run", "--session", "s", "look"]);
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("run belljar");
        let after = LONGEST.mul_f64(random.random_range(0.0..1.0));
        println!("{victim:?} after {after:?}");
        thread::sleep(after);
        victim.strike(&belljar);
        // Whoever asked a control plane that was killed may have been told so.
        let _ = child.wait().expect("wait for belljar");
        // It goes on, or is gone, which is said; a program that is gone is begun anew.
        println!("at {}", count(&belljar));
        belljar.done(&["run", "--session", "s", "begin"]);
        assert_eq!(belljar.file("s", "later"), "put later");
        belljar.transcript("s").assert_whole();
    }

    // What was put away comes back as it does with any other.
    belljar.remove_sandboxes();
    belljar.done(&["archive", "s"]);
    is_now(&belljar, "archived");
    assert_eq!(belljar.file("s", "later"), "put later");
}
