//! Making a sandbox: what can be done side by side is.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use sandbox::{ProviderError, SandboxSpec, capture, inside};

use crate::Config;
use crate::attempt::{Attempt, unless_missing};
use crate::bundle::{self, Told};
use crate::cgroup::Hierarchies;
use crate::disk::Pool;
use crate::network::Networks;
use crate::process::Process;
use crate::record::{Folder, make_folder};
use crate::root::{self, Parts};
use crate::words::Words;

/// How long the OCI runtime may take; it takes thousandths of that.
const PATIENCE: Duration = Duration::from_secs(60);

/// What sandboxes are made with.
#[derive(Debug)]
pub(crate) struct Workshop {
    pub(crate) config: Config,
    pub(crate) hierarchies: Hierarchies,
    pub(crate) pool: Pool,
    pub(crate) networks: Networks,
    files: Vec<(&'static str, PathBuf)>,
}

impl Workshop {
    pub(crate) fn open(config: Config) -> Result<Self, ProviderError> {
        make_folder(&config.run, 0o711)?;
        if config.run.to_string_lossy().contains([':', ',', '\\']) {
            return Err(ProviderError::Machine {
                lacks: format!(
                    "{} holds a colon, comma or backslash, which an overlay cannot take",
                    config.run.display()
                ),
            });
        }
        if !config.runtime.is_file() {
            return Err(ProviderError::Machine {
                lacks: format!(
                    "the program {} is not there: it comes with belljar",
                    config.runtime.display()
                ),
            });
        }
        Ok(Self {
            hierarchies: Hierarchies::of_this_machine(&config.cgroup)?,
            pool: Pool::open(&config)?,
            networks: Networks::default(),
            files: write_files(&config.run.join("files"))?,
            config,
        })
    }

    pub(crate) fn image(&self, spec: &SandboxSpec) -> PathBuf {
        self.config.data.join("images").join(spec.image.as_str())
    }

    /// Makes everything of a sandbox whose folder and link are there, and starts it.
    pub(crate) fn make(
        &self,
        spec: &SandboxSpec,
        folder: &Folder,
        words: &Words,
        root_uid: u32,
    ) -> Result<Process, ProviderError> {
        let image = self.image(spec);
        let environment = bundle::environment(spec, &image)?;
        thread::scope(|side_by_side| {
            let network = side_by_side.spawn(|| self.networks.take());
            // Before the machine's mount namespace is left: that is where the pool is.
            let disk = self.pool.disk(spec.session, spec.limits.disk_bytes)?;
            let made = side_by_side.spawn(|| {
                root::leave_mount_namespace()?;
                let root = root::assemble(Parts {
                    spec,
                    folder,
                    image: &image.join("rootfs"),
                    disk,
                    root_uid,
                    runtime: &self.config.runtime,
                    files: &self.files,
                })?;
                let network = network.join().unwrap_or_else(|_| panicked())?;
                let config = bundle::config(&Told {
                    spec,
                    root: &root,
                    network: &network.path(),
                    root_uid,
                    environment: &environment,
                    hierarchies: &self.hierarchies,
                })?;
                bundle::write(folder.path(), &config)?;
                // The sandbox's processes hold the network from here on.
                self.start(spec, folder, words)
            });
            made.join().unwrap_or_else(|_| panicked())
        })
    }

    /// Runs the OCI runtime, which makes the container, starts its PID 1 and ends.
    fn start(&self, spec: &SandboxSpec, folder: &Folder, words: &Words) -> Result<Process, ProviderError> {
        let name = self.config.command.display();
        let attempt = || format!("run {name} for sandbox {}", spec.id);
        let pid_file = folder.path().join("pid");
        let child = Command::new(&self.config.command)
            .arg("--root")
            .arg(self.state_folder())
            .args(["run", "--detach", "--bundle"])
            .arg(folder.path())
            .arg("--pid-file")
            .arg(&pid_file)
            .arg(spec.id.to_string())
            .stdin(Stdio::null())
            .stdout(words.writer().attempt(attempt)?)
            .stderr(words.writer().attempt(attempt)?)
            .spawn();
        let mut child = child.map_err(|error| ProviderError::Machine {
            lacks: format!(
                "the OCI runtime {name} cannot be run ({error}); install it (apt-get install runc) or name another"
            ),
        })?;
        let ended = Process::open(child.id().cast_signed()).is_ok_and(|process| process.ends_within(PATIENCE));
        if !ended {
            // It may have ended this instant; then there is nothing to kill.
            let _gone = child.kill();
        }
        let status = child.wait().attempt(attempt)?;
        if !status.success() {
            return Err(ProviderError::failed(attempt(), format!("{status}: {}", words.last())));
        }
        let pid = fs::read_to_string(&pid_file).attempt(|| format!("read {}", pid_file.display()))?;
        let pid = pid
            .trim()
            .parse()
            .attempt(|| format!("understand {}", pid_file.display()))?;
        Process::open(pid)
            .map_err(|error| ProviderError::failed(format!("keep sandbox {} alive: {error}", spec.id), words.last()))
    }

    /// Removes what the OCI runtime noted of a sandbox.
    pub(crate) fn forget(&self, spec: &SandboxSpec) -> Result<(), ProviderError> {
        let state = self.state_folder().join(spec.id.to_string());
        unless_missing(fs::remove_dir_all(&state)).attempt(|| format!("remove {}", state.display()))
    }

    fn state_folder(&self) -> PathBuf {
        self.config.run.join("oci")
    }
}

fn panicked<T>() -> Result<T, ProviderError> {
    Err(ProviderError::failed(
        "make a sandbox",
        "a thread that made a part of it panicked",
    ))
}

/// A new listening socket in the sandbox's link directory; the one before is dead from then on.
pub(crate) fn listen(folder: &Folder, root_uid: u32) -> Result<UnixListener, ProviderError> {
    let link = folder.link();
    make_folder(&link, 0o700)?;
    let socket = link.join(inside::LINK_SOCKET);
    let beside = link.join("new.sock");
    let attempt = || format!("listen on {}", socket.display());
    unless_missing(fs::remove_file(&beside)).attempt(attempt)?;
    let listener = UnixListener::bind(&beside).attempt(attempt)?;
    listener.set_nonblocking(true).attempt(attempt)?;
    fs::set_permissions(&beside, Permissions::from_mode(0o600)).attempt(attempt)?;
    for path in [&beside, &link] {
        chown(path, Some(root_uid), Some(root_uid)).attempt(attempt)?;
    }
    // Nobody finds the socket before it is theirs, or ever finds none.
    fs::rename(&beside, &socket).attempt(attempt)?;
    Ok(listener)
}

/// The files that are the same in every sandbox.
fn write_files(folder: &Path) -> Result<Vec<(&'static str, PathBuf)>, ProviderError> {
    make_folder(folder, 0o755)?;
    let hosts = format!(
        "127.0.0.1 localhost {0}\n::1 localhost ip6-localhost {0}\n",
        bundle::HOSTNAME
    );
    let resolver = format!("nameserver {}\noptions timeout:10 attempts:1\n", capture::DNS_ADDRESS);
    let mut files = Vec::new();
    for (place, name, text) in [
        ("/etc/hosts", "hosts", hosts),
        ("/etc/resolv.conf", "resolv.conf", resolver),
    ] {
        let path = folder.join(name);
        let attempt = || format!("write {}", path.display());
        fs::write(&path, text).attempt(attempt)?;
        let file = File::open(&path).attempt(attempt)?;
        file.set_permissions(Permissions::from_mode(0o644)).attempt(attempt)?;
        files.push((place, path));
    }
    Ok(files)
}
