//! Images: what stands at [`crate::inside::KNOWLEDGE`] is all that they have.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use domain::{SandboxId, SessionId, Timestamp};

use super::snapshots::copy;
use super::{Simulator, held, remove};
use crate::{ImageDigest, ImageStatus, ProviderError};

/// An image that the simulator is told of.
pub(super) fn first(digest: ImageDigest) -> (ImageDigest, ImageStatus) {
    let status = ImageStatus {
        digest: digest.clone(),
        name: "simulated".into(),
        built: Timestamp::now(),
        base: None,
        bytes: 0,
    };
    (digest, status)
}

impl Simulator {
    /// The folder of what an image brings; of one that the simulator was told of, only where a test made it.
    #[must_use]
    pub fn image_knowledge(&self, image: &ImageDigest) -> PathBuf {
        self.world.folder.path().join("images").join(image.as_str())
    }

    /// Gives a session what the image brings, unless its disk has something already.
    pub(super) fn furnish(&self, image: &ImageDigest, session: SessionId) -> Result<(), ProviderError> {
        let (brought, own) = (self.image_knowledge(image), self.knowledge(session));
        if own.is_dir() {
            return Ok(());
        }
        if brought.is_dir() {
            return copy(&brought, &own);
        }
        fs::create_dir_all(&own).map_err(|error| ProviderError::failed(format!("make {}", own.display()), error))
    }

    pub(super) fn keep_image(&self, id: SandboxId) -> Result<ImageDigest, ProviderError> {
        let spec = {
            let machines = held(&self.world.machines);
            let machine = machines.get(&id).ok_or(ProviderError::NotFound(id))?;
            machine.spec.clone()
        };
        if !spec.builder {
            return Err(ProviderError::NotABuilder(id));
        }
        let mut images = held(&self.world.images);
        let before = images.get(&spec.image).cloned();
        let before = before.ok_or_else(|| ProviderError::ImageMissing {
            image: spec.image.clone(),
            reason: "the simulator was not told of it".into(),
        })?;
        // Nothing follows from its content here: each has a number.
        let number = self.world.commits.fetch_add(1, Ordering::Relaxed);
        let mut bytes = [0xc0; 32];
        bytes[..8].copy_from_slice(&number.to_be_bytes());
        let digest = ImageDigest::from_bytes(bytes);
        copy(&self.knowledge(spec.session), &self.image_knowledge(&digest))?;
        let status = ImageStatus {
            digest: digest.clone(),
            built: Timestamp::now(),
            base: before.base.clone().or(Some(before.digest.clone())),
            ..before
        };
        images.insert(digest.clone(), status);
        Ok(digest)
    }

    pub(super) fn drop_image(&self, image: &ImageDigest) -> Result<(), ProviderError> {
        let user = held(&self.world.machines)
            .values()
            .find(|machine| machine.spec.image == *image)
            .map(|machine| machine.spec.id);
        if let Some(sandbox) = user {
            let image = image.clone();
            return Err(ProviderError::ImageInUse { image, sandbox });
        }
        held(&self.world.images).remove(image);
        remove(&self.image_knowledge(image))
    }
}
