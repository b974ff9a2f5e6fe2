//! What an image is made of, and what goes with it when it goes.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use containers::library::{Image, Layer};
use sandbox::ImageDigest;
use serde_json::Value;

use crate::library::{ARCHIVE, About, CONFIGURATION, FILES, ImageFolder, LAYERS, LAYOUT, ROOT, about};
use crate::{Generation, LibraryError, layout};

impl ImageFolder {
    /// What an image is made of.
    pub(crate) fn stored(&self, digest: &ImageDigest) -> Result<(About, Image), LibraryError> {
        let folder = self.folder().join(digest.as_str());
        let unfit = |path: &Path, why: &str| LibraryError::new("use", path)(io::Error::other(why.to_owned()));
        let about = about(&folder)?.ok_or_else(|| {
            unfit(
                &folder,
                "it is not there, or not whole: build it (belljar image build) or import it",
            )
        })?;
        let path = folder.join(CONFIGURATION);
        let configuration: Value = fs::read(&path)
            .and_then(|text| Ok(serde_json::from_slice(&text)?))
            .map_err(LibraryError::new("read", &path))?;
        let layers: Vec<Layer> = self.layers_of(&about)?;
        if let Some(lacking) = layers.iter().find(|layer| !layer.files.is_dir()) {
            return Err(unfit(&lacking.files, "this layer is not there: build the image anew"));
        }
        let entries = configuration["config"]["Env"].as_array().into_iter().flatten();
        let environment = entries.filter_map(Value::as_str).map(str::to_owned).collect();
        let image = Image {
            base: about.base.clone().unwrap_or_else(|| about.digest.clone()),
            base_layers: about.base.as_ref().map_or(layers.len(), |_| about.base_layers),
            layers,
            configuration,
            environment,
        };
        Ok((about, image))
    }

    /// A folder directly in an image's root as the uppermost layer has it that has something of this name; none where that is
    /// no folder. A link is none: it would be followed on this machine.
    #[must_use]
    pub fn folder_in(&self, image: &ImageDigest, name: &str) -> Option<PathBuf> {
        let (_, image) = self.stored(image).ok()?;
        let places = image.layers.iter().rev().map(|layer| layer.files.join(name));
        let mut there = places.filter_map(|place| Some((place.symlink_metadata().ok()?, place)));
        there.next().filter(|(about, _)| about.is_dir()).map(|(_, place)| place)
    }

    pub(crate) fn layers_of(&self, about: &About) -> Result<Vec<Layer>, LibraryError> {
        let folder = self.folder().join(about.digest.as_str());
        let shared = |id: &ImageDigest| {
            let layer = self.layer(id.as_str());
            Layer {
                id: id.clone(),
                files: layer.join(FILES),
                archive: layer.join(ARCHIVE),
            }
        };
        if !about.layers.is_empty() {
            return Ok(about.layers.iter().map(shared).collect());
        }
        // What an earlier release built, which nothing was committed on yet.
        let layout = folder.join(LAYOUT);
        let ids = layout::layers(&layout).map_err(LibraryError::new("read the layout in", &layout))?;
        // A link there leads to the shared layer.
        let is_own = |files: &Path| files.symlink_metadata().is_ok_and(|about| about.is_dir());
        let own = |id: &ImageDigest| match folder.join(ROOT) {
            files if is_own(&files) => Layer {
                id: id.clone(),
                files,
                archive: layout.join(layout::BLOBS).join(id.as_str()),
            },
            _ => shared(id),
        };
        Ok(ids.iter().map(own).collect())
    }

    /// Lets an image that an earlier release built share its layer. It may be done again after it was interrupted anywhere.
    pub(crate) fn share(&self, digest: &ImageDigest) -> Result<(), LibraryError> {
        let _lock = self.lock()?;
        let folder = self.folder().join(digest.as_str());
        let Some(mut about) = about(&folder)?.filter(|about| about.layers.is_empty()) else {
            return Ok(());
        };
        let layers = self.layers_of(&about)?;
        let [layer] = &*layers else {
            return Ok(());
        };
        let (shared, own) = (self.layer(layer.id.as_str()), folder.join(ROOT));
        let failed = LibraryError::new("share the layer of", &folder);
        let mut moved = || {
            fs::create_dir_all(&shared)?;
            if !shared.join(ARCHIVE).exists() {
                fs::hard_link(&layer.archive, shared.join(ARCHIVE))?;
            }
            if layer.files == own {
                fs::rename(&own, shared.join(FILES))?;
            }
            if own.symlink_metadata().is_err() {
                std::os::unix::fs::symlink(lowest(&layer.id), &own)?;
            }
            about.layers.push(layer.id.clone());
            about.base_layers = 1;
            let beside = folder.join("image.json.new");
            let mut file = fs::File::create(&beside)?;
            file.write_all(serde_json::to_string(&about)?.as_bytes())?;
            file.sync_all()?;
            fs::rename(beside, folder.join("image.json"))
        };
        moved().map_err(failed)
    }

    /// Removes an image, whole or broken, and those of its layers that no other has; where another is broken, all layers stay.
    /// One that is not there is removed already.
    ///
    /// # Errors
    /// When something could not be removed; it may be asked again.
    pub fn remove(&self, digest: &ImageDigest) -> Result<(), LibraryError> {
        if !self.folder().exists() {
            return Ok(());
        }
        let _lock = self.lock()?;
        let folder = self.folder().join(digest.as_str());
        if folder.symlink_metadata().is_ok() {
            self.take_away(&folder)?;
        }
        self.remove_layers_of_nobody()
    }

    /// Removes every image that a recipe or an archive became and that is neither in use nor the newest of its name, and says
    /// which; also what was never finished. What was committed is its owner's to remove; what is broken stays, and with it all
    /// layers.
    ///
    /// # Errors
    /// When something could not be removed; it may be asked again.
    pub fn collect(&self, in_use: &[ImageDigest]) -> Result<Vec<Generation>, LibraryError> {
        if !self.folder().exists() {
            return Ok(Vec::new());
        }
        let _lock = self.lock()?;
        self.remove_halves()?;
        let mut newest: Vec<String> = Vec::new();
        let mut removed = Vec::new();
        for generation in self.list()? {
            if generation.base.is_some() {
                continue;
            }
            let is_newest = !newest.contains(&generation.name);
            if is_newest {
                newest.push(generation.name.clone());
            }
            if !is_newest && !in_use.contains(&generation.digest) {
                self.take_away(&generation.folder)?;
                removed.push(generation);
            }
        }
        self.remove_layers_of_nobody()?;
        Ok(removed)
    }

    /// Removes what was never finished and that nobody works on.
    pub(crate) fn remove_leftovers(&self) -> Result<(), LibraryError> {
        if !self.folder().exists() {
            return Ok(());
        }
        let _lock = self.lock()?;
        self.remove_halves()?;
        self.remove_layers_of_nobody()
    }

    fn remove_layers_of_nobody(&self) -> Result<(), LibraryError> {
        let all = self.folder().join(LAYERS);
        let mut used = BTreeSet::new();
        let found = self.all()?;
        if !found.broken.is_empty() {
            return Ok(());
        }
        for (about, _) in found.whole {
            used.extend(self.layers_of(&about)?.into_iter().map(|layer| layer.id));
        }
        let entries = match fs::read_dir(&all) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(LibraryError::new("list", &all))?,
        };
        for entry in entries {
            let entry = entry.map_err(LibraryError::new("list", &all))?;
            let id = entry.file_name().to_string_lossy().parse::<ImageDigest>();
            if id.is_ok_and(|id| !used.contains(&id)) {
                self.take_away(&entry.path())?;
            }
        }
        Ok(())
    }
}

/// Where the files of an image's lowest layer are, from its folder.
pub(crate) fn lowest(id: &ImageDigest) -> String {
    format!("../{LAYERS}/{id}/{FILES}")
}
