//! The folder of images: layers, which images share, and a folder per image, named after its content.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use domain::Timestamp;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use sandbox::ImageDigest;
use serde::{Deserialize, Serialize};
use sys::failure::may_pass;

use crate::half::Half;
use crate::layer::Blob;
use crate::{BuildError, LibraryError, Progress, Recipe, build, knowledge, layout};

pub(crate) const ROOT: &str = "rootfs";
pub(crate) const CONFIGURATION: &str = "config.json";
pub(crate) const LAYOUT: &str = "oci";
/// The folder of all layers, and what is in that of each.
pub(crate) const LAYERS: &str = "layers";
pub(crate) const FILES: &str = "files";
pub(crate) const ARCHIVE: &str = "layer.tar";
const ABOUT: &str = "image.json";
const LOCK: &str = "lock";
const BUILDING: &str = "building";
/// So many digits of a digest at least tell which is meant: as many as lists show.
const LISTED: usize = 12;

/// A folder of images.
///
/// - `layers/<SHA-256 of the archive>`: `files`, as an overlay takes them, and `layer.tar`; shared by all images that have it
/// - `<digest>`: `image.json` (which layers, of what, when), `config.json` (an OCI image configuration), `oci` (an OCI image
///   layout, whose layers are links to the shared archives), `rootfs` (a link to the lowest layer's files), and
///   `knowledge.json` where its recipe has something that is built anew from time to time
/// - `half-…`: what is being made, and is nothing before it has a name; `lock` and `building`: held while others are to wait
#[derive(Clone, Debug)]
pub struct ImageFolder {
    folder: PathBuf,
}

/// One dated image: of a recipe, of an archive, or of another image and what was built on it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Generation {
    /// What a sandbox is made from.
    pub digest: ImageDigest,
    /// Its recipe's name, or the one that it was taken in by; what was built on an image has that one's.
    pub name: String,
    /// The key of the recipe that it goes back to; `imported` where it was made elsewhere.
    pub recipe: String,
    /// When it was made here, or taken in.
    pub built: Timestamp,
    /// The image that the first of its committed layers was made on; none where nothing was committed.
    pub base: Option<ImageDigest>,
    /// How large the layers are that it has beyond its base, or all where it has none.
    pub bytes: u64,
    /// Its folder.
    pub folder: PathBuf,
}

/// An image that is there and cannot be used: what is written down about it cannot be read, or not be understood.
#[derive(Debug)]
pub struct Broken {
    /// The name of its folder.
    pub digest: ImageDigest,
    /// What is wrong.
    pub error: LibraryError,
}

/// All that has the name of an image.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) whole: Vec<(About, PathBuf)>,
    pub(crate) broken: Vec<Broken>,
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
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct About {
    pub(crate) digest: ImageDigest,
    pub(crate) name: String,
    pub(crate) recipe: String,
    pub(crate) built: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) base: Option<ImageDigest>,
    /// How many of the layers are the base's: all, where there is none.
    #[serde(default)]
    pub(crate) base_layers: usize,
    pub(crate) bytes: u64,
    /// From the lowest. Empty in what earlier releases wrote: its one layer is `rootfs`, and a blob of its layout.
    #[serde(default)]
    pub(crate) layers: Vec<ImageDigest>,
}

impl About {
    pub(crate) fn at(self, folder: PathBuf) -> Generation {
        Generation {
            digest: self.digest,
            name: self.name,
            recipe: self.recipe,
            built: self.built,
            base: self.base,
            bytes: self.bytes,
            folder,
        }
    }
}

/// What becomes an image, of layers that are there or in the same half.
pub(crate) struct Draft {
    pub(crate) name: String,
    pub(crate) recipe: String,
    /// An OCI image configuration, without its layers.
    pub(crate) configuration: serde_json::Value,
    pub(crate) base: Option<ImageDigest>,
    pub(crate) base_layers: usize,
    /// From the lowest.
    pub(crate) layers: Vec<Blob>,
}

impl ImageFolder {
    /// The images in a folder, which is made when the first one comes.
    #[must_use]
    pub fn open(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn layer(&self, id: &str) -> PathBuf {
        self.folder.join(LAYERS).join(id)
    }

    /// Every whole image, the newest first.
    ///
    /// # Errors
    /// When the folder is there and cannot be read.
    pub fn list(&self) -> Result<Vec<Generation>, LibraryError> {
        let all = self.all()?.whole.into_iter();
        let mut generations: Vec<_> = all.map(|(about, folder)| about.at(folder)).collect();
        generations.sort_by(|one, other| other.built.cmp(&one.built).then_with(|| one.digest.cmp(&other.digest)));
        Ok(generations)
    }

    /// Every image that is not whole, by its digest. As long as there is one, no layer is removed: any may be its.
    ///
    /// # Errors
    /// As [`ImageFolder::list`].
    pub fn broken(&self) -> Result<Vec<Broken>, LibraryError> {
        let mut broken = self.all()?.broken;
        broken.sort_by(|one, other| one.digest.cmp(&other.digest));
        Ok(broken)
    }

    pub(crate) fn all(&self) -> Result<Found, LibraryError> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Found::default()),
            Err(error) => return Err(LibraryError::new("list", &self.folder)(error)),
        };
        let mut found = Found::default();
        for entry in entries {
            let entry = entry.map_err(LibraryError::new("list", &self.folder))?;
            let Ok(digest) = entry.file_name().to_string_lossy().parse::<ImageDigest>() else {
                continue;
            };
            let folder = entry.path();
            if !fs::exists(folder.join(ABOUT)).unwrap_or(true) {
                // It never became one.
                continue;
            }
            match self.stored(&digest) {
                Ok((about, _)) => found.whole.push((about, folder)),
                Err(error) => found.broken.push(Broken { digest, error }),
            }
        }
        Ok(found)
    }

    /// The newest image of a name.
    ///
    /// # Errors
    /// As [`ImageFolder::list`].
    pub fn newest(&self, name: &str) -> Result<Option<Generation>, LibraryError> {
        Ok(self.list()?.into_iter().find(|generation| generation.name == name))
    }

    /// The newest image of a name of which nothing was committed: what a recipe, or an archive, became.
    ///
    /// # Errors
    /// As [`ImageFolder::list`].
    pub fn newest_base(&self, name: &str) -> Result<Option<Generation>, LibraryError> {
        let mut all = self.list()?.into_iter();
        Ok(all.find(|generation| generation.name == name && generation.base.is_none()))
    }

    /// The images that somebody means: those of a name, the newest first, or the one whose digest begins so.
    ///
    /// # Errors
    /// As [`ImageFolder::list`]; there is none, or it is broken.
    pub fn meant(&self, image: &str) -> Result<Vec<Generation>, LibraryError> {
        let all = self.list()?.into_iter();
        let meant = all.filter(|generation| generation.name == image || begins(&generation.digest, image));
        let meant: Vec<_> = meant.collect();
        if !meant.is_empty() {
            return Ok(meant);
        }
        if let Some(broken) = self.meant_broken(image)? {
            return Err(broken.error);
        }
        let none = io::Error::other(format!(
            "there is no image {image}: `belljar image list` shows those there are"
        ));
        Err(LibraryError::new("find an image in", &self.folder)(none))
    }

    /// The broken image whose digest begins so, if there is one, and no other has this name.
    ///
    /// # Errors
    /// As [`ImageFolder::list`].
    pub fn meant_broken(&self, image: &str) -> Result<Option<Broken>, LibraryError> {
        let Found { whole, broken } = self.all()?;
        if whole.iter().any(|(about, _)| about.name == image) {
            return Ok(None);
        }
        Ok(broken.into_iter().find(|broken| begins(&broken.digest, image)))
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
        fs::create_dir_all(&self.folder).map_err(LibraryError::new("make the folder", &self.folder))?;
        let _alone = self.lock_as(BUILDING)?;
        if rebuild == Rebuild::WhenChanged
            && let Some(newest) = self.newest_base(recipe.name())?
            && newest.recipe == recipe.key()
        {
            knowledge::keep(&newest.folder, recipe.knowledge())?;
            return Ok(newest);
        }
        let half = self.begin()?;
        let draft = build::build(recipe, &half, progress)?;
        // Before it has its name, from which on others use it; and where there is one of the same content.
        knowledge::keep(&half.image(), recipe.knowledge())?;
        let built = self.keep(half, draft)?;
        knowledge::keep(&built.folder, recipe.knowledge())?;
        Ok(built)
    }

    /// Gives what was made in a half its name. An image of the same content stays where it is, and is as new as this one; one
    /// that has another name, or another base, is given instead, as it is.
    pub(crate) fn keep(&self, half: Half, draft: Draft) -> Result<Generation, BuildError> {
        let image = half.image();
        let manifest = layout::write(&image, &draft)?;
        let own = draft.layers.get(draft.base.as_ref().map_or(0, |_| draft.base_layers)..);
        let ids = draft.layers.iter().map(Blob::digest);
        let about = About {
            digest: manifest.digest(),
            name: draft.name,
            recipe: draft.recipe,
            built: Timestamp::now(),
            base: draft.base,
            base_layers: draft.base_layers,
            bytes: own.unwrap_or_default().iter().map(|layer| layer.bytes).sum(),
            layers: ids.collect(),
        };
        let text = serde_json::to_string(&about).map_err(|error| BuildError::file("write", &image)(error.into()))?;
        write(&image.join(ABOUT), &text)?;
        half.settle()?;

        let _lock = self.lock()?;
        for id in &about.layers {
            let (made, kept) = (half.layer(id.as_str()), self.layer(id.as_str()));
            if !kept.exists() {
                let layers = self.folder.join(LAYERS);
                fs::create_dir_all(&layers).map_err(BuildError::file("make the folder", &layers))?;
                fs::rename(&made, &kept).map_err(BuildError::file("name the layer", &kept))?;
            }
            let blob = image.join(LAYOUT).join(layout::BLOBS).join(id.as_str());
            match symlink(layout::archive(id), &blob) {
                // One layer may be there twice.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                linked => linked.map_err(BuildError::file("link", &blob))?,
            }
        }
        let folder = self.folder.join(about.digest.as_str());
        match self.whole(&about.digest)? {
            None => put(&image, &folder)?,
            Some(there) if (&there.name, &there.base) == (&about.name, &about.base) => {
                let to = folder.join(ABOUT);
                fs::rename(image.join(ABOUT), &to).map_err(BuildError::file("replace", &to))?;
            }
            // What others know by its name, or what it was made of, stays what it is.
            Some(there) => return Ok(there.at(folder)),
        }
        Ok(about.at(folder))
    }

    /// What is known of an image; none where there is none, or it can never be used or exported.
    fn whole(&self, digest: &ImageDigest) -> Result<Option<About>, LibraryError> {
        match self.stored(digest) {
            Ok((about, _)) => Ok(self.folder.join(digest.as_str()).join(LAYOUT).is_dir().then_some(about)),
            Err(error) if may_pass(&error) => Err(error),
            Err(_) => Ok(None),
        }
    }

    pub(crate) fn lock(&self) -> Result<File, LibraryError> {
        self.lock_as(LOCK)
    }

    fn lock_as(&self, name: &str) -> Result<File, LibraryError> {
        let path = self.folder.join(name);
        let file = File::create(&path).map_err(LibraryError::new("open", &path))?;
        file.lock().map_err(LibraryError::new("lock", &path))?;
        Ok(file)
    }
}

/// Puts an image into its place. What stands there is nobody's from then on; at no moment does nothing.
fn put(image: &Path, folder: &Path) -> Result<(), BuildError> {
    if folder.join(ROOT).symlink_metadata().is_ok_and(|about| about.is_dir()) {
        let words = "what an earlier release built is broken, and disks may lie on its files: remove it (belljar image rm) first";
        return Err(BuildError::file("replace the image", folder)(io::Error::other(words)));
    }
    let exchanged = match renameat_with(CWD, image, CWD, folder, RenameFlags::NOREPLACE) {
        Err(Errno::EXIST) => renameat_with(CWD, image, CWD, folder, RenameFlags::EXCHANGE),
        named => named,
    };
    exchanged.map_err(|error| BuildError::file("name the image", folder)(error.into()))
}

/// Whether somebody who writes this means the image with that digest.
fn begins(digest: &ImageDigest, written: &str) -> bool {
    written.len() >= LISTED && digest.as_str().starts_with(written)
}

pub(crate) fn write(path: &Path, text: &str) -> Result<(), BuildError> {
    fs::write(path, text).map_err(BuildError::file("write", path))
}

/// What is in a folder; none where no image has that name.
///
/// An image whose description cannot be read, or not be understood, is there all the same: whoever took it for none would
/// remove its layers.
pub(crate) fn about(folder: &Path) -> Result<Option<About>, LibraryError> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    if name.parse::<ImageDigest>().is_err() {
        return Ok(None);
    }
    let path = folder.join(ABOUT);
    let text = match fs::read(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text.map_err(LibraryError::new("read", &path))?,
    };
    let about: About =
        serde_json::from_slice(&text).map_err(|error| LibraryError::new("understand", &path)(error.into()))?;
    if about.digest.as_str() != name {
        let other = io::Error::other(format!("it is the description of image {}", about.digest));
        return Err(LibraryError::new("understand", &path)(other));
    }
    Ok(Some(about))
}
