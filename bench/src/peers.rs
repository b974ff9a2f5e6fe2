//! The programs that Belljar is measured beside, each started here and ended with the bench.

pub(crate) mod docker;
pub(crate) mod opencode;
pub(crate) mod runc;

use std::process::{Command, Output};

use anyhow::{Context, bail};

/// Runs a command to its end; what it said is in the error.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<Output> {
    let shown = format!("{command:?}");
    let output = command
        .output()
        .with_context(|| format!("{shown} could not be started"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{shown} ended with {}: {}", output.status, said.trim());
    }
    Ok(output)
}
