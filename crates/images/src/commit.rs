//! A committed image: another's layers, and one with what was built.

use std::fs;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use sandbox::{ImageDigest, inside};
use sys::removal::remove_tree;

use crate::library::{ARCHIVE, Draft, FILES, ImageFolder};
use crate::taking::take;
use crate::{CommitError, Generation, LibraryError, layer, merging};

/// How many layers there are above a base before they become one.
const MOST_COMMITTED: usize = 16;

impl ImageFolder {
    /// Makes an image of another and of the upper layer of an overlay's `/knowledge`, which a stranger wrote and nobody writes
    /// meanwhile. Where nothing was written it is that other one.
    ///
    /// # Errors
    /// [`CommitError`]; no image came of it, and nothing is left of the attempt.
    pub fn commit(
        &self,
        of: &ImageDigest,
        knowledge: Option<BorrowedFd<'_>>,
        most: u64,
    ) -> Result<Generation, CommitError> {
        self.share(of)?;
        let (about, image) = self.stored(of)?;
        let half = self.begin()?;
        let made = half.layer("new");
        let files = made.join(FILES);
        let place = files.join(inside::KNOWLEDGE.trim_start_matches('/'));
        fs::create_dir_all(&place).map_err(LibraryError::new("make the folder", &place))?;
        let taken = match knowledge {
            Some(knowledge) => take(knowledge, &place, most)?,
            None => 0,
        };
        if taken == 0 {
            let folder = self.folder().join(of.as_str());
            return Ok(about.at(folder));
        }

        let mut layers: Vec<_> = image.layers.iter().collect();
        if layers.len() - image.base_layers >= MOST_COMMITTED {
            let above: Vec<PathBuf> = layers
                .drain(image.base_layers..)
                .map(|layer| layer.files.clone())
                .collect();
            let merged = made.join("merged");
            let folders: Vec<_> = std::iter::once(&files).chain(above.iter().rev()).cloned().collect();
            merging::merge(&folders, &merged)?;
            remove_tree(&files)
                .and_then(|()| fs::rename(&merged, &files))
                .map_err(LibraryError::new("name the layer", &files))?;
        }
        let newest = layer::write(&files, u64::MAX, &made.join(ARCHIVE))?;
        let named = half.layer(&newest.hex);
        let usual = || fs::Permissions::from_mode(0o755);
        fs::set_permissions(&files, usual())
            .and_then(|()| fs::set_permissions(&made, usual()))
            .and_then(|()| fs::rename(&made, &named))
            .map_err(LibraryError::new("name the layer", &named))?;

        let mut blobs = Vec::new();
        for layer in layers {
            let bytes = fs::metadata(&layer.archive).map_err(LibraryError::new("look at", &layer.archive))?;
            blobs.push(layer::Blob {
                hex: layer.id.to_string(),
                bytes: bytes.len(),
            });
        }
        blobs.push(newest);
        let draft = Draft {
            name: about.name,
            recipe: about.recipe,
            configuration: image.configuration,
            base: Some(image.base),
            base_layers: image.base_layers,
            layers: blobs,
        };
        Ok(self.keep(half, draft)?)
    }
}
