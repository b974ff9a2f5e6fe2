//! Which run is next. Runs wait in the store; here is only how many are under way.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use causes::with_causes;
use domain::{RunId, SessionId};
use store::Asker;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::live::lock;
use crate::{Control, ControlError};

/// Who holds the leases. One process has the store to itself, so what another of this name held is free.
pub(crate) const HOLDER: &str = "serve";
/// Waiting runs that are looked at together.
const LOOKED_AT: u32 = 64;

/// Places for runs under way.
#[derive(Debug)]
pub(crate) struct Dispatch {
    places: Arc<Semaphore>,
    work: Notify,
    driven: Mutex<HashSet<RunId>>,
}

/// A run's place; the next run may have it when this is dropped.
#[derive(Debug)]
struct Place {
    control: Control,
    run: RunId,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.control.0.dispatch.driven).remove(&self.run);
        self.control.0.dispatch.work.notify_one();
    }
}

impl Dispatch {
    pub(crate) fn new(places: usize) -> Self {
        Self {
            places: Arc::new(Semaphore::new(places)),
            work: Notify::new(),
            driven: Mutex::default(),
        }
    }

    /// Runs that are under way here.
    pub(crate) fn driven(&self) -> Vec<RunId> {
        lock(&self.driven).iter().copied().collect()
    }
}

impl Control {
    /// Begins to take runs and to hold on to those that were taken.
    pub(crate) async fn begin_dispatch(&self) -> Result<(), ControlError> {
        self.0.store.release_runs(Asker::System, HOLDER).await?;
        let control = self.clone();
        self.0
            .tasks
            .spawn_until_stopped(async move { control.take_runs().await });
        let control = self.clone();
        self.0
            .tasks
            .spawn_until_stopped(async move { control.hold_runs().await });
        Ok(())
    }

    /// A run was stored: it begins at once if there is a place, and waits for one in the store otherwise.
    pub(crate) fn begin_run(&self, session: SessionId, run: RunId) {
        match Arc::clone(&self.0.dispatch.places).try_acquire_owned() {
            Ok(permit) => self.occupy(session, run, permit),
            Err(_) => self.0.dispatch.work.notify_one(),
        }
    }

    fn occupy(&self, session: SessionId, run: RunId, permit: OwnedSemaphorePermit) {
        if !lock(&self.0.dispatch.driven).insert(run) {
            return;
        }
        let place = Place {
            control: self.clone(),
            run,
            _permit: permit,
        };
        let control = self.clone();
        self.0.tasks.spawn(async move {
            control.drive(session, run).await;
            drop(place);
        });
    }

    /// Looks for runs that wait, when there is a place, when it is told of one, and from time to time.
    async fn take_runs(&self) {
        loop {
            if let Err(error) = self.take_waiting().await {
                tracing::error!(error = with_causes(&error), "could not look for runs that wait");
            }
            // Leases of others end without a word.
            let _ = timeout(self.0.config.lease / 2, self.0.dispatch.work.notified()).await;
        }
    }

    /// Gives each place that is free to the run whose turn it is then.
    async fn take_waiting(&self) -> Result<(), ControlError> {
        loop {
            let Ok(permit) = Arc::clone(&self.0.dispatch.places).acquire_owned().await else {
                return Ok(());
            };
            let pending = self.0.store.pending_runs(Asker::System, LOOKED_AT).await?;
            let next = {
                let driven = lock(&self.0.dispatch.driven);
                pending.into_iter().find(|run| !driven.contains(run))
            };
            let Some(run) = next else {
                return Ok(());
            };
            let session = self.0.store.run(Asker::System, run).await?.session;
            self.occupy(session, run, permit);
        }
    }

    async fn hold_runs(&self) {
        let mut ticks = tokio::time::interval(self.0.config.lease / 3);
        loop {
            ticks.tick().await;
            let driven = self.0.dispatch.driven();
            if driven.is_empty() {
                continue;
            }
            let lease = self.0.config.lease;
            match self.0.store.renew_runs(Asker::System, HOLDER, &driven, lease).await {
                Ok(lost) => lost.into_iter().for_each(|run| self.lose(run)),
                Err(error) => tracing::error!(
                    error = with_causes(&error),
                    "could not renew the leases of runs under way"
                ),
            }
        }
    }

    /// The run is somebody else's, or has ended: what is done for it here stops.
    fn lose(&self, run: RunId) {
        let actives = self.0.lives.all().into_iter().filter_map(|live| live.active());
        actives
            .filter(|active| active.run == run)
            .for_each(|active| active.over.cancel());
    }
}
