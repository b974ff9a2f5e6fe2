//! `belljar up`: the host agent and the control plane, each in its own process and as its own user, started again when one dies,
//! and when the configuration is to be read anew.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::{IsTerminal, Read, Write};
use std::net::TcpListener;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::signal::unix::{Signal as Told, SignalKind, signal};
use tokio::time::Instant;

use crate::config::{self, Loaded, Settings};
use crate::end::End;
use crate::local::prepare_key;
use crate::system_user::{self, SystemUser};
use crate::{listening, places, process};

/// How long a process may take until it is ready.
const READY: Duration = Duration::from_secs(60);
/// How long the host agent may take to end.
const HOST_ENDS: Duration = Duration::from_secs(35);
/// A process that dies more often than this within [`WITHIN`] is left alone.
const MOST_DEATHS: usize = 5;
const WITHIN: Duration = Duration::from_secs(60);

/// Starts everything and looks after it until it is told to end.
pub(crate) fn up(loaded: &Loaded) -> anyhow::Result<End> {
    if !rustix::process::geteuid().is_root() {
        bail!("`belljar up` starts the host agent, which must be root: run it with sudo");
    }
    let settings = &loaded.settings;
    let handed = listening::handed()?;
    let _lock = lock(settings)?;
    let user = system_user::prepare(settings)?;
    prepare_sealing(settings, user)?;
    process::runtime()?.block_on(run(loaded, user, handed))
}

/// What a provider gives in place of a refresh token is sealed, and whoever does that is not root.
fn prepare_sealing(settings: &Settings, user: SystemUser) -> anyhow::Result<()> {
    let mut services = settings.services.values();
    if services.any(|service| service.auth.contains_key("refresh_token")) {
        prepare_key(settings, user)?;
    }
    Ok(())
}

async fn run(loaded: &Loaded, user: SystemUser, handed: Option<TcpListener>) -> anyhow::Result<End> {
    let ended = process::told_to_end();
    tokio::pin!(ended);
    // Kept here, so that connections wait while there is no control plane.
    let listener = handed.map_or_else(|| listening::bind(loaded.settings.server.listen), Ok)?;
    let mut host = Part::new("host", loaded, None, None)?;
    let mut serve = Part::new("serve", loaded, Some(user), Some(listener))?;
    let mut drain = loaded.settings.server.drain;
    let outcome = tokio::select! {
        ended = &mut ended => ended,
        broken = supervise(&mut host, &mut serve, loaded, user, &mut drain) => broken,
    };
    end(&mut host, &mut serve, drain).await;
    outcome.map(|()| End::Done)
}

/// Ends both: the control plane first, as it may still need sandboxes to end in good order.
async fn end(host: &mut Part, serve: &mut Part, drain: Duration) {
    serve.end(drain + Duration::from_secs(5)).await;
    host.end(HOST_ENDS).await;
}

async fn supervise(
    host: &mut Part,
    serve: &mut Part,
    loaded: &Loaded,
    user: SystemUser,
    drain: &mut Duration,
) -> anyhow::Result<()> {
    let mut hangups = hangups()?;
    host.start().await?;
    serve.start().await?;
    loop {
        tokio::select! {
            () = host.died() => host.start().await?,
            () = serve.died() => serve.start().await?,
            () = told(&mut hangups) => {
                let Some(settings) = read_anew(loaded) else { continue };
                end(host, serve, *drain).await;
                *drain = settings.server.drain;
                prepare_sealing(&settings, user)?;
                host.start().await?;
                serve.start().await?;
                cli::note("belljar: the configuration was read anew; sessions go on");
            }
        }
    }
}

/// Told by SIGHUP, the usual way to have a configuration read anew; at a terminal that means that the terminal is gone.
fn hangups() -> anyhow::Result<Option<Told>> {
    if std::io::stdin().is_terminal() {
        return Ok(None);
    }
    let listening = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
    Ok(Some(listening))
}

async fn told(hangups: &mut Option<Told>) {
    match hangups {
        Some(hangups) => {
            hangups.recv().await;
        }
        None => std::future::pending().await,
    }
}

/// The configuration as it is now, where both processes may be started with it; nothing, and why not is said, otherwise.
fn read_anew(loaded: &Loaded) -> Option<Settings> {
    let goes_on = "Belljar goes on with the configuration that it has";
    let read = match config::load(loaded.file.as_deref()) {
        Ok(read) => read,
        Err(error) => {
            cli::note(format_args!("belljar: {error}\nbelljar: {goes_on}"));
            return None;
        }
    };
    let (old, new) = (&loaded.settings, &read.settings);
    let held = [
        ("server.listen", old.server.listen != new.server.listen),
        ("server.data", old.server.data != new.server.data),
        ("server.user", old.server.user != new.server.user),
        ("sandbox.run", old.sandbox.run != new.sandbox.run),
    ];
    let held: Vec<&str> = held
        .iter()
        .filter(|(_, changed)| *changed)
        .map(|(key, _)| *key)
        .collect();
    if held.is_empty() {
        return Some(read.settings);
    }
    cli::note(format_args!(
        "belljar: another {} counts when `belljar up` itself is started anew; {goes_on}",
        held.join(", ")
    ));
    None
}

/// One of the two processes.
struct Part {
    command: &'static str,
    arguments: Vec<std::ffi::OsString>,
    environment: BTreeMap<String, std::ffi::OsString>,
    user: Option<SystemUser>,
    /// What it listens on; handed to each process of it.
    listener: Option<TcpListener>,
    running: Option<(Child, Lines<BufReader<ChildStdout>>)>,
    deaths: Vec<Instant>,
}

impl Part {
    fn new(
        command: &'static str,
        loaded: &Loaded,
        user: Option<SystemUser>,
        listener: Option<TcpListener>,
    ) -> anyhow::Result<Self> {
        let mut arguments = vec![command.into()];
        if let Some(file) = &loaded.file {
            arguments.extend(["--config".into(), file.clone().into_os_string()]);
        }
        let all = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
        // Keys are for the control plane, and it is the one that gets them.
        let environment = all
            .filter(|(name, _)| command == "serve" || process::is_for_host(name))
            .collect();
        Ok(Self {
            command,
            arguments,
            environment,
            user,
            listener,
            running: None,
            deaths: Vec::new(),
        })
    }

    /// Starts the process and waits until it says that it is ready.
    async fn start(&mut self) -> anyhow::Result<()> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        // By this way whoever it runs as need not be able to reach the folder where the program is.
        let mut command = Command::new("/proc/self/exe");
        command.arg0(&program);
        command
            .args(&self.arguments)
            .env_clear()
            .envs(&self.environment)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        // A group of its own: Ctrl-C at the terminal reaches this process only, which then ends the others in order.
        command.process_group(0);
        if let Some(user) = self.user {
            command.uid(user.uid).gid(user.gid);
        }
        if let Some(listener) = &self.listener {
            sys::child::hand_over(command.as_std_mut(), listener);
        }
        // Nobody looks after them when this process is killed, and they would be in the next one's way. Started by the main
        // thread, which lives as long as the process.
        sys::child::end_with_parent(command.as_std_mut());
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {} {}", program.display(), self.command))?;
        let stdout = child.stdout.take().context("the process has no output")?;
        let mut lines = BufReader::new(stdout).lines();
        let ready = tokio::time::timeout(READY, async {
            while let Ok(Some(line)) = lines.next_line().await {
                match (line.strip_prefix("ready: "), self.command) {
                    (Some(url), "serve") => {
                        let _gone = cli::line(format_args!("Belljar is at {url}"));
                        return true;
                    }
                    (Some(_), _) => return true,
                    (None, _) => {
                        let _gone = cli::line(&line);
                    }
                }
            }
            false
        });
        match ready.await {
            Ok(true) => {
                self.running = Some((child, lines));
                Ok(())
            }
            Ok(false) => bail!(
                "`belljar {}` ended before it was ready; what it said is above",
                self.command
            ),
            Err(_) => bail!("`belljar {}` was not ready within {} s", self.command, READY.as_secs()),
        }
    }

    /// Returns when the process died and may be started again; never where it died too often.
    async fn died(&mut self) {
        let Some((child, lines)) = &mut self.running else {
            return std::future::pending().await;
        };
        let status = tokio::select! {
            status = child.wait() => status,
            () = async { while let Ok(Some(line)) = lines.next_line().await { let _gone = cli::line(&line); } std::future::pending().await } => return,
        };
        let told = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        cli::note(format_args!(
            "belljar: `belljar {}` ended ({told}) and is started again; sessions go on",
            self.command
        ));
        self.running = None;
        self.deaths.retain(|death| death.elapsed() < WITHIN);
        self.deaths.push(Instant::now());
        if self.deaths.len() > MOST_DEATHS {
            cli::note(format_args!(
                "belljar: it ended {} times within a minute and is left alone for one",
                self.deaths.len()
            ));
            tokio::time::sleep(WITHIN).await;
        }
    }

    /// Tells the process to end, and kills it where it does not in time.
    async fn end(&mut self, deadline: Duration) {
        let Some((mut child, _lines)) = self.running.take() else {
            return;
        };
        if let Some(pid) = child.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
            // Where it is gone already, nothing is left to tell.
            let _ = kill_process(pid, Signal::TERM);
        }
        if tokio::time::timeout(deadline, child.wait()).await.is_err() {
            cli::note(format_args!(
                "belljar: `belljar {}` did not end within {} s and is killed",
                self.command,
                deadline.as_secs()
            ));
            // It is killed on drop as well; this only waits for it.
            let _ = child.kill().await;
        }
    }
}

/// Keeps a second `belljar up` away.
fn lock(settings: &Settings) -> anyhow::Result<File> {
    places::make_folder(&settings.server.data, 0o755)?;
    let path = settings.server.data.join("up.lock");
    let mut file = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(&path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => {
            // For whom the lock keeps away.
            let told = format!("process {}, at http://{}", std::process::id(), settings.server.listen);
            file.set_len(0)
                .and_then(|()| file.write_all(told.as_bytes()))
                .with_context(|| format!("cannot write {}", path.display()))?;
            Ok(file)
        }
        Err(TryLockError::WouldBlock) => {
            let mut told = String::new();
            // Without it the message says less.
            let _ = (&mut file).take(200).read_to_string(&mut told);
            let who = if told.is_empty() {
                "another process"
            } else {
                told.as_str()
            };
            bail!(
                "Belljar is up already with the data directory {} ({who}): use that one, or end it first; a second installation \
                 needs its own server.data, sandbox.run and server.listen",
                settings.server.data.display()
            )
        }
        Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("cannot lock {}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_agent_gets_no_key() {
        for name in ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "BELLJAR_TOKEN", "HOME", "SECRET"] {
            assert!(!process::is_for_host(name), "{name}");
        }
        assert!(process::is_for_host("PATH") && process::is_for_host("BELLJAR_SANDBOX_RUNTIME"));
    }
}
