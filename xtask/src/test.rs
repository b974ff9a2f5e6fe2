//! Runs every test program with a deadline, so that one that hangs is killed and named: as many at once as there are
//! processors, as many tests wait for most of their time.
//!
//! Tests that fail are run once more, one after the other, with the same lots, when nothing else runs. If they pass then, the
//! run goes on, and the last lines name them: a test that fails now and then is a fault to be mended, but no reason to hold
//! everything else up.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow, bail};
use serde::Deserialize;

use crate::cargo::cargo;

/// The longest that one test program may take.
const DEADLINE: Duration = Duration::from_secs(1_800);
/// The same, where the big numbers are tested.
const FULL_DEADLINE: Duration = Duration::from_secs(5_400);

/// What tests draw their lots with.
const SEED: &str = "BELLJAR_TEST_SEED";

/// How a program ends that has run all of its tests, some of which failed.
const TESTS_FAILED: &str = "exit status: 101";
/// The longest that is waited for what a program has written before its end, as what it left behind may write for ever.
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
    let at_once = thread::available_parallelism().map_or(1, usize::from);
    let (mut failed, mut unsteady) = (Vec::new(), Vec::new());
    for Failed { program, how, again } in side_by_side(programs()?, at_once, deadline, &seed)? {
        let which = [std::slice::from_ref(&program.name), &again].concat().join(" ");
        println!("{which}: {how}; once more");
        match attempt(&program, deadline, &seed, &again)?.outcome {
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

/// A program that failed.
struct Failed {
    program: Program,
    how: String,
    /// Which of its tests are to be run again: all, where none is named.
    again: Vec<String>,
}

/// Runs programs, `at_once` of them at a time; gives those that failed.
fn side_by_side(
    programs: VecDeque<Program>,
    at_once: usize,
    deadline: Duration,
    seed: &str,
) -> anyhow::Result<Vec<Failed>> {
    let waiting = Mutex::new(programs);
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let run_all = || {
        let mut failed = Vec::new();
        while let Some(program) = next() {
            let attempted = attempt(&program, deadline, seed, &[]).unwrap_or_else(|error| Attempt {
                outcome: Err(format!("{error:#}")),
                failed: Vec::new(),
            });
            if let Err(how) = attempted.outcome {
                // What was killed has named only some of them.
                let again = if how == TESTS_FAILED {
                    attempted.failed
                } else {
                    Vec::new()
                };
                failed.push(Failed { program, how, again });
            }
        }
        failed
    };
    thread::scope(|scope| {
        let running: Vec<_> = (0..at_once).map(|_| scope.spawn(run_all)).collect();
        let mut failed = Vec::new();
        for one in running {
            let ended = one.join();
            failed.extend(ended.map_err(|_| anyhow!("a thread that runs tests broke down"))?);
        }
        Ok(failed)
    })
}

/// The one that was asked for, or a new one.
fn seed() -> anyhow::Result<String> {
    if let Some(seed) = std::env::var_os(SEED) {
        return seed.into_string().ok().context("BELLJAR_TEST_SEED is no number");
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    Ok(now.map_or(0, |now| now.subsec_nanos()).to_string())
}

/// A program with tests.
struct Program {
    path: PathBuf,
    /// Where it is run: its package.
    folder: PathBuf,
    name: String,
}

/// How a program ended, and which of its tests failed.
struct Attempt {
    outcome: Result<(), String>,
    failed: Vec<String>,
}

/// Runs a program, all of its tests or the named ones alone, and then shows what it said.
fn attempt(program: &Program, deadline: Duration, seed: &str, tests: &[String]) -> anyhow::Result<Attempt> {
    let Program { path, folder, name } = program;
    println!("running {name}");
    let began = Instant::now();
    let mut command = Command::new(path);
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
        .with_context(|| format!("{} could not be started", path.display()))?;
    let output = child.stdout.take().context("its output is read")?;
    let (sender, said) = std::sync::mpsc::channel();
    // Not waited for: what a test leaves behind may hold the pipe open.
    thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            let _ = sender.send(String::from_utf8_lossy(&line).into_owned());
        }
    });
    let outcome = wait(child, began + deadline);
    let until = Instant::now() + LAST_LINES;
    let next = || said.recv_timeout(until.saturating_duration_since(Instant::now())).ok();
    let lines: Vec<String> = std::iter::from_fn(next).collect();
    let failed = lines.iter().filter_map(|line| {
        let test = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
        Some(test.to_owned())
    });
    let mut shown = std::io::stdout().lock();
    for line in &lines {
        writeln!(shown, "{line}")?;
    }
    writeln!(shown, "{name}: {} s", began.elapsed().as_secs())?;
    drop(shown);
    Ok(Attempt {
        outcome,
        failed: failed.collect(),
    })
}

/// Those with whole sandboxes first and then the control plane's, which take longest, so that nothing waits for their end alone.
fn programs() -> anyhow::Result<VecDeque<Program>> {
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
    let mut programs: Vec<Program> = artifacts
        .lines()
        .filter_map(|line| serde_json::from_str::<Artifact>(line).ok())
        .filter(|artifact| artifact.profile.as_ref().is_some_and(|profile| profile.test))
        .filter_map(|artifact| {
            let path = artifact.executable?;
            Some(Program {
                name: path.file_name()?.to_string_lossy().into_owned(),
                folder: artifact.manifest_path?.parent()?.to_owned(),
                path,
            })
        })
        .collect();
    let place = |program: &Program| {
        let has_sandboxes = program.folder.parent().is_some_and(|folder| folder.ends_with("tests"));
        (!has_sandboxes, !program.folder.ends_with("crates/control"))
    };
    programs.sort_by_key(|program| (place(program), program.path.clone()));
    programs.dedup_by(|one, other| one.path == other.path);
    Ok(programs.into())
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
        let program = |name: &str| Program {
            path: folder.path().join(name),
            folder: folder.path().to_owned(),
            name: name.to_owned(),
        };
        for (name, text) in [("first", PROGRAM), ("second", "#!/bin/sh\n"), ("third", PROGRAM)] {
            std::fs::write(folder.path().join(name), text).unwrap();
            std::fs::set_permissions(folder.path().join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let all = ["first", "second", "third"].map(program).into();
        let mut failed = side_by_side(all, 2, DEADLINE, "7").unwrap();
        failed.sort_by(|one, other| one.program.name.cmp(&other.program.name));
        let named: Vec<_> = failed.iter().map(|one| one.program.name.as_str()).collect();
        assert_eq!(named, ["first", "third"]);
        for Failed { program, how, again } in failed {
            assert_eq!((how.as_str(), again.join(" ").as_str()), (TESTS_FAILED, "part::second"));
            assert_eq!(attempt(&program, DEADLINE, "7", &again).unwrap().outcome, Ok(()));
        }
    }
}
