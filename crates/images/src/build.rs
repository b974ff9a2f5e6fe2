//! From a recipe to a layer, in a half.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use crate::half::Half;
use crate::library::{ARCHIVE, Draft, FILES};
use crate::{BuildError, Progress, Recipe, files, layer, layout, npm, packages};

/// Builds into a half, which is empty, and says what it made. Whoever called gives it its name.
pub(crate) fn build(recipe: &Recipe, half: &Half, progress: &mut dyn FnMut(Progress<'_>)) -> Result<Draft, BuildError> {
    if !rustix::process::geteuid().is_root() {
        return Err(BuildError::NotRoot);
    }
    let made = half.layer("new");
    fs::create_dir(&made).map_err(BuildError::file("make the folder", &made))?;
    let root = made.join(FILES);
    progress(Progress::Stage("packages of Debian"));
    packages::install(&recipe.wanted.debian, recipe.epoch(), &root, progress)?;
    if !recipe.wanted.npm.is_empty() {
        progress(Progress::Stage("packages of the npm registry"));
        npm::install(&recipe.wanted.npm, &root, progress)?;
    }
    progress(Progress::Stage("files of the recipe"));
    files::finish(&recipe.wanted, &root)?;

    progress(Progress::Stage("layer"));
    let layer = layer::write(&root, recipe.epoch(), &made.join(ARCHIVE))?;
    let named = half.layer(&layer.hex);
    fs::set_permissions(&made, Permissions::from_mode(0o755))
        .and_then(|()| fs::rename(&made, &named))
        .map_err(BuildError::file("name", &named))?;
    Ok(Draft {
        name: recipe.name().to_owned(),
        recipe: recipe.key().to_owned(),
        configuration: layout::configuration(recipe),
        base: None,
        base_layers: 1,
        layers: vec![layer],
    })
}
