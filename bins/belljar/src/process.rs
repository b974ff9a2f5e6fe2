//! What a process needs before anything else: a runtime, logs, signals, a clean environment.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;

use anyhow::Context;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::config::Settings;

/// The asynchronous runtime.
pub(crate) fn runtime() -> anyhow::Result<Runtime> {
    Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the asynchronous runtime")
}

/// Logs go to stderr.
pub(crate) fn log(settings: &Settings) {
    // Checked with the configuration; "info" stands in for what slipped through.
    let filter = EnvFilter::try_new(&settings.server.log_level).unwrap_or_else(|_| EnvFilter::new("info"));
    let logs = tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_env_filter(filter)
        .with_target(false);
    if settings.server.log_json {
        logs.json().init();
    } else {
        logs.with_ansi(false).init();
    }
}

/// Lets the process have as many open files as it may: each watcher and each sandbox takes some, and what is usual is 1,024.
pub(crate) fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "cannot raise the limit of open files; many watchers at once may be refused");
    }
}

/// Returns when the process is told to end (SIGTERM, Ctrl-C).
pub(crate) async fn told_to_end() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// Whether a variable may stand in the host agent's environment: where programs are, and settings. Nothing else gets there, since
/// what is set for the control plane may be a key.
pub(crate) fn is_for_host(name: &str) -> bool {
    name == "PATH"
        || name == "LANG"
        || (name.starts_with("BELLJAR_") && name != "BELLJAR_TOKEN" && name != "BELLJAR_URL")
}

/// Starts this same program anew without the variables that the host agent must not have, where it has any.
pub(crate) fn clear_environment() -> anyhow::Result<()> {
    let (kept, rest): (Vec<_>, Vec<_>) =
        std::env::vars_os().partition(|(name, _): &(OsString, OsString)| name.to_str().is_some_and(is_for_host));
    if rest.is_empty() {
        return Ok(());
    }
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let error = std::process::Command::new(&program)
        .args(std::env::args_os().skip(1))
        .env_clear()
        .envs(kept)
        .exec();
    Err(error).with_context(|| format!("cannot start {} anew with a clean environment", program.display()))
}
