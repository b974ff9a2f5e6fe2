//! From a recipe to a finished image folder, beside its place.

use std::path::Path;

use domain::Timestamp;
use sandbox::ImageDigest;

use crate::layer::Blob;
use crate::library::{About, CONFIGURATION, LAYOUT, ROOT};
use crate::{BuildError, Progress, Recipe, files, layer, layout, npm, packages};

/// Builds into `half`, which is empty, and says what it made. Whoever called gives it its name.
pub(crate) fn build(recipe: &Recipe, half: &Path, progress: &mut dyn FnMut(Progress<'_>)) -> Result<About, BuildError> {
    if !rustix::process::geteuid().is_root() {
        return Err(BuildError::NotRoot);
    }
    let root = half.join(ROOT);
    progress(Progress::Stage("packages of Debian"));
    packages::install(&recipe.wanted.debian, recipe.epoch(), &root, progress)?;
    if !recipe.wanted.npm.is_empty() {
        progress(Progress::Stage("packages of the npm registry"));
        npm::install(&recipe.wanted.npm, &root, progress)?;
    }
    progress(Progress::Stage("files of the recipe"));
    files::finish(&recipe.wanted, &root)?;

    progress(Progress::Stage("layer"));
    let layout = half.join(LAYOUT);
    let blobs = layout.join(layout::BLOBS);
    std::fs::create_dir_all(&blobs).map_err(BuildError::file("make the folder", &blobs))?;
    let unnamed = half.join("layer.tar");
    let layer = layer::write(&root, recipe.epoch(), &unnamed)?;
    let named = blobs.join(&layer.hex);
    std::fs::rename(&unnamed, &named).map_err(BuildError::file("name", &named))?;
    let configuration = layout::configuration(recipe, &layer);
    let path = half.join(CONFIGURATION);
    std::fs::write(&path, configuration.to_string()).map_err(BuildError::file("write", &path))?;
    let manifest = layout::write(&layout, recipe, &configuration, &layer)?;
    Ok(About {
        digest: digest(&manifest),
        name: recipe.name().to_owned(),
        recipe: recipe.key().to_owned(),
        built: Timestamp::now(),
        bytes: layer.bytes,
    })
}

fn digest(manifest: &Blob) -> ImageDigest {
    let mut bytes = [0; 32];
    // A blob's name is the hexadecimal form of 32 bytes.
    let _ = hex::decode_to_slice(&manifest.hex, &mut bytes);
    ImageDigest::from_bytes(bytes)
}
