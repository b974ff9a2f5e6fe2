//! Programs in the background through a restart of this process. Their sandbox says again for how long they go on, and is
//! believed up to what the store knows: nothing is granted but by a run, so from the end of the last one on their time runs out,
//! however often this process begins anew.

use std::sync::Arc;
use std::time::Duration;

use causes::with_causes;
use domain::{RunState, SessionId};
use futures::StreamExt;
use sandbox::SandboxState;
use store::{Asker, StoreError, TokenState};

use super::HousingError;
use super::keeping::SIDE_BY_SIDE;
use crate::live::{Live, lock};
use crate::{Control, ControlError};

impl Control {
    /// How much longer programs in the background may go on of which a process before this one was told.
    pub(super) async fn promised(&self, session: SessionId) -> Result<Duration, StoreError> {
        let most = self.0.config.background_time;
        let last = self.0.store.last_begun(Asker::System, session).await?;
        Ok(match last {
            None => Duration::ZERO,
            // They were to end with it, and whoever had that done may not have come to it.
            Some(last) if last.state == RunState::Cancelled => Duration::ZERO,
            Some(last) => most.saturating_sub(last.over_for.unwrap_or_default()),
        })
    }

    /// Begins to adopt the sandboxes that a process before this one left awake, before anybody asks for them: something may go on
    /// in them, and if not they are to be put to sleep. Those whose sessions have no token are ended, awake or not.
    pub(super) fn begin_hearing(&self) {
        let left: Vec<_> = lock(&self.0.housing.left)
            .values()
            .map(|left| (left.status.session, left.status.state == SandboxState::Running))
            .collect();
        let control = self.clone();
        self.0.tasks.spawn_until_stopped(async move {
            futures::stream::iter(left)
                .for_each_concurrent(SIDE_BY_SIDE, async |(session, is_awake)| {
                    if let Err(error) = control.hear_of(session, is_awake).await {
                        tracing::warn!(%session, error = with_causes(&error), "could not adopt a session's sandbox; it is when the session is used");
                    }
                })
                .await;
        });
    }

    async fn hear_of(&self, session: SessionId, is_awake: bool) -> Result<(), ControlError> {
        let is_to_go = self.0.store.session_token_state(Asker::System, session).await? != TokenState::Current;
        if !is_awake && !is_to_go {
            // What is frozen is kept by nothing, and sleeps.
            return Ok(());
        }
        let live = self.live(Asker::System, session).await?;
        let stored = self.0.store.session(Asker::System, session).await?;
        // A run that is under way adopts it by itself, and one that is archived is used by nobody.
        let is_over = stored.run.is_none_or(|(_, state)| state.is_final());
        if is_over && (is_to_go || stored.archived.is_none()) {
            self.house_left(&live).await?;
        }
        Ok(())
    }

    /// Adopts the sandbox that a process before this one left to a session, where there still is one.
    async fn house_left(&self, live: &Arc<Live>) -> Result<(), HousingError> {
        let mut seat = live.seat.housed.lock().await;
        if seat.is_none()
            && live.owed().is_none()
            && let Some(housed) = self.adopt(live).await?
        {
            live.seat.take(&mut seat, housed);
        }
        Ok(())
    }
}
