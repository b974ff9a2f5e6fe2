//! A provider without machines, for the tests of whoever uses sandboxes.
//!
//! Link directories and disks are real; the sandbox is a task of this process, which can be frozen as a whole. What it does
//! is a [`Program`]: by default it dials the link and dials again, as every runtime does.

mod asleep;
mod gate;
mod images;
mod program;
mod snapshots;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use domain::{SandboxId, SessionId, SnapshotId, Timestamp};
use lifecycle::{DropGuard, Tasks};
use tempfile::TempDir;

use self::gate::Gate;
pub use self::program::{Program, Started, dialing};
use crate::conformance::Shell;
use crate::{
    ImageDigest, ImageStatus, Kept, ProviderError, SandboxProvider, SandboxSpec, SandboxState, SandboxStatus,
    SandboxUsage, SnapshotStatus, Snapshots, inside,
};

/// The names under which a program finds the session's files, and what it has of its image, beside its link; and a snapshot has
/// them.
const WORKSPACE: &str = "workspace";
const KNOWLEDGE: &str = "knowledge";

/// A provider whose sandboxes are tasks.
pub struct Simulator {
    world: Arc<World>,
    /// What this provider holds as long as it lives: the listening sockets.
    links: Mutex<BTreeMap<SandboxId, UnixListener>>,
}

/// What outlives a provider: its machines.
struct World {
    folder: TempDir,
    images: Mutex<BTreeMap<ImageDigest, ImageStatus>>,
    /// Images that were made of builders.
    commits: AtomicU64,
    program: Program,
    tasks: Tasks,
    machines: Mutex<BTreeMap<SandboxId, Machine>>,
    /// Whether processes are kept; and what is kept of sessions'.
    keeps: AtomicBool,
    asleep: Mutex<BTreeMap<SessionId, Machine>>,
    faults: Mutex<Vec<ProviderError>>,
}

struct Machine {
    spec: SandboxSpec,
    /// The session that it was given to, where it was made ahead.
    assigned: Option<SessionId>,
    created: Timestamp,
    /// The directory of its link, which its program goes on to know where it was kept meanwhile.
    link: PathBuf,
    gate: Arc<Gate>,
    /// Ends the task; gone when the machine is dead.
    life: Option<DropGuard>,
    task: Option<tokio::task::JoinHandle<()>>,
}

impl Simulator {
    /// A provider that knows these images and starts this program in each sandbox. Its files are temporary.
    ///
    /// # Errors
    /// Where no temporary folder can be made.
    pub fn new(images: impl IntoIterator<Item = ImageDigest>, program: Program) -> std::io::Result<Self> {
        Ok(Self {
            world: Arc::new(World {
                folder: TempDir::with_prefix("belljar-simulator-")?,
                images: Mutex::new(images.into_iter().map(images::first).collect()),
                commits: AtomicU64::new(0),
                program,
                tasks: Tasks::new(),
                machines: Mutex::default(),
                keeps: AtomicBool::new(false),
                asleep: Mutex::default(),
                faults: Mutex::default(),
            }),
            links: Mutex::default(),
        })
    }

    /// Another provider over the same machines, as if the first had been started anew.
    ///
    /// # Errors
    /// Where a link's socket cannot be made again.
    pub fn restarted(&self) -> Result<Self, ProviderError> {
        let restarted = Self {
            world: Arc::clone(&self.world),
            links: Mutex::default(),
        };
        for (id, machine) in &*held(&self.world.machines) {
            restarted.listen(*id, &machine.link)?;
        }
        Ok(restarted)
    }

    /// Ends the processes of a sandbox, as a crash would. False: there is no such sandbox.
    pub fn kill(&self, id: SandboxId) -> bool {
        let mut machines = held(&self.world.machines);
        let Some(machine) = machines.get_mut(&id) else {
            return false;
        };
        machine.life = None;
        true
    }

    /// Makes the next `create` fail with this.
    pub fn fail_next_create(&self, error: ProviderError) {
        held(&self.world.faults).push(error);
    }

    /// The folder of a session's files.
    #[must_use]
    pub fn workspace(&self, session: SessionId) -> PathBuf {
        self.world.disk(session)
    }

    /// The folder of what a session has at [`inside::KNOWLEDGE`].
    #[must_use]
    pub fn knowledge(&self, session: SessionId) -> PathBuf {
        self.world.knowledge(session)
    }

    /// Runs commands in the folders of its sandboxes, as whoever runs this.
    #[must_use]
    pub fn shell(&self) -> Shell {
        let world = Arc::clone(&self.world);
        Box::new(move |_, status, command| {
            let (folder, knowledge) = (world.disk(status.session), world.knowledge(status.session));
            Box::pin(async move {
                let mut shell = tokio::process::Command::new("sh");
                shell.env("KNOWLEDGE", knowledge);
                match shell.args(["-c", &command]).current_dir(folder).output().await {
                    Ok(output) => {
                        let words = [output.stdout, output.stderr].concat();
                        (
                            String::from_utf8_lossy(&words).into_owned(),
                            output.status.code().unwrap_or(-1),
                        )
                    }
                    Err(error) => (error.to_string(), -1),
                }
            })
        })
    }

    fn listen(&self, id: SandboxId, link: &Path) -> Result<(), ProviderError> {
        let socket = link.join(inside::LINK_SOCKET);
        let attempt = || format!("listen on {}", socket.display());
        if socket.exists() {
            fs::remove_file(&socket).map_err(|error| ProviderError::failed(attempt(), error))?;
        }
        let listener = UnixListener::bind(&socket).map_err(|error| ProviderError::failed(attempt(), error))?;
        listener
            .set_nonblocking(true)
            .map_err(|error| ProviderError::failed(attempt(), error))?;
        held(&self.links).insert(id, listener);
        Ok(())
    }

    fn admit(&self, spec: &SandboxSpec) -> Result<(), ProviderError> {
        if let Some(fault) = held(&self.world.faults).pop() {
            return Err(fault);
        }
        self.allow(spec)
    }

    /// Refuses what can be neither made nor woken.
    fn allow(&self, spec: &SandboxSpec) -> Result<(), ProviderError> {
        spec.limits.check()?;
        if !held(&self.world.images).contains_key(&spec.image) {
            return Err(ProviderError::ImageMissing {
                image: spec.image.clone(),
                reason: "the simulator was not told of it".into(),
            });
        }
        if held(&self.world.machines).contains_key(&spec.id) {
            return Err(ProviderError::Exists(spec.id));
        }
        self.free_of(spec.session)
    }

    /// Refuses where the session has a sandbox.
    fn free_of(&self, session: SessionId) -> Result<(), ProviderError> {
        let machines = held(&self.world.machines);
        match machines.values().find(|machine| machine.occupies(session)) {
            Some(holder) => Err(ProviderError::DiskInUse {
                session,
                sandbox: holder.spec.id,
            }),
            None => Ok(()),
        }
    }

    fn on_living<T>(&self, id: SandboxId, act: impl FnOnce(&Machine) -> T) -> Result<T, ProviderError> {
        let machines = held(&self.world.machines);
        let machine = machines.get(&id).ok_or(ProviderError::NotFound(id))?;
        if let SandboxState::Dead { reason } = machine.state() {
            return Err(ProviderError::Dead { id, reason });
        }
        Ok(act(machine))
    }

    fn describe(&self, machine: &Machine) -> SandboxStatus {
        SandboxStatus {
            id: machine.spec.id,
            session: machine.session(),
            image: machine.spec.image.clone(),
            state: machine.state(),
            // The program is a task of this process: to a socket's other end it is whoever made this folder.
            root_uid: fs::metadata(self.world.folder.path()).map_or(0, |folder| folder.uid()),
            created: machine.created,
            builder: machine.spec.builder,
        }
    }
}

impl World {
    fn disk(&self, session: SessionId) -> PathBuf {
        self.folder.path().join("disks").join(session.to_string())
    }

    fn knowledge(&self, session: SessionId) -> PathBuf {
        self.folder.path().join("knowledge").join(session.to_string())
    }
}

impl Machine {
    /// Whose it is.
    fn session(&self) -> SessionId {
        self.assigned.unwrap_or(self.spec.session)
    }

    /// Whether nobody else may have a disk for this session.
    fn occupies(&self, session: SessionId) -> bool {
        self.spec.session == session || self.assigned == Some(session)
    }

    /// Ends its program, and removes all of it but the disk.
    async fn end(mut self) -> Result<(), ProviderError> {
        self.life = None;
        if let Some(task) = self.task.take() {
            // A task that panicked has ended too.
            let _ended = task.await;
        }
        remove(&self.link)
    }

    fn state(&self) -> SandboxState {
        let ended = self.task.as_ref().is_none_or(tokio::task::JoinHandle::is_finished);
        if ended || self.life.is_none() {
            SandboxState::Dead {
                reason: "its program has ended".into(),
            }
        } else if self.gate.is_shut() {
            SandboxState::Frozen
        } else {
            SandboxState::Running
        }
    }
}

#[async_trait]
impl SandboxProvider for Simulator {
    async fn create(&self, spec: &SandboxSpec) -> Result<SandboxStatus, ProviderError> {
        self.admit(spec)?;
        self.forget(spec.session).await?;
        let link = self.world.folder.path().join("links").join(spec.id.to_string());
        let disk = self.workspace(spec.session);
        for folder in [&link, &disk] {
            fs::create_dir_all(folder)
                .map_err(|error| ProviderError::failed(format!("make {}", folder.display()), error))?;
        }
        self.furnish(&spec.image, spec.session)?;
        self.listen(spec.id, &link)?;
        // As mounts do: they lead to the files, whatever the disk is called later.
        let (workspace, knowledge) = (link.join(WORKSPACE), link.join(KNOWLEDGE));
        lead(&workspace, &disk)?;
        lead(&knowledge, &self.knowledge(spec.session))?;
        let gate = Arc::new(Gate::default());
        let life = self.world.tasks.child();
        let program = (self.world.program)(Started {
            id: spec.id,
            session: spec.session,
            socket: link.join(inside::LINK_SOCKET),
            workspace,
            knowledge,
        });
        let task = life.spawn_until_stopped(gate.guard(program));
        let machine = Machine {
            spec: spec.clone(),
            assigned: None,
            created: Timestamp::now(),
            link,
            gate,
            life: Some(life.stop().drop_guard()),
            task: Some(task),
        };
        let status = self.describe(&machine);
        held(&self.world.machines).insert(spec.id, machine);
        Ok(status)
    }

    async fn assign(&self, id: SandboxId, session: SessionId) -> Result<SandboxStatus, ProviderError> {
        let mut machines = held(&self.world.machines);
        let machine = machines.get(&id).ok_or(ProviderError::NotFound(id))?;
        if let SandboxState::Dead { reason } = machine.state() {
            return Err(ProviderError::Dead { id, reason });
        }
        match machine.assigned {
            None if machine.spec.builder => return Err(ProviderError::Assigned(id)),
            None => {}
            Some(owner) if owner == session => return Ok(self.describe(machine)),
            Some(_) => return Err(ProviderError::Assigned(id)),
        }
        let (from, to) = (self.workspace(machine.spec.session), self.workspace(session));
        let taken = machines.values().find(|machine| machine.occupies(session));
        if let Some(holder) = taken {
            let sandbox = holder.spec.id;
            return Err(ProviderError::DiskInUse { session, sandbox });
        }
        if to.exists() {
            return Err(ProviderError::DiskExists(session));
        }
        let machine = machines.get_mut(&id).ok_or(ProviderError::NotFound(id))?;
        machine.assigned = Some(session);
        fs::rename(&from, &to)
            .map_err(|error| ProviderError::failed(format!("rename the disk {}", from.display()), error))?;
        let link = machine.link.clone();
        lead(&link.join(WORKSPACE), &to)?;
        let (before, knowledge) = (self.knowledge(machine.spec.session), self.knowledge(session));
        fs::rename(&before, &knowledge)
            .map_err(|error| ProviderError::failed(format!("rename the folder {}", before.display()), error))?;
        lead(&link.join(KNOWLEDGE), &knowledge)?;
        Ok(self.describe(machine))
    }

    async fn link(&self, id: SandboxId) -> Result<UnixListener, ProviderError> {
        held(&self.links)
            .get(&id)
            .ok_or(ProviderError::NotFound(id))?
            .try_clone()
            .map_err(|error| ProviderError::failed(format!("copy the link of sandbox {id}"), error))
    }

    async fn freeze(&self, id: SandboxId) -> Result<(), ProviderError> {
        self.on_living(id, |machine| machine.gate.shut())
    }

    async fn thaw(&self, id: SandboxId) -> Result<(), ProviderError> {
        self.on_living(id, |machine| machine.gate.open())
    }

    async fn destroy(&self, id: SandboxId) -> Result<(), ProviderError> {
        let machine = held(&self.world.machines).remove(&id);
        held(&self.links).remove(&id);
        match machine {
            Some(machine) => machine.end().await,
            None => Ok(()),
        }
    }

    async fn hibernate(&self, id: SandboxId) -> Result<Kept, ProviderError> {
        self.put_to_sleep(id).await
    }

    async fn wake(&self, spec: &SandboxSpec) -> Result<SandboxStatus, ProviderError> {
        self.allow(spec)?;
        self.let_go_on(spec).await
    }

    async fn forget(&self, session: SessionId) -> Result<(), ProviderError> {
        let asleep = held(&self.world.asleep).remove(&session);
        match asleep {
            Some(machine) => machine.end().await,
            None => Ok(()),
        }
    }

    async fn status(&self, id: SandboxId) -> Result<SandboxStatus, ProviderError> {
        let machines = held(&self.world.machines);
        machines
            .get(&id)
            .map(|machine| self.describe(machine))
            .ok_or(ProviderError::NotFound(id))
    }

    async fn usage(&self, id: SandboxId) -> Result<SandboxUsage, ProviderError> {
        self.on_living(id, |_| SandboxUsage {
            pids: 1,
            ..SandboxUsage::default()
        })
    }

    async fn words(&self, id: SandboxId) -> Result<String, ProviderError> {
        let machines = held(&self.world.machines);
        machines
            .get(&id)
            .map(|_| String::new())
            .ok_or(ProviderError::NotFound(id))
    }

    async fn list(&self) -> Result<Vec<SandboxStatus>, ProviderError> {
        let machines = held(&self.world.machines);
        Ok(machines.values().map(|machine| self.describe(machine)).collect())
    }

    async fn disks(&self) -> Result<Vec<SessionId>, ProviderError> {
        let folder = self.world.folder.path().join("disks");
        let attempt = |error| ProviderError::failed(format!("list {}", folder.display()), error);
        let entries = match fs::read_dir(&folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(attempt)?,
        };
        let mut sessions = Vec::new();
        for entry in entries {
            let name = entry.map_err(attempt)?.file_name();
            sessions.extend(name.to_str().and_then(|name| name.parse::<SessionId>().ok()));
        }
        sessions.sort_unstable();
        Ok(sessions)
    }

    async fn remove_disk(&self, session: SessionId) -> Result<(), ProviderError> {
        self.free_of(session)?;
        self.forget(session).await?;
        remove(&self.knowledge(session))?;
        remove(&self.workspace(session))
    }

    async fn snapshot(&self, session: SessionId, snapshot: SnapshotId) -> Result<SnapshotStatus, ProviderError> {
        self.keep(session, snapshot)
    }

    async fn restore(&self, snapshot: SnapshotId, session: SessionId) -> Result<(), ProviderError> {
        self.free_of(session)?;
        // What ran on the files before never sees these.
        self.forget(session).await?;
        self.bring_back(snapshot, session)
    }

    async fn remove_snapshot(&self, snapshot: SnapshotId) -> Result<(), ProviderError> {
        remove(&self.kept(snapshot))
    }

    async fn snapshots(&self) -> Result<Snapshots, ProviderError> {
        self.all_kept()
    }

    async fn commit(&self, id: SandboxId) -> Result<ImageDigest, ProviderError> {
        self.keep_image(id)
    }

    async fn images(&self) -> Result<Vec<ImageStatus>, ProviderError> {
        Ok(held(&self.world.images).values().cloned().collect())
    }

    async fn remove_image(&self, image: &ImageDigest) -> Result<(), ProviderError> {
        self.drop_image(image)
    }
}

/// Removes a folder; one that is not there is removed already.
fn remove(folder: &Path) -> Result<(), ProviderError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(ProviderError::failed(format!("remove {}", folder.display()), error))
        }
        _ => Ok(()),
    }
}

/// Makes a link lead there, at once.
fn lead(link: &Path, to: &Path) -> Result<(), ProviderError> {
    let beside = link.with_extension("new");
    std::os::unix::fs::symlink(to, &beside)
        .and_then(|()| fs::rename(&beside, link))
        .map_err(|error| ProviderError::failed(format!("lead {} to {}", link.display(), to.display()), error))
}

/// What a panicking test leaves behind is still whole: every change under these locks is a single one.
fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
