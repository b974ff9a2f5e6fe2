//! Finding and killing every descendant of this process.

use std::collections::BTreeSet;
use std::fs;

use rustix::process::{Pid, Signal, WaitOptions};

/// Kills every descendant and waits until they are dead.
///
/// They are stopped first: a stopped process cannot fork, so after a look round that finds none that still runs, there is
/// nobody left who could escape the killing. What is killed leaves its children to this process, the subreaper, so the next
/// round sees them.
pub(super) fn kill_all() {
    loop {
        let mut stopped = BTreeSet::new();
        loop {
            let new: Vec<i32> = descendants().into_iter().filter(|pid| stopped.insert(*pid)).collect();
            if new.is_empty() {
                break;
            }
            new.iter().for_each(|pid| signal(*pid, Signal::STOP));
        }
        stopped.iter().for_each(|pid| signal(*pid, Signal::KILL));
        // One death at least is waited for, then all that have happened are collected.
        match rustix::process::wait(WaitOptions::empty()) {
            Err(rustix::io::Errno::CHILD) => return,
            _ => while matches!(rustix::process::wait(WaitOptions::NOHANG), Ok(Some(_))) {},
        }
    }
}

fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        // It may be dead already. Its number cannot belong to another: only this process lets go of its descendants.
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Everybody who is descended from this process now.
fn descendants() -> Vec<i32> {
    let mut found = Vec::new();
    let mut ask = vec![rustix::process::getpid().as_raw_pid()];
    while let Some(pid) = ask.pop() {
        for child in children(pid) {
            found.push(child);
            ask.push(child);
        }
    }
    found
}

/// The children of every thread of a process.
fn children(pid: i32) -> Vec<i32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|line| {
            line.split_whitespace()
                .filter_map(|word| word.parse().ok())
                .collect::<Vec<_>>()
        })
        .collect()
}
