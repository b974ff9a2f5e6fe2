//! What there is, compared with what should be: when this process begins, and for as long as it lives.
//!
//! A sandbox that nobody here uses is removed, a disk of a session that does not exist too; each only when it was seen so for
//! a while, as what is being made or given away at the moment looks the same. Where the store does not answer, nothing goes.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::time::Duration;

use causes::with_causes;
use domain::{SandboxId, SessionId};
use sandbox::{ProviderError, SandboxState, SandboxStatus};
use store::{Asker, StoreError};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::keeping::UNUSED;
use super::{Left, State};
use crate::Control;
use crate::live::lock;

/// How often what there is is compared.
const PERIOD: Duration = Duration::from_secs(60);
/// How soon a provider is asked again that was not there when this process began; it may take its time to say so.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Why what there is was not compared.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReconcileError {
    #[error("could not list what there is")]
    Provider(#[source] ProviderError),
    #[error("could not look up whose it is")]
    Store(#[source] StoreError),
}

/// What is too much, and since when.
#[derive(Debug)]
pub(crate) struct Suspects<K>(HashMap<K, Instant>);

impl<K> Default for Suspects<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash + Copy> Suspects<K> {
    /// Of these, those that were among them each time for so long.
    pub(crate) fn ripe(&mut self, now: HashSet<K>, grace: Duration) -> Vec<K> {
        self.0.retain(|known, _| now.contains(known));
        let instant = Instant::now();
        for key in now {
            self.0.entry(key).or_insert(instant);
        }
        let ripe = self
            .0
            .iter()
            .filter(|(_, since)| instant.duration_since(**since) >= grace);
        ripe.map(|(key, _)| *key).collect()
    }
}

impl Control {
    /// Learns what sandboxes a process before this one left. Those of sessions are adopted by them, or removed when they were
    /// not needed for as long as an idle one is kept; those of nobody, as were made ahead, are removed. Their disks are
    /// left to who removes nobody's disks: a store that was put back knows as little of a session as of one made ahead. Says
    /// whether there was an answer; until then nothing is removed.
    pub(super) async fn find_left(&self) -> bool {
        let mut left = match self.0.housing.provider.list().await {
            Ok(left) => left,
            Err(error) => {
                tracing::warn!(
                    error = with_causes(&error),
                    "could not list the sandboxes that are there; trying again"
                );
                return false;
            }
        };
        let there: HashSet<_> = left.iter().map(|status| status.id).collect();
        if let Err(error) = self.tell_of_the_gone(&there).await {
            tracing::warn!(
                error = with_causes(&error),
                "could not write down which sandboxes are gone"
            );
        }
        // Some may have been made by this process while the host agent did not answer.
        left.retain(|status| !self.is_accounted_for(status) && !self.is_at_work(status.session));
        for status in left {
            let session = match self.0.store.session(Asker::System, status.session).await {
                Err(StoreError::NotFound { .. }) => {
                    self.remove_nobodys(&status).await;
                    continue;
                }
                session => session.ok(),
            };
            let is_away = session.as_ref().is_some_and(|session| session.archived.is_some());
            let left = Left {
                owner: session.map(|session| session.owner),
                is_idle: is_away || status.state != SandboxState::Running,
                status,
            };
            lock(&self.0.housing.left).insert(left.status.session, left);
        }
        true
    }

    /// Whether a session has its sandbox, or is being given one.
    fn is_at_work(&self, session: SessionId) -> bool {
        let live = self.0.lives.find(session);
        live.is_some_and(|live| live.seat.housed.try_lock().map_or(true, |seat| seat.is_some()))
    }

    /// Says of sessions whose sandbox went while no process was here to see it that their processes are gone.
    async fn tell_of_the_gone(&self, there: &HashSet<SandboxId>) -> Result<(), StoreError> {
        let store = &self.0.store;
        let housed = store.housed_sessions(Asker::System).await?.into_iter();
        for (session, sandbox) in housed.filter(|(_, sandbox)| !there.contains(sandbox)) {
            if self.is_at_work(session) {
                continue;
            }
            let (state, why) = (
                State::Hibernated.name(),
                "it ended while nobody watched; its files are kept",
            );
            store
                .set_sandbox(Asker::System, session, sandbox, state, Some(why))
                .await?;
        }
        Ok(())
    }

    /// Begins to compare what there is with what should be.
    pub(super) fn begin_reconciling(&self, mut found_left: bool) {
        let control = self.clone();
        self.0.tasks.spawn_until_stopped(async move {
            // Whoever comes back meanwhile has sandboxes that sessions wait for.
            while !found_left {
                sleep(ASK_AGAIN).await;
                found_left = control.find_left().await;
                if found_left {
                    control.begin_hearing();
                }
            }
            let began = Instant::now();
            let period = PERIOD.min(control.0.config.hibernate_after);
            let mut sandboxes = Suspects(HashMap::new());
            let mut disks = Suspects(HashMap::new());
            let mut ticks = interval(period);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                let now = ticks.tick().await;
                if now.duration_since(began) >= control.0.config.hibernate_after {
                    control.put_all_left_to_sleep().await;
                }
                let compared = async {
                    control.remove_unused(&mut sandboxes, period).await?;
                    control.remove_nobodys_disks(&mut disks).await
                };
                if let Err(error) = compared.await {
                    tracing::warn!(
                        error = with_causes(&error),
                        "what there is was not compared with what should be"
                    );
                }
            }
        });
    }

    /// Puts those of sessions to sleep that did not need them.
    async fn put_all_left_to_sleep(&self) {
        let left = std::mem::take(&mut *lock(&self.0.housing.left));
        for left in left.into_values() {
            self.put_left_to_sleep(left, UNUSED).await;
        }
    }

    /// Removes sandboxes that are neither a session's nor waiting for one.
    async fn remove_unused(&self, suspects: &mut Suspects<SandboxId>, grace: Duration) -> Result<(), ReconcileError> {
        let listed = self.0.housing.provider.list().await;
        let mut listed = listed.map_err(ReconcileError::Provider)?;
        listed.retain(|status| !self.is_accounted_for(status));
        let ripe = suspects.ripe(listed.iter().map(|status| status.id).collect(), grace);
        for status in listed.iter().filter(|status| ripe.contains(&status.id)) {
            // It may have found its session since.
            if self.is_accounted_for(status) {
                continue;
            }
            tracing::info!(sandbox = %status.id, session = %status.session, "removing a sandbox that nobody uses");
            if let Err(error) = self.destroy(status.session, status.id).await {
                tracing::warn!(sandbox = %status.id, error = with_causes(&error), "could not remove a sandbox that nobody uses");
            }
        }
        Ok(())
    }

    fn is_accounted_for(&self, status: &SandboxStatus) -> bool {
        let housing = &self.0.housing;
        housing.resident(status.id).is_some()
            || housing.warm.has(status.id)
            || lock(&housing.left).values().any(|left| left.status.id == status.id)
    }

    /// Removes the disks of sessions that the store says do not exist.
    async fn remove_nobodys_disks(&self, suspects: &mut Suspects<SessionId>) -> Result<(), ReconcileError> {
        let provider = &self.0.housing.provider;
        let disks = provider.disks().await.map_err(ReconcileError::Provider)?;
        let known = self.0.store.sessions_among(Asker::System, disks.clone()).await;
        let known = known.map_err(ReconcileError::Store)?;
        let listed = provider.list().await.map_err(ReconcileError::Provider)?;
        let in_use: HashSet<_> = listed.into_iter().map(|status| status.session).collect();
        let nobodys = disks.into_iter();
        let nobodys = nobodys.filter(|session| !known.contains(session) && !in_use.contains(session));
        for session in suspects.ripe(nobodys.collect(), self.0.config.disk_grace) {
            tracing::warn!(%session, "removing the disk of a session that does not exist");
            if let Err(error) = provider.remove_disk(session).await {
                tracing::warn!(%session, error = with_causes(&error), "could not remove a disk that is nobody's");
            }
        }
        Ok(())
    }

    /// Removes a sandbox of nobody; its disk stays.
    async fn remove_nobodys(&self, status: &SandboxStatus) {
        if let Err(error) = self.destroy(status.session, status.id).await {
            tracing::warn!(sandbox = %status.id, error = with_causes(&error), "could not remove a sandbox that is nobody's");
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_what_was_there_each_time_for_long_enough_is_too_much() {
        const GRACE: Duration = Duration::from_secs(60);
        let mut suspects = Suspects(HashMap::new());
        assert!(suspects.ripe(HashSet::from([1, 2]), GRACE).is_empty());
        advance(GRACE / 2).await;
        // The second is somebody's for a moment.
        assert!(suspects.ripe(HashSet::from([1]), GRACE).is_empty());
        advance(GRACE / 2).await;
        assert_eq!(suspects.ripe(HashSet::from([1, 2]), GRACE), [1]);
    }
}
