//! Making a container: what can be done side by side is.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use containers::attempt::{Attempt, unless_missing};
use containers::cgroup::{Group, Hierarchies};
use containers::filtered::require_list;
use containers::maker::{Maker, Order};
use containers::overlay::leave_mount_namespace;
use containers::process::Process;
use containers::seccomp::Masks;
use domain::SandboxId;
use sandbox::ProviderError;

use crate::bundle::{self, Told};
use crate::network::Networks;
use crate::root::{self, Parts};

/// How long the OCI runtime may take; it takes thousandths of that.
const PATIENCE: Duration = Duration::from_secs(60);

/// Makes containers by an OCI runtime's command.
#[derive(Debug)]
pub(crate) struct OciMaker {
    command: PathBuf,
    /// Where the OCI runtime keeps what it notes.
    state: PathBuf,
    hierarchies: Hierarchies,
    /// How it reads rules about bits.
    masks: Masks,
    networks: Networks,
}

impl OciMaker {
    pub(crate) fn new(command: PathBuf, state: PathBuf, cgroup: &str) -> Result<Self, ProviderError> {
        let hierarchies = Hierarchies::of_this_machine(cgroup)?;
        if let Err(error) = hierarchies.leave_room() {
            tracing::warn!(%error, "sandboxes together are not kept from the last of this machine's memory and processes");
        }
        Ok(Self {
            masks: masks(&command),
            command,
            state,
            hierarchies,
            networks: Networks::default(),
        })
    }

    /// Runs the OCI runtime, which makes the container, starts its PID 1 and ends. What is started is in this thread's network.
    fn start(&self, order: &Order<'_>) -> Result<Process, ProviderError> {
        let (id, folder, words) = (order.spec.id, order.folder, order.words);
        let name = self.command.display();
        let attempt = || format!("run {name} for sandbox {id}");
        let pid_file = folder.path().join("pid");
        let child = Command::new(&self.command)
            .arg("--root")
            .arg(&self.state)
            .args(["run", "--detach", "--bundle"])
            .arg(folder.path())
            .arg("--pid-file")
            .arg(&pid_file)
            .arg(id.to_string())
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
        let first = Process::open(pid)
            .map_err(|error| ProviderError::failed(format!("keep sandbox {id} alive: {error}"), words.last()))?;
        require_list(&first, &format!("the OCI runtime {name}"), || first.exit_code())?;
        Ok(first)
    }
}

impl Maker for OciMaker {
    fn prepare(&self) -> Result<(), ProviderError> {
        self.networks.prepare()
    }

    fn root_uid(&self) -> Option<u32> {
        None
    }

    fn group(&self, id: SandboxId) -> Group {
        self.hierarchies.group(&id.to_string())
    }

    fn make(&self, order: &Order<'_>) -> Result<Process, ProviderError> {
        thread::scope(|side_by_side| {
            let network = side_by_side.spawn(|| self.networks.take());
            // Before the machine's mount namespace is left: that is where the pool is.
            let disk = (order.disk)()?;
            let made = side_by_side.spawn(|| {
                leave_mount_namespace()?;
                let root = root::assemble(Parts {
                    spec: order.spec,
                    folder: order.folder,
                    image: order.image,
                    disk,
                    root_uid: order.root_uid,
                    runtime: order.runtime,
                    files: order.files,
                })?;
                let network = network.join().unwrap_or_else(|_| panicked())?;
                let config = bundle::config(&Told {
                    spec: order.spec,
                    root: &root,
                    root_uid: order.root_uid,
                    environment: &order.image.environment,
                    hierarchies: &self.hierarchies,
                    masks: self.masks,
                })?;
                bundle::write(order.folder.path(), &config)?;
                // The sandbox's processes hold the network from here on.
                network.enter()?;
                self.start(order)
            });
            made.join().unwrap_or_else(|_| panicked())
        })
    }

    /// Removes what the OCI runtime noted of a sandbox.
    fn forget(&self, id: SandboxId) -> Result<(), ProviderError> {
        let state = self.state.join(id.to_string());
        unless_missing(fs::remove_dir_all(&state)).attempt(|| format!("remove {}", state.display()))
    }
}

/// How rules about bits of an argument are written for this OCI runtime.
fn masks(command: &Path) -> Masks {
    // One that cannot be run is refused when it is to make something, and says why.
    let said = Command::new(command).arg("--version").stdin(Stdio::null()).output();
    let said = said.map(|output| output.stdout).unwrap_or_default();
    Masks::for_version(&String::from_utf8_lossy(&said))
}

fn panicked<T>() -> Result<T, ProviderError> {
    Err(ProviderError::failed(
        "make a sandbox",
        "a thread that made a part of it panicked",
    ))
}
