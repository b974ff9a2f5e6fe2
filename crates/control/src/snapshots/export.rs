//! A snapshot as an archive: its files are put on a disk of nobody's and read in a sandbox that reaches nothing, and both are
//! removed.

use std::sync::Arc;
use std::time::Duration;

use domain::{SessionId, SnapshotId};
use lifecycle::{DropGuard, Stop};
use policy::Layers;
use serde_json::json;
use store::{Asker, AuditEntry};
use tokio::time::{sleep, timeout};

use super::{TURN_WITHIN, refused};
use crate::api::{FileStream, transferred};
use crate::housing::Site;
use crate::{Control, ControlError};

/// Snapshots that are read at once; whoever wants another waits.
pub(super) const AT_ONCE: usize = 2;
/// How long one may be read.
const READ_WITHIN: Duration = Duration::from_secs(15 * 60);

impl Control {
    /// The whole workspace as a snapshot has it, by its id or name, as an archive (tar); the session goes on meanwhile. What is left
    /// out of archives is as for [`Control::export`].
    ///
    /// # Errors
    /// There is none, for the one who asks; no room for its files; too many are read at the moment; no sandbox.
    pub async fn export_snapshot(
        &self,
        asker: Asker,
        session: SessionId,
        snapshot: &str,
    ) -> Result<FileStream, ControlError> {
        let found = self.find_snapshot(asker, session, snapshot).await?;
        let control = self.clone();
        self.to_its_end(async move {
            let (site, reading) = control.site_to_read_in().await?;
            control
                .0
                .housing
                .provider
                .restore(found.id, site)
                .await
                .map_err(refused)?;
            let image = control.0.store.image_of(Asker::System, session).await?;
            let image = image.unwrap_or_else(|| control.image());
            let opened = control
                .open_site(site, image, Layers::of_roles(Vec::new()), Site::ToRead)
                .await;
            let (_, stay) = opened?;
            control.tell_export(asker, session, found.id).await?;
            let archive = stay.linked.pack().await.map_err(transferred)?;
            Ok(FileStream::new(archive, stay).until_dropped(reading))
        })
        .await
    }

    /// A session of Belljar's own, of which everything is removed once the guard is dropped, or its time is over.
    async fn site_to_read_in(&self) -> Result<(SessionId, DropGuard), ControlError> {
        let place = timeout(TURN_WITHIN, Arc::clone(&self.0.disks.read).acquire_owned()).await;
        let Ok(Ok(place)) = place else {
            let words = "other snapshots are being exported: try again when that is done";
            return Err(ControlError::Conflict(words.to_owned()));
        };
        let (site, reading) = (SessionId::new(), Stop::new());
        let (control, read, shutting_down) = (self.clone(), reading.clone(), self.0.tasks.stop());
        self.0.tasks.spawn(async move {
            tokio::select! {
                () = read.cancelled() => {}
                () = sleep(READ_WITHIN) => {}
                () = shutting_down.cancelled() => {}
            }
            control.try_to_clear_site(site).await;
            drop(place);
        });
        Ok((site, reading.drop_guard()))
    }

    async fn tell_export(&self, asker: Asker, session: SessionId, snapshot: SnapshotId) -> Result<(), ControlError> {
        let entry = AuditEntry::about("session.exported", session, json!({ "snapshot": snapshot }));
        Ok(self.0.store.audit(asker, vec![entry]).await?)
    }
}
