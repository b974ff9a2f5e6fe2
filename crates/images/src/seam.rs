//! The images as providers of containers know them.

use std::error::Error;
use std::os::fd::BorrowedFd;

use containers::library::{Image, Library};
use sandbox::{ImageDigest, ImageStatus, ProviderError};

use crate::{CommitError, ImageFolder};

impl Library for ImageFolder {
    fn clear(&self) -> Result<(), ProviderError> {
        self.remove_leftovers()
            .map_err(|error| ProviderError::failed("remove images that were never finished", error))
    }

    fn image(&self, digest: &ImageDigest) -> Result<Image, ProviderError> {
        let stored = self.stored(digest).map_err(|error| {
            let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
            ProviderError::ImageMissing {
                image: digest.clone(),
                reason: format!("{error}{cause}"),
            }
        });
        stored.map(|(_, image)| image)
    }

    fn commit(
        &self,
        of: &ImageDigest,
        knowledge: Option<BorrowedFd<'_>>,
        most: u64,
    ) -> Result<ImageDigest, ProviderError> {
        match ImageFolder::commit(self, of, knowledge, most) {
            Ok(generation) => Ok(generation.digest),
            Err(error @ (CommitError::TooMuch { .. } | CommitError::Unfit { .. })) => {
                Err(ProviderError::Limit(error.to_string()))
            }
            Err(error) => {
                let attempt = format!("make an image of {of} and what was built on it");
                Err(ProviderError::failed(attempt, error))
            }
        }
    }

    fn list(&self) -> Result<Vec<ImageStatus>, ProviderError> {
        let all = ImageFolder::list(self).map_err(|error| ProviderError::failed("list the images", error))?;
        let status = |generation: crate::Generation| ImageStatus {
            digest: generation.digest,
            name: generation.name,
            built: generation.built,
            base: generation.base,
            bytes: generation.bytes,
        };
        let mut images: Vec<_> = all.into_iter().map(status).collect();
        images.sort_by(|one, other| one.digest.cmp(&other.digest));
        Ok(images)
    }

    fn remove(&self, digest: &ImageDigest) -> Result<(), ProviderError> {
        ImageFolder::remove(self, digest)
            .map_err(|error| ProviderError::failed(format!("remove image {digest}"), error))
    }
}
