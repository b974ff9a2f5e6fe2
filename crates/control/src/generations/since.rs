//! What came to the repositories after the image was built: brought to a new session while it begins to work.
//!
//! It is brought with the session's own rights. Where they do not allow it, nothing is tried, and the session has what was
//! there when the image was built.

use std::sync::Arc;
use std::time::Duration;

use causes::with_causes;
use knowledge::Repository;
use policy::{Destination, Outcome};
use tokio::time::timeout;

use super::commands::{self, Done, PULL};
use crate::live::Live;
use crate::{Control, ControlError};

/// How long that may take, for each repository.
const SECONDS: u64 = 60;

impl Control {
    /// Begins to bring what came since, to a session that has just got its first sandbox.
    pub(crate) fn begin_pulling(&self, live: &Arc<Live>) {
        if self.base().refresh.is_none() || self.image() == self.base().image {
            return;
        }
        let (control, live) = (self.clone(), Arc::clone(live));
        self.0.tasks.spawn_until_stopped(async move {
            if let Err(error) = control.pull(&live).await {
                tracing::debug!(session = %live.session, error = with_causes(&error), "what came since was not brought to a session");
            }
        });
    }

    async fn pull(&self, live: &Arc<Live>) -> Result<(), ControlError> {
        let base = self.base();
        let Some(refresh) = &base.refresh else {
            return Ok(());
        };
        if self.layers(live).await?.tool("exec").outcome != Outcome::Allow {
            // It runs in the session, so the session must be one that may run something.
            return Ok(());
        }
        let allowed: Vec<_> = refresh
            .knowledge
            .repositories
            .iter()
            .filter(|repository| may_reach(live, repository))
            .collect();
        for repository in allowed {
            let Some(stay) = self.stay(live).await else {
                return Ok(());
            };
            let environment = [("NAME", repository.name.as_str())];
            let calling = stay
                .linked
                .call(commands::call(PULL, &environment), commands::limits(SECONDS));
            let Ok(Ok(result)) = timeout(Duration::from_secs(2 * SECONDS), calling).await else {
                return Ok(());
            };
            match commands::read(&result) {
                Ok(Done { status, .. }) if status == "0" => {}
                Ok(Done { said: words, .. }) | Err(words) => {
                    tracing::debug!(session = %live.session, repository = repository.name, words, "a repository stays as its image has it");
                }
            }
        }
        Ok(())
    }
}

fn may_reach(live: &Live, repository: &Repository) -> bool {
    let (host, port) = &repository.host;
    let destination = Destination::parse(host);
    destination.is_ok_and(|destination| {
        Control::decide_egress(Some(live), &destination, Some(*port)).outcome == Outcome::Allow
    })
}
