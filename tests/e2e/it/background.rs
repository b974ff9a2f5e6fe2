//! Programs that go on when the call that started them is over: what they keep awake, and what ends them.

use std::fs;
use std::thread;

use serde_json::Value;
use testkit::{eventually, eventually_asked};

use crate::installation::Installation;
use crate::processes;

const SLEEPY: &str = "freeze_after = \"500ms\"\nhibernate_after = \"2s\"\n";

/// A Belljar whose sessions begin programs, and a word that only the command lines of theirs hold.
struct Place {
    belljar: Installation,
    word: String,
}

impl Place {
    fn new(settings: &str) -> Self {
        let word = format!("7{:09}", rand::random_range(0..1_000_000_000));
        let belljar = Installation::start_with(&JOB.replace("WORD", &word), &format!("---\n{settings}"));
        Self { belljar, word }
    }

    /// The programs that are there. One that stands still is.
    fn programs(&self) -> Vec<u32> {
        let mut programs = processes::running(&[&self.word]);
        // Not the shell that was told to start them.
        programs.retain(|id| fs::read(format!("/proc/{id}/cmdline")).is_ok_and(|line| line.starts_with(b"sleep")));
        programs.sort_unstable();
        programs
    }

    /// Waits until both are there, the one that was asked for and the one that it hid.
    fn both(&self) -> Vec<u32> {
        eventually("both programs to run", || {
            let programs = self.programs();
            (programs.len() == 2).then_some(programs)
        })
    }

    fn are_dead(&self) {
        eventually("the programs to be dead", || self.programs().is_empty().then_some(()));
    }

    /// The states of a session's sandboxes, in order.
    fn states(&self, session: &str) -> Vec<String> {
        let events = self.belljar.transcript(session);
        let states = events.of("sandbox").filter_map(|event| event["state"].as_str());
        states.map(str::to_owned).collect()
    }

    fn is_now(&self, session: &str, state: &str) {
        eventually_asked(state, || (self.states(session).last()? == state).then_some(()));
    }

    /// Another session is used, and falls asleep, and away: whatever nothing keeps has done so by then.
    fn another_comes_and_goes(&self, name: &str) {
        self.belljar.done(&["run", "--session", name, "nothing"]);
        self.belljar.done(&["files", name]);
        self.is_now(name, "hibernated");
    }

    /// Until when the only sandbox there is is kept, as operators see it.
    fn kept_until(&self) -> Option<String> {
        let listed = self.belljar.done(&["sandbox", "list", "--json"]);
        let sandboxes: Vec<Value> = listed
            .lines()
            .map(|line| serde_json::from_str(line).expect("a line of JSON"))
            .collect();
        assert_eq!(sandboxes.len(), 1, "{listed}");
        let until = &sandboxes[0]["kept_until"];
        (!until.is_null()).then(|| until.to_string())
    }

    /// Has the programs that wait for it end by themselves.
    fn let_end(&self, session: &str) {
        let file = self.belljar.path("end");
        fs::write(&file, "").expect("write a file");
        self.belljar.done(&["put", session, &file.to_string_lossy(), "end"]);
    }
}

/// `begin` begins two programs, one of which wants to be nobody's, and ends; `hold` the same, and goes on; `count` one that
/// writes for as long as it lives.
const JOB: &str = r#"
steps:
  - when: { turn: 1, text: begin }
    tools:
      - name: exec
        input:
          code: |
            return await background("(setsid sleep WORD &) ; sleep WORD & until [ -e end ]; do sleep 0.05; done; kill $!", { minutes: 60 });
  - when: { turn: 1, text: hold }
    tools:
      - name: exec
        input:
          code: |
            await background("(setsid sleep WORD &) ; sleep WORD");
            await new Promise(() => setInterval(() => {}, 1000));
  - when: { turn: 1, text: count }
    tools:
      - name: exec
        input:
          code: |
            return await background("n=0; while :; do n=$((n + 1)); echo $n >> counted; sleep 0.001; done & exec sleep WORD");
  - when: { text: begin }
    text: "Begun."
  - when: { text: count }
    text: "It counts."
  - when: { text: nothing }
    text: "Nothing is done."
"#;

#[test]
fn a_program_keeps_its_sandbox_awake_until_it_ends_and_through_a_restart() {
    let place = Place::new(SLEEPY);
    place.belljar.done(&["run", "--session", "s", "begin"]);
    let programs = place.both();
    place.another_comes_and_goes("one");
    assert!(place.kept_until().is_some());
    // The next control plane is told of them by nobody but the sandbox.
    place.belljar.replace_serve();
    eventually_asked("the next one to hear of it", || place.kept_until());
    place.another_comes_and_goes("two");
    // A host agent knows nothing of them, and finds their sandbox.
    place.belljar.replace_host();
    place.another_comes_and_goes("three");
    assert_eq!(place.both(), programs);
    assert!(place.kept_until().is_some());
    assert_eq!(
        place.states("s"),
        ["starting", "running"],
        "who adopts it has nothing to tell: its state is what it was"
    );

    // What has ended keeps nothing, and what it hid ends with it.
    place.let_end("s");
    place.is_now("s", "hibernated");
    place.are_dead();
}

#[test]
fn it_does_not_outlive_the_time_there_is() {
    let place = Place::new("background_time = \"15s\"\n");
    place.belljar.done(&["run", "--session", "s", "begin"]);
    let first = place.belljar.first_processes();
    place.both();
    place.are_dead();
    // It was ended, and not its sandbox.
    assert_eq!(place.belljar.first_processes(), first);
    assert_eq!(place.states("s"), ["starting", "running"]);
    eventually_asked("nothing to keep the sandbox", || {
        place.kept_until().is_none().then_some(())
    });
}

#[test]
fn it_is_dead_when_its_run_is_cancelled_and_its_sandbox_lives() {
    let place = Place::new("");
    let mut run = place.belljar.command(&["run", "--session", "s", "hold"]);
    let mut run = run.spawn().expect("run belljar");
    place.both();
    let first = place.belljar.first_processes();
    place.belljar.done(&["cancel", "s"]);
    place.are_dead();
    run.wait().expect("wait for belljar");
    assert_eq!(place.belljar.first_processes(), first);
    eventually_asked("nothing to keep the sandbox", || {
        place.kept_until().is_none().then_some(())
    });
}

#[test]
fn what_it_writes_until_an_archive_ends_it_is_kept() {
    let place = Place::new("");
    for round in 0..3 {
        let session = format!("s{round}");
        place.belljar.done(&["run", "--session", &session, "count"]);
        let program = eventually("the program to run", || place.programs().first().copied());
        // What it has written, seen from outside for as long as it can be.
        let path = format!("/proc/{program}/root/workspace/counted");
        eventually("it to write", || {
            fs::read_to_string(&path).ok().filter(|all| !all.is_empty())
        });
        let watched = thread::spawn(move || {
            let mut last = 0;
            while let Ok(all) = fs::read_to_string(&path) {
                last = all.lines().count().saturating_sub(1).max(last);
            }
            last
        });
        let id = place.belljar.id(&session);
        place.belljar.done(&["archive", &session]);
        place.are_dead();
        let seen = watched.join().expect("it only looks");
        place.is_now(&id, "archived");

        place.belljar.done(&["run", "--session", &session, "nothing"]);
        let kept = place.belljar.file(&session, "counted");
        let numbers: Vec<usize> = kept.lines().map(|line| line.parse().expect("a number")).collect();
        assert!(numbers.len() >= seen, "{} of {seen} lines are kept", numbers.len());
        assert_eq!(numbers, (1..=numbers.len()).collect::<Vec<_>>());
    }
}
