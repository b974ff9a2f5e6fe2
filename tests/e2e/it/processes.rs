//! Processes of an installation: found by what they run, killed without a word.

use std::fs;

/// Every process whose command line holds all of these words.
pub(crate) fn running(words: &[&str]) -> Vec<u32> {
    matching(|line| words.iter().all(|word| line.contains(word)))
}

/// The first process of every sandbox of this machine, and of whatever else begins in the same way. Not whoever starts one: such a
/// one stands outside and sees the mounts of others.
pub(crate) fn first_in_sandboxes() -> Vec<u32> {
    matching(|line| line.starts_with("/run/belljar-runtime pid1"))
}

fn matching(is_meant: impl Fn(&str) -> bool) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|id| {
            let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            !line.is_empty() && is_meant(&line)
        })
        .collect()
}

/// Kills with SIGKILL; one that is gone already is well killed.
pub(crate) fn kill(id: u32) {
    let _ = std::process::Command::new("kill")
        .args(["-KILL", &id.to_string()])
        .stderr(std::process::Stdio::null())
        .status();
}

/// The children of a process.
pub(crate) fn children(id: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
    tasks
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|children| {
            children
                .split_whitespace()
                .filter_map(|id| id.parse().ok())
                .collect::<Vec<_>>()
        })
        .collect()
}
