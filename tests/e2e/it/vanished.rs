//! A machine that is gone, with its host agent, its sandboxes and their disks: what its sessions had was elsewhere all the time.

use std::fs;
use std::process::Stdio;

use serde_json::Value;
use testkit::eventually;

use crate::installation::Installation;
use crate::transcript::Transcript;
use crate::transitions::nothing_is_nobodys;
use crate::workspaces::{files, holds};

/// Each call leaves a mark that shows if it was made twice. One is over when the machine goes, and one is not.
const JOB: &str = r##"
steps:
  - when: { turn: 1, text: make }
    text: "I make files."
    tools:
      - name: exec
        input:
          code: |
            const { chmod, mkdir, rename, rm, symlink, truncate, writeFile } = await import("node:fs/promises");
            await mkdir("deep/er", { recursive: true });
            await mkdir("hollow");
            await writeFile("deep/er/text.txt", "words\n".repeat(2000));
            await writeFile("deep/bytes.bin", Buffer.from(Array.from({ length: 5 << 20 }, (_, at) => (at * at) % 251)));
            await writeFile("run.sh", "#!/bin/sh\n");
            await chmod("run.sh", 0o750);
            await symlink("../run.sh", "deep/link");
            await writeFile("sparse", "beginning");
            await truncate("sparse", 9 << 20);
            return "made";
  - when: { text: make }
    text: "They are made."
  - when: { turn: 1, text: hold }
    text: "Two marks."
    tools:
      - name: exec
        input: { code: "import { appendFile } from 'node:fs/promises'; await appendFile('over.txt', 'over\\n'); return 'it is over';" }
      - name: exec
        input: { code: "import { appendFile } from 'node:fs/promises'; await appendFile('begun.txt', 'begun\\n'); await new Promise((done) => setTimeout(done, 600000));" }
  - when: { turn: 2, text: hold }
    text: "And a third."
    tools:
      - name: exec
        input: { code: "import { appendFile } from 'node:fs/promises'; await appendFile('begun.txt', 'then this\\n');" }
  - when: { text: hold }
    text: "It goes on."
  - when: { text: again }
    text: "Here again."
"##;

/// What was said, whole.
fn history(seen: &Transcript) -> Vec<Value> {
    seen.of("message").map(|event| event["message"].clone()).collect()
}

/// Waits until all is kept that a workspace has by now: another file is, which was put there after the last of it.
fn all_is_kept(belljar: &Installation, session: &str, last: &[u8], name: &str) {
    let objects = belljar.data().join("control/objects/sessions");
    eventually("the last file to be kept", || holds(&objects, last).then_some(()));
    let file = belljar.path(name);
    fs::write(&file, name).expect("write a file");
    belljar.done(&["put", session, &file.to_string_lossy(), name]);
    eventually("a later file to be kept", || {
        holds(&objects, name.as_bytes()).then_some(())
    });
}

/// The results of calls as the history has them, and whether each is an error.
fn results(history: &[Value]) -> Vec<(String, bool)> {
    let blocks = history
        .iter()
        .filter_map(|message| message["blocks"].as_array())
        .flatten();
    let results = blocks.filter(|block| block["type"] == "tool_result");
    results
        .map(|result| (result.to_string(), result["is_error"] == true))
        .collect()
}

/// One run whose machine is gone in the middle, and a session beside it that does nothing.
fn vanishes(belljar: &Installation, busy: &str, idle: &str, with_serve: bool) {
    for session in [busy, idle] {
        belljar.done(&["run", "--session", session, "make files"]);
    }
    let mut command = belljar.command(&["run", "--session", busy, "hold"]);
    let mut held = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("run belljar");
    belljar.wait_for(busy, "one call to be over and one to be under way", |seen| {
        seen.of("tool_started").count() == 3 && seen.of("tool_ended").count() == 2
    });
    all_is_kept(belljar, busy, b"begun\n", &format!("{busy}-later"));
    all_is_kept(belljar, idle, b"#!/bin/sh\n", &format!("{idle}-later"));
    let before = [busy, idle].map(|session| (files(belljar, session), history(&belljar.transcript(session))));

    if with_serve {
        belljar.stop_serve();
    }
    belljar.lose_the_machine();
    if with_serve {
        belljar.start_serve();
    }
    held.wait().expect("wait for belljar");
    belljar.wait_for(busy, "the run to end", |seen| seen.last_state() == "done");

    let seen = belljar.transcript(busy);
    seen.assert_whole();
    let after = history(&seen);
    assert_eq!(after[..before[0].1.len()], before[0].1);
    let results = results(&after);
    let [_, over, begun, third] = &results[..] else {
        panic!("not four results: {results:?}");
    };
    assert!(over.0.contains("it is over") && !over.1, "{over:?}");
    assert!(begun.0.contains("may have taken effect") && begun.1, "{begun:?}");
    assert!(!third.1, "{third:?}");
    assert_eq!(belljar.file(busy, "over.txt"), "over\n");
    assert_eq!(belljar.file(busy, "begun.txt"), "begun\nthen this\n");
    let states: Vec<&Value> = seen.of("sandbox").map(|event| &event["state"]).collect();
    // A control plane that was away as well has not seen how it ended.
    let end = if with_serve { "hibernated" } else { "lost" };
    assert_eq!(states[2..], [end, "starting", "running"], "{states:?}");
    // All else is as it was; only that file was written since.
    let but_one = |files: &str| -> Vec<String> {
        let others = files.lines().filter(|line| !line.contains("begun.txt"));
        others.map(str::to_owned).collect()
    };
    assert_eq!(but_one(&files(belljar, busy)), but_one(&before[0].0));

    belljar.done(&["run", "--session", idle, "again"]);
    assert_eq!(files(belljar, idle), before[1].0);
    let seen = belljar.transcript(idle);
    seen.assert_whole();
    assert_eq!(history(&seen)[..before[1].1.len()], before[1].1);
}

#[test]
fn a_run_whose_machine_is_gone_goes_on_on_another() {
    let belljar = Installation::start(JOB);
    vanishes(&belljar, "one", "two", false);
    // The next one goes as well, and takes the control plane's process with it.
    vanishes(&belljar, "three", "four", true);
    nothing_is_nobodys(&belljar);
}
