//! Runs every test program with a deadline, so that one that hangs is killed and named.
//!
//! A program that fails is run once more. If it passes then, the run goes on, and the last lines name it: a test that fails
//! now and then is a fault to be mended, but no reason to hold everything else up.

use std::collections::BTreeSet;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::Deserialize;

/// The longest that one test program may take.
const DEADLINE: Duration = Duration::from_secs(600);
/// The same, where the big numbers are tested.
const FULL_DEADLINE: Duration = Duration::from_secs(5_400);

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
    let (mut failed, mut unsteady) = (Vec::new(), Vec::new());
    for (program, folder) in programs()? {
        let name = program
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        let Err(first) = attempt(&program, &folder, &name, deadline)? else {
            continue;
        };
        println!("{name}: {first}; once more");
        match attempt(&program, &folder, &name, deadline)? {
            Ok(()) => unsteady.push(format!("{name}: {first}")),
            Err(second) => failed.push(format!("{name}: {second}")),
        }
    }
    if !unsteady.is_empty() {
        println!(
            "these test programs passed only at the second try; mend them:\n  {}",
            unsteady.join("\n  ")
        );
    }
    if failed.is_empty() {
        return Ok(());
    }
    bail!("these test programs failed:\n  {}", failed.join("\n  "));
}

/// Runs one program; the inner error is its own.
fn attempt(program: &Path, folder: &Path, name: &str, deadline: Duration) -> anyhow::Result<Result<(), String>> {
    println!("running {name}");
    let began = Instant::now();
    let child = Command::new(program)
        .current_dir(folder)
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .with_context(|| format!("{} could not be started", program.display()))?;
    let outcome = wait(child, began + deadline);
    println!("{name}: {} s", began.elapsed().as_secs());
    Ok(outcome)
}

fn programs() -> anyhow::Result<BTreeSet<(PathBuf, PathBuf)>> {
    let output = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()))
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
