//! The page of commands, which the program itself writes.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

const PAGE: &str = "docs/commands.md";

/// Writes the page anew, or only says whether it is up to date.
pub(crate) fn page(check: bool) -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = root.parent().context("the workspace has a folder")?;
    let mut cargo = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
    let printed = cargo
        .args(["run", "--quiet", "--locked", "--package", "belljar", "--", "page"])
        .stderr(Stdio::inherit())
        .output()
        .context("cargo run could not be started")?;
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
