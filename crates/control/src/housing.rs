//! One sandbox per session: made when it is needed, woken, frozen and removed when it is not, replaced when it is lost.
//!
//! The provider's own list says what there is; here is only who uses it. A sandbox that goes away between being made and
//! handing over its link is made anew; that is no failure of a run.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use causes::with_causes;
use domain::{SandboxId, SessionId};
use link::server::{LinkError, Linked, Outfit};
use sandbox::{ProviderError, SandboxProvider, SandboxSpec, SandboxState, SandboxStatus};
use store::{Asker, StoreError};
use tokio::time::{Instant, sleep};

use crate::live::{Live, lock};
use crate::{Control, ControlError};

mod keeping;
mod room;
mod tokens;

pub(crate) use tokens::Shown;

/// How long a new sandbox may take until its runtime answers.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);
/// How often a sandbox that does not answer yet is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Sandboxes that may go away between being made and answering, before something must be wrong.
const MADE_ANEW: usize = 3;

/// The sandboxes.
pub(crate) struct Housing {
    pub(crate) provider: Arc<dyn SandboxProvider>,
    /// Whose sandbox it is, for what comes over its link.
    by_sandbox: Mutex<HashMap<SandboxId, Arc<Live>>>,
    /// Sandboxes that were there when this process began.
    left: Mutex<HashMap<SessionId, SandboxStatus>>,
    /// Grows when tokens are revoked.
    generation: AtomicU64,
    /// Held while room for one more is looked for.
    room: tokio::sync::Mutex<()>,
}

/// A session's place for its sandbox.
#[derive(Debug, Default)]
pub(crate) struct Seat {
    /// Held while the sandbox is made, woken, frozen or removed.
    housed: tokio::sync::Mutex<Option<Arc<Housed>>>,
    taken: AtomicBool,
    /// A sandbox is being made for it.
    promised: AtomicBool,
}

/// A session's sandbox.
#[derive(Debug)]
pub(crate) struct Housed {
    pub(crate) id: SandboxId,
    pub(crate) linked: Linked,
    frozen: AtomicBool,
    users: AtomicUsize,
    used: Mutex<Instant>,
    token: Mutex<tokens::Current>,
    /// The inode of the socket that is accepted from.
    socket: AtomicU64,
}

/// Somebody uses the sandbox: it is not frozen while this is held.
#[derive(Debug)]
pub(crate) struct Stay(Arc<Housed>);

/// Why a session has no sandbox.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HousingError {
    #[error("the sandbox could not be had")]
    Provider(#[source] ProviderError),
    #[error("the sandbox was made and could not be used")]
    Link(#[source] LinkError),
    #[error("the sandbox was made, and its runtime did not answer within {} s", ANSWERS_WITHIN.as_secs())]
    Silent,
    #[error("a token for the sandbox could not be stored")]
    Store(#[source] StoreError),
    #[error("sandboxes went away {MADE_ANEW} times before they could be used")]
    Vanished,
    #[error(
        "its user has {0} sandboxes in use, which is as many as one may have (sandbox.per_user): stop a run of theirs, \
         or wait for its end"
    )]
    TooMany(usize),
}

impl HousingError {
    /// Whether trying again may help.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Provider(error) => !matches!(
                error,
                ProviderError::ImageMissing { .. } | ProviderError::Limit(_) | ProviderError::Machine { .. }
            ),
            Self::Link(_) | Self::Silent | Self::Vanished | Self::TooMany(_) => true,
            Self::Store(_) => false,
        }
    }
}

impl From<HousingError> for ControlError {
    fn from(error: HousingError) -> Self {
        let words = format!("no sandbox for this session at the moment: {}", with_causes(&error));
        tracing::warn!(error = %words, "housing");
        Self::Unavailable(words)
    }
}

impl Seat {
    /// Whether there is a sandbox.
    pub(crate) fn is_taken(&self) -> bool {
        self.taken.load(Ordering::SeqCst)
    }
}

impl std::ops::Deref for Stay {
    type Target = Housed;

    fn deref(&self) -> &Housed {
        &self.0
    }
}

impl Stay {
    fn new(housed: &Arc<Housed>) -> Self {
        housed.users.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(housed))
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        *lock(&self.0.used) = Instant::now();
        self.0.users.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Housing {
    pub(crate) fn new(provider: Arc<dyn SandboxProvider>) -> Self {
        Self {
            provider,
            by_sandbox: Mutex::default(),
            left: Mutex::default(),
            generation: AtomicU64::new(0),
            room: tokio::sync::Mutex::default(),
        }
    }

    /// Whose sandbox this is.
    pub(crate) fn session_of(&self, sandbox: SandboxId) -> Option<Arc<Live>> {
        lock(&self.by_sandbox).get(&sandbox).cloned()
    }
}

impl Control {
    /// The session's sandbox, awake and claimed; made where there is none.
    pub(crate) async fn house(&self, live: &Arc<Live>) -> Result<Stay, HousingError> {
        let mut seat = live.seat.housed.lock().await;
        if let Some(housed) = seat.as_ref() {
            match self.wake(live, housed).await {
                Ok(()) => return Ok(Stay::new(housed)),
                Err(error) => {
                    let housed = Arc::clone(housed);
                    *seat = None;
                    self.discard(live, &housed, "lost", Some(&with_causes(&error))).await;
                }
            }
        }
        let take = |housed: Arc<Housed>, seat: &mut Option<Arc<Housed>>| {
            let stay = Stay::new(&housed);
            *seat = Some(housed);
            live.seat.taken.store(true, Ordering::SeqCst);
            stay
        };
        if let Some(housed) = self.adopt(live).await {
            return Ok(take(housed, &mut seat));
        }
        let _promised = self.make_room(live).await?;
        for _ in 0..MADE_ANEW {
            match self.make(live).await {
                Ok(housed) => return Ok(take(housed, &mut seat)),
                Err(HousingError::Provider(ProviderError::NotFound(_) | ProviderError::Dead { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        Err(HousingError::Vanished)
    }

    /// The session's sandbox, awake, if it has one that answers.
    pub(crate) async fn stay(&self, live: &Live) -> Option<Stay> {
        let seat = live.seat.housed.lock().await;
        let housed = seat.as_ref()?;
        self.wake(live, housed).await.ok()?;
        Some(Stay::new(housed))
    }

    /// Removes the session's sandbox, if it is this one (or whichever it is); its files stay.
    pub(crate) async fn unhouse(&self, live: &Arc<Live>, only: Option<SandboxId>, state: &str, reason: Option<&str>) {
        let mut seat = live.seat.housed.lock().await;
        if let Some(housed) = seat.take_if(|housed| only.is_none_or(|only| only == housed.id)) {
            self.discard(live, &housed, state, reason).await;
        }
    }

    async fn wake(&self, live: &Live, housed: &Housed) -> Result<(), HousingError> {
        if !housed.linked.is_connected() {
            return Err(HousingError::Silent);
        }
        if housed.frozen.load(Ordering::SeqCst) {
            let provider = &self.0.housing.provider;
            provider.thaw(housed.id).await.map_err(HousingError::Provider)?;
            housed.frozen.store(false, Ordering::SeqCst);
        }
        self.refresh_token(live, housed).await
    }

    /// Takes over the sandbox that the session had when this process began. What runs in it has lost its loop, and is ended.
    async fn adopt(&self, live: &Arc<Live>) -> Option<Arc<Housed>> {
        let status = lock(&self.0.housing.left).remove(&live.session)?;
        let adopted = async {
            let provider = &self.0.housing.provider;
            provider.thaw(status.id).await.map_err(HousingError::Provider)?;
            let housed = self.move_in(live, &status).await?;
            housed.linked.stop().await.map_err(HousingError::Link)?;
            Ok::<_, HousingError>(housed)
        };
        match adopted.await {
            Ok(housed) => Some(housed),
            Err(error) => {
                // The next one that is made for this session finds its disk in use, and removes it.
                tracing::info!(sandbox = %status.id, error = with_causes(&error), "a sandbox could not be adopted");
                lock(&self.0.housing.by_sandbox).remove(&status.id);
                None
            }
        }
    }

    async fn make(&self, live: &Arc<Live>) -> Result<Arc<Housed>, HousingError> {
        let spec = SandboxSpec {
            id: SandboxId::new(),
            session: live.session,
            image: self.0.config.image.clone(),
            limits: self.0.config.sandbox,
        };
        self.tell_sandbox(live, spec.id, "starting", None).await;
        let provider = &self.0.housing.provider;
        let status = match provider.create(&spec).await {
            Err(ProviderError::DiskInUse { sandbox, .. }) => {
                // One that a dead process left, or that was lost: its files are wanted, it is not.
                provider.destroy(sandbox).await.map_err(HousingError::Provider)?;
                provider.create(&spec).await
            }
            made => made,
        }
        .map_err(HousingError::Provider)?;
        match self.move_in(live, &status).await {
            Ok(housed) => {
                self.tell_sandbox(live, spec.id, "running", None).await;
                Ok(housed)
            }
            Err(error) => {
                lock(&self.0.housing.by_sandbox).remove(&spec.id);
                if let Err(error) = provider.destroy(spec.id).await {
                    tracing::warn!(sandbox = %spec.id, error = with_causes(&error), "could not remove a sandbox that did not start");
                }
                Err(error)
            }
        }
    }

    /// Serves the link of a sandbox and gives it to the session.
    async fn move_in(&self, live: &Arc<Live>, status: &SandboxStatus) -> Result<Arc<Housed>, HousingError> {
        if let SandboxState::Dead { reason } = &status.state {
            let (id, reason) = (status.id, reason.clone());
            return Err(HousingError::Provider(ProviderError::Dead { id, reason }));
        }
        let provider = &self.0.housing.provider;
        let listener = provider.link(status.id).await.map_err(HousingError::Provider)?;
        let socket = keeping::inode(&listener);
        lock(&self.0.housing.by_sandbox).insert(status.id, Arc::clone(live));
        let handler = Arc::new(self.clone());
        let linked = link::server::serve(listener, status.id, status.root_uid, handler, &self.0.tasks)
            .map_err(HousingError::Link)?;
        let claimed = self.claim(live, &linked).await;
        match claimed {
            Ok(token) => Ok(Arc::new(Housed {
                id: status.id,
                linked,
                frozen: AtomicBool::new(false),
                users: AtomicUsize::new(0),
                used: Mutex::new(Instant::now()),
                token: Mutex::new(token),
                socket: AtomicU64::new(socket),
            })),
            Err(error) => {
                linked.close();
                Err(error)
            }
        }
    }

    /// Waits until the sandbox is dead, or removed: then its runtime never answers.
    async fn gone(&self, sandbox: SandboxId) -> HousingError {
        loop {
            sleep(LOOK_AGAIN).await;
            match self.0.housing.provider.status(sandbox).await {
                Err(gone @ ProviderError::NotFound(_)) => return HousingError::Provider(gone),
                Ok(SandboxStatus {
                    id,
                    state: SandboxState::Dead { reason },
                    ..
                }) => return HousingError::Provider(ProviderError::Dead { id, reason }),
                // It lives, or the provider itself is away for a moment.
                _ => {}
            }
        }
    }

    async fn claim(&self, live: &Live, linked: &Linked) -> Result<tokens::Current, HousingError> {
        let gone = tokio::select! {
            () = linked.connected() => None,
            gone = self.gone(linked.sandbox()) => Some(gone),
            () = sleep(ANSWERS_WITHIN) => Some(HousingError::Silent),
        };
        if let Some(gone) = gone {
            return Err(gone);
        }
        let generation = self.0.housing.generation.load(Ordering::SeqCst);
        let token = self
            .0
            .store
            .issue_session_token(Asker::System, live.session, self.0.config.token_life)
            .await
            .map_err(HousingError::Store)?;
        let outfit = Outfit {
            environment: self.0.config.environment.clone(),
            authorities: self.authorities(),
            known_hosts: self.known_hosts(),
        };
        linked
            .claim(live.session, &token.secret, outfit)
            .await
            .map_err(HousingError::Link)?;
        Ok(tokens::Current::new(&token, self.0.config.token_life, generation))
    }

    async fn discard(&self, live: &Live, housed: &Housed, state: &str, reason: Option<&str>) {
        live.seat.taken.store(false, Ordering::SeqCst);
        lock(&self.0.housing.by_sandbox).remove(&housed.id);
        housed.linked.close();
        if let Some(broker) = &self.0.broker {
            broker.forget(live.session);
        }
        if let Err(error) = self.revoke_tokens(live.session, "its sandbox was removed").await {
            tracing::warn!(session = %live.session, error = with_causes(&error), "could not revoke the tokens of a sandbox that is gone");
        }
        if let Err(error) = self.0.housing.provider.destroy(housed.id).await {
            tracing::warn!(sandbox = %housed.id, error = with_causes(&error), "could not remove a sandbox; it is tried again when its session needs one");
        }
        self.tell_sandbox(live, housed.id, state, reason).await;
    }

    async fn tell_sandbox(&self, live: &Live, sandbox: SandboxId, state: &str, reason: Option<&str>) {
        let mut writing = live.writing.lock().await;
        let told = self
            .0
            .store
            .set_sandbox(Asker::System, live.session, sandbox, state, reason)
            .await;
        match told {
            Ok(events) => live.note(&mut writing, events),
            Err(error) => {
                tracing::warn!(session = %live.session, error = with_causes(&error), "could not write down a sandbox's state");
            }
        }
    }
}
