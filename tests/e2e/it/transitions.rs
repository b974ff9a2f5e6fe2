//! `kill -9` of the host agent, the control plane or both in the middle of everything that happens to a sandbox: its files
//! are whole, every sandbox is a session's, and every session goes on.
//!
//! The moment is drawn by lot, out of the time that the same takes when nobody is killed, and so is who dies.
//! BELLJAR_TEST_SEED repeats the lots; BELLJAR_TEST_FULL=1 takes every victim, many times.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::Value;
use testkit::eventually_asked;

use crate::installation::Installation;
use crate::lots::{is_full, seed};
use crate::processes;

/// Files that are told apart, and one that takes a moment to copy.
const JOB: &str = r#"
steps:
  - when: { turn: 1, text: make }
    tools:
      - name: exec
        input:
          code: |
            const { mkdir, writeFile } = await import("node:fs/promises");
            await mkdir("many/deep", { recursive: true });
            for (let at = 0; at < 60; at += 1) await writeFile(`many/deep/${at}`, `file ${at}\n`.repeat(at));
            await writeFile("large", Buffer.from(Array.from({ length: 5 << 20 }, (_, at) => (at * at) % 251)));
            return "made";
  - when: { text: make }
    text: "Made."
  - when: { text: again }
    text: "Here again."
"#;

/// Sandboxes fall asleep soon, and one is always ready.
const SLEEPY: &str = "---\nfreeze_after = \"500ms\"\nhibernate_after = \"1500ms\"\nwarm.least = 1\nwarm.most = 1\n";

/// Moments are drawn out of so much of what a transition takes; those beyond its end are its end, when it is done and nobody was
/// told.
const ALL_AND_MORE: f64 = 1.25;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Transition {
    Claim,
    Sleep,
    Thaw,
    Wake,
    Replace,
    Snapshot,
    Restore,
    Remove,
    Fork,
    Export,
    Import,
    Archive,
    Upload,
    Download,
}

impl Transition {
    const ALL: [Self; 14] = [
        Self::Claim,
        Self::Sleep,
        Self::Thaw,
        Self::Wake,
        Self::Replace,
        Self::Snapshot,
        Self::Restore,
        Self::Remove,
        Self::Fork,
        Self::Export,
        Self::Import,
        Self::Archive,
        Self::Upload,
        Self::Download,
    ];
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Victim {
    Host,
    Serve,
    Everything,
}

impl Victim {
    pub(crate) const ALL: [Self; 3] = [Self::Host, Self::Serve, Self::Everything];

    pub(crate) fn strike(self, belljar: &Installation) {
        match self {
            Self::Host => belljar.replace_host(),
            Self::Serve => belljar.replace_serve(),
            Self::Everything => belljar.replace_everything(),
        }
    }
}

/// One session in one transition.
struct Case<'b> {
    belljar: &'b Installation,
    session: String,
    files: String,
}

impl Case<'_> {
    fn begin(belljar: &Installation, session: String) -> Case<'_> {
        belljar.done(&["run", "--session", &session, "make files"]);
        let files = look(belljar, &session);
        assert_eq!(files.lines().count(), 61, "{files}");
        Case {
            belljar,
            session,
            files,
        }
    }

    /// Brings the session to where the transition begins.
    fn prepare(&self, transition: Transition) {
        let (belljar, session) = (self.belljar, self.session.as_str());
        match transition {
            Transition::Thaw => self.is_told("frozen"),
            Transition::Wake => self.is_told("hibernated"),
            Transition::Replace => self.dies(),
            Transition::Restore => {
                belljar.done(&["snapshot", "save", session, "--name", "before"]);
                self.put("more");
            }
            Transition::Remove => {
                belljar.done(&["snapshot", "save", session, "--name", "before"]);
            }
            Transition::Import => {
                belljar.done(&["snapshot", "export", session, &self.archive()]);
                self.put("more");
            }
            Transition::Download => {
                belljar.done(&["archive", session]);
            }
            _ => {}
        }
    }

    fn is_told(&self, expected: &str) {
        eventually_asked(expected, || {
            let events = self.belljar.transcript(&self.session);
            let state = events.of("sandbox").last()?["state"].clone();
            if expected == "frozen" && state == "hibernated" {
                // Whoever looked too late uses it once more.
                look(self.belljar, &self.session);
            }
            (state == expected).then_some(())
        });
    }

    /// Where the session's workspace is exported to.
    fn archive(&self) -> String {
        let file = self.belljar.path(&format!("{}.tar.zst", self.session));
        file.to_string_lossy().into_owned()
    }

    /// The files are what they were first, whether or not there is one that was put beside them.
    fn are_whole_beside_more(&self) {
        let files = look(self.belljar, &self.session);
        let without: String = files
            .split_inclusive('\n')
            .filter(|line| !line.ends_with("/more\n"))
            .collect();
        assert_eq!(without, self.files, "neither the one nor the other");
    }

    /// Wakes it, and kills its sandbox before it sleeps again.
    fn dies(&self) {
        eventually_asked("the session to have a sandbox", || {
            look(self.belljar, &self.session);
            let first = self.belljar.first_processes_of(&self.session);
            first.iter().copied().for_each(processes::kill);
            (!first.is_empty()).then_some(())
        });
    }

    fn put(&self, name: &str) {
        let file = self.belljar.path("more");
        fs::write(&file, "more\n".repeat(1_000_000)).expect("write a file");
        self.belljar
            .done(&["put", &self.session, &file.to_string_lossy(), name]);
    }

    /// Begins the transition.
    fn start(&self, transition: Transition) -> Option<Child> {
        let session = self.session.as_str();
        let claimed = format!("{session}-claimed");
        let archive = self.archive();
        let words: Vec<&str> = match transition {
            Transition::Claim => vec!["run", "--session", &claimed, "make files"],
            Transition::Thaw | Transition::Wake | Transition::Replace | Transition::Download => {
                vec!["run", "--session", session, "again"]
            }
            Transition::Snapshot => vec!["snapshot", "save", session, "--name", "now"],
            Transition::Restore => vec!["snapshot", "restore", session, "before"],
            Transition::Remove => vec!["snapshot", "rm", session, "before"],
            Transition::Fork => vec!["fork", session, "--count", "2"],
            Transition::Export => vec!["snapshot", "export", session, &archive],
            Transition::Import => vec!["snapshot", "import", session, &archive],
            Transition::Archive => vec!["archive", session],
            Transition::Upload => {
                self.put("more");
                return None;
            }
            Transition::Sleep => return None,
        };
        let mut command = self.belljar.command(&words);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Some(command.spawn().expect("run belljar"))
    }

    /// What must be true afterwards: whatever was struck and when, or where nobody was.
    fn check(&self, transition: Transition, undisturbed: bool) {
        let (belljar, session) = (self.belljar, self.session.as_str());
        match transition {
            Transition::Claim => {
                let claimed = format!("{session}-claimed");
                belljar.done(&["run", "--session", &claimed, "again"]);
                let made = look(belljar, &claimed);
                // The run that made them may have been struck before it did.
                if undisturbed || made.lines().count() == 61 {
                    assert_eq!(made, self.files);
                }
            }
            Transition::Sleep
            | Transition::Thaw
            | Transition::Wake
            | Transition::Replace
            | Transition::Archive
            | Transition::Download => {}
            Transition::Snapshot => {
                let kept = self.has_snapshot("now");
                assert!(kept || !undisturbed, "there is no snapshot");
                if kept {
                    self.put("large");
                    belljar.done(&["snapshot", "restore", session, "now"]);
                }
            }
            Transition::Restore => {
                self.are_whole_beside_more();
                belljar.done(&["snapshot", "restore", session, "before"]);
            }
            Transition::Remove => {
                let kept = self.has_snapshot("before");
                assert!(!(kept && undisturbed), "it is still there");
                if kept {
                    self.put("large");
                    belljar.done(&["snapshot", "restore", session, "before"]);
                    belljar.done(&["snapshot", "rm", session, "before"]);
                }
            }
            Transition::Export => {
                let archive = self.archive();
                let exported = fs::exists(&archive).expect("look for a file");
                assert!(exported || !undisturbed, "nothing was exported");
                if exported {
                    self.put("more");
                    belljar.done(&["snapshot", "import", session, &archive]);
                }
            }
            Transition::Import => {
                self.are_whole_beside_more();
                belljar.done(&["snapshot", "import", session, &self.archive()]);
            }
            Transition::Fork => {
                let sessions = belljar.sessions();
                let parent = sessions
                    .iter()
                    .find(|other| other["key"] == session)
                    .expect("the session");
                let mut forks = 0;
                // A fork has no name of its own.
                for fork in sessions.iter().filter(|other| other["key"].is_null()) {
                    let fork = fork["id"].as_str().expect("an id");
                    let events = belljar.transcript(fork);
                    if events.of("forked").any(|event| event["parent"] == parent["id"]) {
                        assert_eq!(look(belljar, fork), self.files, "a fork");
                        forks += 1;
                    }
                }
                assert!(forks == 2 || !undisturbed, "{forks} forks of 2");
            }
            Transition::Upload => {
                assert_eq!(belljar.file(session, "more"), "more\n".repeat(1_000_000));
                archived(belljar, session);
                belljar.done(&["run", "--session", session, "again"]);
                assert_eq!(belljar.file(session, "more"), "more\n".repeat(1_000_000));
                return;
            }
        }
        belljar.done(&["run", "--session", session, "again"]);
        assert_eq!(look(belljar, session), self.files);
    }

    fn has_snapshot(&self, name: &str) -> bool {
        lines(self.belljar, &["snapshot", "list", &self.session, "--json"]).any(|kept| kept["name"] == name)
    }
}

/// The names of all files, and what is in them.
fn look(belljar: &Installation, session: &str) -> String {
    let sums = ["sandbox", "exec", session, "sha256sum"].map(str::to_owned);
    let listed = ["sandbox", "exec", session, "find", "/workspace", "-type", "f"];
    let listed = eventually_asked("an answer of the session's sandbox", || {
        let output = belljar.run(&listed);
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    });
    // What it says of a command that says nothing.
    let names = listed.lines().filter(|line| *line != "[no output]");
    let mut names: Vec<_> = names.map(str::to_owned).collect();
    names.sort();
    if names.is_empty() {
        return String::new();
    }
    let words: Vec<String> = sums.into_iter().chain(names).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    belljar.done(&words)
}

fn lines(belljar: &Installation, words: &[&str]) -> impl Iterator<Item = Value> {
    let said = belljar.done(words);
    let all: Vec<Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line of JSON"))
        .collect();
    all.into_iter()
}

/// Puts a session away; that it is used a moment before is no mistake.
fn archived(belljar: &Installation, session: &str) {
    eventually_asked("the session to be put away", || {
        belljar.run(&["archive", session]).status.success().then_some(())
    });
}

/// No sandbox without a session, no session with two, no process without a sandbox. (A disk may be nobody's for an hour.)
pub(crate) fn nothing_is_nobodys(belljar: &Installation) {
    let mut told = String::new();
    eventually_asked("only what is somebody's to be left", || {
        let problem = left(belljar);
        if told != problem {
            println!("not yet: {problem}");
        }
        told = problem;
        told.is_empty().then_some(())
    });
}

/// What is nobody's; nothing where all is in order.
fn left(belljar: &Installation) -> String {
    let sandboxes: Vec<Value> = lines(belljar, &["sandbox", "list", "--json"]).collect();
    let sessions = belljar.sessions();
    let sessions: BTreeSet<&str> = sessions.iter().filter_map(|session| session["id"].as_str()).collect();
    let owned = sandboxes.iter().filter(|sandbox| sandbox["warm"] == false);
    let owners: Vec<&str> = owned.filter_map(|sandbox| sandbox["session"].as_str()).collect();
    let distinct: BTreeSet<&str> = owners.iter().copied().collect();
    let processes = belljar.first_processes().len();
    let in_order = distinct.len() == owners.len() && distinct.is_subset(&sessions) && processes == sandboxes.len();
    if in_order {
        return String::new();
    }
    let each = sandboxes
        .iter()
        .map(|sandbox| format!("{} of {}, {}", sandbox["id"], sandbox["session"], sandbox["state"]));
    format!("{processes} processes, sandboxes {:?}", each.collect::<Vec<_>>())
}

/// How long a transition takes that nobody disturbs.
fn undisturbed(belljar: &Installation, transition: Transition) -> Duration {
    let case = Case::begin(belljar, format!("{transition:?}-undisturbed"));
    case.prepare(transition);
    let begun = Instant::now();
    match case.start(transition) {
        Some(mut child) => {
            assert!(child.wait().expect("wait for belljar").success(), "{transition:?}");
        }
        None if transition == Transition::Sleep => case.is_told("hibernated"),
        None => archived(belljar, &case.session),
    }
    let took = begun.elapsed();
    // Put away, it is found again by its next prompt.
    if transition == Transition::Upload {
        belljar.done(&["run", "--session", &case.session, "again"]);
    }
    case.check(transition, true);
    took
}

fn struck(belljar: &Installation, transition: Transition, victim: Victim, after: Duration, number: usize) {
    let case = Case::begin(belljar, format!("{transition:?}-{victim:?}-{number}"));
    case.prepare(transition);
    let child = case.start(transition);
    thread::sleep(after);
    victim.strike(belljar);
    if let Some(mut child) = child {
        // Whoever asked a control plane that was killed may have been told so.
        let _ = child.wait().expect("wait for belljar");
    }
    case.check(transition, false);
    nothing_is_nobodys(belljar);
}

#[test]
fn whoever_dies_in_any_transition_leaves_files_whole_and_nothing_behind() {
    let belljar = Installation::start_with(JOB, SLEEPY);
    let mut random = StdRng::seed_from_u64(seed());
    let full = is_full();
    for transition in Transition::ALL {
        let took = undisturbed(&belljar, transition);
        let victims: Vec<Victim> = if full {
            Victim::ALL.repeat(8)
        } else {
            Victim::ALL.sample(&mut random, 1).copied().collect()
        };
        for (number, victim) in victims.into_iter().enumerate() {
            let after = took.mul_f64(random.random_range(0.0..ALL_AND_MORE).min(1.0));
            println!("{transition:?}, {victim:?} after {after:?}");
            struck(&belljar, transition, victim, after, number);
        }
    }
    belljar.cool_down("warm.least = 1\nwarm.most = 1");
}
