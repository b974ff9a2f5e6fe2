//! What no file needs any more is removed.

use causes::with_causes;
use domain::Timestamp;
use objects::{Key, ObjectError};
use store::Asker;
use tokio::time::{MissedTickBehavior, interval};

use super::Files;
use crate::Control;

/// Contents that are taken at once.
const AT_ONCE: u32 = 256;

/// When so many cannot be removed one after the other, no other can be either for now.
const MOST_IN_A_ROW: u32 = 16;

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

    /// Removes some; how many were taken, and none where nothing more is to be hoped for now. What cannot be removed is taken
    /// again when it has been unused for as long once more, and can be used until then: what was refused at once, what may be
    /// removed a moment later after that time.
    async fn collect(&self, files: &Files) -> usize {
        let grace = i64::try_from(files.grace.as_millis()).unwrap_or(i64::MAX);
        let before = Timestamp(Timestamp::now().0.saturating_sub(grace));
        let store = &self.0.store;
        let taken = match store.take_unused_contents(Asker::System, before, AT_ONCE).await {
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
        let (mut removed, mut in_a_row) = (0, 0);
        let mut taken = taken.into_iter();
        for (session, sha256) in taken.by_ref() {
            let noted = match files.objects.delete(Key { session, sha256 }).await {
                Ok(()) => {
                    (removed, in_a_row) = (removed + 1, 0);
                    store.forget_content(Asker::System, session, sha256).await
                }
                Err(error) => {
                    tracing::warn!(%session, error = with_causes(&error), "a content that no file needs cannot be removed");
                    in_a_row += 1;
                    match error {
                        ObjectError::Refused { .. } => {
                            store.release_contents(Asker::System, vec![(session, sha256)]).await
                        }
                        _ => store.put_off_content(Asker::System, session, sha256).await,
                    }
                }
            };
            if let Err(error) = noted {
                tracing::warn!(%session, error = with_causes(&error), "what became of a content that no file needs cannot be written down");
                return 0;
            }
            if in_a_row == MOST_IN_A_ROW {
                break;
            }
        }
        let untried: Vec<_> = taken.collect();
        if !untried.is_empty()
            && let Err(error) = store.release_contents(Asker::System, untried).await
        {
            tracing::warn!(
                error = with_causes(&error),
                "contents that were not removed cannot be used for a while: it cannot be written down"
            );
        }
        if removed == 0 || in_a_row == MOST_IN_A_ROW {
            0
        } else {
            count
        }
    }
}
