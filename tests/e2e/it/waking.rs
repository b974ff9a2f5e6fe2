//! Whatever comes while a sandbox falls asleep or is put away wakes it and is served; and what sleeps says what of it is left.
//!
//! The moments are drawn by lot. BELLJAR_TEST_SEED repeats the lots; BELLJAR_TEST_FULL=1 takes many more.

use std::fs;
use std::thread;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;
use testkit::eventually_asked;

use crate::installation::Installation;
use crate::lots::{is_full, seed};

const JOB: &str = r#"
steps:
  - when: { turn: 1, text: write }
    tools:
      - name: write
        input: { path: "mark.txt", content: "x" }
  - when: { text: write }
    text: "Written."
  - when: { text: look }
    text: "Seen."
"#;

/// It falls asleep before most requests come, and away before some do.
const DROWSY: &str = "---\nfreeze_after = \"40ms\"\nhibernate_after = \"120ms\"\n";
/// The longest pause between two requests of one asker.
const PAUSE: Duration = Duration::from_millis(160);

/// One who asks for something of a session at moments of their own.
struct Asker<'b> {
    belljar: &'b Installation,
    session: &'b str,
    random: StdRng,
}

impl<'b> Asker<'b> {
    fn new(belljar: &'b Installation, session: &'b str, seed: u64) -> Self {
        let random = StdRng::seed_from_u64(seed);
        Self {
            belljar,
            session,
            random,
        }
    }

    fn rests(&mut self) {
        thread::sleep(PAUSE.mul_f64(self.random.random_range(0.0..1.0)));
    }

    fn prompts(&self) {
        let said = self.belljar.done(&["run", "--session", self.session, "write"]);
        assert!(said.contains("Written."), "{said}");
    }

    /// The same, and no file changes, which would keep the sandbox awake for a while.
    fn prompts_and_changes_nothing(&self) {
        let said = self.belljar.done(&["run", "--session", self.session, "look"]);
        assert!(said.contains("Seen."), "{said}");
    }

    /// Puts a file in, which is its own name.
    fn puts(&self, name: &str) {
        let file = self.belljar.path(name);
        fs::write(&file, name).expect("write a file");
        let file = file.to_string_lossy();
        self.belljar.done(&["put", self.session, &file, name]);
    }

    fn gets(&self, name: &str) {
        assert_eq!(self.belljar.file(self.session, name), name);
    }

    /// Has a program look, and the files listed.
    fn looks(&mut self) {
        let words = ["sandbox", "exec", self.session, "cat", "/workspace/mark.txt"];
        assert_eq!(self.belljar.done(&words).trim(), "x");
        self.rests();
        let listed = self.belljar.done(&["files", self.session]);
        assert!(listed.contains("mark.txt"), "{listed}");
    }
}

/// How many rounds there are.
fn rounds() -> usize {
    if is_full() { 100 } else { 10 }
}

/// The states that watchers were told of, in turn.
fn states(belljar: &Installation, session: &str) -> Vec<String> {
    let seen = belljar.transcript(session);
    let states = seen
        .of("sandbox")
        .filter_map(|event| event["state"].as_str().map(str::to_owned));
    states.collect()
}

fn slept(state: &str) -> bool {
    ["frozen", "hibernated"].contains(&state)
}

/// Waits until nobody has used it for a while.
fn falls_asleep(belljar: &Installation, session: &str) {
    eventually_asked("it to sleep", || {
        states(belljar, session)
            .last()
            .is_some_and(|state| slept(state))
            .then_some(())
    });
}

#[test]
fn what_comes_while_it_falls_asleep_is_served() {
    let belljar = Installation::start_with(JOB, DROWSY);
    let (seed, rounds) = (seed(), rounds());
    belljar.done(&["run", "--session", "s", "write"]);
    let session = belljar.id("s");
    Asker::new(&belljar, &session, seed).puts("first");
    falls_asleep(&belljar, &session);
    let asker = |number| Asker::new(&belljar, &session, seed.wrapping_add(number));
    let (mut prompts, mut exchanges, mut looks) = (asker(0), asker(1), asker(2));
    // What is uploaded keeps it awake for a while, so that is seldom.
    let puts = |round: usize| round.is_multiple_of(5);
    for round in 0..rounds {
        falls_asleep(&belljar, &session);
        thread::scope(|scope| {
            scope.spawn(|| {
                prompts.rests();
                prompts.prompts_and_changes_nothing();
            });
            scope.spawn(|| {
                exchanges.rests();
                match puts(round) {
                    true => exchanges.puts(&format!("file-{round}")),
                    false => exchanges.gets("first"),
                }
            });
            scope.spawn(|| {
                looks.rests();
                looks.looks();
            });
        });
    }
    let states = states(&belljar, &session);
    let woken = |pair: &[String]| slept(&pair[0]) && !slept(&pair[1]);
    let times = states.windows(2).filter(|pair| woken(pair)).count();
    assert!(times >= rounds, "{times} times of {rounds}: {states:?}");
    for round in (0..rounds).filter(|round| puts(*round)) {
        exchanges.gets(&format!("file-{round}"));
    }
    belljar.transcript(&session).assert_whole();
}

#[test]
fn what_changes_files_while_others_ask_is_served_and_it_sleeps_afterwards() {
    let belljar = Installation::start_with(JOB, DROWSY);
    let (seed, rounds) = (seed(), rounds());
    belljar.done(&["run", "--session", "s", "write"]);
    let session = belljar.id("s");
    thread::scope(|scope| {
        let asker = |number| Asker::new(&belljar, &session, seed.wrapping_add(number));
        let (mut prompts, mut exchanges, mut looks) = (asker(0), asker(1), asker(2));
        scope.spawn(move || {
            for _ in 0..rounds {
                prompts.prompts();
                prompts.rests();
            }
        });
        scope.spawn(move || {
            for round in 0..rounds {
                exchanges.puts(&format!("file-{round}"));
                exchanges.rests();
                exchanges.gets(&format!("file-{round}"));
                exchanges.rests();
            }
        });
        scope.spawn(move || {
            for _ in 0..rounds {
                looks.looks();
                looks.rests();
            }
        });
    });
    falls_asleep(&belljar, &session);
    let asker = Asker::new(&belljar, &session, seed);
    for round in 0..rounds {
        asker.gets(&format!("file-{round}"));
    }
    belljar.transcript(&session).assert_whole();
}

#[test]
fn what_comes_while_it_is_put_away_is_served() {
    let belljar = Installation::start_with(JOB, DROWSY);
    let (seed, rounds) = (seed(), rounds());
    belljar.done(&["run", "--session", "s", "write"]);
    let session = belljar.id("s");
    let mut asker = Asker::new(&belljar, &session, seed);
    asker.puts("first");
    for round in 0..rounds {
        belljar.done(&["archive", &session]);
        // Its files are kept, and its disk is removed, from now on.
        for _ in 0..4 {
            asker.rests();
        }
        match round % 4 {
            0 => asker.prompts(),
            1 => asker.puts(&format!("file-{round}")),
            2 => asker.gets("first"),
            _ => asker.looks(),
        }
    }
    for round in (1..rounds).step_by(4) {
        asker.gets(&format!("file-{round}"));
    }
    // What is asked for in that very moment is served as well.
    for round in 0..rounds {
        let name = format!("beside-{round}");
        thread::scope(|scope| {
            scope.spawn(|| asker.puts(&name));
            scope.spawn(|| asker.gets("first"));
            belljar.done(&["archive", &session]);
        });
        asker.gets(&name);
    }
    belljar.transcript(&session).assert_whole();
}

fn sandboxes(belljar: &Installation) -> Vec<Value> {
    let listed = belljar.done(&["sandbox", "list", "--json"]);
    let lines = listed.lines();
    lines
        .map(|line| serde_json::from_str(line).expect("a line of JSON"))
        .collect()
}

#[test]
fn what_sleeps_says_what_is_left_of_it() {
    let belljar = Installation::start_with(JOB, "---\nfreeze_after = \"1s\"\nhibernate_after = \"20s\"\n");
    belljar.done(&["run", "--session", "s", "write"]);
    belljar.done(&["files", "s"]);
    let state = || belljar.sessions()[0]["sandbox"]["state"].clone();
    eventually_asked("it to be frozen", || (state() == "frozen").then_some(()));
    let there = sandboxes(&belljar);
    assert_eq!(there[0]["state"], "frozen");
    assert!(
        there[0]["processes"].as_u64() > Some(1),
        "its processes stand still: {there:?}"
    );
    assert!(!belljar.first_processes().is_empty());

    eventually_asked("it to be hibernated", || (state() == "hibernated").then_some(()));
    let events = belljar.transcript("s");
    let last = events.of("sandbox").last().expect("states").clone();
    assert_eq!(last["state"], "hibernated");
    let reason = last["reason"].as_str().expect("a reason");
    assert!(
        reason.contains("its processes are gone, its files are kept"),
        "{reason}"
    );
    assert_eq!(sandboxes(&belljar), Vec::<Value>::new());
    assert_eq!(belljar.first_processes(), Vec::<u32>::new());
    assert_eq!(belljar.file("s", "mark.txt"), "x");
}
