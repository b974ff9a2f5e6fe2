//! Giving a sandbox that was made ahead to a session.
//!
//! The record says whose it is before the disk does: what was killed in between is finished by the next provider.

use domain::{SandboxId, SessionId};
use sandbox::{ProviderError, SandboxStatus};

use super::places::Place;
use super::{Shared, free_of};
use crate::record::Record;

impl Shared {
    pub(super) fn assign(&self, id: SandboxId, session: SessionId) -> Result<SandboxStatus, ProviderError> {
        let held = self.find(id)?;
        let made_for = held.record.spec.session;
        let _alone = self.places.take([Place::Disk(made_for), Place::Disk(session)]);
        held.in_turn(|held| {
            held.living()?;
            {
                // All at once, so that no sandbox is made for the session meanwhile.
                let sandboxes = self.sandboxes();
                match held.assigned() {
                    // What is left of it is done below, should it have failed before.
                    Some(owner) if owner == session => {}
                    Some(_) => return Err(ProviderError::Assigned(id)),
                    None if held.record.spec.builder => return Err(ProviderError::Assigned(id)),
                    None => {
                        free_of(&sandboxes, session)?;
                        if self.workshop.pool.has(session)? {
                            return Err(ProviderError::DiskExists(session));
                        }
                        held.belongs_to(session)?;
                    }
                }
            }
            let process = held.process().and_then(Option::as_ref);
            held.folder.write(&Record {
                assigned: Some(session),
                process: process.map(|process| process.identity),
                ..held.record.clone()
            })?;
            self.workshop.pool.give(made_for, session)?;
            held.status().ok_or(ProviderError::NotFound(id))
        })
    }

    pub(super) fn settle(&self) {
        if let Err(error) = self.workshop.pool.settle() {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "a power cut at this moment may take a session's disk away"
            );
        }
    }
}
