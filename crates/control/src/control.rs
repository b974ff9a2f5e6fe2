//! The control plane's centre.

use std::sync::Arc;

use lifecycle::Tasks;
use providers::Providers;
use sandbox::SandboxProvider;
use store::Store;
use tokio::sync::{Notify, Semaphore};

use crate::dispatch::Dispatch;
use crate::egress::Attempts;
use crate::housing::Housing;
use crate::live::Lives;
use crate::{Config, ControlError};

/// The control plane. Clones are the same one.
#[derive(Clone)]
pub struct Control(pub(crate) Arc<Inner>);

/// What all parts of control share.
pub(crate) struct Inner {
    pub(crate) config: Config,
    pub(crate) store: Store,
    pub(crate) providers: Providers,
    pub(crate) housing: Housing,
    pub(crate) lives: Lives,
    pub(crate) attempts: Attempts,
    pub(crate) dispatch: Dispatch,
    /// Told when reserved money came free.
    pub(crate) freed: Notify,
    /// Places for turns that wait for reserved money.
    pub(crate) budget_queue: Semaphore,
    pub(crate) tasks: Tasks,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Control").finish_non_exhaustive()
    }
}

impl Control {
    /// Begins to work: takes up the runs that a dead process left, and adopts the sandboxes that are there. What it
    /// began ends when `tasks` are shut down; runs under way are then given up to the next process.
    ///
    /// # Errors
    /// The model of the configuration is not among the providers; the store cannot be used.
    pub async fn start(
        config: Config,
        store: Store,
        providers: Providers,
        sandboxes: Arc<dyn SandboxProvider>,
        tasks: Tasks,
    ) -> Result<Self, ControlError> {
        providers
            .model(&config.model)
            .map_err(|error| ControlError::Invalid(error.to_string()))?;
        let control = Self(Arc::new(Inner {
            lives: Lives::default(),
            attempts: Attempts::default(),
            dispatch: Dispatch::new(config.parallel_runs),
            freed: Notify::new(),
            budget_queue: Semaphore::new(config.budget_queue),
            housing: Housing::new(sandboxes),
            config,
            store,
            providers,
            tasks,
        }));
        control.begin_housekeeping().await;
        control.begin_dispatch().await?;
        Ok(control)
    }
}
