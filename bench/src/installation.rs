//! A Belljar of the bench's own: a folder, a configuration, and its real processes, which end with the value.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::http::{Client, Events};
use crate::upstream::SECRET;

/// Where the measured programs are.
#[derive(Clone)]
pub(crate) struct Programs {
    pub(crate) belljar: PathBuf,
    pub(crate) runtime: PathBuf,
}

impl Programs {
    /// Those of a release, beside this one.
    pub(crate) fn built() -> anyhow::Result<Self> {
        let own = std::env::current_exe()?;
        let output = own
            .ancestors()
            .nth(2)
            .context("the bench runs outside the compiler's output")?;
        let programs = Self {
            belljar: output.join("release/belljar"),
            runtime: output.join("runtime/belljar-runtime"),
        };
        for program in [&programs.belljar, &programs.runtime] {
            if !program.is_file() {
                bail!("there is no {}: run `make bench`, which builds it", program.display());
            }
        }
        Ok(programs)
    }
}

/// What the configuration says of sandboxes that are made ahead, unless a measure is about them.
const NO_WARM: &str = "most = 0";

/// A folder with a configuration, and the processes that were started in it.
pub(crate) struct Installation {
    programs: Programs,
    folder: TempDir,
    host: Option<Child>,
    serve: Option<Child>,
    address: Option<SocketAddr>,
    core: Option<usize>,
    outside: Option<Outside>,
    /// The host agent finds no way to make a btrfs.
    plain_disks: bool,
}

/// An outside world of the bench's own, as the control plane sees it.
struct Outside {
    /// Names and addresses, in the form of /etc/hosts.
    hosts: PathBuf,
    /// Certificates that the control plane trusts: a file of PEM.
    authorities: PathBuf,
}

impl Installation {
    /// Writes the configuration: a model at `models`, sandboxes of the miniature image, and `more` sections.
    pub(crate) fn new(programs: &Programs, models: Option<SocketAddr>, more: &str) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("belljar-bench-")
            .tempdir_in("/var/tmp")?;
        let path = folder.path();
        // Sandboxes reach what is theirs through it, under ids of their own.
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o711))?;
        let data = path.join("data");
        let miniature = testkit::miniature();
        miniature.install(&data.join("images"));
        fs::write(path.join("key"), "sk-bench")?;
        // A secret that others may read is refused.
        fs::set_permissions(path.join("key"), Permissions::from_mode(0o600))?;
        let models = models.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 9)));
        let config = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\ndata = {data:?}\nuser = \"root\"\nlog_level = \"warn\"\n\n\
             [models.m]\nprovider = \"anthropic\"\nmodel = \"fake\"\nbase_url = \"http://{models}\"\nkey = \"file:{key}\"\n\
             window = 10000000\nmax_output = 256\nprice = {{ input = 3.00, output = 15.00 }}\n\n\
             [sandbox]\nper_user = 100000\nimage = \"{image}\"\nrun = {run:?}\nprogram = {runtime:?}\nmemory = \"512MiB\"\ndisk = \"256MiB\"\n\
             processes = 256\nfreeze_after = \"1h\"\nhibernate_after = \"2h\"\n\n[sandbox.warm]\n{NO_WARM}\n\n{more}",
            key = path.join("key").display(),
            image = miniature.digest,
            run = path.join("run"),
            runtime = programs.runtime,
        );
        fs::write(path.join("belljar.toml"), config)?;
        Ok(Self {
            programs: programs.clone(),
            folder,
            host: None,
            serve: None,
            address: None,
            core: None,
            outside: None,
            plain_disks: false,
        })
    }

    /// There is to be a service with this definition, and [`SECRET`] as its bearer token. Everybody may call it.
    pub(crate) fn service(self, name: &str, definition: &str) -> anyhow::Result<Self> {
        let folder = self.path("services").join(name);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("service.toml"), definition)?;
        let lines = format!(
            "\n[services.{name}]\naddresses = [\"127.0.0.0/8\"]\n\n[services.{name}.auth]\ntoken = \"file:{}\"\n",
            self.secret()?.display()
        );
        self.configure(&lines)
    }

    /// Sandboxes are made ahead, so many at most.
    pub(crate) fn warm(self, most: usize) -> anyhow::Result<Self> {
        let path = self.path("belljar.toml");
        let config = fs::read_to_string(&path)?;
        let some = format!("least = {most}\nmost = {most}");
        fs::write(&path, config.replace(NO_WARM, &some))?;
        Ok(self)
    }

    /// Adds sections to the configuration.
    pub(crate) fn configure(self, lines: &str) -> anyhow::Result<Self> {
        let mut file = fs::File::options().append(true).open(self.path("belljar.toml"))?;
        file.write_all(lines.as_bytes())?;
        Ok(self)
    }

    /// The file with [`SECRET`], which is no model's.
    pub(crate) fn secret(&self) -> anyhow::Result<PathBuf> {
        let path = self.path("secret");
        fs::write(&path, SECRET)?;
        // A secret that others may read is refused.
        fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        Ok(path)
    }

    /// The control plane is to know this name on loopback, and to trust the certificates of this file and no others.
    pub(crate) fn outside(mut self, name: &str, authorities: &Path) -> anyhow::Result<Self> {
        let hosts = self.path("hosts");
        fs::write(&hosts, format!("127.0.0.1 {name}\n"))?;
        let authorities = authorities.to_owned();
        self.outside = Some(Outside { hosts, authorities });
        Ok(self)
    }

    /// The control plane is to run on this core alone.
    pub(crate) fn pin(mut self, core: usize) -> Self {
        self.core = Some(core);
        self
    }

    /// The disks of sessions are to be files with an ext4 each, as where there is no btrfs.
    pub(crate) fn plain_disks(mut self) -> Self {
        self.plain_disks = true;
        self
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The store's file.
    pub(crate) fn store(&self) -> PathBuf {
        self.path("data/control/store.db")
    }

    /// The host agent's socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.path("run/host.sock")
    }

    /// The file that says for which installation the host agent works.
    pub(crate) fn claim(&self) -> PathBuf {
        self.path("data/installation")
    }

    pub(crate) fn start_host(&mut self) -> anyhow::Result<()> {
        let (child, _) = self.spawn("host")?;
        self.host = Some(child);
        Ok(())
    }

    /// Starts the control plane; gives how long it took until it was ready.
    pub(crate) fn start_serve(&mut self) -> anyhow::Result<Duration> {
        let began = Instant::now();
        let (child, ready) = self.spawn("serve")?;
        let took = began.elapsed();
        self.serve = Some(child);
        let address = ready.rsplit("http://").next().unwrap_or_default().trim();
        self.address = Some(
            address
                .parse()
                .with_context(|| format!("belljar serve said {ready:?}"))?,
        );
        Ok(took)
    }

    /// `kill -9` of the control plane.
    pub(crate) fn kill_serve(&mut self) {
        end(&mut self.serve, "-KILL");
    }

    /// Ends the control plane in good order.
    pub(crate) fn stop_serve(&mut self) {
        end(&mut self.serve, "-TERM");
    }

    /// The control plane's process.
    pub(crate) fn serve_id(&self) -> anyhow::Result<u32> {
        self.serve
            .as_ref()
            .map(Child::id)
            .context("the control plane does not run")
    }

    /// The host agent's process.
    pub(crate) fn host_id(&self) -> Option<u32> {
        self.host.as_ref().map(Child::id)
    }

    /// A client that may do everything.
    pub(crate) fn api(&self) -> anyhow::Result<Api> {
        let path = self.path("data/control/admin-token");
        let token = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let address = self.address.context("the control plane does not run")?;
        Ok(Api(Client::new(address, format!("Bearer {}", token.trim()))))
    }

    fn spawn(&self, role: &str) -> anyhow::Result<(Child, String)> {
        let log = self.path(&format!("{role}.log"));
        let mut words = Vec::new();
        if role == "serve" {
            if let Some(outside) = &self.outside {
                let script = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
                words.extend(["unshare", "--mount", "sh", "-c", script].map(OsString::from));
                words.push(outside.hosts.clone().into());
            }
            if let Some(core) = self.core {
                words.extend(["taskset", "--cpu-list"].map(OsString::from));
                words.push(core.to_string().into());
            }
        }
        words.push(self.programs.belljar.clone().into());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        if let Some(outside) = &self.outside {
            command.env("SSL_CERT_FILE", &outside.authorities);
        }
        if role == "host" && self.plain_disks {
            command.env("PATH", self.programs_but("mkfs.btrfs")?);
        }
        let mut child = command
            .arg(role)
            .arg("--config")
            .arg(self.path("belljar.toml"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(fs::File::options().append(true).create(true).open(&log)?)
            .spawn()
            .with_context(|| format!("belljar {role} could not be started"))?;
        let mut lines = BufReader::new(child.stdout.take().context("its output is piped")?).lines();
        let ready = lines
            .by_ref()
            .map_while(Result::ok)
            .find(|line| line.starts_with("ready"));
        match ready {
            Some(ready) => Ok((child, ready)),
            None => {
                let _ = child.wait();
                bail!("belljar {role} ended before it was ready: {}", tail(&log));
            }
        }
    }

    /// A folder with every program of the machine but one.
    fn programs_but(&self, left_out: &str) -> anyhow::Result<PathBuf> {
        let folder = self.path("programs");
        fs::create_dir_all(&folder)?;
        let path = std::env::var_os("PATH").context("PATH is not set")?;
        let entries = std::env::split_paths(&path).filter_map(|folder| fs::read_dir(folder).ok());
        for entry in entries.flatten().flatten() {
            let shown = folder.join(entry.file_name());
            // The first of a name is the one that counts.
            if entry.file_name() != left_out && fs::symlink_metadata(&shown).is_err() {
                std::os::unix::fs::symlink(entry.path(), shown)?;
            }
        }
        Ok(folder)
    }
}

impl Drop for Installation {
    fn drop(&mut self) {
        end(&mut self.serve, "-TERM");
        if self.host.is_some() {
            let _ = remove_sandboxes(&self.socket(), &self.claim());
            end(&mut self.host, "-TERM");
            // The pool of disks, and what need not survive a restart.
            unmount(self.folder.path());
        }
    }
}

/// Unmounts what is mounted at and below a folder.
pub(crate) fn unmount(folder: &Path) {
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mounted = table
        .lines()
        .filter_map(|line| line.split(' ').nth(1))
        .map(PathBuf::from);
    let mounted: Vec<PathBuf> = mounted.filter(|mount| mount.starts_with(folder)).collect();
    for mount in mounted.iter().rev() {
        let _ = Command::new("umount").arg("--lazy").arg(mount).status();
    }
}

/// Has the host agent at this socket remove every sandbox; the second file says for which installation it works.
pub(crate) fn remove_sandboxes(socket: &Path, claim: &Path) -> anyhow::Result<()> {
    use sandbox::SandboxProvider;
    let (socket, whose) = (socket.to_owned(), fs::read_to_string(claim)?.trim().parse()?);
    // Whoever drops an installation may be a thread of tokio's, which must not wait.
    let removed = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let tasks = lifecycle::Tasks::new();
            let host = host::HostClient::new(socket, whose, &tasks);
            for sandbox in host.list().await? {
                host.destroy(sandbox.id).await?;
            }
            tasks.shut_down(Duration::from_secs(1)).await;
            Ok(())
        })
    });
    removed
        .join()
        .unwrap_or_else(|_| bail!("the sandboxes could not be removed"))
}

fn end(process: &mut Option<Child>, signal: &str) {
    let Some(mut child) = process.take() else { return };
    let _ = Command::new("kill").args([signal, &child.id().to_string()]).status();
    let until = Instant::now() + Duration::from_secs(30);
    while Instant::now() < until {
        if matches!(child.try_wait(), Ok(Some(_)) | Err(_)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
}

fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(5).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
}

/// The API, as a person uses it.
pub(crate) struct Api(pub(crate) Client);

impl Api {
    /// A new session.
    pub(crate) async fn session(&self) -> anyhow::Result<String> {
        let session = self.0.post("/api/v1/sessions", &json!({})).await?;
        Ok(session["id"].as_str().context("a session has an id")?.to_owned())
    }

    /// Gives a session a job; says after which event everything about it comes.
    pub(crate) async fn prompt(&self, session: &str, text: &str) -> anyhow::Result<String> {
        let path = format!("/api/v1/sessions/{session}/prompts");
        let accepted = self.0.post(&path, &json!({ "text": text })).await?;
        Ok(accepted["after"].to_string())
    }

    pub(crate) async fn cancel(&self, session: &str) -> anyhow::Result<Value> {
        self.0
            .post(&format!("/api/v1/sessions/{session}/cancel"), &json!({}))
            .await
    }

    /// The same as another person who may see everything.
    pub(crate) async fn another_admin(&self, name: &str) -> anyhow::Result<Self> {
        let user = self
            .0
            .post("/api/v1/users", &json!({ "name": name, "admin": true }))
            .await?;
        let asked = json!({ "user": user["id"], "label": "bench" });
        let token = self.0.post("/api/v1/tokens", &asked).await?;
        let secret = token["secret"].as_str().context("a new token is shown")?;
        Ok(Self(Client::new(self.0.address(), format!("Bearer {secret}"))))
    }

    /// Watches a session from an event on.
    pub(crate) async fn watch(&self, session: &str, after: &str) -> anyhow::Result<Events> {
        self.0
            .events(&format!("/api/v1/sessions/{session}/events"), Some(after))
            .await
    }
}

/// Whether an event says that a run has ended.
pub(crate) fn is_end(event: &Value) -> bool {
    event["type"] == "run" && matches!(event["state"].as_str(), Some("done" | "failed" | "cancelled"))
}

/// Reads events until a run has ended; it must be in this state then.
pub(crate) async fn ended(events: &mut Events, state: &str) -> anyhow::Result<()> {
    while let Some(frame) = events.next().await? {
        if is_end(&frame.data) {
            if frame.data["state"] == state {
                return Ok(());
            }
            bail!("a run ended otherwise than expected: {}", frame.data);
        }
    }
    bail!("the events ended before the run")
}
