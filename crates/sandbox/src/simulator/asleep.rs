//! Programs that are kept while nobody uses their sandboxes: each stands still where it was, with all that it knows.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use domain::{SandboxId, Timestamp};

use super::{Machine, Simulator, held};
use crate::{Kept, ProviderError, SandboxProvider, SandboxSpec, SandboxState, SandboxStatus, inside};

impl Simulator {
    /// From now on, or no longer, the programs of sandboxes that are hibernated are kept.
    pub fn keep_processes(&self, keep: bool) {
        self.world.keeps.store(keep, Ordering::SeqCst);
    }

    pub(super) async fn put_to_sleep(&self, id: SandboxId) -> Result<Kept, ProviderError> {
        let gone = Kept::Nothing { reason: None };
        let session = {
            let machines = held(&self.world.machines);
            let Some(machine) = machines.get(&id) else {
                let asleep = held(&self.world.asleep);
                let was_kept = asleep.values().any(|machine| machine.spec.id == id);
                return Ok(if was_kept { Kept::Processes } else { gone });
            };
            let lives = !matches!(machine.state(), SandboxState::Dead { .. });
            (lives && !machine.spec.builder).then(|| machine.session())
        };
        let Some(session) = session.filter(|_| self.world.keeps.load(Ordering::SeqCst)) else {
            self.destroy(id).await?;
            return Ok(gone);
        };
        let machine = held(&self.world.machines).remove(&id);
        held(&self.links).remove(&id);
        if let Some(machine) = machine {
            machine.gate.shut();
            let socket = machine.link.join(inside::LINK_SOCKET);
            fs::remove_file(&socket)
                .map_err(|error| ProviderError::failed(format!("remove {}", socket.display()), error))?;
            held(&self.world.asleep).insert(session, machine);
        }
        Ok(Kept::Processes)
    }

    pub(super) async fn let_go_on(&self, spec: &SandboxSpec) -> Result<SandboxStatus, ProviderError> {
        let session = spec.session;
        let nothing = |reason: &str| ProviderError::NothingKept {
            session,
            reason: reason.to_owned(),
        };
        let asleep = held(&self.world.asleep).remove(&session);
        let asleep = asleep.ok_or_else(|| nothing("none are kept"))?;
        if (&asleep.spec.image, asleep.spec.limits) != (&spec.image, spec.limits) {
            asleep.end().await?;
            return Err(nothing("they had another image, or other limits"));
        }
        let machine = Machine {
            spec: spec.clone(),
            assigned: None,
            created: Timestamp::now(),
            ..asleep
        };
        self.listen(spec.id, &machine.link)?;
        let gate = Arc::clone(&machine.gate);
        gate.open();
        let status = self.describe(&machine);
        held(&self.world.machines).insert(spec.id, machine);
        Ok(status)
    }
}
