//! Sandboxes that are made ahead, in real processes that are killed.

use std::fs;

use serde_json::Value;
use testkit::{eventually, eventually_asked};

use crate::installation::Installation;

const JOB: &str = r#"
steps:
  - when: { turn: 1 }
    text: "I write."
    tools:
      - name: write
        input: { path: "mark.txt", content: "x" }
  - when: { turn: 2 }
    text: "Written."
"#;

const WARM: &str = "warm.least = 1\nwarm.most = 2";

fn listed(belljar: &Installation) -> Vec<Value> {
    let lines = belljar.done(&["sandbox", "list", "--json"]);
    lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line of JSON"))
        .collect()
}

/// Waits until there is one that waits to be claimed, and gives its id.
fn warm(belljar: &Installation, but: &[String]) -> String {
    eventually_asked("a sandbox to be made ahead", || {
        let ids = listed(belljar).into_iter().filter(|sandbox| sandbox["warm"] == true);
        let mut ids = ids.filter_map(|sandbox| sandbox["id"].as_str().map(str::to_owned));
        ids.find(|id| !but.contains(id))
    })
}

#[test]
fn a_session_gets_what_was_made_ahead_whoever_is_killed() {
    let belljar = Installation::start_with(JOB, &format!("---\n{WARM}\n"));
    let first = warm(&belljar, &[]);
    belljar.done(&["run", "--session", "one", "do it"]);
    assert!(
        listed(&belljar)
            .iter()
            .any(|sandbox| sandbox["id"] == first.as_str() && sandbox["warm"] == false)
    );
    assert_eq!(
        belljar
            .done(&["sandbox", "exec", "one", "cat", "/workspace/mark.txt"])
            .trim(),
        "x"
    );
    assert!(belljar.done(&["sandbox", "stats", "--json"]).contains(&first));
    let short = &first[first.len() - 12..];
    assert!(belljar.done(&["sandbox", "stats"]).contains(short));
    for id in [&first, short] {
        belljar.done(&["sandbox", "logs", id]);
    }

    // What a killed control plane made ahead is gone, what was a session's is not.
    let second = warm(&belljar, &[]);
    belljar.replace_serve();
    let third = warm(&belljar, std::slice::from_ref(&second));
    let ids = |belljar: &Installation| -> Vec<String> {
        let all = listed(belljar).into_iter();
        all.map(|sandbox| sandbox["id"].as_str().expect("an id").to_owned())
            .collect()
    };
    assert!(ids(&belljar).contains(&first) && !ids(&belljar).contains(&second));
    // A killed host agent finds them all, and they can still be given away.
    belljar.replace_host();
    belljar.done(&["run", "--session", "two", "do it"]);
    let taken = listed(&belljar);
    let taken = taken.iter().find(|sandbox| sandbox["id"] == third.as_str());
    assert!(taken.is_some_and(|sandbox| sandbox["warm"] == false), "{taken:?}");
    assert_eq!(belljar.file("two", "mark.txt"), "x");

    belljar.cool_down(WARM);
    eventually_asked("those that nobody claimed to be gone", || {
        (ids(&belljar).len() == 2).then_some(())
    });
    assert_eq!(
        belljar
            .done(&["sandbox", "exec", "one", "cat", "/workspace/mark.txt"])
            .trim(),
        "x"
    );
}

/// What each process of a runtime uses of its memory for a session's first command, at least, in KiB: its first some 2,300, its
/// hands some 3,100. One that only waits uses 8, and to answer alone takes the first some 460.
const REHEARSED: u64 = 1_200;

/// Pages that nobody uses are the first to go where memory is short, and the kernel says which are used.
#[test]
fn what_a_session_will_need_of_a_warm_sandbox_stays_in_memory() {
    let belljar = Installation::start_with(JOB, "---\nwarm.least = 1\nfreeze_after = \"400ms\"\n");
    warm(&belljar, &[]);
    let [first] = belljar.first_processes()[..] else {
        panic!("one sandbox has one first process");
    };
    let is_hands = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let words = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        status.contains(&format!("\nPPid:\t{first}\n")) && words.contains("hands")
    };
    let processes = || {
        let all = fs::read_dir("/proc").expect("read /proc").flatten();
        all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
    };
    let hands: u32 = eventually("hands", || processes().find(is_hands));
    let used = |process: u32| -> u64 {
        let pages = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).expect("read what is in memory");
        let line = pages.lines().find_map(|line| line.strip_prefix("Referenced:"));
        let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        kibibytes.expect("what was used")
    };
    // What it does as it begins ends, too.
    for _ in 0..5 {
        for process in [first, hands] {
            fs::write(format!("/proc/{process}/clear_refs"), "1").expect("forget what was used");
        }
        for (what, process) in [
            ("the first process's pages to be used again", first),
            ("the hands'", hands),
        ] {
            eventually(what, || (used(process) >= REHEARSED).then_some(()));
        }
    }
}

#[test]
fn one_command_ends_all_and_sessions_go_on_where_they_stood() {
    let belljar = Installation::start_with(JOB, &format!("---\n{WARM}\n"));
    let first = warm(&belljar, &[]);
    belljar.done(&["run", "--session", "one", "do it"]);
    warm(&belljar, &[first]);
    let asked = belljar.run(&["sandbox", "rm", "--all"]);
    let words = String::from_utf8_lossy(&asked.stderr);
    assert_eq!(asked.status.code(), Some(2), "{words}");
    assert!(
        words.contains("remove 2 sandboxes?") && words.contains("--yes"),
        "{words}"
    );
    assert_eq!(belljar.first_processes().len(), 2, "nobody agreed");

    let removed = belljar.done(&["sandbox", "rm", "--all", "--yes"]);
    assert_eq!(removed, "removed 2 sandboxes\n");
    assert_eq!(belljar.first_processes(), Vec::<u32>::new());
    assert_eq!(belljar.file("one", "mark.txt"), "x");
    warm(&belljar, &[]);
}
