//! One sandbox per session: made when it is needed or before, put to sleep and woken, replaced when it is lost.
//!
//! The provider's own list says what there is; here is only who uses it. A sandbox that goes away between being made and
//! handing over its link is made anew; that is no failure of a run.
//!
//! - [`making`]: how a session gets one · [`warm`]: those that are made ahead · [`building`]: those in which images are built
//! - [`usage`]: who uses one · [`keeping`]: what nobody uses goes to sleep · [`asleep`]: what becomes of its processes
//! - [`room`]: how many a user may have
//! - [`behind`]: files are kept before one ends, or afterwards · [`archiving`]: sessions without a disk
//! - [`reconcile`]: what is there and should not be · [`promises`]: what goes on in the background through a restart
//! - [`tokens`]: what its runtime shows · [`meters`]: how long all of it takes

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use causes::with_causes;
use domain::{SandboxId, SessionId, SnapshotId, UserId};
use link::server::{LinkError, Linked};
use protocol::VersionError;
use sandbox::{ProviderError, SandboxProvider, SandboxStatus, SnapshotStatus};
use store::{Asker, StoreError, TokenState};
use tokio::time::{Instant, sleep, timeout};

use self::meters::{Meters, Transition};
use self::usage::{Usage, Using};
use self::warm::Warm;
use crate::live::{Live, lock};
use crate::{Control, ControlError};

mod archiving;
mod asleep;
mod behind;
mod building;
mod keeping;
mod making;
pub(crate) mod meters;
mod owed;
mod promises;
mod reconcile;
mod retries;
mod room;
mod tokens;
pub(crate) mod usage;
mod warm;

pub(crate) use building::Site;
pub(crate) use keeping::SIDE_BY_SIDE;
pub(crate) use reconcile::Suspects;
pub(crate) use tokens::Shown;

/// How long a new sandbox may take until its runtime answers.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);
/// How long a sandbox that is to go is left to those who use it.
const SERVED_WITHIN: Duration = Duration::from_secs(5);
/// How often it is looked at meanwhile.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How long one may take to connect again that has lost its link.
const CONNECTS_AGAIN_WITHIN: Duration = Duration::from_secs(1);
/// Sandboxes that may go away between being made and answering, before something must be wrong.
const MADE_ANEW: usize = 3;

/// Why a sandbox ends whose host could not remove it.
const CUT_OFF: &str = "nobody uses it, and its host could not end it: what runs in it is cut off, and it is tried again; its \
                       files are kept";

/// The sandboxes.
pub(crate) struct Housing {
    pub(crate) provider: Arc<dyn SandboxProvider>,
    /// Whose sandbox it is, for what comes over its link.
    by_sandbox: Mutex<HashMap<SandboxId, Resident>>,
    /// Sandboxes that were there when this process began.
    left: Mutex<HashMap<SessionId, Left>>,
    /// Those that are nobody's yet.
    pub(crate) warm: Warm,
    pub(crate) meters: Meters,
    bearers: tokens::Bearers,
    /// Held while room for one more is looked for.
    room: tokio::sync::Mutex<()>,
}

/// A session's sandbox that was there when this process began.
struct Left {
    status: SandboxStatus,
    /// Whose session it is; none where the store did not answer.
    owner: Option<UserId>,
    /// Nobody needs it: it sleeps, or its session is put away.
    is_idle: bool,
}

/// Whose a sandbox is, and who uses it.
#[derive(Clone, Debug)]
pub(crate) struct Resident {
    pub(crate) live: Arc<Live>,
    pub(crate) usage: Arc<Usage>,
}

/// A session's place for its sandbox.
#[derive(Debug, Default)]
pub(crate) struct Seat {
    /// Held while the sandbox is made, woken, frozen or removed.
    housed: tokio::sync::Mutex<Option<Arc<Housed>>>,
    taken: AtomicBool,
    /// A sandbox is being made for it.
    promised: AtomicBool,
    /// It had a sandbox before: its files are on a disk.
    has_files: AtomicBool,
    /// The sandbox that it had was lost.
    lost: AtomicBool,
}

/// A session's sandbox.
#[derive(Debug)]
pub(crate) struct Housed {
    pub(crate) id: SandboxId,
    pub(crate) linked: Linked,
    pub(crate) usage: Arc<Usage>,
    /// When it was frozen, while it is.
    frozen_at: Mutex<Option<Instant>>,
    unfrozen: Mutex<keeping::Unfrozen>,
    token: Mutex<tokens::Current>,
    /// The inode of the socket that is accepted from.
    socket: AtomicU64,
    /// Held while its state is told, so that states are told in their order.
    telling: Arc<tokio::sync::Mutex<()>>,
}

/// Somebody uses the sandbox: it is not frozen while this is held.
#[derive(Debug)]
pub(crate) struct Stay {
    housed: Arc<Housed>,
    _using: Using,
}

/// How a session's sandbox is, as the session's own view and its events say it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// One is being made.
    Starting,
    /// Its processes run.
    Running,
    /// Its processes stand still; any request lets them go on.
    Frozen,
    /// Its processes are kept on the host's disk, beside its files; any request lets them go on in another.
    Suspended,
    /// Its processes are gone and its files are on the host's disk; any request starts it again.
    Hibernated,
    /// It has no disk either: its files are in the object store, and the next request brings them back.
    Archived,
    /// It went away unasked: the next request gets another with its files.
    Lost,
}

/// What is told of a sandbox that is there.
const AWAKE: [State; 3] = [State::Starting, State::Running, State::Frozen];

impl State {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Frozen => "frozen",
            Self::Suspended => "suspended",
            Self::Hibernated => "hibernated",
            Self::Archived => "archived",
            Self::Lost => "lost",
        }
    }
}

/// Why a session has no sandbox.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HousingError {
    #[error("the sandbox could not be had")]
    Provider(#[source] ProviderError),
    #[error("the sandbox was made and could not be used")]
    Link(#[source] LinkError),
    #[error("the sandbox was made, and its runtime did not answer within {} s", ANSWERS_WITHIN.as_secs())]
    Silent,
    #[error("its runtime is not understood")]
    Version(#[source] VersionError),
    #[error("its runtime, which goes on, is of another release")]
    Outdated,
    #[error("a token for the sandbox could not be stored")]
    Store(#[source] StoreError),
    #[error("its tokens were revoked")]
    Revoked,
    #[error("its session was archived")]
    Archived,
    #[error("sandboxes went away {MADE_ANEW} times before they could be used")]
    Vanished,
    #[error(
        "its user has {0} sandboxes in use, which is as many as one may have (sandbox.per_user): stop a run of theirs, \
         or wait for its end"
    )]
    TooMany(usize),
    #[error(
        "its user has {0} sandboxes, which is as many as one may have (sandbox.per_user), and none of them goes to put \
         a session away: it is tried again"
    )]
    NoRoom(usize),
}

/// What becomes of other sandboxes of a session's user, where they have as many as one may.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Others {
    /// One that nobody uses goes.
    MakeRoom,
    /// All stay, whoever uses them.
    Stay,
}

impl HousingError {
    /// A runtime did not answer in time.
    fn unanswered(linked: &Linked) -> Self {
        linked.refused().map_or(Self::Silent, Self::Version)
    }

    /// Whether it says nothing of the sandbox: the store, or whoever provides sandboxes, was not there.
    fn is_not_its_own(&self) -> bool {
        matches!(self, Self::Store(_) | Self::Provider(ProviderError::Unavailable(_)))
    }

    /// What becomes of a sandbox that cannot be used because of this.
    fn ends_it(&self) -> State {
        match self {
            Self::Archived => State::Hibernated,
            _ => State::Lost,
        }
    }

    /// Whether trying again may help.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Provider(error) => !matches!(
                error,
                ProviderError::ImageMissing { .. } | ProviderError::Limit(_) | ProviderError::Machine { .. }
            ),
            Self::Link(_)
            | Self::Silent
            | Self::Version(_)
            | Self::Outdated
            | Self::Revoked
            | Self::Archived
            | Self::Vanished
            | Self::TooMany(_)
            | Self::NoRoom(_) => true,
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
    /// A session's that may have had a sandbox before.
    pub(crate) fn new(has_files: bool) -> Self {
        Self {
            has_files: AtomicBool::new(has_files),
            ..Self::default()
        }
    }

    /// From here on it has this sandbox.
    fn take(&self, seat: &mut Option<Arc<Housed>>, housed: Arc<Housed>) -> Stay {
        let stay = Stay::new(&housed);
        *seat = Some(housed);
        self.taken.store(true, Ordering::SeqCst);
        self.has_files.store(true, Ordering::SeqCst);
        stay
    }

    /// Whether there is a sandbox.
    pub(crate) fn is_taken(&self) -> bool {
        self.taken.load(Ordering::SeqCst)
    }
}

impl std::ops::Deref for Stay {
    type Target = Housed;

    fn deref(&self) -> &Housed {
        &self.housed
    }
}

impl Stay {
    fn new(housed: &Arc<Housed>) -> Self {
        Self {
            housed: Arc::clone(housed),
            _using: housed.usage.using(),
        }
    }
}

impl Housing {
    pub(crate) fn new(provider: Arc<dyn SandboxProvider>) -> Self {
        Self {
            provider,
            by_sandbox: Mutex::default(),
            left: Mutex::default(),
            warm: Warm::default(),
            meters: Meters::default(),
            bearers: tokens::Bearers::default(),
            room: tokio::sync::Mutex::default(),
        }
    }

    /// Whose sandbox this is.
    pub(crate) fn resident(&self, sandbox: SandboxId) -> Option<Resident> {
        lock(&self.by_sandbox).get(&sandbox).cloned()
    }

    /// Whose sandbox this is.
    pub(crate) fn session_of(&self, sandbox: SandboxId) -> Option<Arc<Live>> {
        self.resident(sandbox).map(|resident| resident.live)
    }

    /// How many of sessions run, and how many are frozen.
    pub(crate) fn count(&self) -> (usize, usize) {
        let all = lock(&self.by_sandbox);
        let frozen = all.values().filter(|resident| resident.usage.is_frozen()).count();
        (all.len() - frozen, frozen)
    }

    /// Keeps a session's files at the provider. The processes of its sandbox stand still as long as that takes.
    pub(crate) async fn snapshot(
        &self,
        session: SessionId,
        snapshot: SnapshotId,
    ) -> Result<SnapshotStatus, ProviderError> {
        let _stilled: Vec<_> = lock(&self.by_sandbox)
            .values()
            .filter(|resident| resident.live.session == session)
            .map(|resident| resident.usage.stilled())
            .collect();
        self.provider.snapshot(session, snapshot).await
    }
}

impl Control {
    /// Removes a session's sandbox at the provider; its disk stays.
    async fn destroy(&self, session: SessionId, sandbox: SandboxId) -> Result<(), ProviderError> {
        let began = Instant::now();
        let destroyed = self.0.housing.provider.destroy(sandbox).await;
        self.stepped(session, Transition::Destroy, began, &destroyed);
        destroyed
    }

    /// The session's sandbox, awake and claimed; made where there is none.
    pub(crate) async fn house(&self, live: &Arc<Live>) -> Result<Stay, HousingError> {
        self.end_rest();
        self.house_beside(live, Others::MakeRoom).await
    }

    async fn house_beside(&self, live: &Arc<Live>, others: Others) -> Result<Stay, HousingError> {
        let began = Instant::now();
        let mut seat = live.seat.housed.lock().await;
        if let Some(housed) = seat.as_ref() {
            match self.wake(live, housed).await {
                Ok(()) => return Ok(Stay::new(housed)),
                // It lives, as far as anybody knows, and so does what goes on in it.
                Err(error) if error.is_not_its_own() => return Err(error),
                Err(error) => {
                    let housed = Arc::clone(housed);
                    *seat = None;
                    self.discard(live, &housed, error.ends_it(), Some(&with_causes(&error)))
                        .await;
                }
            }
        }
        self.bring_files(live).await?;
        if let Some(housed) = self.adopt(live).await? {
            return Ok(live.seat.take(&mut seat, housed));
        }
        let _promised = self.make_room(live, others).await?;
        let had_files = live.seat.has_files.load(Ordering::SeqCst);
        if !had_files && let Some(housed) = self.claim_warm(live, began).await? {
            let stay = live.seat.take(&mut seat, housed);
            self.begin_pulling(live);
            return Ok(stay);
        }
        let transition = if live.seat.lost.load(Ordering::SeqCst) {
            Transition::Replace
        } else if live.seat.has_files.load(Ordering::SeqCst) {
            Transition::Wake
        } else {
            Transition::ClaimCold
        };
        let woken = if had_files {
            self.let_go_on(live).await
        } else {
            Ok(None)
        };
        let made = match woken {
            Ok(Some(housed)) => Ok(housed),
            Ok(None) => self.make_anew(live).await,
            Err(error) => Err(error),
        };
        self.stepped(live.session, transition, began, &made);
        let housed = made?;
        live.seat.lost.store(false, Ordering::SeqCst);
        let stay = live.seat.take(&mut seat, housed);
        if !had_files {
            self.begin_pulling(live);
        }
        Ok(stay)
    }

    /// The session's sandbox, awake, if it has one that answers.
    pub(crate) async fn stay(&self, live: &Arc<Live>) -> Option<Stay> {
        let seat = live.seat.housed.lock().await;
        let housed = seat.as_ref()?;
        match self.wake(live, housed).await {
            // Of a sandbox without a token is asked what it does, and nothing for it.
            Ok(()) | Err(HousingError::Revoked | HousingError::Archived) => Some(Stay::new(housed)),
            Err(_) => None,
        }
    }

    /// Gives up the session's sandbox, if it still is this one: its processes are lost, its files stay.
    pub(crate) async fn lose_sandbox(&self, live: &Arc<Live>, sandbox: SandboxId, why: &str) {
        let mut seat = live.seat.housed.lock().await;
        if let Some(housed) = seat.take_if(|housed| housed.id == sandbox) {
            self.discard(live, &housed, State::Lost, Some(why)).await;
        }
    }

    /// Ends whatever there is of a session's processes; its files stay.
    pub(crate) async fn unhouse(&self, live: &Arc<Live>, why: &str) {
        let mut seat = live.seat.housed.lock().await;
        self.vacate(live, &mut seat, why).await;
    }

    /// The same, with the seat held: ends the sandbox in it, or the one that a process before this one left, or what is kept of
    /// the processes of one before.
    async fn vacate(&self, live: &Arc<Live>, seat: &mut Option<Arc<Housed>>, why: &str) {
        if let Some(housed) = seat.take() {
            return self.discard(live, &housed, State::Hibernated, Some(why)).await;
        }
        let left = lock(&self.0.housing.left).remove(&live.session);
        let sandbox = match left {
            Some(left) => left.status.id,
            None => match self.last_sandbox(live).await {
                // Nobody here has heard of it yet, or it is about to be removed.
                Ok(Some((sandbox, state))) if AWAKE.iter().any(|awake| awake.name() == state) => sandbox,
                _ => return self.forget_processes(live, why).await,
            },
        };
        self.discard_left(live, sandbox, why).await;
    }

    /// Ends a sandbox that a process before this one left; what its host could not do is logged and told.
    async fn discard_left(&self, live: &Live, sandbox: SandboxId, why: &str) {
        if let Err(error) = self.end_left(live, sandbox, why).await {
            not_removed(sandbox, &error);
            self.tell_sandbox(live, sandbox, State::Hibernated, Some(CUT_OFF)).await;
        }
    }

    /// Ends a sandbox that a process before this one left, and tells of it.
    async fn end_left(&self, live: &Live, sandbox: SandboxId, why: &str) -> Result<(), ProviderError> {
        if let Err(error) = self.revoke_tokens(live.session, "its sandbox was removed").await {
            tracing::warn!(session = %live.session, error = with_causes(&error), "could not revoke the tokens of a sandbox that is removed");
        }
        self.destroy(live.session, sandbox).await?;
        self.tell_sandbox(live, sandbox, State::Hibernated, Some(why)).await;
        Ok(())
    }

    /// Ends a sandbox for this reason, whosever it is by now; of a session its files stay. A session that is taking it over this
    /// moment has it first.
    ///
    /// # Errors
    /// It could not be removed; it could not be found out whose it is; there is none.
    pub(crate) async fn evict(&self, id: SandboxId, why: &str) -> Result<(), ProviderError> {
        // One that waits may have been given to a session since it was listed.
        let session = self.0.housing.provider.status(id).await?.session;
        let live = match self.live(Asker::System, session).await {
            Ok(live) => live,
            Err(ControlError::NotFound { .. }) => return self.destroy(session, id).await,
            Err(error) => return Err(ProviderError::Unavailable(with_causes(&error))),
        };
        let mut seat = live.seat.housed.lock().await;
        if let Some(housed) = seat.take_if(|housed| housed.id == id) {
            return self.end(&live, &housed, State::Hibernated, Some(why)).await;
        }
        let is_left = {
            let mut left = lock(&self.0.housing.left);
            left.get(&session).is_some_and(|left| left.status.id == id) && left.remove(&session).is_some()
        };
        if is_left {
            return self.end_left(&live, id, why).await;
        }
        self.destroy(session, id).await?;
        if seat.is_none() {
            self.tell_sandbox(&live, id, State::Hibernated, Some(why)).await;
        }
        Ok(())
    }

    /// Ends whatever there is of the processes of a session that was archived as soon as nobody uses its sandbox, so that what is
    /// under way is served. Who still uses it after [`SERVED_WITHIN`] is cut off.
    pub(crate) async fn unhouse_archived(&self, live: &Arc<Live>, why: &str) {
        let began = Instant::now();
        loop {
            let mut seat = live.seat.housed.lock().await;
            let is_used = seat.as_ref().is_some_and(|housed| housed.usage.is_used());
            let stored = self.0.store.session(Asker::System, live.session).await;
            if seat.is_some() && stored.is_ok_and(|stored| stored.archived.is_none()) {
                // A prompt brought the session back, and may have made it another sandbox. One that has no token is replaced.
                return;
            }
            if !is_used || began.elapsed() >= SERVED_WITHIN {
                return self.vacate(live, &mut seat, why).await;
            }
            drop(seat);
            sleep(LOOK_AGAIN).await;
        }
    }

    /// Lets a sandbox go on that was frozen when somebody inside asked for something.
    pub(crate) fn rouse(&self, live: &Arc<Live>) {
        let (control, live) = (self.clone(), Arc::clone(live));
        self.0.tasks.spawn(async move { drop(control.stay(&live).await) });
    }

    async fn wake(&self, live: &Arc<Live>, housed: &Housed) -> Result<(), HousingError> {
        if !housed.linked.is_connected() && timeout(CONNECTS_AGAIN_WITHIN, housed.linked.connected()).await.is_err() {
            return Err(HousingError::unanswered(&housed.linked));
        }
        if housed.usage.is_frozen() {
            self.thaw(live, housed).await.map_err(HousingError::Provider)?;
        }
        match self.token_state(live, housed).await {
            TokenState::Current => self.refresh_token(live, housed).await,
            TokenState::Revoked => Err(HousingError::Revoked),
            // One that is in use is removed in order, by whoever archived its session.
            TokenState::Archived if !housed.usage.is_used() => Err(HousingError::Archived),
            TokenState::Archived | TokenState::Removed => Ok(()),
        }
    }

    async fn thaw(&self, live: &Arc<Live>, housed: &Housed) -> Result<(), ProviderError> {
        let began = Instant::now();
        let thawed = self.0.housing.provider.thaw(housed.id).await;
        self.stepped(live.session, Transition::Thaw, began, &thawed);
        thawed?;
        housed.usage.set_frozen(false);
        if lock(&housed.frozen_at).take().is_some() {
            self.tell_soon(live, housed, State::Running).await;
        }
        Ok(())
    }

    /// Ends a sandbox; what its host could not do is logged and told.
    async fn discard(&self, live: &Arc<Live>, housed: &Housed, state: State, reason: Option<&str>) {
        let _told = self.end(live, housed, state, reason).await;
    }

    /// Ends a sandbox, and tells of it for this reason. Where its host could not remove it, that is told: it is cut off all the
    /// same, and removed by who compares what there is with what should be.
    async fn end(
        &self,
        live: &Arc<Live>,
        housed: &Housed,
        state: State,
        reason: Option<&str>,
    ) -> Result<(), ProviderError> {
        if state == State::Lost && self.0.tasks.stop().is_cancelled() {
            // Links end with this process. The next one finds the sandbox.
            return Ok(());
        }
        self.cut_off(live, housed, state).await;
        let ended = self.destroy(live.session, housed.id).await;
        let reason = match &ended {
            Err(error) => {
                not_removed(housed.id, error);
                // Why it was lost claims nothing of what became of it.
                if state == State::Lost { reason } else { Some(CUT_OFF) }
            }
            Ok(()) => reason,
        };
        let _in_order = housed.telling.lock().await;
        self.tell_sandbox(live, housed.id, state, reason).await;
        ended
    }

    /// Nothing that comes out of a sandbox counts any more. Whether its session had a token until now, which opens nothing any more.
    async fn cut_off(&self, live: &Live, housed: &Housed, state: State) -> bool {
        live.seat.taken.store(false, Ordering::SeqCst);
        live.seat.lost.store(state == State::Lost, Ordering::SeqCst);
        lock(&self.0.housing.by_sandbox).remove(&housed.id);
        housed.linked.close();
        if let Some(broker) = &self.0.broker {
            broker.forget(live.session);
        }
        let revoked = self.revoke_tokens(live.session, "its sandbox was removed").await;
        if let Err(error) = &revoked {
            tracing::warn!(session = %live.session, error = with_causes(error), "could not revoke the tokens of a sandbox that is gone");
        }
        revoked.unwrap_or(false)
    }

    /// Tells of a state while others go on; what is told of the same sandbox later is told after it.
    async fn tell_soon(&self, live: &Arc<Live>, housed: &Housed, state: State) {
        let in_order = Arc::clone(&housed.telling).lock_owned().await;
        let (control, live, sandbox) = (self.clone(), Arc::clone(live), housed.id);
        self.0.tasks.spawn(async move {
            control.tell_sandbox(&live, sandbox, state, None).await;
            drop(in_order);
        });
    }

    async fn tell_sandbox(&self, live: &Live, sandbox: SandboxId, state: State, reason: Option<&str>) {
        let mut writing = live.writing.lock().await;
        let told = self
            .0
            .store
            .set_sandbox(Asker::System, live.session, sandbox, state.name(), reason)
            .await;
        match told {
            Ok(events) => live.note(&mut writing, events),
            Err(error) => {
                tracing::warn!(session = %live.session, error = with_causes(&error), "could not write down a sandbox's state");
            }
        }
    }
}

fn not_removed(sandbox: SandboxId, error: &ProviderError) {
    tracing::warn!(%sandbox, error = with_causes(error), "could not remove a sandbox; it is tried again in a minute or two, and when its session needs one");
}
