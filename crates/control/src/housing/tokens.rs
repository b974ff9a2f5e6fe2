//! What a runtime shows with each request: good on its own link only.
//!
//! The store decides whether a token is good; the one that a link was last given is known here, so that the common case
//! costs no reading.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use causes::with_causes;
use domain::{SandboxId, SessionId};
use secret::Secret;
use sha2::{Digest, Sha256};
use store::{Asker, AuditEntry, SessionToken, StoreError};
use tokio::time::Instant;

use super::{Housed, HousingError, State};
use crate::Control;
use crate::live::{Live, lock};

/// Longer than anything is built.
const FAR: Duration = Duration::from_secs(30 * 86_400);

/// Tokens whose bearers are remembered: more than there are sandboxes on a machine.
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
    pub(super) fn new(token: &SessionToken, life: Duration, revocations: u64) -> Self {
        let now = Instant::now();
        Self {
            hash: hash(token.secret.expose()),
            expires: now + life,
            renew: now + life / 2,
            revocations: Some(revocations),
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
}

impl Housed {
    fn is_current(&self, hash: &[u8; 32], revocations: u64) -> bool {
        let current = lock(&self.token);
        let stands = current.revocations.is_none_or(|then| then == revocations);
        stands && current.hash == *hash && Instant::now() < current.expires
    }

    /// The store found it good when so often something had been revoked, or later.
    fn confirm(&self, hash: &[u8; 32], revocations: u64) {
        let mut current = lock(&self.token);
        if current.hash == *hash && current.revocations.is_some() {
            current.revocations = Some(revocations);
        }
    }
}

/// Whose tokens were shown lately. It only says where to look: whether a token is good is known by the seat, or by the store.
#[derive(Debug, Default)]
pub(super) struct Bearers(Mutex<HashMap<[u8; 32], SessionId>>);

impl Bearers {
    fn of(&self, hash: &[u8; 32]) -> Option<SessionId> {
        lock(&self.0).get(hash).copied()
    }

    fn remember(&self, hash: [u8; 32], session: SessionId) {
        let mut known = lock(&self.0);
        if known.len() >= BEARERS {
            known.clear();
        }
        known.insert(hash, session);
    }
}

impl Live {
    /// Whether its sandbox's token is this one, as far as that is known by heart. The seat is held while a sandbox is made or removed:
    /// nothing is known then.
    fn has_token(&self, hash: &[u8; 32], sandbox: Option<SandboxId>, revocations: u64) -> bool {
        let known = self.seat.housed.try_lock().ok();
        let housed = known.as_ref().and_then(|seat| seat.as_ref());
        housed.is_some_and(|housed| {
            sandbox.is_none_or(|sandbox| housed.id == sandbox) && housed.is_current(hash, revocations)
        })
    }

    fn confirm_token(&self, hash: &[u8; 32], revocations: u64) {
        if let Ok(seat) = self.seat.housed.try_lock()
            && let Some(housed) = seat.as_ref()
        {
            housed.confirm(hash, revocations);
        }
    }
}

impl Control {
    /// The session whose token this is, where it is known here; none where it is no session's.
    pub(crate) async fn bearer(&self, token: &Secret) -> Option<Arc<Live>> {
        let (housing, hash) = (&self.0.housing, hash(token.expose()));
        let revocations = housing.revocations.load(Ordering::SeqCst);
        let known = housing.bearers.of(&hash).and_then(|session| self.0.lives.find(session));
        if let Some(live) = known.filter(|live| live.has_token(&hash, None, revocations)) {
            return Some(live);
        }
        let session = self.0.store.check_session_token(token.expose()).await.ok()?;
        let live = self.0.lives.find(session)?;
        housing.bearers.remember(hash, session);
        live.confirm_token(&hash, revocations);
        Some(live)
    }

    /// Whether a token that was shown on the link of `sandbox` is its session's. One of another session was stolen: that
    /// session loses its tokens and its sandbox, and goes on in a new one.
    pub(crate) async fn check_token(&self, live: &Live, sandbox: SandboxId, token: &Secret) -> Shown {
        let hash = hash(token.expose());
        let revocations = self.0.housing.revocations.load(Ordering::SeqCst);
        if live.has_token(&hash, Some(sandbox), revocations) {
            return Shown::Good;
        }
        match self.0.store.check_session_token(token.expose()).await {
            Ok(session) if session == live.session => {
                live.confirm_token(&hash, revocations);
                Shown::Good
            }
            Ok(session) => {
                self.stolen(session, sandbox).await;
                Shown::Refused
            }
            Err(error) => {
                tracing::debug!(%sandbox, %error, "a token was refused");
                Shown::Refused
            }
        }
    }

    /// Ends every token of a session, at once.
    pub(crate) async fn revoke_tokens(&self, session: SessionId, reason: &str) -> Result<(), StoreError> {
        self.0
            .store
            .revoke_session_tokens(Asker::System, session, reason)
            .await?;
        self.doubt_tokens();
        Ok(())
    }

    /// No token is taken on trust any more: the store is asked for each.
    pub(crate) fn doubt_tokens(&self) {
        self.0.housing.revocations.fetch_add(1, Ordering::SeqCst);
    }

    async fn stolen(&self, session: SessionId, shown_by: SandboxId) {
        tracing::warn!(%session, %shown_by, "a session's token was shown on another sandbox's link; its tokens are revoked");
        let detail = serde_json::json!({ "shown_by": shown_by });
        let entry = AuditEntry::about("session_token.stolen", session, detail);
        if let Err(error) = self.0.store.audit(Asker::System, vec![entry]).await {
            tracing::error!(%session, error = with_causes(&error), "could not write down that a token was stolen");
        }
        if let Err(error) = self
            .revoke_tokens(session, "it was shown on another sandbox's link")
            .await
        {
            tracing::error!(%session, error = with_causes(&error), "could not revoke the tokens of a session whose token was stolen");
        }
        if let Some(owner) = self.0.lives.find(session) {
            let control = self.clone();
            self.0.tasks.spawn(async move {
                let reason = "its token was shown on another sandbox's link";
                control.unhouse(&owner, None, State::Lost, Some(reason)).await;
            });
        }
    }

    /// Puts a new token in the place of one that has lived half its life.
    pub(super) async fn refresh_token(&self, live: &Live, housed: &Housed) -> Result<(), HousingError> {
        if Instant::now() < lock(&housed.token).renew {
            return Ok(());
        }
        let life = self.0.config.token_life;
        let revocations = self.0.housing.revocations.load(Ordering::SeqCst);
        let token = self
            .0
            .store
            .rotate_session_token(Asker::System, live.session, life)
            .await
            .map_err(HousingError::Store)?;
        housed.linked.token(&token.secret).await.map_err(HousingError::Link)?;
        *lock(&housed.token) = Current::new(&token, life, revocations);
        Ok(())
    }
}
