//! How a session gets a sandbox.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use causes::with_causes;
use domain::{SandboxId, SessionId};
use link::server::{Linked, Outfit};
use sandbox::{ImageDigest, ProviderError, SandboxSpec, SandboxState, SandboxStatus};
use store::{Asker, SessionToken, TokenState};
use tokio::time::{Instant, sleep};

use super::meters::Transition;
use super::usage::Usage;
use super::{ANSWERS_WITHIN, Housed, HousingError, MADE_ANEW, Resident, State, keeping, tokens};
use crate::Control;
use crate::live::{Live, lock};

/// How often a sandbox that does not answer yet is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Why one that was left is not adopted.
const UNTRUSTED: &str = "its tokens had been revoked: its processes are gone, its files are kept";

/// A token that no link was given yet.
pub(super) struct Issued {
    token: SessionToken,
    asked: tokens::Asked,
    /// None of the session's files is to be brought back from outside.
    filled: bool,
    /// It is for a runtime that goes on.
    woken: bool,
}

impl Control {
    /// Takes over the sandbox that the session had when this process began. What runs in it has lost its loop, and is ended;
    /// programs in the background go on for what is left of their time. One whose session has no token is ended instead.
    ///
    /// # Errors
    /// The store or the host agent did not answer: it may still be adopted.
    pub(super) async fn adopt(&self, live: &Arc<Live>) -> Result<Option<Arc<Housed>>, HousingError> {
        // It counts as its user's all the time.
        let _promised = live.seat.promise();
        let Some(left) = lock(&self.0.housing.left).remove(&live.session) else {
            return Ok(None);
        };
        match self.0.store.session_token_state(Asker::System, live.session).await {
            Ok(TokenState::Current) => {}
            // It was to be ended, and whoever had that done did not come to it.
            Ok(_) => {
                self.discard_left(live, left.status.id, UNTRUSTED).await;
                return Ok(None);
            }
            Err(error) => {
                lock(&self.0.housing.left).insert(live.session, left);
                return Err(HousingError::Store(error));
            }
        }
        let status = &left.status;
        let adopted = async {
            let provider = &self.0.housing.provider;
            provider.thaw(status.id).await.map_err(HousingError::Provider)?;
            let promised = self.promised(live.session).await.map_err(HousingError::Store)?;
            let housed = self.move_in(live, status, promised).await?;
            let stopped = if promised.is_zero() {
                housed.linked.stop_all().await
            } else {
                housed.linked.stop().await
            };
            if let Err(error) = stopped {
                housed.linked.close();
                return Err(HousingError::Link(error));
            }
            // It says what goes on in it before it answers that.
            housed.usage.settle_in();
            Ok::<_, HousingError>(housed)
        };
        match adopted.await {
            Ok(housed) => {
                self.tell_sandbox(live, status.id, State::Running, None).await;
                Ok(Some(housed))
            }
            Err(error) if error.is_not_its_own() => {
                lock(&self.0.housing.by_sandbox).remove(&status.id);
                lock(&self.0.housing.left).insert(live.session, left);
                Err(error)
            }
            Err(error) => {
                // The next one that is made for this session finds its disk in use, and removes it.
                tracing::info!(sandbox = %status.id, error = with_causes(&error), "a sandbox could not be adopted");
                lock(&self.0.housing.by_sandbox).remove(&status.id);
                Ok(None)
            }
        }
    }

    /// A sandbox that is made for the session, with its files where it has any.
    pub(super) async fn make_anew(&self, live: &Arc<Live>) -> Result<Arc<Housed>, HousingError> {
        let _first = self.0.housing.warm.give_way();
        for _ in 0..MADE_ANEW {
            match self.make(live).await {
                Err(HousingError::Provider(ProviderError::NotFound(_) | ProviderError::Dead { .. })) => {}
                made => return made,
            }
        }
        Err(HousingError::Vanished)
    }

    async fn make(&self, live: &Arc<Live>) -> Result<Arc<Housed>, HousingError> {
        let mut spec = SandboxSpec {
            id: SandboxId::new(),
            session: live.session,
            image: self.image_for(live),
            limits: self.0.config.sandbox,
            builder: false,
        };
        let status = self.create_for(live, &mut spec).await?;
        match self.move_in(live, &status, Duration::ZERO).await {
            Ok(housed) => {
                self.tell_sandbox(live, spec.id, State::Running, None).await;
                Ok(housed)
            }
            Err(error) => {
                self.abandon(live.session, spec.id).await;
                Err(error)
            }
        }
    }

    /// What a session without a disk gets: what its run under way was told of, or else the newest.
    pub(super) fn image_for(&self, live: &Live) -> ImageDigest {
        live.active()
            .map_or_else(|| self.image(), |active| active.offer.image.clone())
    }

    /// Makes a sandbox of the image that the session's disk began with, or else of the one that is its. Where an image is gone that
    /// should be there, the session goes on with another rather than not at all.
    async fn create_for(&self, live: &Arc<Live>, spec: &mut SandboxSpec) -> Result<SandboxStatus, HousingError> {
        let store = &self.0.store;
        let kept = store.image_of(Asker::System, live.session).await;
        let kept = kept.map_err(HousingError::Store)?;
        let mut images: Vec<_> = kept
            .into_iter()
            .chain([self.image_for(live)])
            .chain(self.images_for_new())
            .collect();
        images.dedup();
        let mut made = Err(HousingError::Vanished);
        for image in images {
            if let Err(HousingError::Provider(error @ ProviderError::ImageMissing { .. })) = &made {
                tracing::warn!(session = %live.session, error = with_causes(error), "a session's image is gone; it gets another");
            }
            spec.image = image;
            // The store is told first: whoever removes images that nobody uses asks it.
            let set = store.set_image(Asker::System, live.session, spec.image.clone());
            let (set, ()) = tokio::join!(set, self.tell_sandbox(live, spec.id, State::Starting, None));
            set.map_err(HousingError::Store)?;
            made = match self.create(spec).await {
                Err(ProviderError::DiskInUse { sandbox, .. }) => {
                    // One that a dead process left, or that was lost: its files are wanted, it is not.
                    let destroyed = self.destroy(live.session, sandbox).await;
                    destroyed.map_err(HousingError::Provider)?;
                    self.create(spec).await
                }
                made => made,
            }
            .map_err(HousingError::Provider);
            if !matches!(made, Err(HousingError::Provider(ProviderError::ImageMissing { .. }))) {
                return made;
            }
        }
        made
    }

    /// Removes a sandbox that did not become a session's.
    pub(super) async fn abandon(&self, session: SessionId, sandbox: SandboxId) {
        lock(&self.0.housing.by_sandbox).remove(&sandbox);
        if let Err(error) = self.destroy(session, sandbox).await {
            tracing::warn!(%sandbox, error = with_causes(&error), "could not remove a sandbox that did not start");
        }
    }

    pub(super) async fn create(&self, spec: &SandboxSpec) -> Result<SandboxStatus, ProviderError> {
        let began = Instant::now();
        let created = self.0.housing.provider.create(spec).await;
        self.stepped(spec.session, Transition::Create, began, &created);
        created
    }

    /// Serves the link of a sandbox and gives it to the session. Programs in the background that are there may keep it for so
    /// long.
    async fn move_in(
        &self,
        live: &Arc<Live>,
        status: &SandboxStatus,
        promised: Duration,
    ) -> Result<Arc<Housed>, HousingError> {
        self.move_in_as(live, status, promised, false).await
    }

    /// The same where the session's runtime goes on in it, which is to be of this release.
    pub(super) async fn move_in_woken(
        &self,
        live: &Arc<Live>,
        status: &SandboxStatus,
        promised: Duration,
    ) -> Result<Arc<Housed>, HousingError> {
        self.move_in_as(live, status, promised, true).await
    }

    async fn move_in_as(
        &self,
        live: &Arc<Live>,
        status: &SandboxStatus,
        promised: Duration,
        woken: bool,
    ) -> Result<Arc<Housed>, HousingError> {
        let usage = self.enter(live, status.id);
        usage.promise(promised);
        let (linked, socket) = self.open_link(status).await?;
        let claimed = async {
            self.answers(&linked).await?;
            if woken && linked.is_current() == Some(false) {
                return Err(HousingError::Outdated);
            }
            let issued = Issued {
                woken,
                ..self.issue(live).await?
            };
            self.claim(live, &linked, issued).await
        };
        match claimed.await {
            Ok(token) => Ok(housed(linked, usage, token, socket)),
            Err(error) => {
                linked.close();
                Err(error)
            }
        }
    }

    /// From here on, what comes over the sandbox's link comes from this session.
    pub(super) fn enter(&self, live: &Arc<Live>, sandbox: SandboxId) -> Arc<Usage> {
        let usage = Usage::new();
        let resident = Resident {
            live: Arc::clone(live),
            usage: Arc::clone(&usage),
        };
        lock(&self.0.housing.by_sandbox).insert(sandbox, resident);
        usage
    }

    /// Serves the link of a sandbox, and says of which socket.
    pub(super) async fn open_link(&self, status: &SandboxStatus) -> Result<(Linked, u64), HousingError> {
        if let SandboxState::Dead { reason } = &status.state {
            let (id, reason) = (status.id, reason.clone());
            return Err(HousingError::Provider(ProviderError::Dead { id, reason }));
        }
        let provider = &self.0.housing.provider;
        let listener = provider.link(status.id).await.map_err(HousingError::Provider)?;
        let socket = keeping::inode(&listener);
        let handler = Arc::new(self.clone());
        let linked = link::server::serve(listener, status.id, status.root_uid, handler, &self.0.tasks)
            .map_err(HousingError::Link)?;
        Ok((linked, socket))
    }

    /// Waits until the runtime answers.
    pub(super) async fn answers(&self, linked: &Linked) -> Result<(), HousingError> {
        tokio::select! {
            () = linked.connected() => Ok(()),
            gone = self.gone(linked.sandbox()) => Err(gone),
            () = sleep(ANSWERS_WITHIN) => Err(HousingError::unanswered(linked)),
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

    /// A new token for a session's sandbox.
    pub(super) async fn issue(&self, live: &Live) -> Result<Issued, HousingError> {
        let asked = self.asked_now();
        let life = self.0.config.token_life;
        let token = self.0.store.issue_session_token(Asker::System, live.session, life);
        let (token, filled) = tokio::join!(token, self.never_kept(live));
        Ok(Issued {
            token: token.map_err(HousingError::Store)?,
            asked,
            filled: filled.map_err(HousingError::Store)?,
            woken: false,
        })
    }

    /// Tells a runtime whose it is.
    pub(super) async fn claim(
        &self,
        live: &Live,
        linked: &Linked,
        issued: Issued,
    ) -> Result<tokens::Current, HousingError> {
        let Issued {
            token,
            asked,
            filled,
            woken,
        } = issued;
        let outfit = Outfit {
            woken,
            ..self.outfit(filled)
        };
        linked
            .claim(live.session, &token.secret, outfit)
            .await
            .map_err(HousingError::Link)?;
        Ok(tokens::Current::new(&token, self.0.config.token_life, asked))
    }

    /// What every sandbox is given.
    pub(super) fn outfit(&self, filled: bool) -> Outfit {
        Outfit {
            environment: protocol::placeholders(),
            authorities: self.authorities(),
            known_hosts: self.known_hosts(),
            filled,
            woken: false,
        }
    }
}

/// A session's sandbox from here on.
pub(super) fn housed(linked: Linked, usage: Arc<Usage>, token: tokens::Current, socket: u64) -> Arc<Housed> {
    usage.touch();
    Arc::new(Housed {
        id: linked.sandbox(),
        linked,
        usage,
        frozen_at: Mutex::default(),
        unfrozen: Mutex::default(),
        token: Mutex::new(token),
        socket: AtomicU64::new(socket),
        telling: Arc::default(),
    })
}
