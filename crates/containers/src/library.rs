//! The images of this machine, as whoever makes containers sees them.
//!
//! How images are kept is nobody's matter here; who does keep them is another adapter, which providers do not know.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use sandbox::{ImageDigest, ImageStatus, ProviderError};

/// Reads images, and makes them of others.
pub trait Library: fmt::Debug + Send + Sync + 'static {
    /// Removes what was never finished and that nobody works on. Blocks.
    ///
    /// # Errors
    /// Where something cannot be removed.
    fn clear(&self) -> Result<(), ProviderError>;

    /// What an image is made of. Blocks.
    ///
    /// # Errors
    /// [`ProviderError::ImageMissing`] where it is not there, or not whole.
    fn image(&self, digest: &ImageDigest) -> Result<Image, ProviderError>;

    /// Makes an image of another and of what an overlay's upper layer has at `/knowledge`: nothing where it has none. As
    /// [`sandbox::SandboxProvider::commit`]. What is in that folder was made by a stranger, who stands still. Blocks.
    ///
    /// # Errors
    /// As there; [`ProviderError::Limit`] where all files together have more than `most` bytes.
    fn commit(
        &self,
        of: &ImageDigest,
        knowledge: Option<BorrowedFd<'_>>,
        most: u64,
    ) -> Result<ImageDigest, ProviderError>;

    /// Every whole image, sorted by digest. Blocks.
    ///
    /// # Errors
    /// Where they cannot be read.
    fn list(&self) -> Result<Vec<ImageStatus>, ProviderError>;

    /// Removes an image, and those of its layers that no other has. Blocks.
    ///
    /// # Errors
    /// Where it cannot be removed.
    fn remove(&self, digest: &ImageDigest) -> Result<(), ProviderError>;
}

/// An image that containers are made from.
#[derive(Clone, Debug)]
pub struct Image {
    /// The image whose layers are its lowest: itself, where nothing was committed.
    pub base: ImageDigest,
    /// How many of the layers are the base's.
    pub base_layers: usize,
    /// The layers, from the lowest.
    pub layers: Vec<Layer>,
    /// Its OCI image configuration.
    pub configuration: serde_json::Value,
    /// What its processes find in their environment.
    pub environment: Vec<String>,
}

/// A layer of an image.
#[derive(Clone, Debug)]
pub struct Layer {
    /// The SHA-256 of its archive.
    pub id: ImageDigest,
    /// Its files, as an overlay takes them: what it takes away is a device 0:0.
    pub files: PathBuf,
    /// The same as a tar.
    pub archive: PathBuf,
}
