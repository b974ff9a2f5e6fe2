//! The programs that Belljar is measured beside, each started here and ended with the bench.

pub(crate) mod docker;
pub(crate) mod litellm;
pub(crate) mod mitmproxy;
pub(crate) mod opencode;
pub(crate) mod runc;
pub(crate) mod squid;

use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

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

/// A program that `scripts/bench` installed.
pub(crate) fn installed(name: &str) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let found = own
        .ancestors()
        .map(|folder| folder.join("peers").join(name))
        .find(|program| program.is_file());
    found.with_context(|| format!("{name} is not in target/peers: `make bench` installs it where it can"))
}

/// Waits until somebody listens.
pub(crate) fn listens(address: SocketAddr) -> anyhow::Result<()> {
    let until = Instant::now() + Duration::from_secs(60);
    while TcpStream::connect(address).is_err() {
        if Instant::now() > until {
            bail!("nobody listens at {address} within a minute");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
