//! The folder of images: one folder per image, named after its content.

use std::fs::{File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use domain::Timestamp;
use sandbox::ImageDigest;
use serde::{Deserialize, Serialize};

use crate::{BuildError, LibraryError, Progress, Recipe, build};

pub(crate) const ROOT: &str = "rootfs";
pub(crate) const CONFIGURATION: &str = "config.json";
pub(crate) const LAYOUT: &str = "oci";
const ABOUT: &str = "image.json";
const LOCK: &str = "lock";
const HALF: &str = "half-";

/// A folder of images: `<64 digits>/rootfs`, `config.json` (an OCI image configuration), `oci` (an OCI image layout of the
/// same), `image.json` (which recipe, when).
#[derive(Clone, Debug)]
pub struct Images {
    folder: PathBuf,
}

/// One dated build of an image.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Generation {
    /// What a sandbox is made from.
    pub digest: ImageDigest,
    /// The recipe's name.
    pub name: String,
    /// The key of the recipe that it was built from.
    pub recipe: String,
    /// When it was built.
    pub built: Timestamp,
    /// How large its layer is.
    pub bytes: u64,
    /// Its folder.
    pub folder: PathBuf,
}

/// When to build although there is an image of that name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rebuild {
    /// When the recipe is not the one that the newest was built from.
    WhenChanged,
    /// Now, because packages may have changed.
    Always,
}

/// The content of `image.json`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct About {
    pub(crate) digest: ImageDigest,
    pub(crate) name: String,
    pub(crate) recipe: String,
    pub(crate) built: Timestamp,
    pub(crate) bytes: u64,
}

impl About {
    fn at(self, folder: PathBuf) -> Generation {
        Generation {
            digest: self.digest,
            name: self.name,
            recipe: self.recipe,
            built: self.built,
            bytes: self.bytes,
            folder,
        }
    }
}

impl Images {
    /// The images in a folder, which is made when the first is built.
    #[must_use]
    pub fn open(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// Every whole image, the newest first.
    ///
    /// # Errors
    /// When the folder is there and cannot be read.
    pub fn list(&self) -> Result<Vec<Generation>, LibraryError> {
        let entries = match std::fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(LibraryError::new("list", &self.folder)(error)),
        };
        let mut generations = Vec::new();
        for entry in entries {
            let folder = entry.map_err(LibraryError::new("list", &self.folder))?.path();
            generations.extend(generation(folder));
        }
        generations.sort_by(|one, other| other.built.cmp(&one.built).then_with(|| one.digest.cmp(&other.digest)));
        Ok(generations)
    }

    /// The newest image of a name.
    ///
    /// # Errors
    /// As [`Images::list`].
    pub fn newest(&self, name: &str) -> Result<Option<Generation>, LibraryError> {
        Ok(self.list()?.into_iter().find(|generation| generation.name == name))
    }

    /// Builds an image, or gives the one that is there already. Builds wait for each other.
    ///
    /// It takes minutes and blocks; `progress` hears what happens. Needs root.
    ///
    /// # Errors
    /// [`BuildError`]; no image came of it, and nothing is left of the attempt.
    pub fn build(
        &self,
        recipe: &Recipe,
        rebuild: Rebuild,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Generation, BuildError> {
        std::fs::create_dir_all(&self.folder).map_err(LibraryError::new("make the folder", &self.folder))?;
        let _lock = self.lock()?;
        if rebuild == Rebuild::WhenChanged
            && let Some(newest) = self.newest(recipe.name())?
            && newest.recipe == recipe.key()
        {
            return Ok(newest);
        }
        self.remove_halves()?;
        let half = tempfile::Builder::new().prefix(HALF).tempdir_in(&self.folder);
        let half = half.map_err(LibraryError::new("make a folder in", &self.folder))?;
        let about = build::build(recipe, half.path(), progress)?;
        self.keep(half, about)
    }

    /// Gives a finished folder its name. An image of the same content stays where it is, and is as new as this build.
    fn keep(&self, half: tempfile::TempDir, about: About) -> Result<Generation, BuildError> {
        let folder = self.folder.join(about.digest.as_str());
        let text =
            serde_json::to_string(&about).map_err(|error| BuildError::file("write", half.path())(error.into()))?;
        let written = half.path().join(ABOUT);
        std::fs::write(&written, text).map_err(BuildError::file("write", &written))?;
        if folder.join(ABOUT).exists() {
            let to = folder.join(ABOUT);
            std::fs::rename(&written, &to).map_err(BuildError::file("replace", &to))?;
        } else {
            let usual = Permissions::from_mode(0o755);
            std::fs::set_permissions(half.path(), usual).map_err(BuildError::file("set the mode of", half.path()))?;
            std::fs::rename(half.path(), &folder).map_err(BuildError::file("name the image", &folder))?;
        }
        Ok(about.at(folder))
    }

    /// Removes every image that is neither in use nor the newest of its name, and says which; also what builds that were
    /// killed left behind.
    ///
    /// # Errors
    /// When something could not be removed; it may be asked again.
    pub fn collect(&self, in_use: &[ImageDigest]) -> Result<Vec<Generation>, LibraryError> {
        if !self.folder.exists() {
            return Ok(Vec::new());
        }
        let _lock = self.lock()?;
        self.remove_halves()?;
        let mut newest: Vec<String> = Vec::new();
        let mut removed = Vec::new();
        for generation in self.list()? {
            let is_newest = !newest.contains(&generation.name);
            if is_newest {
                newest.push(generation.name.clone());
            }
            if !is_newest && !in_use.contains(&generation.digest) {
                // Without its name it is no image any more, whatever becomes of the rest.
                let unnamed = self.folder.join(format!("{HALF}{}", generation.digest.as_str()));
                std::fs::rename(&generation.folder, &unnamed)
                    .map_err(LibraryError::new("remove", &generation.folder))?;
                remove(&unnamed)?;
                removed.push(generation);
            }
        }
        Ok(removed)
    }

    fn lock(&self) -> Result<File, LibraryError> {
        let path = self.folder.join(LOCK);
        let file = File::create(&path).map_err(LibraryError::new("open", &path))?;
        file.lock().map_err(LibraryError::new("lock", &path))?;
        Ok(file)
    }

    /// Removes what was not finished. Whoever holds the lock knows that nobody works on it.
    fn remove_halves(&self) -> Result<(), LibraryError> {
        for entry in std::fs::read_dir(&self.folder).map_err(LibraryError::new("list", &self.folder))? {
            let entry = entry.map_err(LibraryError::new("list", &self.folder))?;
            if entry.file_name().to_string_lossy().starts_with(HALF) {
                remove(&entry.path())?;
            }
        }
        Ok(())
    }
}

fn remove(path: &Path) -> Result<(), LibraryError> {
    std::fs::remove_dir_all(path).map_err(LibraryError::new("remove", path))
}

/// What is in a folder, if it is a whole image.
fn generation(folder: PathBuf) -> Option<Generation> {
    let text = std::fs::read_to_string(folder.join(ABOUT)).ok()?;
    let about: About = serde_json::from_str(&text).ok()?;
    let is_named_so = folder.file_name().is_some_and(|name| name == about.digest.as_str());
    is_named_so.then(|| about.at(folder))
}
