//! What a runtime shows with each request, on its own link only, and what whoever holds a session's token shows at the door for
//! services.
//!
//! The store decides whether a token is good, and counts how often it revoked any. The one that a link was last given is known
//! here, and believed as long as that count stands, so that the common case costs no reading.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use causes::with_causes;
use domain::{SandboxId, SessionId};
use secret::Secret;
use sha2::{Digest, Sha256};
use store::{Asker, SessionToken, StoreError, TokenState};
use tokio::time::Instant;

use super::{Housed, HousingError};
use crate::Control;
use crate::live::{Live, lock};

/// Longer than anything is built.
const FAR: Duration = Duration::from_secs(30 * 86_400);

/// Tokens whose bearers are remembered; then all of them are forgotten.
const BEARERS: usize = 4_096;

/// The token that a link was last given.
#[derive(Debug)]
pub(super) struct Current {
    hash: [u8; 32],
    expires: Instant,
    renew: Instant,
    /// Another one by now: tokens were revoked since, and the store is asked. None: the store does not know it.
    revocations: Option<u64>,
}

/// When the store was asked for a token: it counts from then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    at: Instant,
    revocations: u64,
}

/// What became of a token that was shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shown {
    /// It is the link's own session's.
    Good,
    /// It opens nothing here.
    Refused,
}

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

impl Current {
    pub(super) fn new(token: &SessionToken, life: Duration, asked: Asked) -> Self {
        Self {
            hash: hash(token.secret.expose()),
            expires: asked.at + life,
            renew: asked.at + life / 2,
            revocations: Some(asked.revocations),
        }
    }

    /// A token that is good as long as the sandbox is there.
    pub(super) fn own(token: &SessionToken) -> Self {
        let far = Instant::now() + FAR;
        Self {
            hash: hash(token.secret.expose()),
            expires: far,
            renew: far,
            revocations: None,
        }
    }

    fn is(&self, hash: &[u8; 32]) -> bool {
        self.hash == *hash && Instant::now() < self.expires
    }

    /// Nothing was revoked since the store last found it good.
    fn stands(&self, revocations: u64) -> bool {
        self.revocations.is_none_or(|then| then == revocations)
    }

    /// The store found it good when so often something had been revoked, or later. It may be one that was replaced, where its
    /// successor did not reach the runtime: it is all that the runtime has, and good until it expires.
    fn confirm(&mut self, hash: &[u8; 32], revocations: u64) {
        if self.hash == *hash && self.revocations.is_some() {
            self.revocations = Some(revocations);
        }
    }
}

/// Whose tokens the store found good at the door for services, and how often it had revoked any by then. That tells where to look: the
/// token is to be that of the session's sandbox besides.
#[derive(Debug, Default)]
pub(super) struct Bearers(Mutex<HashMap<[u8; 32], (SessionId, u64)>>);

impl Bearers {
    fn of(&self, hash: &[u8; 32], revocations: u64) -> Option<SessionId> {
        let known = lock(&self.0).get(hash).copied();
        known
            .filter(|(_, then)| *then == revocations)
            .map(|(session, _)| session)
    }

    fn remember(&self, hash: [u8; 32], session: SessionId, revocations: u64) {
        let mut known = lock(&self.0);
        if known.len() >= BEARERS {
            known.clear();
        }
        known.insert(hash, (session, revocations));
    }
}

impl Live {
    /// What is known by heart of its sandbox and that one's token: nothing while somebody holds the seat, as whoever makes or removes
    /// a sandbox does.
    fn by_heart<T>(&self, look: impl FnOnce(&Housed, &mut Current) -> T) -> Option<T> {
        let seat = self.seat.housed.try_lock().ok()?;
        let housed = seat.as_ref()?;
        Some(look(housed, &mut lock(&housed.token)))
    }
}

impl Control {
    /// What the store answers from now on counts from now.
    pub(super) fn asked_now(&self) -> Asked {
        Asked {
            at: Instant::now(),
            revocations: self.0.store.revocations(),
        }
    }

    /// The session at work whose token this is, if the store knows it to be good, or knew it and has revoked nothing since.
    pub(crate) async fn bearer(&self, token: &Secret) -> Option<Arc<Live>> {
        let (bearers, hash) = (&self.0.housing.bearers, hash(token.expose()));
        let revocations = self.0.store.revocations();
        let known = bearers.of(&hash, revocations);
        let known = known.and_then(|session| self.0.lives.find(session));
        if let Some(live) = known.filter(|live| live.by_heart(|_, current| current.is(&hash)) == Some(true)) {
            return Some(live);
        }
        let session = self.0.store.check_session_token(token.expose()).await.ok()?;
        let live = self.0.lives.find(session)?;
        bearers.remember(hash, session, revocations);
        Some(live)
    }

    /// Whether a token that was shown on the link of `sandbox` is its session's. One of another session was stolen: that
    /// session loses its tokens, and goes on in a new sandbox as soon as that is noticed.
    pub(crate) async fn check_token(&self, live: &Live, sandbox: SandboxId, token: &Secret) -> Shown {
        let hash = hash(token.expose());
        let revocations = self.0.store.revocations();
        let is_good = |housed: &Housed, current: &mut Current| {
            housed.id == sandbox && current.is(&hash) && current.stands(revocations)
        };
        if live.by_heart(is_good) == Some(true) {
            return Shown::Good;
        }
        match self.0.store.check_session_token(token.expose()).await {
            Ok(session) if session == live.session => {
                live.by_heart(|_, current| current.confirm(&hash, revocations));
                Shown::Good
            }
            Ok(victim) => {
                tracing::warn!(session = %victim, shown_by = %sandbox, "a session's token was shown on another sandbox's link; its tokens are revoked");
                let revoked = self.0.store.revoke_stolen_token(Asker::System, token.expose(), sandbox);
                if let Err(error) = revoked.await {
                    tracing::error!(session = %victim, error = with_causes(&error), "could not revoke the tokens of a session whose token was stolen");
                }
                Shown::Refused
            }
            Err(error) => {
                tracing::debug!(%sandbox, %error, "a token was refused");
                Shown::Refused
            }
        }
    }

    /// Ends every token of a session, at once; whether it had one.
    pub(crate) async fn revoke_tokens(&self, session: SessionId, reason: &str) -> Result<bool, StoreError> {
        self.0.store.revoke_session_tokens(Asker::System, session, reason).await
    }

    /// What the store says of a sandbox's token, where it has revoked any since it was last asked. Where it cannot be asked the
    /// token is believed in: whoever shows it has it looked up. What has none never gets one again.
    pub(super) async fn token_state(&self, live: &Live, housed: &Housed) -> TokenState {
        let revocations = self.0.store.revocations();
        if lock(&housed.token).stands(revocations) {
            return TokenState::Current;
        }
        match self.0.store.session_token_state(Asker::System, live.session).await {
            Ok(TokenState::Current) => {
                // None was revoked since this sandbox was given its first: that would have ended this one, too.
                lock(&housed.token).revocations = Some(revocations);
                TokenState::Current
            }
            Ok(state) => state,
            Err(error) => {
                tracing::warn!(session = %live.session, error = with_causes(&error), "could not look whether a session's token was revoked");
                TokenState::Current
            }
        }
    }

    /// Puts a new token in the place of one that has lived half its life.
    ///
    /// # Errors
    /// [`HousingError::Revoked`] where it was revoked since it was looked at.
    pub(super) async fn refresh_token(&self, live: &Live, housed: &Housed) -> Result<(), HousingError> {
        if Instant::now() < lock(&housed.token).renew {
            return Ok(());
        }
        let life = self.0.config.token_life;
        let asked = self.asked_now();
        let token = self
            .0
            .store
            .rotate_session_token(Asker::System, live.session, life)
            .await
            .map_err(|error| match error {
                StoreError::NotFound { .. } => HousingError::Revoked,
                error => HousingError::Store(error),
            })?;
        housed.linked.token(&token.secret).await.map_err(HousingError::Link)?;
        *lock(&housed.token) = Current::new(&token, life, asked);
        Ok(())
    }
}
