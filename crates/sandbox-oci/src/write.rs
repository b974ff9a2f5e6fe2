//! Programs that write what is kept of a sandbox, in bounds.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use containers::process::{Crew, Process};

/// How long each may take, and how often it is looked how much there is.
const WITHIN: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Runs a program that writes into a folder. Where it takes too long, or that holds more than `most` bytes, it is ended.
pub(crate) fn watched(mut command: Command, into: &Path, most: u64) -> io::Result<()> {
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let (output, stopped) = Crew::start(command, None)?.output(|writing| watch(writing, into, most))?;
    if let Some(why) = stopped {
        return Err(io::Error::other(why));
    }
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("{}: {}", output.status, said.trim())));
    }
    if size(into) > most {
        return Err(io::Error::other(too_much(most)));
    }
    Ok(())
}

/// Watches a program until it ends, or writes for too long or too much: then it says why it is to be ended.
fn watch(writing: &Process, into: &Path, most: u64) -> Option<String> {
    let begun = Instant::now();
    while !writing.ends_within(LOOK_AGAIN) {
        if begun.elapsed() > WITHIN {
            return Some(format!("they were not written within {} s", WITHIN.as_secs()));
        }
        if size(into) > most {
            return Some(too_much(most));
        }
    }
    None
}

fn too_much(most: u64) -> String {
    format!("they would take more than {} MiB", most >> 20)
}

/// Bytes of the files in a folder.
fn size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some(entry.metadata().ok()?.len())).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, folder: &Path) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).current_dir(folder);
        shell
    }

    #[test]
    fn what_writes_too_much_is_ended_and_what_fails_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let run = |script: &str| watched(shell(script, folder.path()), folder.path(), 1 << 20);
        run("echo words > file").unwrap();
        let failed = run("echo no room >&2; exit 3").unwrap_err();
        assert!(failed.to_string().contains("no room"), "{failed}");
        let ended = run("while :; do echo words >> endless; done").unwrap_err();
        assert!(ended.to_string().contains("more than 1 MiB"), "{ended}");
        let late = run("true").unwrap_err();
        assert!(late.to_string().contains("more than 1 MiB"), "{late}");
    }
}
