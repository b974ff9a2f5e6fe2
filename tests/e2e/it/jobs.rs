//! What people do with Belljar all day.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use serde_json::Value;
use testkit::eventually;

use crate::installation::Installation;
use crate::processes::{children, running};
use crate::transcript::Transcript;

/// Looks round, writes a file, counts in it with code, and answers with what the code said.
const JOB: &str = r#"
steps:
  - when: { turn: 1, text: count }
    text: "Let me look."
    tools:
      - name: safebash
        input: { command: "ls -a" }
      - name: write
        input: { path: fruit.txt, content: "apple\npear\nplum\n" }
  - when: { turn: 2, text: count }
    thinking: "Three lines, I think."
    tools:
      - name: exec
        input:
          code: |
            import { readFile } from "node:fs/promises";
            const lines = (await readFile("fruit.txt", "utf8")).trim().split("\n");
            await writeToFile("sorted.txt", lines.sort().reverse().join("\n"));
            return { count: lines.length };
  - when: { turn: 3, text: count }
    text: "There are {{ result.0.json.count }} kinds of fruit."
  - when: { turn: 1, text: again }
    tools:
      - name: read
        input: { path: sorted.txt }
  - when: { turn: 2, text: again }
    text: "First comes {{ result.0.text }}"
  - when: { text: slow, turn: 1 }
    tools:
      - name: exec
        input: { code: "await new Promise((done) => setTimeout(done, 600000)); return 1;" }
  - when: { text: slow }
    text: "The long work is over."
  - when: { text: wait, turn: 1 }
    tools:
      - name: exec
        input:
          code: |
            import { access } from "node:fs/promises";
            while (!(await access("go.txt").then(() => true, () => false))) await new Promise((done) => setTimeout(done, 20));
            return "gone";
  - when: { text: wait }
    text: "The wait is over."
  - when: { text: hang, turn: 1 }
    tools:
      - name: exec
        input:
          code: |
            import { spawn } from "node:child_process";
            spawn("sleep", ["86413"], { detached: true, stdio: "ignore" }).unref();
            for (;;);
  - when: { text: hang }
    text: "It ended: {{ result.0.text }}"
  - when: { text: hello }
    text: "Good day."
"#;

/// Where loops can be.
pub(crate) const PLACEMENTS: [&str; 2] = ["sandbox", "control-plane"];

fn placed(placement: &str) -> Installation {
    Installation::start_with(JOB, &format!("---\nplacement = \"{placement}\"\n"))
}

#[test]
fn a_prompt_goes_in_work_is_done_and_an_answer_comes_out() {
    for placement in PLACEMENTS {
        let belljar = placed(placement);
        let watched = Transcript::read(&belljar.done(&["run", "--json", "--session", "fruit", "count the fruit"]));
        assert!(
            watched.said().contains("There are 3 kinds of fruit."),
            "{placement}: {watched:?}"
        );
        let written =
            |frame: &&Value| frame["type"] == "tool_progress" && frame["text"] == "writing 16 bytes to fruit.txt\n";
        assert_eq!(watched.0.iter().filter(written).count(), 1, "{placement}: {watched:?}");
        assert_eq!(belljar.file("fruit", "sorted.txt"), "plum\npear\napple");

        let transcript = belljar.transcript("fruit");
        transcript.assert_whole();
        assert_eq!(transcript.last_state(), "done");
        let tools: Vec<&str> = transcript
            .of("tool_started")
            .filter_map(|event| event["name"].as_str())
            .collect();
        assert_eq!(tools, ["safebash", "write", "exec"], "{placement}");
        let authors: Vec<&str> = transcript
            .of("message")
            .filter_map(|event| event["message"]["author"]["kind"].as_str())
            .collect();
        assert_eq!(
            authors,
            ["user", "model", "sandbox", "model", "sandbox", "model"],
            "{placement}"
        );

        let again = belljar.done(&["run", "--session", "fruit", "and again"]);
        assert!(
            again.contains("plum"),
            "{placement}: the workspace is still there: {again}"
        );
    }
}

#[test]
fn files_go_up_and_down_as_they_are() {
    let belljar = placed("sandbox");
    let here = belljar.path("data.bin");
    let bytes: Vec<u8> = (0..3_000_000_u32)
        .flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes())
        .collect();
    fs::write(&here, &bytes).unwrap();
    belljar.done(&["run", "--session", "files", "--file", &here.to_string_lossy(), "hello"]);
    let back = belljar.path("back.bin");
    belljar.done(&["get", "files", "data.bin", &back.to_string_lossy()]);
    assert!(fs::read(&back).unwrap() == bytes, "the file came back changed");
    assert!(belljar.done(&["files", "files"]).contains("data.bin"));
    for outside in ["../../etc/passwd", "/etc/passwd", "no-such-file"] {
        let output = belljar.run(&["get", "files", outside, "-"]);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{outside}");
    }
}

#[test]
fn a_cancelled_run_leaves_no_process_behind() {
    for placement in PLACEMENTS {
        let belljar = placed(placement);
        let mut run = watched(&belljar, &["run", "--json", "--session", "slow", "slow work"]);
        belljar.wait_for("slow", "the tool to begin", |seen| {
            seen.of("tool_started").next().is_some()
        });
        eventually("the tool's process to be seen", || {
            (!workers(&belljar).is_empty()).then_some(())
        });
        belljar.done(&["cancel", "slow"]);
        run.wait().unwrap();
        let transcript = belljar.transcript("slow");
        transcript.assert_whole();
        assert_eq!(transcript.last_state(), "cancelled", "{placement}");
        eventually("the tool's processes to be gone", || {
            workers(&belljar).is_empty().then_some(())
        });
        let printed = belljar.done(&["run", "--session", "slow", "hello"]);
        assert!(printed.contains("Good day."), "{placement}: {printed}");
    }
}

#[test]
fn a_hung_tool_is_killed_at_its_limit_and_the_model_is_told() {
    for placement in PLACEMENTS {
        let settings = format!("[run]\ntool_time = \"2s\"\n---\nplacement = \"{placement}\"\n");
        let belljar = Installation::start_with(JOB, &settings);
        let printed = belljar.done(&["run", "--session", "hung", "hang"]);
        let told = "It ended: [killed: the code took longer than 2 s]";
        assert!(printed.contains(told), "{placement}: {printed}");
        let left = running(&["sleep", "86413"]);
        assert!(
            left.is_empty(),
            "what it started in a session of its own goes on: {left:?}"
        );
        belljar.transcript("hung").assert_whole();
    }
}

/// Starts work that waits in a tool until the workspace holds `go.txt`, and waits until the tool has begun.
fn waiting(belljar: &Installation, session: &str) -> std::process::Child {
    let child = watched(belljar, &["run", "--json", "--session", session, "wait for it"]);
    belljar.wait_for(session, "the tool to begin", |seen| {
        seen.of("tool_started").next().is_some()
    });
    child
}

fn release(belljar: &Installation, session: &str) {
    let go = belljar.path("go.txt");
    fs::write(&go, "go").expect("write a file");
    belljar.done(&["put", session, &go.to_string_lossy()]);
}

fn states<'t>(transcript: &'t Transcript, state: &'t str) -> usize {
    transcript.of("run").filter(|event| event["state"] == state).count()
}

#[test]
fn a_restart_interrupts_what_is_under_way() {
    let belljar = placed("sandbox");
    let mut first = waiting(&belljar, "s");
    let printed = belljar.done(&["run", "--session", "s", "count the fruit"]);
    assert!(printed.contains("There are 3 kinds"), "{printed}");
    first.wait().unwrap();
    let transcript = belljar.transcript("s");
    transcript.assert_whole();
    assert_eq!(
        (states(&transcript, "interrupted"), states(&transcript, "done")),
        (1, 1)
    );
}

#[test]
fn a_queued_prompt_waits_its_turn() {
    let belljar = placed("sandbox");
    let mut first = waiting(&belljar, "s");
    let mut queued = watched(
        &belljar,
        &["run", "--json", "--session", "s", "--delivery", "queue", "hello"],
    );
    belljar.wait_for("s", "the queued run", |seen| states(seen, "queued") == 2);
    release(&belljar, "s");
    first.wait().unwrap();
    queued.wait().unwrap();
    let transcript = belljar.transcript("s");
    transcript.assert_whole();
    assert_eq!(transcript.said(), "The wait is over.Good day.");
    assert_eq!(states(&transcript, "done"), 2);
}

#[test]
fn a_steering_prompt_joins_before_the_next_model_call() {
    let belljar = placed("sandbox");
    let mut first = waiting(&belljar, "s");
    belljar.done(&["run", "--detach", "--session", "s", "--delivery", "steer", "hello"]);
    release(&belljar, "s");
    first.wait().unwrap();
    let transcript = belljar.transcript("s");
    transcript.assert_whole();
    assert_eq!(transcript.said(), "Good day.");
    assert_eq!((states(&transcript, "queued"), states(&transcript, "done")), (1, 1));
}

#[test]
fn mistakes_are_answered_in_words_and_by_exit_code() {
    let belljar = Installation::start_with(JOB, "[budget]\nrun = 0.0000001\n");
    let cases: [(&[&str], i32, &str); 7] = [
        (&["run", "--session", "x", ""], 2, "empty"),
        (
            &["run", "--session", "x", "--model", "no-such-model", "hello"],
            1,
            "no-such-model",
        ),
        (&["run", "--session", "x", "hello"], 4, "cap"),
        (&["show", "no-such-session"], 1, "no-such-session"),
        (&["run", "--nonsense"], 2, "--nonsense"),
        (&["get", "no-such-session", "x"], 1, "no-such-session"),
        (&["sandbox", "rm", "not-an-id"], 2, "not-an-id"),
    ];
    for (arguments, code, word) in cases {
        let output = belljar.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(code), "{arguments:?} said {said}");
        assert!(said.contains(word), "{arguments:?} said {said}");
    }
    let stranger = belljar
        .command(&["sessions"])
        .env("BELLJAR_TOKEN", "not-a-token")
        .output()
        .unwrap();
    assert_eq!(
        stranger.status.code(),
        Some(3),
        "{}",
        String::from_utf8_lossy(&stranger.stderr)
    );
}

#[test]
fn a_missing_or_broken_image_is_a_failed_run_that_says_so() {
    let belljar = Installation::start(JOB);
    let image = belljar.data().join("images").join(&testkit::miniature().digest);
    let fails = |session: &str| {
        let output = belljar.run(&["run", "--session", session, "count the fruit"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("image"), "{said}");
        belljar.transcript(session).assert_whole();
    };
    fs::remove_file(&image).unwrap();
    fails("missing");
    // One whose files are gone, and one that nobody can read what it is.
    fs::create_dir(&image).unwrap();
    fs::copy(
        testkit::miniature().folder.join("config.json"),
        image.join("config.json"),
    )
    .unwrap();
    fails("empty");
    symlink(testkit::miniature().rootfs(), image.join("rootfs")).unwrap();
    fs::write(image.join("config.json"), "{").unwrap();
    fails("malformed");
}

#[test]
fn a_backup_taken_while_it_runs_brings_everything_back() {
    let belljar = Installation::start(JOB);
    belljar.done(&["run", "--session", "kept", "count the fruit"]);
    let before = belljar.transcript("kept").0;
    let copy = belljar.path("copy.db");
    let config = belljar.path("belljar.toml");
    let (copy, config) = (copy.to_string_lossy(), config.to_string_lossy());
    belljar.done(&["backup", &copy, "--config", &config]);
    belljar.done(&["run", "--session", "lost", "hello"]);
    belljar.stop_serve();
    belljar.done(&["restore", &copy, "--config", &config]);
    belljar.start_serve();
    assert_eq!(belljar.transcript("kept").0, before);
    assert_eq!(belljar.run(&["show", "lost"]).status.code(), Some(1));
    let printed = belljar.done(&["run", "--session", "kept", "and again"]);
    assert!(printed.contains("plum"), "{printed}");
}

/// The processes that tools of this installation's sandboxes run, each beneath its supervisor.
fn workers(belljar: &Installation) -> Vec<u32> {
    let first = belljar.first_processes().into_iter();
    let supervisors = first.flat_map(children).flat_map(children);
    supervisors.flat_map(children).collect()
}

/// A command that goes on beside the test.
pub(crate) fn watched(belljar: &Installation, arguments: &[&str]) -> std::process::Child {
    let mut command: Command = belljar.command(arguments);
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("run belljar")
}

#[test]
fn what_a_watcher_prints_is_what_is_stored() {
    let belljar = Installation::start(JOB);
    let printed = Transcript::read(&belljar.done(&["run", "--json", "--session", "w", "count the fruit"]));
    let durable: Vec<_> = printed.0.into_iter().filter(|frame| frame["number"].is_i64()).collect();
    assert_eq!(durable, belljar.transcript("w").0);
}
