//! A sandbox as its provider holds it.

use std::os::unix::net::UnixListener;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use sandbox::ProviderError;

use super::folder;
use crate::attempt::Attempt;
use crate::cgroup::Group;
use crate::create::Workshop;
use crate::process::Process;
use crate::record::{Folder, Record};
use crate::words::Words;

/// How long a process may take to be gone once it was killed.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    There,
    Gone,
}

#[derive(Debug)]
pub(super) struct Held {
    pub(super) record: Record,
    pub(super) folder: Folder,
    pub(super) group: Group,
    listener: OnceLock<UnixListener>,
    /// Unset where another process made the sandbox: it alone held them.
    pub(super) words: OnceLock<Words>,
    /// Unset while the sandbox is being made; none where its process was gone when it was found.
    process: OnceLock<Option<Process>>,
    /// Held by whoever changes the sandbox.
    turn: Mutex<Stage>,
}

impl Held {
    pub(super) fn new(workshop: &Workshop, record: Record) -> Self {
        Self {
            folder: folder(workshop, &record.spec.id.to_string()),
            group: workshop.hierarchies.group(record.spec.id),
            record,
            listener: OnceLock::new(),
            words: OnceLock::new(),
            process: OnceLock::new(),
            turn: Mutex::new(Stage::There),
        }
    }

    pub(super) fn listens(&self, listener: UnixListener) {
        // Called once for each sandbox; a second socket would only be closed.
        let _second = self.listener.set(listener);
    }

    pub(super) fn lives(&self, process: Option<Process>) {
        // Called once for each sandbox.
        let _second = self.process.set(process);
    }

    pub(super) fn is_made(&self) -> bool {
        self.process.get().is_some()
    }

    pub(super) fn process(&self) -> Option<&Option<Process>> {
        self.process.get()
    }

    pub(super) fn link(&self) -> Result<UnixListener, ProviderError> {
        let id = self.record.spec.id;
        let listener = self.listener.get().ok_or(ProviderError::NotFound(id))?;
        listener
            .try_clone()
            .attempt(|| format!("copy the link of sandbox {id}"))
    }

    /// Changes it when nobody else does.
    pub(super) fn in_turn<T>(&self, act: impl FnOnce(&Self) -> Result<T, ProviderError>) -> Result<T, ProviderError> {
        let stage = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if *stage == Stage::Gone {
            return Err(ProviderError::NotFound(self.record.spec.id));
        }
        act(self)
    }

    /// Kills what lives and removes what is there; whoever comes later finds it gone.
    pub(super) fn destroy(&self, workshop: &Workshop) -> Result<(), ProviderError> {
        let mut stage = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if *stage == Stage::There {
            self.clear(workshop)?;
            *stage = Stage::Gone;
        }
        Ok(())
    }

    fn clear(&self, workshop: &Workshop) -> Result<(), ProviderError> {
        let id = self.record.spec.id;
        if let Some(Some(process)) = self.process.get() {
            // With PID 1 the kernel ends every process of its namespace.
            process.kill();
        }
        self.group
            .remove()
            .attempt(|| format!("end the processes of sandbox {id} and remove its cgroups"))?;
        if let Some(Some(process)) = self.process.get() {
            if !process.ends_within(PATIENCE) {
                let still = format!("it still lives after {PATIENCE:?}");
                return Err(ProviderError::failed(format!("end PID 1 of sandbox {id}"), still));
            }
            process.bury();
        }
        workshop.forget(&self.record.spec)?;
        self.folder.remove()
    }
}
