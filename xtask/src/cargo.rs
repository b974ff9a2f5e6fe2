//! Cargo, started from a program that cargo started.

use std::process::Command;

/// The same cargo, without what it says of this program to it: some crates are built anew where that changes.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let told = std::env::vars_os().map(|(name, _)| name).filter(|name| {
        let name = name.to_string_lossy();
        ["CARGO_PKG_", "CARGO_MANIFEST_"]
            .iter()
            .any(|part| name.starts_with(part))
    });
    for name in told {
        cargo.env_remove(name);
    }
    cargo
}
