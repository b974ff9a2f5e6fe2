//! Nothing of a call outlives it.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use domain::{ToolCall, ToolCallId};
use lifecycle::Stop;
use serde_json::json;

use crate::bench::{Bench, PATIENCE, lives, until, words};

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
    let script = "(setsid sh -c 'echo $$ > deep; exec sleep 1000' &); echo $$ > main; while :; do sleep 1; done";
    let mut supervisor = Command::new(env!("CARGO_BIN_EXE_tools-supervise"))
        .stdin(Stdio::piped())
        // Whoever survives must not hold the test's own output open.
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let order = order(&bench, &["/bin/sh", "-c", script]);
    supervisor.stdin.as_mut().unwrap().write_all(&order).unwrap();
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
    let bench = Bench::new();
    let told = |order: &[u8], then_closed: bool| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tools-supervise"));
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // Held open until it has ended: closed, it would be the order to kill.
        let mut input = child.stdin.take();
        // It may end before it has read all.
        let _ = input.as_mut().unwrap().write_all(order);
        if then_closed {
            input = None;
        }
        let output = child.wait_with_output().unwrap();
        drop(input);
        assert_eq!(output.status.signal(), None);
        (
            output.status.code().unwrap(),
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr),
        )
    };
    let run = |words: &[&str]| told(&order(&bench, words), false);
    assert_eq!(run(&["/bin/sh", "-c", "echo hi; exit 7"]), (7, "hi\n".to_owned()));
    assert_eq!(run(&["/bin/sh", "-c", "kill -9 $$"]).0, 137);
    assert_eq!(run(&["/bin/cat"]), (0, String::new()), "its input is not empty");
    let (code, said) = run(&["/nonexistent"]);
    assert!(
        code == 125 && said.contains("cannot start \"/nonexistent\": No such file"),
        "{code} {said}"
    );
    let whole = order(&bench, &["/bin/true"]);
    let long = [(1_u32 << 30).to_le_bytes().as_slice(), b"{}"].concat();
    for wrong in [&whole[..3], &whole[..20], b"\x02\0\0\0{}", &long] {
        let (code, said) = told(wrong, true);
        assert!(
            code == 125 && said.contains("cannot understand"),
            "{wrong:?}: {code} {said}"
        );
    }
    assert_eq!(told(&[], true), (0, String::new()), "it was told nothing");
    // Killed before the hands are, when memory runs out; no core files; no way to more rights; where it was told.
    let script = "cat /proc/self/oom_score_adj; ulimit -c; grep NoNewPrivs /proc/self/status; pwd; env";
    let (_, said) = run(&["/bin/sh", "-c", script]);
    let folder = bench.at("").canonicalize().unwrap();
    let (of_sh, rest) = said.split_once(&format!("{}\n", folder.display())).unwrap();
    assert_eq!(of_sh, "900\n0\nNoNewPrivs:\t1\n");
    assert!(rest.lines().any(|line| line == "TOLD=yes"), "{rest}");
    // Only who is killed first is killed first.
    let script = "for look in $(seq 2000); do score=$(cat /proc/$PPID/oom_score_adj); [ $score = 900 ] || break; done; echo $score";
    let own = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap();
    assert_eq!(run(&["/bin/sh", "-c", script]).1, own);
}

/// What a supervisor is told: a length, and JSON.
fn order(bench: &Bench, words: &[&str]) -> Vec<u8> {
    let order = json!({
        "program": words[0],
        "arguments": words[1..],
        "environment": { "PATH": std::env::var("PATH").unwrap(), "TOLD": "yes" },
        "folder": bench.at(""),
        "pass_input": false,
        "confinement": null,
    });
    let order = order.to_string().into_bytes();
    [u32::try_from(order.len()).unwrap().to_le_bytes().as_slice(), &order].concat()
}

/// The numbers of those who supervise what is started from the folder of this test, or wait to.
fn supervisors(link: &Path) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if line.split(|byte| *byte == 0).next() == Some(link.as_os_str().as_encoded_bytes()) && lives(pid) {
            found.push(pid);
        }
    }
    found
}

#[tokio::test]
async fn a_supervisor_is_there_before_its_program_is_known() {
    // A name of its own, by which it is known.
    let names = tempfile::tempdir().unwrap();
    let name = names.path().join("supervisor");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_tools-supervise"), &name).unwrap();
    let bench = Bench::with(|settings| {
        settings.supervisor = vec![name.clone().into()];
        // An order that no socket takes at once.
        let long = |number: u32| (format!("LONG_{number}"), "x".repeat(120_000));
        settings.environment.extend((1..=4).map(long));
    });
    bench.put("note", "here");
    let cat = async || bench.ok("safebash", json!({ "command": "cat note" })).await;
    assert_eq!(cat().await, "here");
    assert_eq!(
        supervisors(&name),
        [0; 0],
        "one was started ahead though nobody stands by"
    );

    bench.tools.stand_by().await;
    until("one that waits", || supervisors(&name).len() == 1).await;
    let ahead = supervisors(&name)[0];
    let parent = bench.ok("exec", json!({ "code": "return process.ppid" })).await;
    assert_eq!(parent, ahead.to_string(), "the program was started by another");
    assert!(!lives(ahead), "it outlived the call");
    until("the next one", || supervisors(&name).len() == 1).await;

    // One that died meanwhile is no trouble.
    let next = rustix::process::Pid::from_raw(supervisors(&name)[0]).unwrap();
    rustix::process::kill_process(next, rustix::process::Signal::KILL).unwrap();
    until("its end", || !lives(next.as_raw_pid())).await;
    assert_eq!(cat().await, "here");

    let program = bench.tools.start_in_background("echo ${#LONG_4} > long").unwrap();
    program.finish(PATIENCE, &Stop::new()).await;
    assert_eq!(bench.text("long"), "120000\n");
    let refused = bench.tools.start_in_background(&"x".repeat(140_000)).unwrap_err();
    assert!(refused.contains("longer than 131071 bytes"), "{refused}");

    // Nobody is left when the tools are.
    drop(bench);
    until("the end of all", || supervisors(&name).is_empty()).await;
}
