//! A provider without machines, for the tests of whoever uses sandboxes.
//!
//! Link directories and disks are real; the sandbox is a task of this process, which can be frozen as a whole. What it does
//! is a [`Program`]: by default it dials the link and dials again, as every runtime does.

mod gate;
mod program;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use domain::{SandboxId, SessionId, Timestamp};
use lifecycle::{DropGuard, Tasks};
use tempfile::TempDir;

use self::gate::Gate;
pub use self::program::{Program, Started, dialing};
use crate::{
    ImageDigest, ProviderError, SandboxProvider, SandboxSpec, SandboxState, SandboxStatus, SandboxUsage, inside,
};

/// A provider whose sandboxes are tasks.
pub struct Simulator {
    world: Arc<World>,
    /// What this provider holds as long as it lives: the listening sockets.
    links: Mutex<BTreeMap<SandboxId, UnixListener>>,
}

/// What outlives a provider: its machines.
struct World {
    folder: TempDir,
    images: BTreeSet<ImageDigest>,
    program: Program,
    tasks: Tasks,
    machines: Mutex<BTreeMap<SandboxId, Machine>>,
    faults: Mutex<Vec<ProviderError>>,
}

struct Machine {
    spec: SandboxSpec,
    created: Timestamp,
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
                images: images.into_iter().collect(),
                program,
                tasks: Tasks::new(),
                machines: Mutex::default(),
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
        for id in held(&self.world.machines).keys() {
            restarted.listen(*id)?;
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
        self.world.folder.path().join("disks").join(session.to_string())
    }

    fn link_directory(&self, id: SandboxId) -> PathBuf {
        self.world.folder.path().join("links").join(id.to_string())
    }

    fn listen(&self, id: SandboxId) -> Result<(), ProviderError> {
        let socket = self.link_directory(id).join(inside::LINK_SOCKET);
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
        spec.limits.check()?;
        if !self.world.images.contains(&spec.image) {
            return Err(ProviderError::ImageMissing {
                image: spec.image.clone(),
                reason: "the simulator was not told of it".into(),
            });
        }
        let machines = held(&self.world.machines);
        if machines.contains_key(&spec.id) {
            return Err(ProviderError::Exists(spec.id));
        }
        match machines.values().find(|machine| machine.spec.session == spec.session) {
            Some(holder) => Err(ProviderError::DiskInUse {
                session: spec.session,
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
            session: machine.spec.session,
            image: machine.spec.image.clone(),
            state: machine.state(),
            // The program is a task of this process: to a socket's other end it is whoever made this folder.
            root_uid: fs::metadata(self.world.folder.path()).map_or(0, |folder| folder.uid()),
            created: machine.created,
        }
    }
}

impl Machine {
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
        let (link, workspace) = (self.link_directory(spec.id), self.workspace(spec.session));
        for folder in [&link, &workspace] {
            fs::create_dir_all(folder)
                .map_err(|error| ProviderError::failed(format!("make {}", folder.display()), error))?;
        }
        self.listen(spec.id)?;
        let gate = Arc::new(Gate::default());
        let life = self.world.tasks.child();
        let program = (self.world.program)(Started {
            id: spec.id,
            session: spec.session,
            socket: link.join(inside::LINK_SOCKET),
            workspace,
        });
        let task = life.spawn_until_stopped(gate.guard(program));
        let machine = Machine {
            spec: spec.clone(),
            created: Timestamp::now(),
            gate,
            life: Some(life.stop().drop_guard()),
            task: Some(task),
        };
        let status = self.describe(&machine);
        held(&self.world.machines).insert(spec.id, machine);
        Ok(status)
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
        let Some(mut machine) = machine else {
            return Ok(());
        };
        machine.life = None;
        if let Some(task) = machine.task.take() {
            // A task that panicked has ended too.
            let _ended = task.await;
        }
        let link = self.link_directory(id);
        fs::remove_dir_all(&link).map_err(|error| ProviderError::failed(format!("remove {}", link.display()), error))
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

    async fn list(&self) -> Result<Vec<SandboxStatus>, ProviderError> {
        let machines = held(&self.world.machines);
        Ok(machines.values().map(|machine| self.describe(machine)).collect())
    }

    async fn remove_disk(&self, session: SessionId) -> Result<(), ProviderError> {
        let machines = held(&self.world.machines);
        if let Some(holder) = machines.values().find(|machine| machine.spec.session == session) {
            return Err(ProviderError::DiskInUse {
                session,
                sandbox: holder.spec.id,
            });
        }
        let disk = self.workspace(session);
        match fs::remove_dir_all(&disk) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(ProviderError::failed(format!("remove {}", disk.display()), error))
            }
            _ => Ok(()),
        }
    }
}

/// What a panicking test leaves behind is still whole: every change under these locks is a single one.
fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
