//! What becomes of the processes of a sandbox that nobody uses: where its provider can, it keeps them on its disk, and they go on
//! when the session needs a sandbox again.
//!
//! What is kept was a session's, and had its token. So that token opens nothing before anything is written, and what goes on is
//! believed to be its session's for two reasons alone: the provider says so, and it comes by the link of the sandbox that was
//! made for it. It is claimed as any other, with a token of its own, and refuses where it was another's.

use std::sync::Arc;

use causes::with_causes;
use domain::{SandboxId, SessionId};
use sandbox::{Kept, ProviderError, SandboxSpec};
use store::Asker;
use tokio::time::Instant;

use super::meters::Transition;
use super::{CUT_OFF, Housed, HousingError, Left, State, not_removed};
use crate::Control;
use crate::live::Live;

/// The most that is told of why processes could not be kept, or go on, in letters.
const WORDS: usize = 300;

impl Control {
    /// Ends a sandbox that nobody uses, keeps its processes where that can be, and tells of both.
    pub(super) async fn put_to_sleep(&self, live: &Live, housed: &Housed, why: &str) -> Result<(), ProviderError> {
        let had_token = self.cut_off(live, housed, State::Hibernated).await;
        let kept = self.hibernate_sandbox(live.session, housed.id, had_token).await;
        let (state, reason) = match &kept {
            Ok(kept) => told(kept, why),
            Err(error) => {
                not_removed(housed.id, error);
                (State::Hibernated, CUT_OFF.to_owned())
            }
        };
        let _in_order = housed.telling.lock().await;
        self.tell_sandbox(live, housed.id, state, Some(&reason)).await;
        kept.map(drop)
    }

    /// Removes a sandbox at the provider, which keeps its processes where it can, if its session had a token until now. Where that
    /// was revoked before, there was a reason; where it could not be revoked, what would be kept could still use it.
    async fn hibernate_sandbox(
        &self,
        session: SessionId,
        sandbox: SandboxId,
        had_token: bool,
    ) -> Result<Kept, ProviderError> {
        if !had_token {
            let destroyed = self.destroy(session, sandbox).await;
            return destroyed.map(|()| Kept::Nothing { reason: None });
        }
        let began = Instant::now();
        let kept = self.0.housing.provider.hibernate(sandbox).await;
        self.stepped(session, Transition::Destroy, began, &kept);
        kept
    }

    /// The same for one that a process before this one left, and that no session has needed since; tells of it. One whose session
    /// is given another at the moment, or has it, is removed by that.
    pub(super) async fn put_left_to_sleep(&self, left: Left, why: &str) {
        let (session, sandbox) = (left.status.session, left.status.id);
        let live = match self.live(Asker::System, session).await {
            Ok(live) => live,
            Err(error) => {
                tracing::warn!(%sandbox, error = with_causes(&error), "could not look up whose sandbox that is which nobody used; it stays for now");
                return;
            }
        };
        let seat = live.seat.housed.try_lock();
        if !seat.as_ref().is_ok_and(|seat| seat.is_none()) {
            return;
        }
        let had_token = match self.revoke_tokens(session, "its sandbox was removed").await {
            Ok(had_token) => had_token,
            Err(error) => {
                tracing::warn!(%session, error = with_causes(&error), "could not revoke the tokens of a sandbox that nobody used; it stays for now");
                return;
            }
        };
        let kept = match self.hibernate_sandbox(session, sandbox, had_token).await {
            Ok(kept) => kept,
            Err(error) => {
                tracing::warn!(%sandbox, error = with_causes(&error), "could not remove a sandbox that nobody used");
                return;
            }
        };
        let (state, reason) = told(&kept, why);
        self.tell_sandbox(&live, sandbox, state, Some(&reason)).await;
    }

    /// The session's sandbox with the processes that were kept of the one before; none where none were, or they cannot go on,
    /// which is told. To be called with its seat held.
    pub(super) async fn let_go_on(&self, live: &Arc<Live>) -> Result<Option<Arc<Housed>>, HousingError> {
        let Some(before) = self.suspended(live).await? else {
            return Ok(None);
        };
        let image = self.0.store.image_of(Asker::System, live.session).await;
        let why_not = match image.map_err(HousingError::Store)? {
            None => "nothing says of which image they are".to_owned(),
            Some(image) => {
                let spec = SandboxSpec {
                    id: SandboxId::new(),
                    session: live.session,
                    image,
                    limits: self.0.config.sandbox,
                    builder: false,
                };
                match self.wake_up(live, &spec).await {
                    Ok(housed) => {
                        self.tell_sandbox(live, spec.id, State::Running, None).await;
                        return Ok(Some(housed));
                    }
                    Err(error @ HousingError::Store(_)) => return Err(error),
                    Err(HousingError::Provider(ProviderError::NothingKept { reason, .. })) => reason,
                    Err(error) => with_causes(&error),
                }
            }
        };
        tracing::info!(session = %live.session, why_not, "processes that were kept cannot go on; they are gone");
        let why_not = beginning(&why_not);
        let reason = format!("its processes were kept and cannot go on ({why_not}): they are gone, its files are kept");
        self.tell_sandbox(live, before, State::Hibernated, Some(&reason)).await;
        Ok(None)
    }

    async fn wake_up(&self, live: &Arc<Live>, spec: &SandboxSpec) -> Result<Arc<Housed>, HousingError> {
        let promised = self.promised(live.session).await.map_err(HousingError::Store)?;
        let status = self.0.housing.provider.wake(spec).await;
        // Where the answer was lost there may be one: whoever makes another finds the disk in use, and removes it.
        let status = status.map_err(HousingError::Provider)?;
        let woken = async {
            if (status.id, status.session) != (spec.id, spec.session) {
                return Err(HousingError::Vanished);
            }
            let housed = self.move_in_woken(live, &status, promised).await?;
            // Nothing was under way. What is all the same was interrupted.
            if let Err(error) = housed.linked.stop().await {
                housed.linked.close();
                return Err(HousingError::Link(error));
            }
            housed.usage.settle_in();
            Ok(housed)
        };
        match woken.await {
            Ok(housed) => Ok(housed),
            Err(error) => {
                self.abandon(live.session, spec.id).await;
                Err(error)
            }
        }
    }

    /// Removes what is kept of a session's processes, if it sleeps, and tells of it for this reason. To be called with its seat
    /// held, and without a sandbox.
    pub(super) async fn forget_processes(&self, live: &Live, reason: &str) {
        let Ok(Some(before)) = self.suspended(live).await else {
            return;
        };
        if let Err(error) = self.0.housing.provider.forget(live.session).await {
            // From here on nobody lets them go on, and they are removed when the session gets its next sandbox.
            tracing::warn!(session = %live.session, error = with_causes(&error), "could not remove what was kept of a session's processes");
        }
        self.tell_sandbox(live, before, State::Hibernated, Some(reason)).await;
    }

    /// The sandbox that a session had last, where its processes were kept.
    async fn suspended(&self, live: &Live) -> Result<Option<SandboxId>, HousingError> {
        let last = self.last_sandbox(live).await?;
        Ok(last.and_then(|(sandbox, state)| (state == State::Suspended.name()).then_some(sandbox)))
    }

    /// The sandbox that a session had last, and what was told of it last.
    pub(super) async fn last_sandbox(&self, live: &Live) -> Result<Option<(SandboxId, String)>, HousingError> {
        let stored = self.0.store.session(Asker::System, live.session).await;
        Ok(stored.map_err(HousingError::Store)?.sandbox)
    }
}

/// How a session is said to be, and why, of whose sandbox this is left.
fn told(kept: &Kept, why: &str) -> (State, String) {
    match kept {
        Kept::Processes => (State::Suspended, format!("{why}: its processes and its files are kept")),
        Kept::Nothing { reason: None } => (
            State::Hibernated,
            format!("{why}: its processes are gone, its files are kept"),
        ),
        Kept::Nothing { reason: Some(reason) } => {
            let reason = beginning(reason);
            let words = format!("{why}: its processes could not be kept ({reason}) and are gone, its files are kept");
            (State::Hibernated, words)
        }
    }
}

fn beginning(words: &str) -> String {
    words.chars().take(WORDS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_says_what_became_of_processes() {
        let nothing = |reason: Option<&str>| Kept::Nothing {
            reason: reason.map(str::to_owned),
        };
        let kept = told(&Kept::Processes, "nobody used it");
        assert_eq!(
            kept,
            (
                State::Suspended,
                "nobody used it: its processes and its files are kept".to_owned()
            )
        );
        let gone = told(&nothing(None), "nobody used it");
        assert_eq!(
            gone,
            (
                State::Hibernated,
                "nobody used it: its processes are gone, its files are kept".to_owned()
            )
        );
        let (state, words) = told(&nothing(Some(&"late ".repeat(1_000))), "nobody used it");
        assert_eq!(state, State::Hibernated);
        assert!(words.contains("could not be kept (late late"), "{words}");
        assert!(words.len() < 600, "{words}");
    }
}
