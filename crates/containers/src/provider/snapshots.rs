//! Keeping disks and bringing them back.

use domain::{SessionId, SnapshotId};
use sandbox::{ProviderError, SandboxState, SnapshotStatus};

use super::places::Place;
use super::{Held, Shared, free_of};

impl Shared {
    pub(super) fn snapshot(&self, session: SessionId, snapshot: SnapshotId) -> Result<SnapshotStatus, ProviderError> {
        let _alone = self.places.take([Place::Disk(session), Place::Snapshot(snapshot)]);
        let keep = |shown| self.workshop.pool.snapshot(session, snapshot, shown);
        let holder = self
            .sandboxes()
            .values()
            .find(|held| held.session() == session)
            .cloned();
        match holder.map(|held| held.in_turn(|held| held.stand_still(keep))) {
            // It was destroyed this moment.
            None | Some(Err(ProviderError::NotFound(_))) => keep(false),
            Some(kept) => kept,
        }
    }

    pub(super) fn restore(&self, snapshot: SnapshotId, session: SessionId) -> Result<(), ProviderError> {
        let _alone = self.places.take([Place::Disk(session), Place::Snapshot(snapshot)]);
        free_of(&self.sandboxes(), session)?;
        // What ran on the files before never sees these.
        self.workshop.asleep.forget(session)?;
        self.workshop.pool.restore(snapshot, session)?;
        // Whoever is owed the disk forgets the debt next.
        self.workshop.pool.settle()
    }
}

impl Held {
    /// Does something while none of its processes moves. It is told whether there are any.
    pub(super) fn stand_still<T>(
        &self,
        act: impl FnOnce(bool) -> Result<T, ProviderError>,
    ) -> Result<T, ProviderError> {
        match self.status().map(|status| status.state) {
            Some(SandboxState::Running) => {}
            Some(SandboxState::Frozen) => return act(true),
            Some(SandboxState::Dead { .. }) | None => return act(false),
        }
        self.folder.note_standing()?;
        let done = self.freeze().and_then(|()| act(true));
        self.go_on()?;
        done
    }

    /// Lets a sandbox go on that was only held still for a moment.
    pub(super) fn go_on(&self) -> Result<(), ProviderError> {
        self.thaw()?;
        self.folder.forget_standing()
    }
}
