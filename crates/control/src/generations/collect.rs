//! Images that nobody uses any more are removed.
//!
//! One is used where it is the newest, or what the next is made from; where a sandbox was made from it, or will be for a run
//! under way; and where the disk of a session, or a snapshot, lies over it.

use std::collections::BTreeSet;
use std::time::Duration;

use domain::Timestamp;
use sandbox::{ImageDigest, ProviderError};
use store::{Asker, Generation, GenerationState};

use super::{LookError, newest_ready};
use crate::Control;
use crate::config::Refresh;

/// How old an image must be of which no row tells, before it is nobody's. An operator who has put an old copy of the store in
/// its place has time to notice.
const NOBODYS_AFTER: Duration = Duration::from_secs(24 * 3_600);

impl Control {
    /// Removes generations that nobody uses.
    pub(super) async fn collect_images(&self, refresh: &Refresh) -> Result<(), LookError> {
        let (store, provider) = (&self.0.store, &self.0.housing.provider);
        let there = provider.images().await?;
        let rows = store.generations(&refresh.image).await?;
        let used = self.used(&rows).await?;

        let listed: BTreeSet<_> = there.iter().map(|image| &image.digest).collect();
        for row in rows.iter().filter(|row| row.state == GenerationState::Ready) {
            let Some(digest) = &row.digest else { continue };
            if !listed.contains(digest) {
                tracing::warn!(generation = %row.id, %digest, "the image of a generation is gone");
                store.forget_generation(Asker::System, row.id).await?;
            } else if !used.contains(digest) {
                // The row goes first: an image without a row is looked for, and a row without an image would be used.
                store.forget_generation(Asker::System, row.id).await?;
                remove(provider.remove_image(digest).await)?;
            }
        }
        let now = Timestamp::now();
        let known = |digest| {
            let ready = rows.iter().filter(|row| row.state == GenerationState::Ready);
            ready.filter_map(|row| row.digest.as_ref()).any(|known| known == digest)
        };
        for image in &there {
            let is_old = image.built.after(NOBODYS_AFTER) < now;
            let was_removed = rows
                .iter()
                .any(|row| row.state == GenerationState::Gone && row.digest.as_ref() == Some(&image.digest));
            let is_its = image.name == refresh.image && image.base.is_some() && !known(&image.digest);
            if is_its && (is_old || was_removed) && !used.contains(&image.digest) {
                tracing::info!(digest = %image.digest, "removing an image of which nobody knows");
                remove(provider.remove_image(&image.digest).await)?;
            }
        }
        if rows.iter().any(|row| row.state == GenerationState::Ready) {
            self.note_newest(&store.generations(&refresh.image).await?);
        }
        Ok(())
    }

    /// The images that must stay. `rows` are the generations of the one that is refreshed.
    async fn used(&self, rows: &[Generation]) -> Result<BTreeSet<ImageDigest>, LookError> {
        let (store, provider) = (&self.0.store, &self.0.housing.provider);
        let mut used = store.images_in_use(Asker::System).await?;
        if store
            .any_of_unknown_image(Asker::System, provider.disks().await?)
            .await?
        {
            // It was before there were generations, so it is one of these.
            let images = provider.images().await?.into_iter();
            used.extend(images.filter(|image| image.base.is_none()).map(|image| image.digest));
        }
        let sandboxes = provider.list().await?;
        used.extend(sandboxes.into_iter().map(|status| status.image));
        used.extend(self.images_for_new());
        let active = self.0.lives.all().into_iter().filter_map(|live| live.active());
        used.extend(active.map(|active| active.offer.image.clone()));
        let building = rows.iter().filter(|row| row.state == GenerationState::Building);
        used.extend(building.filter_map(|row| Some(row.made_of.as_ref()?.parent.clone())));
        used.extend(newest_ready(rows).and_then(|row| row.digest.clone()));
        Ok(used)
    }

    /// The images that must stay: sandboxes, disks or snapshots lie on them, or the next sandboxes are made of them.
    pub(crate) async fn images_in_use(&self) -> Result<BTreeSet<ImageDigest>, LookError> {
        let rows = match &self.base().refresh {
            Some(refresh) => self.0.store.generations(&refresh.image).await?,
            None => Vec::new(),
        };
        self.used(&rows).await
    }
}

/// A sandbox may have come in between: then the image goes with the next look.
fn remove(removed: Result<(), ProviderError>) -> Result<(), ProviderError> {
    match removed {
        Err(ProviderError::ImageInUse { .. }) => Ok(()),
        removed => removed,
    }
}
