//! Nothing of a call outlives it.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use domain::{ToolCall, ToolCallId};
use lifecycle::Stop;
use serde_json::json;

use crate::bench::{Bench, lives, until, words};

/// Starts processes that try to get away, writes down their numbers, and then does `then`.
fn escaping(then: &str) -> String {
    format!(
        r#"
        import {{ spawn }} from 'node:child_process';
        import {{ readFileSync, existsSync }} from 'node:fs';
        // Orphans in sessions of their own, deaf to signals, that fork on and on away from their parents.
        const script = `
            trap '' TERM HUP INT QUIT
            echo $$ >> pids
            if [ "$1" -gt 0 ]; then (setsid sh -c "$0" "$0" $(($1 - 1)) &) ; fi
            while :; do sleep 1000 & echo $! >> pids; wait; done`;
        for (let n = 0; n < 3; n++) spawn('setsid', ['sh', '-c', script, script, '3'], {{ detached: true, stdio: 'ignore' }}).unref();
        const count = () => existsSync('pids') ? readFileSync('pids', 'utf8').trim().split('\n').length : 0;
        while (count() < 24) await new Promise((r) => setTimeout(r, 5));
        await writeToFile('ready', '');
        {then}
        "#
    )
}

fn escaped(bench: &Bench) -> Vec<i32> {
    let pids: Vec<i32> = bench.text("pids").lines().map(|line| line.parse().unwrap()).collect();
    assert!(pids.len() >= 24, "{pids:?}");
    pids
}

#[tokio::test]
async fn what_a_call_started_dies_when_it_returns() {
    let bench = Bench::new();
    assert_eq!(
        bench.ok("exec", json!({ "code": escaping("return 'done'") })).await,
        "\"done\""
    );
    let left: Vec<i32> = escaped(&bench).into_iter().filter(|pid| lives(*pid)).collect();
    assert!(left.is_empty(), "{left:?} are alive");
}

#[tokio::test]
async fn what_a_call_started_dies_when_it_is_stopped() {
    let bench = Bench::new();
    let stop = Stop::new();
    let stopping = async {
        until("the processes", || bench.at("ready").exists()).await;
        assert!(escaped(&bench).into_iter().any(lives), "they never lived");
        stop.cancel();
    };
    let code = escaping("for (;;);");
    let (result, ()) = tokio::join!(bench.call_until("exec", json!({ "code": code }), &stop), stopping);
    assert!(
        result.is_error && words(&result).contains("was stopped"),
        "{}",
        words(&result)
    );
    let left: Vec<i32> = escaped(&bench).into_iter().filter(|pid| lives(*pid)).collect();
    assert!(left.is_empty(), "{left:?} are alive");
}

#[tokio::test]
async fn what_a_call_started_dies_when_nobody_waits_for_it() {
    let bench = Bench::new();
    let call = ToolCall {
        id: ToolCallId("dropped".to_owned()),
        name: "exec".to_owned(),
        input: json!({ "code": escaping("for (;;);") }),
    };
    let stop = Stop::new();
    tokio::select! {
        result = bench.tools.use_tool(&call, &bench.limits, &|_| {}, &stop) => panic!("{result:?}"),
        () = until("the processes", || bench.at("ready").exists()) => {}
    }
    until("everybody's end", || !escaped(&bench).into_iter().any(lives)).await;
}

#[tokio::test]
async fn what_a_call_started_dies_when_the_hands_die() {
    let bench = Bench::new();
    // The other end of the supervisor's input is held by this process, as it would be by the hands.
    let mut supervisor = Command::new(env!("CARGO_BIN_EXE_tools-supervise"))
        .args([
            "--",
            "/bin/sh",
            "-c",
            "(setsid sh -c 'echo $$ > deep; exec sleep 1000' &); echo $$ > main; while :; do sleep 1; done",
        ])
        .current_dir(bench.at(""))
        .stdin(Stdio::piped())
        // Whoever survives must not hold the test's own output open.
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pid = |name: &str| {
        std::fs::read_to_string(bench.at(name))
            .ok()
            .and_then(|text| text.trim().parse::<i32>().ok())
    };
    until("the processes", || pid("deep").is_some() && pid("main").is_some()).await;
    let pids = [pid("deep").unwrap(), pid("main").unwrap()];
    assert!(pids.into_iter().all(lives));
    drop(supervisor.stdin.take());
    until("the supervisor's end", || supervisor.try_wait().unwrap().is_some()).await;
    assert!(!pids.into_iter().any(lives), "{pids:?} are alive");
}

#[test]
fn the_supervisor_passes_the_code_on_and_says_what_it_cannot_start() {
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tools-supervise"));
        command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // Held open until it has ended: closed, it would be the order to kill.
        let input = child.stdin.take();
        let output = child.wait_with_output().unwrap();
        drop(input);
        assert_eq!(output.status.signal(), None);
        (
            output.status.code().unwrap(),
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr),
        )
    };
    assert_eq!(run(&["--", "/bin/sh", "-c", "echo hi; exit 7"]), (7, "hi\n".to_owned()));
    assert_eq!(run(&["--", "/bin/sh", "-c", "kill -9 $$"]).0, 137);
    assert_eq!(run(&["--", "/bin/cat"]), (0, String::new()), "its input is not empty");
    let (code, said) = run(&["--", "/nonexistent"]);
    assert!(
        code == 125 && said.contains("cannot start \"/nonexistent\": No such file"),
        "{code} {said}"
    );
    for wrong in [&["--other"][..], &[], &["--"], &["--confine", "x", "--", "/bin/true"]] {
        let (code, said) = run(wrong);
        assert!(
            code == 125 && said.contains("arguments are"),
            "{wrong:?}: {code} {said}"
        );
    }
    // Killed before the hands are, when memory runs out; no core files; no way to more rights.
    let (_, said) = run(&[
        "--",
        "/bin/sh",
        "-c",
        "cat /proc/self/oom_score_adj; ulimit -c; grep NoNewPrivs /proc/self/status",
    ]);
    assert_eq!(said, "900\n0\nNoNewPrivs:\t1\n");
}
