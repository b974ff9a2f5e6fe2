//! The page of commands, which the program itself writes.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::cargo::cargo;

const PAGE: &str = "docs/commands.md";

/// Writes the page anew, or only says whether it is up to date.
pub(crate) fn page(check: bool) -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = root.parent().context("the workspace has a folder")?;
    // As `scripts/test` builds them: alone it would be built from other crates.
    let built = cargo()
        .args(["build", "--quiet", "--locked", "--workspace", "--bins", "--tests"])
        .status()
        .context("cargo build could not be started")?;
    if !built.success() {
        bail!("the program could not be built ({built})");
    }
    let program = std::env::current_exe().context("find where programs are built")?;
    let printed = Command::new(program.with_file_name("belljar"))
        .arg("page")
        .stderr(Stdio::inherit())
        .output()
        .context("the program could not be started")?;
    if !printed.status.success() {
        bail!("the program did not print its commands ({})", printed.status);
    }
    let path = root.join(PAGE);
    if !check {
        return fs::write(&path, printed.stdout).with_context(|| format!("could not write {}", path.display()));
    }
    if fs::read(&path).unwrap_or_default() != printed.stdout {
        bail!("{PAGE} is not what the program says; `cargo xtask commands` writes it anew");
    }
    Ok(())
}
