//! `belljar up`: the host agent and the control plane, each in its own process and as its own user, started again when one dies.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::Instant;

use crate::config::{Loaded, Settings};
use crate::end::End;
use crate::{process, serve};

/// How long a process may take until it is ready.
const READY: Duration = Duration::from_secs(60);
/// How long the host agent may take to end.
const HOST_ENDS: Duration = Duration::from_secs(35);
/// A process that dies more often than this within [`WITHIN`] is left alone.
const MOST_DEATHS: usize = 5;
const WITHIN: Duration = Duration::from_secs(60);

/// A user of this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SystemUser {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// Starts everything and looks after it until it is told to end.
pub(crate) fn up(loaded: &Loaded) -> anyhow::Result<End> {
    if !rustix::process::geteuid().is_root() {
        bail!("`belljar up` starts the host agent, which must be root: run it with sudo");
    }
    let settings = &loaded.settings;
    let _lock = lock(settings)?;
    let user = prepare(settings)?;
    process::runtime()?.block_on(run(loaded, user))
}

async fn run(loaded: &Loaded, user: SystemUser) -> anyhow::Result<End> {
    let ended = process::told_to_end();
    tokio::pin!(ended);
    let mut host = Part::new("host", loaded, None)?;
    let mut serve = Part::new("serve", loaded, Some(user))?;
    let outcome = tokio::select! {
        ended = &mut ended => ended,
        broken = supervise(&mut host, &mut serve) => broken,
    };
    // The control plane first: it may still need sandboxes to end in good order.
    serve.end(loaded.settings.server.drain + Duration::from_secs(5)).await;
    host.end(HOST_ENDS).await;
    outcome.map(|()| End::Done)
}

async fn supervise(host: &mut Part, serve: &mut Part) -> anyhow::Result<()> {
    host.start().await?;
    serve.start().await?;
    loop {
        let died = tokio::select! {
            () = host.died() => &mut *host,
            () = serve.died() => &mut *serve,
        };
        died.start().await?;
    }
}

/// One of the two processes.
struct Part {
    command: &'static str,
    arguments: Vec<std::ffi::OsString>,
    environment: BTreeMap<String, std::ffi::OsString>,
    user: Option<SystemUser>,
    running: Option<(Child, Lines<BufReader<ChildStdout>>)>,
    deaths: Vec<Instant>,
}

impl Part {
    fn new(command: &'static str, loaded: &Loaded, user: Option<SystemUser>) -> anyhow::Result<Self> {
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
                        println!("Belljar is at {url}");
                        return true;
                    }
                    (Some(_), _) => return true,
                    (None, _) => println!("{line}"),
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
            () = async { while let Ok(Some(line)) = lines.next_line().await { println!("{line}"); } std::future::pending().await } => return,
        };
        let told = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        eprintln!(
            "belljar: `belljar {}` ended ({told}) and is started again; sessions go on",
            self.command
        );
        self.running = None;
        self.deaths.retain(|death| death.elapsed() < WITHIN);
        self.deaths.push(Instant::now());
        if self.deaths.len() > MOST_DEATHS {
            eprintln!(
                "belljar: it ended {} times within a minute and is left alone for one",
                self.deaths.len()
            );
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
            eprintln!(
                "belljar: `belljar {}` did not end within {} s and is killed",
                self.command,
                deadline.as_secs()
            );
            // It is killed on drop as well; this only waits for it.
            let _ = child.kill().await;
        }
    }
}

/// Keeps a second `belljar up` away.
fn lock(settings: &Settings) -> anyhow::Result<File> {
    make_folder(&settings.server.data, 0o755)?;
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

/// Makes what the control plane needs: its user, and its part of the data directory.
pub(crate) fn prepare(settings: &Settings) -> anyhow::Result<SystemUser> {
    let name = &settings.server.user;
    let user = match find_user(name)? {
        Some(user) => user,
        None => make_user(name, &settings.server.data)?,
    };
    let own = serve::folder(settings);
    make_folder(&own, 0o700)?;
    // And what is in it: a store that root restored is the control plane's all the same.
    let entries = fs::read_dir(&own).with_context(|| format!("cannot read {}", own.display()))?;
    let files: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    for path in files.iter().chain([&own]) {
        give(path, user).with_context(|| format!("cannot give {} to {name}", path.display()))?;
    }
    Ok(user)
}

/// Gives a file to a user who may have made it: whoever took the control plane over could leave a link here, or a second name
/// of a file that is not theirs.
fn give(path: &Path, user: SystemUser) -> anyhow::Result<()> {
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let about = rustix::fs::fstat(&file)?;
    if (about.st_uid, about.st_gid) == (user.uid, user.gid) {
        return Ok(());
    }
    if about.st_nlink > 1 && FileType::from_raw_mode(about.st_mode) != FileType::Directory {
        bail!("it has another name elsewhere, which would be theirs too: remove the one that should not be");
    }
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    rustix::fs::chownat(&file, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
    Ok(())
}

fn make_folder(folder: &Path, mode: u32) -> anyhow::Result<()> {
    fs::create_dir_all(folder)
        .and_then(|()| fs::set_permissions(folder, fs::Permissions::from_mode(mode)))
        .with_context(|| format!("cannot make the folder {}", folder.display()))
}

fn make_user(name: &str, home: &Path) -> anyhow::Result<SystemUser> {
    let made = std::process::Command::new("useradd")
        .args([
            "--system",
            "--user-group",
            "--no-create-home",
            "--shell",
            "/usr/sbin/nologin",
            "--home-dir",
        ])
        .arg(home)
        .arg(name)
        .output()
        .context("cannot run useradd")?;
    if !made.status.success() {
        bail!(
            "cannot make the user {name}: {}",
            String::from_utf8_lossy(&made.stderr).trim()
        );
    }
    find_user(name)?.with_context(|| format!("useradd made no user {name}"))
}

/// The user of that name in /etc/passwd, where this machine's own users are.
pub(crate) fn find_user(name: &str) -> anyhow::Result<Option<SystemUser>> {
    let users = fs::read_to_string("/etc/passwd").context("cannot read /etc/passwd")?;
    Ok(users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let found = fields.next() == Some(name);
        let (uid, gid) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
        found.then_some(SystemUser { uid, gid })
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_their_whole_name() {
        assert_eq!(
            find_user("root").expect("readable"),
            Some(SystemUser { uid: 0, gid: 0 })
        );
        assert_eq!(find_user("roo").expect("readable"), None);
    }

    #[test]
    fn only_what_has_one_name_is_given_away() {
        let folder = tempfile::tempdir().expect("a folder");
        let (secret, theirs) = (folder.path().join("secret"), folder.path().join("store.db"));
        fs::write(&secret, "root's own").expect("a file");
        let owner =
            |path: &Path| std::os::unix::fs::MetadataExt::uid(&fs::symlink_metadata(path).expect("it is there"));
        let user = SystemUser {
            uid: 12_345,
            gid: 12_345,
        };
        fs::hard_link(&secret, &theirs).expect("a second name");
        assert!(give(&theirs, user).is_err());
        fs::remove_file(&theirs).expect("no second name");
        std::os::unix::fs::symlink(&secret, &theirs).expect("a link");
        give(&theirs, user).expect("the link itself");
        assert_eq!((owner(&secret), owner(&theirs)), (0, 12_345));
        fs::remove_file(&theirs).expect("no link");
        fs::write(&theirs, "a copy that root restored").expect("a file");
        give(&theirs, user).expect("a file");
        assert_eq!(owner(&theirs), 12_345);
    }

    #[test]
    fn the_host_agent_gets_no_key() {
        for name in ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "BELLJAR_TOKEN", "HOME", "SECRET"] {
            assert!(!process::is_for_host(name), "{name}");
        }
        assert!(process::is_for_host("PATH") && process::is_for_host("BELLJAR_SANDBOX_RUNTIME"));
    }
}
