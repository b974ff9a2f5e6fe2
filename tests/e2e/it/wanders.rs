//! A session that is put to sleep, forked, taken back, carried away and killed, again and again, is the same session.
//!
//! BELLJAR_TEST_SEED chooses the way; BELLJAR_TEST_FULL=1 takes several.

use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use serde_json::Value;
use testkit::eventually_asked;

use crate::installation::Installation;
use crate::lots::{is_full, seed};
use crate::processes;
use crate::workspaces::files;

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

/// Steps of one way: each kind comes once at least.
const STEPS: usize = 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
            history,
        }
    }

    fn is_the_same(&self, way: &[Step]) {
        let files = files(self.belljar, &self.session);
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
                assert_eq!(files(self.abroad, &guest), self.files, "abroad");
                self.abroad.done(&["snapshot", "export", &guest, &back, "--force"]);
                belljar.done(&["snapshot", "import", &self.session, &back]);
            }
            Step::Archive => {
                let id = belljar.id(&self.session);
                belljar.done(&["archive", &id]);
                // A prompt that comes before finds the disk as it was.
                self.is_now(&id, "archived");
                // Only a prompt opens it again.
                belljar.done(&["run", "--session", &self.session, "again"]);
                let history = history(belljar, &self.session);
                assert_eq!(history[..self.history.len()], self.history);
                assert_eq!(history.len(), self.history.len() + 2, "{history:?}");
                self.history = history;
                self.comes_from_outside();
            }
            Step::Move => {
                // By then all is kept that there is.
                self.falls("hibernated");
                belljar.move_to_another_machine();
                self.comes_from_outside();
            }
            Step::Remove => belljar.remove_sandboxes(),
            Step::KillRuntimes => {
                belljar.first_processes().into_iter().for_each(processes::kill);
                // Who asks at that very moment may be told that it is gone; who asks again is served by the next one.
                eventually_asked("another sandbox", || {
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
        eventually_asked(state, || {
            let events = self.belljar.transcript(&self.session);
            let last = events.of("sandbox").last()?["state"].clone();
            if state == "frozen" && last == "hibernated" {
                // Whoever looked too late uses it once more.
                self.belljar.file(&self.session, "run.sh");
            }
            (last == state).then_some(())
        });
    }

    fn is_now(&self, session: &str, state: &str) {
        eventually_asked(state, || {
            let events = self.belljar.transcript(session);
            let last = events.of("sandbox").last().is_some_and(|event| event["state"] == state);
            last.then_some(())
        });
    }

    /// Where files are kept outside of disks, each name is a file of its own.
    fn comes_from_outside(&mut self) {
        self.files = self.files.replace(" 4096 2 ", " 4096 1 ");
    }
}

/// What was said, whole.
fn history(belljar: &Installation, session: &str) -> Vec<Value> {
    let events = belljar.transcript(session);
    events.of("message").map(|event| event["message"].clone()).collect()
}

/// All kinds and some more, in an order that is drawn.
fn way(random: &mut StdRng) -> Vec<Step> {
    let mut way = ALL.to_vec();
    way.resize_with(STEPS, || *ALL.choose(random).expect("there are steps"));
    way.shuffle(random);
    way
}

fn wander(belljar: &Installation, abroad: &Installation, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut wanderer = Wanderer::new(belljar, abroad, format!("wanderer-{seed}"));
    let way = way(&mut random);
    for (number, step) in way.iter().enumerate() {
        println!("{step:?}");
        wanderer.take(*step, number);
        wanderer.is_the_same(&way[..=number]);
    }
    for kind in ALL {
        assert!(way.contains(&kind), "{kind:?} is not tried by {way:?}");
    }
}

#[test]
fn a_session_is_the_same_wherever_it_has_been() {
    let sleepy = "---\nfreeze_after = \"500ms\"\nhibernate_after = \"2s\"\n";
    let (belljar, abroad) = (
        Installation::start_with(JOB, sleepy),
        Installation::start_with(JOB, sleepy),
    );
    let seed = seed();
    let ways = if is_full() { 5 } else { 1 };
    for way in 0..ways {
        wander(&belljar, &abroad, seed.wrapping_add(way));
    }
}
