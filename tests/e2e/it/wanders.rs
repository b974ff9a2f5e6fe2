//! A session that is put to sleep, forked, taken back, carried away and killed, again and again, is the same session.
//!
//! BELLJAR_TEST_SEED chooses the way; BELLJAR_TEST_FULL=1 takes several.

use std::hash::{DefaultHasher, Hash, Hasher};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use testkit::eventually;

use crate::installation::Installation;
use crate::processes;

/// Files of every kind that a workspace has.
const JOB: &str = r##"
steps:
  - when: { turn: 1, text: make }
    text: "I make files."
    tools:
      - name: exec
        input:
          code: |
            const { chmod, link, mkdir, symlink, truncate, utimes, writeFile } = await import("node:fs/promises");
            await mkdir("deep/er", { recursive: true });
            await writeFile("deep/er/text.txt", "words\n".repeat(2000));
            await writeFile("bytes.bin", Buffer.from(Array.from({ length: 4096 }, (_, at) => at % 256)));
            await writeFile("empty", "");
            await writeFile("run.sh", "#!/bin/sh\n");
            await chmod("run.sh", 0o750);
            await chmod("bytes.bin", 0o600);
            await symlink("../bytes.bin", "deep/link");
            await symlink("nowhere", "dangling");
            await link("bytes.bin", "deep/again.bin");
            await writeFile("sparse", "beginning");
            await truncate("sparse", 4 << 20);
            await utimes("empty", 1000000000, 1000000000);
            return "made";
  - when: { turn: 2, text: make }
    text: "They are made, with *letters* of — many kinds."
  - when: { text: again }
    text: "Here again."
"##;

/// What is looked at of each.
const NAMES: [&str; 8] = [
    "deep/er/text.txt",
    "bytes.bin",
    "deep/again.bin",
    "deep/link",
    "dangling",
    "empty",
    "run.sh",
    "sparse",
];

/// Those whose bytes are read whole.
const READ: [&str; 4] = ["deep/er/text.txt", "empty", "run.sh", "sparse"];

/// Steps of one way.
const STEPS: usize = 20;

#[derive(Clone, Copy, Debug)]
enum Step {
    Freeze,
    Hibernate,
    Fork,
    Rewind,
    Carry,
    Emigrate,
    Archive,
    Move,
    Remove,
    KillRuntimes,
    KillHost,
    KillServe,
    KillEverything,
}

const ALL: [Step; 13] = [
    Step::Freeze,
    Step::Hibernate,
    Step::Fork,
    Step::Rewind,
    Step::Carry,
    Step::Emigrate,
    Step::Archive,
    Step::Move,
    Step::Remove,
    Step::KillRuntimes,
    Step::KillHost,
    Step::KillServe,
    Step::KillEverything,
];

/// A session on its way.
struct Wanderer<'b> {
    belljar: &'b Installation,
    /// Another machine, with a control plane of its own.
    abroad: &'b Installation,
    session: String,
    files: String,
    /// It has been kept outside of its disk, where each name is a file of its own.
    outside: bool,
    history: Vec<Value>,
}

impl<'b> Wanderer<'b> {
    fn new(belljar: &'b Installation, abroad: &'b Installation, session: String) -> Self {
        belljar.done(&["run", "--session", &session, "make files"]);
        let (files, history) = (files(belljar, &session), history(belljar, &session));
        assert!(files.contains("regular file 600 1000 1000 4096 2 "), "{files}");
        assert_eq!(history.len(), 4, "{history:?}");
        Self {
            belljar,
            abroad,
            session,
            files,
            outside: false,
            history,
        }
    }

    /// The files of a session that should have these.
    fn files_of(&self, belljar: &Installation, session: &str) -> String {
        let files = files(belljar, session);
        if self.outside { apart(&files) } else { files }
    }

    fn is_the_same(&self, way: &[Step]) {
        let files = self.files_of(self.belljar, &self.session);
        assert_eq!(files, self.files, "after {way:?}");
        assert_eq!(history(self.belljar, &self.session), self.history, "after {way:?}");
    }

    fn take(&mut self, step: Step, number: usize) {
        let belljar = self.belljar;
        match step {
            Step::Freeze => self.falls("frozen"),
            Step::Hibernate => self.falls("hibernated"),
            Step::Fork => belljar
                .done(&["fork", &self.session])
                .trim()
                .clone_into(&mut self.session),
            Step::Rewind => {
                let name = format!("step-{number}");
                belljar.done(&["snapshot", "save", &self.session, "--name", &name]);
                let scribble = belljar.path("scribble");
                std::fs::write(&scribble, "not to stay").expect("write a file");
                let scribble = scribble.to_string_lossy();
                belljar.done(&["put", &self.session, &scribble, "empty"]);
                belljar.done(&["put", &self.session, &scribble, "deep/more.txt"]);
                belljar.done(&["snapshot", "restore", &self.session, &name]);
            }
            Step::Carry => {
                let file = belljar.path("carried.tar.zst");
                let file = file.to_string_lossy();
                belljar.done(&["snapshot", "export", &self.session, &file, "--force"]);
                belljar.done(&["snapshot", "import", &self.session, &file]);
            }
            Step::Emigrate => {
                let guest = format!("{}-{number}", self.session);
                let [out, back] = ["out.tar.zst", "back.tar.zst"].map(|name| belljar.path(name));
                let (out, back) = (out.to_string_lossy(), back.to_string_lossy());
                belljar.done(&["snapshot", "export", &self.session, &out, "--force"]);
                self.abroad.done(&["snapshot", "import", &guest, &out]);
                assert_eq!(self.files_of(self.abroad, &guest), self.files, "abroad");
                self.abroad.done(&["snapshot", "export", &guest, &back, "--force"]);
                belljar.done(&["snapshot", "import", &self.session, &back]);
            }
            Step::Archive => {
                belljar.done(&["archive", &self.session]);
                // Only a prompt opens it again.
                belljar.done(&["run", "--session", &self.session, "again"]);
                let history = history(belljar, &self.session);
                assert_eq!(history[..self.history.len()], self.history);
                assert_eq!(history.len(), self.history.len() + 2, "{history:?}");
                self.history = history;
                self.is_kept_outside();
            }
            Step::Move => {
                // By then all is kept that there is.
                self.falls("hibernated");
                belljar.move_to_another_machine();
                self.is_kept_outside();
            }
            Step::Remove => belljar.remove_sandboxes(),
            Step::KillRuntimes => {
                belljar.first_processes().into_iter().for_each(processes::kill);
                // Who asks at that very moment may be told that it is gone; who asks again is served by the next one.
                eventually("another sandbox", || {
                    let listed = belljar.run(&["files", &self.session]);
                    listed.status.success().then_some(())
                });
            }
            Step::KillHost => belljar.replace_host(),
            Step::KillServe => belljar.replace_serve(),
            Step::KillEverything => belljar.replace_everything(),
        }
    }

    /// Uses it, and waits until it sleeps.
    fn falls(&self, state: &str) {
        self.belljar.file(&self.session, "run.sh");
        eventually(state, || {
            let events = self.belljar.transcript(&self.session);
            let last = events.of("sandbox").last().is_some_and(|event| event["state"] == state);
            last.then_some(())
        });
    }

    fn is_kept_outside(&mut self) {
        self.outside = true;
        self.files = apart(&self.files);
    }
}

/// The same files with no name for the bytes of another.
fn apart(files: &str) -> String {
    files.replace(" 4096 2 ", " 4096 1 ")
}

/// Kind, mode, owner, size, links, time and name of each file, a hash of the bytes, and which files there are. An archive
/// keeps whole seconds; times of folders are not kept everywhere.
fn files(belljar: &Installation, session: &str) -> String {
    let look = |format: &str, names: &[&str]| {
        let mut words = vec!["sandbox", "exec", session, "stat", "-c", format];
        let paths: Vec<String> = names.iter().map(|name| format!("/workspace/{name}")).collect();
        words.extend(paths.iter().map(String::as_str));
        belljar.done(&words)
    };
    let mut all = look("%F %a %u %g %n", &["deep", "deep/er"]);
    all.push_str(&look("%F %a %u %g %s %h %Y %N", &NAMES));
    for name in READ {
        let mut hash = DefaultHasher::new();
        belljar.file(session, name).hash(&mut hash);
        all.push_str(&format!("{name} {:x}\n", hash.finish()));
    }
    for line in belljar.done(&["files", session, "--json"]).lines() {
        let file: Value = serde_json::from_str(line).expect("a line of JSON");
        all.push_str(&format!("{} {}\n", file["path"], file["kind"]));
    }
    all
}

/// What was said, whole.
fn history(belljar: &Installation, session: &str) -> Vec<Value> {
    let events = belljar.transcript(session);
    events.of("message").map(|event| event["message"].clone()).collect()
}

fn wander(belljar: &Installation, abroad: &Installation, seed: u64) {
    println!("BELLJAR_TEST_SEED={seed} repeats this way");
    let mut random = StdRng::seed_from_u64(seed);
    let mut wanderer = Wanderer::new(belljar, abroad, format!("wanderer-{seed}"));
    let mut way = Vec::new();
    for number in 0..STEPS {
        let step = *ALL.choose(&mut random).expect("there are steps");
        way.push(step);
        println!("{step:?}");
        wanderer.take(step, number);
        wanderer.is_the_same(&way);
    }
}

#[test]
fn a_session_is_the_same_wherever_it_has_been() {
    let sleepy = "---\nfreeze_after = \"500ms\"\nhibernate_after = \"2s\"\n";
    let (belljar, abroad) = (
        Installation::start_with(JOB, sleepy),
        Installation::start_with(JOB, sleepy),
    );
    let seed = std::env::var("BELLJAR_TEST_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| rand::rng().next_u64());
    let ways = if std::env::var_os("BELLJAR_TEST_FULL").is_some() {
        5
    } else {
        1
    };
    for way in 0..ways {
        wander(&belljar, &abroad, seed.wrapping_add(way));
    }
}
