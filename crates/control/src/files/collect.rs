//! What no file needs any more is removed.

use causes::with_causes;
use domain::Timestamp;
use objects::Key;
use store::Asker;
use tokio::time::{MissedTickBehavior, interval};

use super::Files;
use crate::Control;

/// Contents that are taken at once.
const AT_ONCE: u32 = 256;

impl Control {
    /// Begins to remove contents that no file needs.
    pub(crate) fn begin_collecting(&self) {
        let Some(files) = self.0.files.clone() else {
            return;
        };
        let control = self.clone();
        self.0.tasks.spawn_until_stopped(async move {
            let mut ticks = interval(files.collect_every);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                while control.collect(&files).await == AT_ONCE as usize {}
            }
        });
    }

    /// Removes some; how many there were. What cannot be removed now is taken again the next time.
    async fn collect(&self, files: &Files) -> usize {
        let grace = i64::try_from(files.grace.as_millis()).unwrap_or(i64::MAX);
        let before = Timestamp(Timestamp::now().0.saturating_sub(grace));
        let taken = match self.0.store.take_unused_contents(Asker::System, before, AT_ONCE).await {
            Ok(taken) => taken,
            Err(error) => {
                tracing::warn!(
                    error = with_causes(&error),
                    "contents that no file needs cannot be collected"
                );
                return 0;
            }
        };
        let count = taken.len();
        for (session, sha256) in taken {
            let removed = files.objects.delete(Key { session, sha256 }).await;
            if let Err(error) = removed {
                tracing::warn!(%session, error = with_causes(&error), "a content that no file needs cannot be removed");
                return 0;
            }
            if let Err(error) = self.0.store.forget_content(Asker::System, session, sha256).await {
                tracing::warn!(%session, error = with_causes(&error), "a content that was removed cannot be forgotten");
                return 0;
            }
        }
        count
    }
}
