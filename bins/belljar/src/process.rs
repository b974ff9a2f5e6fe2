//! What a process needs before anything else: a runtime, logs, signals, a clean environment.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;

use anyhow::Context;
use rustix::fs::MemfdFlags;
use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, setrlimit};
use secret::Secret;
use secrets::Environment;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;
use zeroize::Zeroizing;

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

/// What programs of MCP servers write to their standard error goes to stderr, and nothing else is logged: for a command that starts one.
pub(crate) fn log_programs() {
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_env_filter(EnvFilter::new("off,services::mcp=info"))
        .with_target(false)
        .with_ansi(false)
        .init();
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

/// Hears that the process is told to end (SIGTERM, Ctrl-C); what comes while nobody waits for it is heard by the next who does.
pub(crate) struct EndSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl EndSignals {
    pub(crate) fn listen() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?,
        })
    }

    /// Returns when it is told.
    pub(crate) async fn told(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Returns when the process is told to end.
pub(crate) async fn told_to_end() -> anyhow::Result<()> {
    EndSignals::listen()?.told().await;
    Ok(())
}

/// The name of the file in memory in which variables are handed over; it is seen in /proc/self/fd.
const HANDED: &str = "belljar-environment";

/// Takes these variables out of the process's environment for good: what a process was started with stays readable in
/// /proc/PID/environ as long as it runs, and is handed on to whatever it starts. So where one of them is set, this same program
/// is started anew without them, and finds them in a file in memory at its standard input, which it empties.
pub(crate) fn take_secrets(names: &[String]) -> anyhow::Result<Environment> {
    let own = std::fs::read_link("/proc/self/fd/0").unwrap_or_default();
    if own.to_string_lossy().starts_with(&format!("/memfd:{HANDED}")) {
        return handed().context("cannot take over the secrets of the environment");
    }
    let (secret, rest): (Vec<_>, Vec<_>) = std::env::vars_os()
        .partition(|(name, _): &(OsString, OsString)| names.iter().any(|secret| secret.as_str() == name));
    if secret.is_empty() {
        return Ok(Environment::default());
    }
    let memory = rustix::fs::memfd_create(HANDED, MemfdFlags::CLOEXEC);
    let mut memory = File::from(memory.context("cannot make a file in memory")?);
    for (name, value) in &secret {
        for part in [name.as_bytes(), b"\0", value.as_bytes(), b"\0"] {
            memory.write_all(part).context("cannot write to a file in memory")?;
        }
    }
    memory.rewind().context("cannot read a file in memory")?;
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let error = std::process::Command::new("/proc/self/exe")
        .arg0(&program)
        .args(std::env::args_os().skip(1))
        .env_clear()
        .envs(rest)
        .stdin(memory)
        .exec();
    Err(error).with_context(|| {
        format!(
            "cannot start {} anew without secrets in its environment",
            program.display()
        )
    })
}

/// Reads what was handed over, and leaves nothing of it.
fn handed() -> io::Result<Environment> {
    let mut memory = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let length = usize::try_from(memory.metadata()?.len()).unwrap_or_default();
    let mut bytes = Zeroizing::new(Vec::with_capacity(length + 1));
    memory.read_to_end(&mut bytes)?;
    memory.set_len(0)?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    let mut parts = bytes.split(|byte| *byte == 0);
    let mut variables = Vec::new();
    while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
        // A value that is no text is no secret of ours.
        if let (Ok(name), Ok(value)) = (std::str::from_utf8(name), std::str::from_utf8(value)) {
            variables.push((name.to_owned(), Secret::new(value)));
        }
    }
    Ok(variables.into_iter().collect())
}

/// Keeps other processes of the same user from reading this one's memory, environment and files, and the kernel from writing its
/// memory to a file when it crashes.
pub(crate) fn close_to_others() {
    if let Err(error) = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        cli::note(format_args!(
            "warning: other programs of this user can read the memory of this one ({error})"
        ));
    }
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
