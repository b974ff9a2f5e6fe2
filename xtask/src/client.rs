//! Looks at the program as other systems have it, where only a control plane can be asked.
//!
//! No other system's standard library is needed: `client_alone` takes away here what Linux alone has, crates among them. What is
//! left and would not compile elsewhere, for want of something of Linux in the standard library, is not found so.

use anyhow::{Context, bail};

use crate::cargo::cargo;

/// Compiles that half, without running it.
pub(crate) fn check() -> anyhow::Result<()> {
    let checked = cargo()
        .args(["check", "--package", "belljar", "--locked"])
        .env("RUSTFLAGS", "--cfg client_alone --deny warnings")
        .status()
        .context("cargo check could not be started")?;
    if !checked.success() {
        bail!("the client commands do not compile without what is of Linux");
    }
    Ok(())
}
