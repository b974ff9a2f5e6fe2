//! Making a container: what can be done side by side is.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use containers::attempt::{Attempt, unless_missing};
use containers::cgroup::{Group, Hierarchies};
use containers::filtered::{require_list, require_own_kernel};
use containers::kernel::Kernel;
use containers::maker::{Maker, Order};
use containers::overlay::leave_mount_namespace;
use containers::process::{Crew, Process, bury_all_of};
use containers::stamp;
use domain::SandboxId;
use sandbox::ProviderError;
use sys::child::end_first;
use sys::removal::remove_tree;

use crate::bundle::{self, Told};
use crate::memory::Files;
use crate::network::Networks;
use crate::root::{self, Parts};
use crate::write;

/// How long the OCI runtime may take; it takes thousandths of that.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long PID 1 may take to be heard of that goes on; where it is not, another is started, and somebody waits for it.
const GOES_ON: Duration = Duration::from_secs(10);
/// How long a kernel of its own may take to answer. It takes a hundredth of that.
const ANSWER: Duration = Duration::from_secs(10);

/// Makes containers by an OCI runtime's command.
#[derive(Debug)]
pub(crate) struct OciMaker {
    command: PathBuf,
    /// Where the OCI runtime keeps what it notes.
    state: PathBuf,
    hierarchies: Hierarchies,
    /// Whose kernel answers what it starts.
    kernel: Kernel,
    networks: Networks,
}

impl OciMaker {
    pub(crate) fn new(command: PathBuf, state: PathBuf, cgroup: &str) -> Result<Self, ProviderError> {
        let hierarchies = Hierarchies::of_this_machine(cgroup)?;
        if let Err(error) = hierarchies.leave_room() {
            tracing::warn!(%error, "sandboxes together are not kept from the last of this machine's memory and processes");
        }
        Ok(Self {
            kernel: Kernel::of(&command),
            command,
            state,
            hierarchies,
            networks: Networks::default(),
        })
    }

    /// The OCI runtime, about to be given an order.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.command);
        command.arg("--root").arg(&self.state);
        command.args(self.kernel.arguments()).stdin(Stdio::null());
        if let Some(thousandths) = self.kernel.ends_first() {
            end_first(&mut command, thousandths);
        }
        command
    }

    /// Runs the OCI runtime, which makes the container, starts its PID 1 and ends. What is started is in this thread's network.
    fn start(&self, order: &Order<'_>) -> Result<Process, ProviderError> {
        let (id, folder, words) = (order.spec.id, order.folder, order.words);
        let name = self.command.display();
        let attempt = || format!("run {name} for sandbox {id}");
        let pid_file = folder.path().join("pid");
        let mut command = self.command();
        match order.kept {
            None => command.arg("run"),
            Some(kept) => command.arg("restore").arg("--image-path").arg(kept),
        };
        command
            .args(["--detach", "--bundle"])
            .arg(folder.path())
            .arg("--pid-file")
            .arg(&pid_file)
            .arg(id.to_string())
            .stdout(words.writer().attempt(attempt)?)
            .stderr(words.writer().attempt(attempt)?);
        let crew = Crew::start(command, Some(&folder.crew())).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => ProviderError::Machine {
                lacks: format!(
                    "the OCI runtime {name} cannot be run ({error}); install it (apt-get install runc) or name another"
                ),
            },
            _ => ProviderError::failed(attempt(), error),
        })?;
        let status = crew.finish(PATIENCE).attempt(attempt)?;
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
        let (maker, code) = (format!("the OCI runtime {name}"), || first.exit_code());
        match self.kernel {
            Kernel::OfTheMachine(_) => require_list(&first, &maker, code)?,
            Kernel::Own => {
                let within = if order.kept.is_some() { GOES_ON } else { PATIENCE };
                require_own_kernel(&first, &self.group(id), order.link, within, &maker, code)?;
            }
        }
        Ok(first)
    }

    /// Has the OCI runtime give a kernel of its own an order. `already`: what is said where it was carried out before.
    fn order(&self, order: &str, id: SandboxId, already: &str) -> Result<(), ProviderError> {
        let attempt = || format!("{order} sandbox {id} by {}", self.command.display());
        let output = self.ask(&[order], id).attempt(attempt)?;
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() || said.contains(already) {
            return Ok(());
        }
        Err(ProviderError::failed(attempt(), format!("{}: {said}", output.status)))
    }

    /// Has it count the processes inside.
    fn count(&self, id: SandboxId) -> Option<u32> {
        let numbers = self.ask(&["ps", "--format", "json"], id).ok()?.stdout;
        let numbers: Vec<i32> = serde_json::from_slice(&numbers).ok()?;
        u32::try_from(numbers.len()).ok()
    }

    /// What the OCI runtime says of a sandbox. One that waits too long is ended.
    fn ask(&self, words: &[&str], id: SandboxId) -> io::Result<Output> {
        let mut command = self.command();
        command.args(words).arg(id.to_string());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let (output, _in_time) = Crew::start(command, None)?.output(|asking| asking.ends_within(ANSWER))?;
        Ok(output)
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
                    kernel: self.kernel,
                    runtime: order.runtime,
                    files: order.files,
                    kept: order.kept,
                })?;
                let network = network.join().unwrap_or_else(|_| panicked())?;
                let config = bundle::config(&Told {
                    spec: order.spec,
                    root: &root,
                    root_uid: order.root_uid,
                    environment: &order.image.environment,
                    hierarchies: &self.hierarchies,
                    kernel: self.kernel,
                })?;
                bundle::write(order.folder.path(), &config)?;
                // The sandbox's processes hold the network from here on.
                network.enter()?;
                self.start(order)
            });
            made.join().unwrap_or_else(|_| panicked())
        })
    }

    /// Removes what the OCI runtime noted of a sandbox: a folder that is called after it, or files that have it in their names.
    fn forget(&self, id: SandboxId) -> Result<(), ProviderError> {
        let id = id.to_string();
        let remove = || {
            for entry in fs::read_dir(&self.state)? {
                let entry = entry?;
                if !entry.file_name().to_string_lossy().contains(&id) {
                    continue;
                }
                unless_missing(match entry.file_type()?.is_dir() {
                    true => remove_tree(&entry.path()),
                    false => fs::remove_file(entry.path()),
                })?;
            }
            io::Result::Ok(())
        };
        unless_missing(remove()).attempt(|| format!("remove what {} holds of sandbox {id}", self.state.display()))
    }

    /// What stands for processes inside and is asked by the kernel beside it does not survive being frozen in the midst of that.
    fn stops(&self) -> bool {
        self.kernel == Kernel::Own
    }

    fn stop(&self, id: SandboxId) -> Result<(), ProviderError> {
        self.order("pause", id, "in state paused")
    }

    fn go_on(&self, id: SandboxId) -> Result<(), ProviderError> {
        self.order("resume", id, "in state running")
    }

    /// What opens files for a kernel of its own ends with it, by itself; what was to become a container ends when the OCI runtime
    /// does.
    fn bury(&self, users: &Range<u32>, finished: bool) {
        if self.kernel == Kernel::Own || !finished {
            bury_all_of(users);
        }
    }

    fn keeper(&self) -> Option<String> {
        if !self.kernel.keeps_processes() {
            return None;
        }
        // One that cannot be found makes nothing, and says so then.
        let program = find(&self.command)?;
        let stamp = stamp(&program).ok()?;
        Some(format!("{} {stamp}", program.display()))
    }

    fn keep(&self, id: SandboxId, into: &Path, most: u64) -> Result<(), ProviderError> {
        let keep = || {
            // Held from here on, as they go with the processes.
            let files = Files::of(self.group(id).processes())?;
            let mut command = self.command();
            command
                .arg("checkpoint")
                .arg("--image-path")
                .arg(into)
                .arg(id.to_string());
            write::watched(command, into, most)?;
            files.keep(into, most)
        };
        keep().attempt(|| format!("keep the processes of sandbox {id} by {}", self.command.display()))
    }

    fn processes(&self, id: SandboxId) -> Option<u32> {
        match self.kernel {
            Kernel::OfTheMachine(_) => None,
            Kernel::Own => self.count(id),
        }
    }
}

/// Where the file of a command is.
fn find(command: &Path) -> Option<PathBuf> {
    if command.components().count() > 1 {
        return Some(command.to_owned());
    }
    let folders = std::env::var_os("PATH")?;
    let mut places = std::env::split_paths(&folders).map(|folder| folder.join(command));
    places.find(|place| place.is_file())
}

fn panicked<T>() -> Result<T, ProviderError> {
    Err(ProviderError::failed(
        "make a sandbox",
        "a thread that made a part of it panicked",
    ))
}
