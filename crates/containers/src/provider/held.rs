//! A sandbox as its provider holds it.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use domain::SessionId;
use sandbox::{ProviderError, SandboxUsage};

use super::folder;
use crate::attempt::Attempt;
use crate::cgroup::Group;
use crate::maker::{IDS, Maker};
use crate::process::Process;
use crate::record::{Folder, Record};
use crate::words::Words;
use crate::workshop::Workshop;

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
    maker: Arc<dyn Maker>,
    /// Set once, when it is given to a session that it was not made for.
    assigned: OnceLock<SessionId>,
    listener: OnceLock<UnixListener>,
    /// Unset where another process made the sandbox and they are not found again.
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
            group: workshop.maker.group(record.spec.id),
            assigned: record.assigned.map(OnceLock::from).unwrap_or_default(),
            maker: Arc::clone(&workshop.maker),
            record,
            listener: OnceLock::new(),
            words: OnceLock::new(),
            process: OnceLock::new(),
            turn: Mutex::new(Stage::There),
        }
    }

    /// Whose it is.
    pub(super) fn session(&self) -> SessionId {
        self.assigned().unwrap_or(self.record.spec.session)
    }

    /// Whether nobody else may have a disk for this session.
    pub(super) fn occupies(&self, session: SessionId) -> bool {
        self.record.spec.session == session || self.assigned.get() == Some(&session)
    }

    /// The session that it was given to, where it was made ahead.
    pub(super) fn assigned(&self) -> Option<SessionId> {
        self.assigned.get().copied()
    }

    /// Whose it is from now on and for ever.
    pub(super) fn belongs_to(&self, session: SessionId) -> Result<(), ProviderError> {
        self.assigned
            .set(session)
            .map_err(|_| ProviderError::Assigned(self.record.spec.id))
    }

    pub(super) fn listens(&self, listener: UnixListener) {
        // Called once for each sandbox; a second socket would only be closed.
        let _second = self.listener.set(listener);
    }

    pub(super) fn lives(&self, process: Option<Process>) {
        // Called once for each sandbox.
        if self.words.get().is_none()
            && let Some(words) = process.as_ref().and_then(Words::of)
        {
            let _second = self.words.set(words);
        }
        let _second = self.process.set(process);
    }

    /// It was not made, and could not be cleared away either. It keeps its disk and its ids, and shows as dead until somebody
    /// has it destroyed.
    pub(super) fn is_in_the_way(&self, error: &ProviderError) {
        tracing::error!(sandbox = %self.record.spec.id, error = error as &dyn std::error::Error, "a sandbox that was not made could not be cleared away");
        self.lives(None);
    }

    pub(super) fn is_made(&self) -> bool {
        self.process.get().is_some()
    }

    /// Whether it ever lived; if not, nobody has used its disk.
    fn was_finished(&self) -> bool {
        self.record.process.is_some() || matches!(self.process.get(), Some(Some(_)))
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

    /// All that its PID 1 said, as far as it is kept.
    pub(super) fn said(&self) -> String {
        let kept = || self.words.get().map(Words::all).unwrap_or_default();
        self.maker.words(self.record.spec.id).unwrap_or_else(kept)
    }

    /// Whether every process was stopped.
    pub(super) fn is_frozen(&self) -> bool {
        self.group.is_frozen() || self.folder.was_stopped()
    }

    /// Stops every process where it stands.
    pub(super) fn freeze(&self) -> Result<(), ProviderError> {
        let id = self.record.spec.id;
        if self.is_frozen() {
            return Ok(());
        }
        if !self.maker.stops() {
            return self.group.freeze().attempt(|| format!("freeze sandbox {id}"));
        }
        // Written down first: what is taken for frozen can be thawed, whether it is or not.
        self.folder.note_stopped()?;
        self.maker.stop(id).or_else(|error| {
            self.thaw()?;
            Err(error)
        })
    }

    /// Lets every process go on.
    pub(super) fn thaw(&self) -> Result<(), ProviderError> {
        let id = self.record.spec.id;
        if !self.maker.stops() {
            return self.group.thaw().attempt(|| format!("thaw sandbox {id}"));
        }
        self.maker.go_on(id)?;
        self.folder.forget_stopped()
    }

    /// What its processes take.
    pub(super) fn usage(&self) -> SandboxUsage {
        let usage = self.group.usage();
        SandboxUsage {
            pids: self.maker.processes(self.record.spec.id).unwrap_or(usage.pids),
            ..usage
        }
    }

    /// Whether the kernel had to kill for want of memory.
    pub(super) fn ran_out_of_memory(&self) -> bool {
        self.group.ran_out_of_memory() || self.maker.ran_out_of_memory(self.record.spec.id)
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
            self.clear(workshop, None)?;
            *stage = Stage::Gone;
        }
        Ok(())
    }

    /// The same; what it is left by its processes, before they are killed, has its ids from then on: a folder that is there.
    pub(super) fn destroy_and_leave(
        &self,
        workshop: &Workshop,
        leave: impl FnOnce(&Self) -> Option<PathBuf>,
    ) -> Result<(), ProviderError> {
        let mut stage = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if *stage == Stage::There {
            let heir = leave(self);
            self.clear(workshop, heir.as_deref())?;
            *stage = Stage::Gone;
        }
        Ok(())
    }

    fn clear(&self, workshop: &Workshop, heir: Option<&Path>) -> Result<(), ProviderError> {
        let id = self.record.spec.id;
        if let Some(Some(process)) = self.process.get() {
            // With PID 1 the kernel ends every process of its namespace.
            process.kill();
        }
        let attempt = || format!("end the processes of sandbox {id} and remove its cgroups");
        let killed = self.group.kill().attempt(attempt)?;
        if let Some(Some(process)) = self.process.get() {
            if !process.ends_within(PATIENCE) {
                let still = format!("it still lives after {PATIENCE:?}");
                return Err(ProviderError::failed(format!("end PID 1 of sandbox {id}"), still));
            }
            process.bury();
        }
        // An engine looks for the groups that it made, so they are removed after it was told.
        workshop.maker.forget(id)?;
        self.group.remove().attempt(attempt)?;
        for process in killed {
            process.ends_within(PATIENCE);
            process.bury();
        }
        let users = self.record.root_uid..self.record.root_uid.saturating_add(IDS);
        workshop.maker.bury(&users, self.was_finished());
        if self.record.new_disk && !self.was_finished() {
            workshop.pool.remove(self.record.spec.session)?;
        }
        if let Some(heir) = heir {
            workshop.ids.hand_over(self.record.root_uid, self.folder.path(), heir)?;
        }
        self.folder.remove()?;
        match workshop.maker.root_uid() {
            Some(_) => Ok(()),
            None => workshop.ids.take_back(self.record.root_uid, &self.folder),
        }
    }
}
