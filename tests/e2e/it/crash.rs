//! `kill -9` of everything, at every event: the run goes on or ends cleanly, nothing is lost, doubled or repeated.
//!
//! BELLJAR_TEST_SEED chooses the sample; BELLJAR_TEST_FULL=1 takes every index, and many pairs.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use http::Response;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use testkit::upstream::{AnswerBody, Arrived, answered};

use crate::installation::Installation;
use crate::lots::{is_full, seed};
use crate::processes;
use crate::transcript::Transcript;
use crate::world::World;

/// Every call leaves a mark that shows if it was made twice. The first turn's take a moment, half a second and a whole one.
const JOB: &str = r#"
steps:
  - when: { turn: 1 }
    text: "I look round, and write."
    tools:
      - name: safebash
        input: { command: "ls -a" }
      - name: exec
        input: { code: "import { appendFile } from 'node:fs/promises'; await appendFile('long.txt', 'x'); await new Promise((done) => setTimeout(done, 1000)); return 3;" }
      - name: exec
        input: { code: "import { appendFile } from 'node:fs/promises'; await appendFile('first.txt', 'x'); await new Promise((done) => setTimeout(done, 500)); return 1;" }
  - when: { turn: 2 }
    thinking: "One more."
    text: "Now the second mark."
    tools:
      - name: exec
        input: { code: "import { appendFile } from 'node:fs/promises'; await appendFile('second.txt', 'x'); return 2;" }
  - when: { turn: 3 }
    tools:
      - name: exec
        input: { code: "await services.ledger.add({ amount: 5 }); return 'written' + ' down';" }
  - when: { turn: 4 }
    text: "All of it is done, and here are some words to be cut in the middle."
    piece: 8
"#;

/// The files that calls write to.
const MARKS: [&str; 3] = ["long.txt", "first.txt", "second.txt"];

/// A service that writes outside, where no second time can be taken back.
const LEDGER: &str = r#"
name = "ledger"
summary = "What was spent"
kind = "http"
base_url = "https://ledger.api.test"
[methods.add]
summary = "Add an entry"
access = "write"
request = "POST /entries"
json = "{*}"
arguments.properties.amount.type = "integer"
arguments.required = ["amount"]
"#;

const SECTIONS: &str = r#"
[roles.everybody]
services = ["ledger.*"]
[services.ledger]
addresses = ["127.0.0.0/8"]
"#;

fn entered(_: &Arrived) -> Response<AnswerBody> {
    answered(200, &[("content-type", "application/json")], r#"{"entry":1}"#)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victim {
    Runtime,
    Hands,
    Sandbox,
    Host,
    Serve,
    Everything,
}

impl Victim {
    const ALL: [Self; 6] = [
        Self::Runtime,
        Self::Hands,
        Self::Sandbox,
        Self::Host,
        Self::Serve,
        Self::Everything,
    ];

    fn strike(self, belljar: &Installation) {
        match self {
            Self::Runtime => belljar.first_processes().into_iter().for_each(processes::kill),
            Self::Hands => belljar
                .first_processes()
                .into_iter()
                .flat_map(processes::children)
                .for_each(processes::kill),
            Self::Sandbox => belljar.remove_sandboxes(),
            Self::Host => belljar.replace_host(),
            Self::Serve => belljar.replace_serve(),
            Self::Everything => belljar.replace_everything(),
        }
    }
}

/// One run, struck at these event numbers.
fn disturbed(world: &World, belljar: &Installation, session: &str, strikes: &[(Victim, i64)]) {
    let entries = || world.servers[0].arrived().len();
    let before = entries();
    let case = format!("{session}: {strikes:?}");
    let mut child = belljar
        .command(&["run", "--json", "--session", session, "do it"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("run belljar");
    let mut printed = String::new();
    let mut open = strikes.to_vec();
    for line in BufReader::new(child.stdout.take().expect("its output is piped"))
        .lines()
        .map_while(Result::ok)
    {
        let number = serde_json::from_str::<serde_json::Value>(&line)
            .ok()
            .and_then(|frame| frame["number"].as_i64());
        printed.push_str(&line);
        printed.push('\n');
        let due: Vec<Victim> = open
            .iter()
            .filter(|(_, at)| number == Some(*at))
            .map(|(victim, _)| *victim)
            .collect();
        open.retain(|(_, at)| number != Some(*at));
        due.into_iter().for_each(|victim| victim.strike(belljar));
    }
    let status = child.wait().expect("wait for belljar");
    let watched = Transcript::read(&printed);
    let stored = belljar.transcript(session);
    let check = || {
        watched.assert_whole();
        stored.assert_whole();
        let durable: Vec<_> = watched.0.iter().filter(|frame| frame["number"].is_i64()).collect();
        // Who watched a run left at its end; a sandbox that was struck by then is told of later, and so is a call of a service
        // that was under way when its sandbox was struck.
        let (seen, later) = stored.0.split_at(durable.len().min(stored.0.len()));
        assert_eq!(
            durable,
            seen.iter().collect::<Vec<_>>(),
            "the watcher saw something else than was stored"
        );
        let told_later = |event: &serde_json::Value| event["type"] == "sandbox" || event["type"] == "service_called";
        assert!(later.iter().all(told_later), "{later:?}");
        assert_eq!(stored.last_state(), "done");
        assert!(status.success(), "belljar run ended with {status}");
        let users = stored
            .of("message")
            .filter(|event| event["message"]["author"]["kind"] == "user")
            .count();
        assert_eq!(users, 1, "the prompt is lost or doubled");
        let said = stored.said();
        assert_eq!(
            said.matches("All of it is done").count(),
            1,
            "the answer is lost or doubled: {said}"
        );
    };
    if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)) {
        eprintln!(
            "{case} failed; stored: {}",
            serde_json::to_string_pretty(&stored.0).unwrap_or_default()
        );
        std::panic::resume_unwind(panic);
    }
    let entered = entries() - before;
    assert!(entered <= 1, "{case}: the entry was made {entered} times");
    if entered == 1 {
        let session = belljar.id(session);
        let audited = belljar.done(&["audit", "--session", &session, "--action", "service.begun", "--json"]);
        assert!(
            audited.contains("ledger"),
            "{case}: the audit log does not know of the entry"
        );
        let told = serde_json::to_string(&stored.0).unwrap_or_default();
        assert!(
            told.contains("written down") || told.contains("ledger.add ("),
            "{case}: nobody is told of the entry: {told}"
        );
    }
    for mark in MARKS {
        let output = belljar.run(&["get", session, mark, "-"]);
        let marks = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            marks.len() <= 1,
            "{case}: the call that writes {mark} was made {} times",
            marks.len()
        );
        assert!(
            marks == "x" || !went_well(&stored, mark),
            "{case}: the call that writes {mark} is told to have gone well, and {mark} is {marks:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// Whether the call whose code names this file is told to have gone well.
fn went_well(stored: &Transcript, file: &str) -> bool {
    let mut begun = stored.of("tool_started");
    let call = begun.find(|event| event["input"]["code"].as_str().is_some_and(|code| code.contains(file)));
    call.is_some_and(|call| {
        let mut ended = stored.of("tool_ended");
        ended.any(|event| event["call"] == call["call"] && event["is_error"] == false)
    })
}

fn undisturbed(world: &World, belljar: &Installation) -> i64 {
    disturbed(world, belljar, "undisturbed", &[]);
    assert_eq!(world.servers[0].arrived().len(), 1, "the entry is made");
    let stored = belljar.transcript("undisturbed");
    assert!(MARKS.iter().all(|mark| went_well(&stored, mark)));
    let count = stored.0.len();
    i64::try_from(count).expect("a small number")
}

fn strike_every_victim(placement: &str) {
    let world = World::new(vec![(&["ledger.api.test"], Box::new(entered))]);
    let more = format!("{SECTIONS}---\nplacement = \"{placement}\"\n");
    let mut belljar = Installation::prepare(JOB, &more);
    let folder = belljar.path("services/ledger");
    std::fs::create_dir_all(&folder).expect("make a folder");
    std::fs::write(folder.join("service.toml"), LEDGER).expect("write a definition");
    belljar.live_in(&world, &[]);
    belljar.start_host();
    belljar.start_serve();
    let events = undisturbed(&world, &belljar);
    let full = is_full();
    let mut random = StdRng::seed_from_u64(seed());
    for victim in Victim::ALL {
        let all: Vec<i64> = (1..=events).collect();
        let indexes: Vec<i64> = if full {
            all
        } else {
            all.sample(&mut random, 2).copied().collect()
        };
        for at in indexes {
            disturbed(&world, &belljar, &format!("{victim:?}-at-{at}"), &[(victim, at)]);
        }
    }
    let pairs = if full { 50 } else { 2 };
    for pair in 0..pairs {
        let mut strike = || {
            let victim = *Victim::ALL.choose(&mut random).expect("there are victims");
            (victim, random.random_range(1..=events))
        };
        let strikes = [strike(), strike()];
        disturbed(&world, &belljar, &format!("pair-{pair}"), &strikes);
    }
}

#[test]
fn any_process_may_die_at_any_event_with_the_loop_in_the_sandbox() {
    strike_every_victim("sandbox");
}

#[test]
fn any_process_may_die_at_any_event_with_the_loop_in_the_control_plane() {
    strike_every_victim("control-plane");
}

/// One call never ends, and the others are told to have ended.
const UNEVEN: &str = r#"
steps:
  - when: { turn: 1 }
    tools:
      - name: write
        input: { path: "mark.txt", content: "x" }
      - name: exec
        input: { code: "await new Promise((done) => setTimeout(done, 600000));" }
      - name: safebash
        input: { command: "ls -a" }
  - when: { turn: 2 }
    text: "All of it is done."
"#;

fn results_outlive(placement: &str) {
    let belljar = Installation::start_with(UNEVEN, &format!("---\nplacement = \"{placement}\"\n"));
    for victim in [Victim::Sandbox, Victim::Runtime, Victim::Serve, Victim::Everything] {
        let session = format!("{victim:?}");
        let mut command = belljar.command(&["run", "--session", &session, "do it"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut asked = command.spawn().expect("run belljar");
        belljar.wait_for(&session, "two calls to end", |seen| seen.of("tool_ended").count() == 2);
        victim.strike(&belljar);
        asked.wait().expect("wait for belljar");
        belljar.wait_for(&session, "the run to end", |seen| seen.last_state() == "done");
        let seen = belljar.transcript(&session);
        seen.assert_whole();
        let failed: Vec<_> = seen.of("tool_ended").map(|event| event["is_error"] == true).collect();
        assert_eq!(failed, [false, false, true], "{victim:?}: {:?}", seen.0);
    }
}

#[test]
fn results_outlive_what_dies_while_another_call_runs_with_the_loop_in_the_sandbox() {
    results_outlive("sandbox");
}

#[test]
fn results_outlive_what_dies_while_another_call_runs_with_the_loop_in_the_control_plane() {
    results_outlive("control-plane");
}
