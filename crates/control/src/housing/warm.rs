//! Sandboxes that are made ahead: connected, nobody's, and without token or environment. They know whom to trust, which is
//! the same for every session.
//!
//! There are as many as sessions needed a new one within the time that demand is remembered, between the least and the most
//! that the operator allows. They are made one after the other, and none while a session waits for its own. Each has the
//! disk of a session that nobody has, until the provider gives both to the session that claims it; the provider does so once.
//!
//! When an operator has removed every sandbox there is rest: none is made ahead, and none to build an image in, before
//! somebody needs one.
//!
//! Their runtimes are asked from time to time whether they live, and answer when a command has been run as a session's first
//! will: none hangs unseen, nor do its hands, and what a claim and that command take stays in memory.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use causes::with_causes;
use domain::{SandboxId, SessionId};
use link::server::Linked;
use sandbox::{ImageDigest, Limits, ProviderError, SandboxSpec, SandboxStatus};
use store::Asker;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::keeping::feels_pulse;
use super::making::housed;
use super::meters::Transition;
use super::usage::Usage;
use super::{Housed, HousingError, State};
use crate::live::{Live, lock};
use crate::{Config, Control};

/// How often those that are there are looked at.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How long a session that claimed one is left alone on the machine before the next is made: making one takes a core for some
/// tens of milliseconds, which its first command would wait for.
const BEGIN_IN_PEACE: Duration = Duration::from_millis(200);
/// How long to rest after one could not be made, at first and at most.
const REST: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Those that are made ahead.
#[derive(Debug, Default)]
pub(crate) struct Warm {
    state: Mutex<Pool>,
    /// Told when there may be something to make.
    work: Notify,
    /// Held while some are made or removed.
    tending: tokio::sync::Mutex<()>,
    /// Sessions for which a sandbox is being made.
    waiting: AtomicUsize,
    /// Those that died before anybody claimed them.
    died: AtomicU64,
}

#[derive(Debug, Default)]
struct Pool {
    ready: VecDeque<Ready>,
    /// The one that is being made.
    making: Option<SandboxId>,
    /// When sessions needed a new sandbox.
    demand: VecDeque<Instant>,
    /// None is wanted before somebody needs one.
    resting: bool,
}

/// One that waits to be claimed.
#[derive(Debug)]
struct Ready {
    status: SandboxStatus,
    limits: Limits,
    linked: Linked,
    socket: AtomicU64,
    /// Whether its runtime answers.
    usage: Arc<Usage>,
}

/// A session's own sandbox is being made: none is made ahead meanwhile.
#[derive(Debug)]
pub(super) struct First<'w>(&'w Warm);

impl Drop for First<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
        self.0.work.notify_one();
    }
}

impl Pool {
    /// How many there should be.
    fn wanted(&mut self, config: &Config) -> usize {
        if self.resting {
            return 0;
        }
        let (now, warm) = (Instant::now(), &config.warm);
        while self
            .demand
            .front()
            .is_some_and(|when| now.duration_since(*when) > warm.remember)
        {
            self.demand.pop_front();
        }
        self.demand.len().max(warm.least).min(warm.most)
    }
}

impl Ready {
    /// Whether one that is made now would be like it.
    fn is_current(&self, image: &ImageDigest, config: &Config) -> bool {
        self.status.image == *image && self.limits == config.sandbox
    }

    /// Whether it lives, as far as it is known; asks its runtime from time to time.
    fn lives(&self, config: &Config) -> bool {
        self.linked.is_connected() && feels_pulse(&self.linked, &self.usage, config)
    }
}

impl Warm {
    /// A session needs a sandbox of its own: those that are made ahead give way.
    pub(super) fn give_way(&self) -> First<'_> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        First(self)
    }

    /// None is wanted any more before somebody needs one; what was needed before is forgotten.
    fn rest(&self) {
        let mut state = lock(&self.state);
        state.resting = true;
        state.demand.clear();
    }

    /// Whether none is wanted before somebody needs one.
    pub(crate) fn is_resting(&self) -> bool {
        lock(&self.state).resting
    }

    /// How many wait to be claimed.
    pub(crate) fn ready(&self) -> usize {
        lock(&self.state).ready.len()
    }

    /// How many died before anybody claimed them.
    pub(crate) fn died(&self) -> u64 {
        self.died.load(Ordering::Relaxed)
    }

    /// Whether it is one of these, made or being made.
    pub(crate) fn has(&self, sandbox: SandboxId) -> bool {
        let state = lock(&self.state);
        state.making == Some(sandbox) || state.ready.iter().any(|ready| ready.status.id == sandbox)
    }

    /// A runtime has answered, which may be that of one of these.
    pub(crate) fn alive(&self, sandbox: SandboxId) {
        let state = lock(&self.state);
        if let Some(ready) = state.ready.iter().find(|ready| ready.status.id == sandbox) {
            ready.usage.alive();
        }
    }

    /// A session needs a new one, whether or not it gets one of these.
    fn needed(&self, config: &Config) {
        let mut state = lock(&self.state);
        if config.warm.most > 0 {
            state.demand.push_back(Instant::now());
            if state.demand.len() > config.warm.most {
                state.demand.pop_front();
            }
        }
    }

    /// The oldest one that is as one should be.
    fn take(&self, image: &ImageDigest, config: &Config) -> Option<Ready> {
        let mut state = lock(&self.state);
        let place = state.ready.iter().position(|ready| ready.is_current(image, config))?;
        state.ready.remove(place)
    }

    fn put_back(&self, mut ready: Ready) {
        // What it answered meanwhile was not heard.
        ready.usage = Usage::new();
        lock(&self.state).ready.push_front(ready);
    }
}

impl Control {
    /// There is a newer image: those that were made of an older one are replaced.
    pub(crate) fn renew_warm(&self) {
        self.0.housing.warm.work.notify_one();
    }

    /// Removes those that were made ahead, the one that is being made too. None is made again, nor one to build an image in,
    /// before somebody needs a sandbox.
    pub(crate) async fn rest(&self) {
        let warm = &self.0.housing.warm;
        warm.rest();
        let _nobody_makes_any = warm.tending.lock().await;
        self.tend().await;
    }

    /// Somebody needs a sandbox: from now on others are made too, as the operator wants it.
    pub(crate) fn end_rest(&self) {
        if std::mem::take(&mut lock(&self.0.housing.warm.state).resting) {
            self.renew_warm();
            self.want_generation();
        }
    }

    /// Begins to make sandboxes ahead, where the operator wants any.
    pub(crate) fn begin_warming(&self) {
        if self.0.config.warm.most == 0 {
            return;
        }
        let control = self.clone();
        self.0.tasks.spawn_until_stopped(async move {
            let mut rest = REST.0;
            loop {
                let filled = {
                    let _alone = control.0.housing.warm.tending.lock().await;
                    control.tend().await;
                    control.fill().await
                };
                let pause = match filled {
                    Ok(()) => {
                        rest = REST.0;
                        let work = control.0.housing.warm.work.notified();
                        if timeout(LOOK_AGAIN, work).await.is_ok() {
                            tokio::time::sleep(BEGIN_IN_PEACE).await;
                        }
                        continue;
                    }
                    Err(error) => {
                        tracing::warn!(
                            error = with_causes(&error),
                            "could not make a sandbox ahead; trying again"
                        );
                        rest
                    }
                };
                tokio::time::sleep(pause).await;
                rest = (rest * 2).min(REST.1);
            }
        });
    }

    /// Gives a session without files one that was made ahead, if there is any. It has needed it since `began`.
    pub(super) async fn claim_warm(
        &self,
        live: &Arc<Live>,
        began: Instant,
    ) -> Result<Option<Arc<Housed>>, HousingError> {
        let warm = &self.0.housing.warm;
        warm.needed(&self.0.config);
        while let Some(ready) = warm.take(&self.image_for(live), &self.0.config) {
            warm.work.notify_one();
            if !ready.linked.is_connected() {
                self.bury(ready).await;
                continue;
            }
            let sandbox = ready.status.id;
            let given = self.give(live, ready).await;
            if !matches!(given, Ok(None)) {
                self.stepped(live.session, Transition::ClaimWarm, began, &given);
            }
            match given {
                Ok(_) | Err(HousingError::Store(_)) => return given,
                Err(error @ HousingError::Provider(ProviderError::Unavailable(_))) => {
                    // Should it have been given away all the same, the provider refuses it to every other session.
                    tracing::info!(%sandbox, error = with_causes(&error), "it is not known whether a sandbox was given to a session");
                    return Ok(None);
                }
                Err(error @ HousingError::Provider(_)) => {
                    tracing::info!(%sandbox, error = with_causes(&error), "a sandbox that was made ahead could not be given to a session");
                }
                Err(error) => {
                    tracing::info!(%sandbox, error = with_causes(&error), "a sandbox that was made ahead did not take its session");
                    return Ok(None);
                }
            }
        }
        warm.work.notify_one();
        Ok(None)
    }

    /// Gives one to a session; none where the session has files after all. What does not become the session's is put back, or
    /// removed.
    async fn give(&self, live: &Arc<Live>, ready: Ready) -> Result<Option<Arc<Housed>>, HousingError> {
        let (warm, id) = (&self.0.housing.warm, ready.status.id);
        let assigning = self.0.housing.provider.assign(id, live.session);
        // Before the disk is there, so that no disk lies on an image of which nothing is written. A session that has one
        // after all keeps its own.
        let store = &self.0.store;
        let set = store.begin_image(Asker::System, live.session, ready.status.image.clone());
        let (assigned, issued, set) = tokio::join!(assigning, self.issue(live), set);
        if let Err(error) = set {
            ready.linked.close();
            self.abandon(live.session, id).await;
            return Err(HousingError::Store(error));
        }
        match assigned {
            Ok(_) => {}
            Err(ProviderError::DiskExists(_) | ProviderError::DiskInUse { .. }) => {
                live.seat.has_files.store(true, Ordering::SeqCst);
                warm.put_back(ready);
                return Ok(None);
            }
            Err(error) => {
                if matches!(error, ProviderError::Unavailable(_)) {
                    warm.put_back(ready);
                } else {
                    self.bury(ready).await;
                }
                return Err(HousingError::Provider(error));
            }
        }
        // It is this session's for ever, whatever happens now: the next one finds its disk.
        live.seat.has_files.store(true, Ordering::SeqCst);
        let claimed = async {
            let issued = issued?;
            let usage = self.enter(live, id);
            let claiming = self.claim(live, &ready.linked, issued);
            let (claimed, ()) = tokio::join!(claiming, self.tell_sandbox(live, id, State::Running, None));
            Ok((usage, claimed?))
        };
        match claimed.await {
            Ok((usage, token)) => {
                let socket = ready.socket.load(Ordering::SeqCst);
                Ok(Some(housed(ready.linked, usage, token, socket)))
            }
            Err(error) => {
                ready.linked.close();
                self.abandon(live.session, id).await;
                Err(error)
            }
        }
    }

    /// Removes those that are dead or hang, of an old image or too many, and follows the sockets of the others.
    async fn tend(&self) {
        let warm = &self.0.housing.warm;
        let (config, image) = (&self.0.config, self.image());
        let (dead, unwanted) = {
            let mut state = lock(&warm.state);
            let wanted = state.wanted(config);
            let (living, dead): (Vec<_>, Vec<_>) = std::mem::take(&mut state.ready)
                .into_iter()
                .partition(|ready| ready.lives(config));
            let (mut current, mut unwanted): (Vec<_>, Vec<_>) =
                living.into_iter().partition(|ready| ready.is_current(&image, config));
            unwanted.extend(current.drain(..current.len().saturating_sub(wanted)));
            state.ready = current.into();
            (dead, unwanted)
        };
        for ready in dead {
            self.bury(ready).await;
        }
        for ready in unwanted {
            self.clear(ready).await;
        }
        let ready: Vec<_> = {
            let state = lock(&warm.state);
            let all = state.ready.iter();
            all.map(|ready| (ready.linked.clone(), ready.socket.load(Ordering::SeqCst)))
                .collect()
        };
        for (linked, socket) in ready {
            if let Some(now) = self.followed(&linked, socket).await {
                let state = lock(&warm.state);
                let same = state.ready.iter().find(|ready| ready.status.id == linked.sandbox());
                if let Some(ready) = same {
                    ready.socket.store(now, Ordering::SeqCst);
                }
            }
        }
    }

    /// Makes as many as are wanted, one after the other, unless a session waits for its own.
    async fn fill(&self) -> Result<(), HousingError> {
        let warm = &self.0.housing.warm;
        loop {
            let spec = SandboxSpec {
                id: SandboxId::new(),
                // Whose nobody is: no row of the store has it.
                session: SessionId::new(),
                image: self.image(),
                limits: self.0.config.sandbox,
                builder: false,
            };
            {
                let mut state = lock(&warm.state);
                let wanted = state.wanted(&self.0.config);
                if state.ready.len() >= wanted || warm.waiting.load(Ordering::SeqCst) > 0 {
                    return Ok(());
                }
                state.making = Some(spec.id);
            }
            let made = self.make_ahead(&spec).await;
            if made.is_err() {
                self.abandon(spec.session, spec.id).await;
                self.remove_disk_of_nobody(spec.session).await;
            }
            let mut state = lock(&warm.state);
            state.making = None;
            state.ready.push_back(made?);
        }
    }

    async fn make_ahead(&self, spec: &SandboxSpec) -> Result<Ready, HousingError> {
        let status = self.create(spec).await.map_err(HousingError::Provider)?;
        let (linked, socket) = self.open_link(&status).await?;
        let prepared = async {
            self.answers(&linked).await?;
            let trusted = linked.trust(self.authorities(), self.known_hosts()).await;
            trusted.map_err(HousingError::Link)
        };
        if let Err(error) = prepared.await {
            linked.close();
            return Err(error);
        }
        Ok(Ready {
            status,
            limits: spec.limits,
            linked,
            socket: AtomicU64::new(socket),
            usage: Usage::new(),
        })
    }

    /// Removes one that died.
    async fn bury(&self, ready: Ready) {
        self.0.housing.warm.died.fetch_add(1, Ordering::Relaxed);
        tracing::info!(sandbox = %ready.status.id, "a sandbox that was made ahead died, or hung; another takes its place");
        self.clear(ready).await;
    }

    async fn clear(&self, ready: Ready) {
        ready.linked.close();
        self.abandon(ready.status.session, ready.status.id).await;
        self.remove_disk_of_nobody(ready.status.session).await;
    }

    /// Removes the disk that came with a sandbox that was nobody's.
    async fn remove_disk_of_nobody(&self, session: SessionId) {
        if let Err(error) = self.0.housing.provider.remove_disk(session).await {
            tracing::warn!(%session, error = with_causes(&error), "could not remove a disk that is nobody's; it is tried again later");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Base, WarmPool};

    #[test]
    fn who_is_offered_several_needs_one() {
        let image: ImageDigest = "ab".repeat(32).parse().unwrap();
        let mut config = Config::new("m", Base::new(image.clone()));
        config.warm = WarmPool {
            least: 0,
            most: 10,
            remember: Duration::from_secs(600),
        };
        let warm = Warm::default();
        warm.needed(&config);
        // One after the other is there no more, or cannot be given away.
        for _ in 0..3 {
            assert!(warm.take(&image, &config).is_none());
        }
        assert_eq!(lock(&warm.state).wanted(&config), 1);
    }
}
