//! The image that sandboxes are made of, and its generations.

use std::collections::BTreeSet;

use domain::{SandboxId, Timestamp};
use sandbox::ImageDigest;
use store::{Asker, DiskOn, Generation};

use super::sandboxes::{only_admins, provided};
use crate::generations::LookError;
use crate::{Control, ControlError, Refresh};

/// An image, and what is known of its generations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImageEntry {
    /// Its name.
    pub name: String,
    /// What is wanted in it.
    pub refresh: Refresh,
    /// The image that generations begin with.
    pub base: ImageDigest,
    /// What new sessions get.
    pub newest: ImageDigest,
    /// The generations, newest first, as far as they are told of.
    pub generations: Vec<GenerationEntry>,
}

/// One dated build of an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GenerationEntry {
    /// What is written of it.
    pub generation: Generation,
    /// When its image was made, and the bytes that it has beside its base's, where it is there.
    pub built: Option<(Timestamp, u64)>,
    /// The sandboxes that were made of it.
    pub sandboxes: usize,
}

/// Who needs an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ImageUse {
    /// The next sandboxes are made of it.
    New,
    /// A disk lies on it.
    Disk(DiskOn),
    /// A sandbox of nobody's, or of a session without a disk, was made of it.
    Sandbox(SandboxId),
    /// Something that is under way, or a disk of which an earlier release did not write down what it lies on.
    Other,
}

/// The most uses of an image that are told.
const TOLD: u32 = 20;

impl Control {
    /// The images that are refreshed.
    ///
    /// # Errors
    /// The one who asks is no admin; the provider cannot be reached.
    pub async fn images(&self, asker: Asker) -> Result<Vec<ImageEntry>, ControlError> {
        only_admins(asker, "list images")?;
        let Some(refresh) = self.base().refresh.clone() else {
            return Ok(Vec::new());
        };
        let provider = &self.0.housing.provider;
        let images = provider.images().await.map_err(provided)?;
        let sandboxes = provider.list().await.map_err(provided)?;
        let rows = self.0.store.generations(&refresh.image).await?;
        let generations = rows.into_iter().map(|generation| {
            let digest = generation.digest.as_ref();
            let image = images.iter().find(|image| Some(&image.digest) == digest);
            GenerationEntry {
                built: image.map(|image| (image.built, image.bytes)),
                sandboxes: sandboxes.iter().filter(|status| Some(&status.image) == digest).count(),
                generation,
            }
        });
        Ok(vec![ImageEntry {
            name: refresh.image.clone(),
            base: self.base().image.clone(),
            newest: self.image(),
            generations: generations.collect(),
            refresh,
        }])
    }

    /// The images that must not be removed: sandboxes, disks or snapshots lie on them, or the next sandboxes are made of them.
    ///
    /// # Errors
    /// The one who asks is no admin; the provider cannot be reached.
    pub async fn used_images(&self, asker: Asker) -> Result<BTreeSet<ImageDigest>, ControlError> {
        only_admins(asker, "list images")?;
        self.images_in_use().await.map_err(|error| match error {
            LookError::Store(error) => error.into(),
            LookError::Provider(error) => provided(error),
        })
    }

    /// Who needs an image, some of them where they are many. Nobody does where there are none.
    ///
    /// # Errors
    /// There is no such image, for the one who asks, who is no admin; it is no digest; the provider cannot be reached.
    pub async fn image_uses(&self, asker: Asker, image: &str) -> Result<Vec<ImageUse>, ControlError> {
        if !asker.is_admin() {
            return Err(ControlError::NotFound {
                kind: "image",
                name: image.chars().take(100).collect(),
            });
        }
        let image = image.parse::<ImageDigest>();
        let image = &image.map_err(|error| ControlError::Invalid(error.to_string()))?;
        if !self.used_images(asker).await?.contains(image) {
            return Ok(Vec::new());
        }
        let disks = self.0.store.disks_on(Asker::System, image, TOLD).await?;
        let sandboxes = self.0.housing.provider.list().await.map_err(provided)?.into_iter();
        let sandboxes = sandboxes
            .filter(|status| status.image == *image && disks.iter().all(|disk| disk.session != status.session));
        let mut uses: Vec<_> = self
            .images_for_new()
            .contains(image)
            .then_some(ImageUse::New)
            .into_iter()
            .collect();
        uses.extend(sandboxes.take(TOLD as usize).map(|status| ImageUse::Sandbox(status.id)));
        uses.extend(disks.iter().cloned().map(ImageUse::Disk));
        if uses.is_empty() {
            uses.push(ImageUse::Other);
        }
        Ok(uses)
    }

    /// Has an image built anew as soon as nobody builds it. Audited.
    ///
    /// # Errors
    /// There is no such image, for the one who asks, who is no admin; or nothing in it is ever built anew.
    pub async fn refresh_image(&self, asker: Asker, image: &str) -> Result<Generation, ControlError> {
        let base = self.base();
        let known = base.refresh.as_ref().filter(|refresh| refresh.image == image);
        if known.is_none() || !asker.is_admin() {
            return Err(ControlError::NotFound {
                kind: "image that is refreshed (sandboxes are made of it, and its recipe has [[repositories]])",
                name: image.chars().take(100).collect(),
            });
        }
        let wanted = self.0.store.want_generation(asker, image).await?;
        self.end_rest();
        self.want_generation();
        Ok(wanted)
    }
}
