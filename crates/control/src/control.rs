//! The control plane's centre.

use std::sync::Arc;

use domain::SteadyClock;
use egress::Broker;
use lifecycle::Tasks;
use providers::Providers;
use sandbox::SandboxProvider;
use secret::Credential;
use store::Store;
use telemetry::Traces;
use tokio::sync::{Notify, Semaphore};

use crate::approvals::Approvals;
use crate::attempts::Attempts;
use crate::brought::{Brought, ReadSkills};
use crate::dispatch::Dispatch;
use crate::generations::Generations;
use crate::housing::Housing;
use crate::live::Lives;
use crate::masks::Secrecy;
use crate::snapshots::Disks;
use crate::way_out::{self, MakeBroker};
use crate::{Callable, Config, ControlError, Files};

/// What lies outside, and is reached through the control plane only.
#[derive(Default)]
pub struct Outside {
    /// The services, where there are any.
    pub services: Option<Callable>,
    /// Makes the broker through which connections leave; none leaves where there is no broker.
    pub egress: Option<Box<MakeBroker>>,
    /// Where files of workspaces are kept; nowhere but on their disks where this is left out.
    pub files: Option<Files>,
    /// Says which skills an image brings; none does where this is left out.
    pub skills: Option<Box<ReadSkills>>,
    /// Where traces are told.
    pub traces: Traces,
    /// Secrets that no model is told and none says, the models' own keys apart, which are added to them.
    pub secrets: Vec<Credential>,
}

/// The control plane. Clones are the same one.
#[derive(Clone)]
pub struct Control(pub(crate) Arc<Inner>);

/// What all parts of control share.
pub(crate) struct Inner {
    pub(crate) config: Config,
    pub(crate) store: Store,
    pub(crate) providers: Providers,
    pub(crate) services: Option<Callable>,
    pub(crate) broker: Option<Broker>,
    pub(crate) files: Option<Files>,
    pub(crate) brought: Brought,
    pub(crate) traces: Traces,
    pub(crate) secrecy: Secrecy,
    /// By which signed URLs are given out and taken back.
    pub(crate) clock: SteadyClock,
    pub(crate) housing: Housing,
    pub(crate) lives: Arc<Lives>,
    pub(crate) attempts: Attempts,
    pub(crate) approvals: Approvals,
    pub(crate) dispatch: Dispatch,
    pub(crate) disks: Disks,
    pub(crate) generations: Generations,
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
        outside: Outside,
        tasks: Tasks,
    ) -> Result<Self, ControlError> {
        providers
            .model(&config.model)
            .map_err(|error| ControlError::Invalid(error.to_string()))?;
        let lives = Arc::new(Lives::new(config.memory_bytes));
        let mut secrets = providers.credentials();
        secrets.extend(outside.secrets);
        let (broker, told) = match outside.egress {
            Some(make) => {
                let made = way_out::make(make, &lives, &tasks);
                let (broker, told) = made.map_err(|error| ControlError::internal("make its egress broker", error))?;
                (Some(broker), Some(told))
            }
            None => (None, None),
        };
        let control = Self(Arc::new(Inner {
            lives,
            attempts: Attempts::default(),
            approvals: Approvals::default(),
            dispatch: Dispatch::new(config.parallel_runs),
            disks: Disks::default(),
            generations: Generations::new(config.base.clone()),
            freed: Notify::new(),
            budget_queue: Semaphore::new(config.budget_queue),
            housing: Housing::new(sandboxes),
            config,
            store,
            providers,
            services: outside.services,
            files: outside.files,
            brought: Brought::new(outside.skills),
            traces: outside.traces,
            secrecy: Secrecy::new(secrets),
            clock: SteadyClock::begin(),
            broker,
            tasks,
        }));
        if let Some(told) = told {
            let writer = control.clone();
            control
                .0
                .tasks
                .spawn_until_stopped(async move { writer.write_records(told).await });
        }
        control.begin_mending().await?;
        control.begin_expiry();
        control.begin_collecting();
        control.know_generations().await?;
        control.begin_housekeeping().await;
        control.begin_generations();
        control.begin_dispatch().await?;
        Ok(control)
    }
}
