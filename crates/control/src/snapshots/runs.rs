//! A snapshot when a run has ended: then nobody writes, files and history agree, and no prompt waits for it.

use causes::with_causes;
use domain::RunId;
use store::{Asker, NewSnapshot};

use super::KeepError;
use crate::Control;
use crate::live::Live;

impl Control {
    /// Keeps what a run left, and removes what older ones did. Nothing happens where no sandbox was used, where another run has
    /// begun, or where it would cost a copy of all files.
    pub(crate) async fn keep_after(&self, live: &Live, run: RunId) {
        if !live.seat.is_taken() || self.why_none_after_runs().is_some() {
            return;
        }
        // Somebody keeps them already: nobody waits behind a run that has ended.
        let Ok(_alone) = live.copying.try_lock() else { return };
        // Half a workspace is none to go back to.
        if !self.has_all_files(live).await.unwrap_or(false) {
            return;
        }
        if let Err(error) = self.kept_after(live, run).await {
            tracing::warn!(%run, error = with_causes(&error), "could not keep the files after a run");
        }
    }

    async fn kept_after(&self, live: &Live, run: RunId) -> Result<(), KeepError> {
        let (store, session) = (&self.0.store, live.session);
        let begun = store
            .begin_snapshot(Asker::System, session, NewSnapshot::Run(run))
            .await?;
        let Some(begun) = begun else { return Ok(()) };
        self.keep_files(begun).await?;
        let most = self.0.config.run_snapshots;
        for older in store.forget_older_snapshots(Asker::System, session, most).await? {
            self.drop_files(older).await;
        }
        Ok(())
    }
}
