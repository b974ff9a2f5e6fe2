//! Runs every test program with a deadline, so that one that hangs is killed and named.
//!
//! Tests that fail are run once more, one after the other, with the same lots. If they pass then, the run goes on, and the last
//! lines name them: a test that fails now and then is a fault to be mended, but no reason to hold everything else up.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::cargo::cargo;

/// The longest that one test program may take.
const DEADLINE: Duration = Duration::from_secs(1_200);
/// The same, where the big numbers are tested.
const FULL_DEADLINE: Duration = Duration::from_secs(5_400);

/// What tests draw their lots with.
const SEED: &str = "BELLJAR_TEST_SEED";

/// How a program ends that has run all of its tests, some of which failed.
const TESTS_FAILED: &str = "exit status: 101";
/// The longest that is waited for what a program has written before its end.
const LAST_LINES: Duration = Duration::from_secs(2);

#[derive(Deserialize)]
struct Artifact {
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
    profile: Option<Profile>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Builds and runs them; says at the end which failed.
pub(crate) fn run() -> anyhow::Result<()> {
    let deadline = if std::env::var_os("BELLJAR_TEST_FULL").is_some() {
        FULL_DEADLINE
    } else {
        DEADLINE
    };
    let seed = seed()?;
    println!("{SEED}={seed} repeats all lots of this run");
    let (mut failed, mut unsteady) = (Vec::new(), Vec::new());
    for (program, folder) in programs()? {
        let name = program
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        let first = attempt(&program, &folder, &name, deadline, &seed, &[])?;
        let Err(how) = first.outcome else {
            continue;
        };
        // What was killed has named only some of them.
        let again = if how == TESTS_FAILED { first.failed } else { Vec::new() };
        let which = [std::slice::from_ref(&name), &again].concat().join(" ");
        println!("{which}: {how}; once more");
        match attempt(&program, &folder, &name, deadline, &seed, &again)?.outcome {
            Ok(()) => unsteady.push(format!("{which}: {how}")),
            Err(how) => failed.push(format!("{which}: {how}")),
        }
    }
    if !unsteady.is_empty() {
        println!(
            "these tests passed only at the second try; mend them:\n  {}",
            unsteady.join("\n  ")
        );
    }
    if failed.is_empty() {
        return Ok(());
    }
    bail!("these tests failed:\n  {}", failed.join("\n  "));
}

/// The one that was asked for, or a new one.
fn seed() -> anyhow::Result<String> {
    if let Some(seed) = std::env::var_os(SEED) {
        return seed.into_string().ok().context("BELLJAR_TEST_SEED is no number");
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    Ok(now.map_or(0, |now| now.subsec_nanos()).to_string())
}

/// How a program ended, and which of its tests failed.
struct Attempt {
    outcome: Result<(), String>,
    failed: Vec<String>,
}

/// Runs one program: all of its tests, or the named ones alone.
fn attempt(
    program: &Path,
    folder: &Path,
    name: &str,
    deadline: Duration,
    seed: &str,
    tests: &[String],
) -> anyhow::Result<Attempt> {
    println!("running {name}");
    let began = Instant::now();
    let mut command = Command::new(program);
    if !tests.is_empty() {
        command.args(tests).args(["--exact", "--test-threads=1"]);
    }
    let mut child = command
        .current_dir(folder)
        .env(SEED, seed)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .with_context(|| format!("{} could not be started", program.display()))?;
    let output = child.stdout.take().context("its output is read")?;
    let (sender, failed) = std::sync::mpsc::channel();
    // Not waited for: what a test leaves behind may hold the pipe open.
    std::thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            if let Some(test) = line
                .strip_prefix("test ")
                .and_then(|rest| rest.strip_suffix(" ... FAILED"))
            {
                let _ = sender.send(test.to_owned());
            }
        }
    });
    let outcome = wait(child, began + deadline);
    println!("{name}: {} s", began.elapsed().as_secs());
    let failed = std::iter::from_fn(|| failed.recv_timeout(LAST_LINES).ok()).collect();
    Ok(Attempt { outcome, failed })
}

fn programs() -> anyhow::Result<BTreeSet<(PathBuf, PathBuf)>> {
    let output = cargo()
        .args(["test", "--workspace", "--locked", "--no-run", "--message-format=json"])
        .stderr(Stdio::inherit())
        .output()
        .context("cargo test could not be started")?;
    if !output.status.success() {
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let message: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
            if let Some(text) = message["message"]["rendered"].as_str() {
                eprint!("{text}");
            }
        }
        bail!("the tests could not be built");
    }
    let artifacts = String::from_utf8(output.stdout).context("cargo printed no UTF-8")?;
    Ok(artifacts
        .lines()
        .filter_map(|line| serde_json::from_str::<Artifact>(line).ok())
        .filter(|artifact| artifact.profile.as_ref().is_some_and(|profile| profile.test))
        .filter_map(|artifact| Some((artifact.executable?, artifact.manifest_path?.parent()?.to_owned())))
        .collect())
}

fn wait(mut child: Child, until: Instant) -> Result<(), String> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(status.to_string()),
            Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(50)),
            Ok(None) => {
                let group = format!("-{}", child.id());
                let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
                let _ = child.wait();
                return Err("it hung, and was killed".into());
            }
            Err(error) => return Err(format!("it could not be waited for: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ends as a program does one of whose tests fails in company and passes alone.
    const PROGRAM: &str = "#!/bin/sh\n\
        [ \"$*\" = 'part::second --exact --test-threads=1' ] && exit 0\n\
        [ \"$BELLJAR_TEST_SEED\" = 7 ] || exit 1\n\
        printf 'test part::first ... ok\\ntest part::second ... FAILED\\n'\n\
        exit 101\n";

    #[test]
    fn what_failed_is_run_once_more_alone() {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        std::fs::write(&program, PROGRAM).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let run = |tests: &[String]| attempt(&program, folder.path(), "program", DEADLINE, "7", tests).unwrap();
        let first = run(&[]);
        assert_eq!(first.outcome, Err(TESTS_FAILED.to_owned()));
        assert_eq!(first.failed, ["part::second"]);
        assert_eq!(run(&first.failed).outcome, Ok(()));
    }
}
