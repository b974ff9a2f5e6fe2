//! Images that were made elsewhere.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use containers::overlay::is_opaque;
use sandbox::inside;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::bounds::MOST;
use crate::half::Half;
use crate::layer::{self, Blob};
use crate::library::{ARCHIVE, Draft, FILES, ImageFolder};
use crate::recipe::is_name;
use crate::source::Source;
use crate::unpacking::unpack;
use crate::{BuildError, Generation, ImportError, LibraryError, whiteout};

/// Layers that an image may have: with those that are committed, the kernel takes so many.
const MOST_LAYERS: usize = 64;
/// What all layers may have together, unpacked. Less where there is less room.
const MOST_BYTES: u64 = 256 << 30;

/// What a provider mounts something on: folders, and files.
const FOLDERS: [&str; 6] = ["dev", "proc", "run", "sys", "tmp", "workspace"];
const MOUNTED: [&str; 3] = ["etc/hosts", "etc/resolv.conf", "etc/hostname"];

impl ImageFolder {
    /// Takes in an image: an OCI image layout, in a folder or a tar, or what `docker save` wrote. Layers are plain, gzip or
    /// zstd. Places that sandboxes need and it does not have are added as a layer. Needs root.
    ///
    /// # Errors
    /// [`ImportError`]; no image came of it, and nothing is left of the attempt.
    pub fn import(&self, from: &Path, name: &str) -> Result<Generation, ImportError> {
        if !rustix::process::geteuid().is_root() {
            return Err(BuildError::NotRoot.into());
        }
        if !is_name(name) {
            return Err(ImportError::Name { name: name.to_owned() });
        }
        let failed = |source| ImportError::Refused {
            path: from.to_owned(),
            source,
        };
        let source = Source::open(from).map_err(failed)?;
        let described = source.describe().map_err(failed)?;
        let ids = diff_ids(&described.configuration).map_err(failed)?;
        if ids.len() != described.layers.len() || ids.is_empty() || ids.len() > MOST_LAYERS {
            return Err(failed(io::Error::other(format!(
                "it has {} layers and names for {}; there must be as many, and at most {MOST_LAYERS}",
                described.layers.len(),
                ids.len()
            ))));
        }
        let half = self.begin()?;
        let spare = half.room().bytes().map_err(LibraryError::new("look at", half.path()))?;
        let mut taking = TakingIn {
            // Each is there twice: as files, and as an archive.
            bytes: (spare / 2).min(MOST_BYTES),
            entries: MOST,
            half: &half,
        };
        let mut layers = Vec::new();
        let mut folders: Vec<PathBuf> = Vec::new();
        for (number, (name, id)) in described.layers.iter().zip(&ids).enumerate() {
            let failed = |error: io::Error| failed(io::Error::new(error.kind(), format!("layer {number}: {error}")));
            let place = [self.layer(id), half.layer(id)];
            let place = place.into_iter().find(|place| place.join(ARCHIVE).exists());
            let place = match place {
                Some(place) => place,
                None => taking.layer(&source, name, id).map_err(failed)?,
            };
            let files = place.join(FILES);
            if is_opaque(&files).map_err(failed)? {
                // All that is below is hidden; an overlay does not heed that of its layers' roots.
                layers.clear();
                folders.clear();
            }
            folders.push(files);
            let archive = fs::metadata(place.join(ARCHIVE)).map_err(failed)?;
            layers.push(Blob {
                hex: id.clone(),
                bytes: archive.len(),
            });
        }
        layers.extend(lacking(&half, &folders)?);
        let draft = Draft {
            name: name.to_owned(),
            recipe: "imported".to_owned(),
            configuration: kept(&described.configuration),
            base: None,
            base_layers: layers.len(),
            layers,
        };
        let kept = self.keep(half, draft)?;
        if kept.name != name || kept.base.is_some() {
            return Err(ImportError::Here {
                digest: kept.digest,
                name: kept.name,
            });
        }
        Ok(kept)
    }
}

/// What of a stranger's configuration is kept. An engine would obey the rest: run health checks, make volumes.
fn kept(configuration: &Value) -> Value {
    let mut kept = json!({});
    for name in ["architecture", "os"] {
        if let Some(text) = configuration[name].as_str() {
            kept[name] = text.into();
        }
    }
    let run = &configuration["config"];
    for name in ["Env", "WorkingDir", "Labels", "User"] {
        if !run[name].is_null() {
            kept["config"][name] = run[name].clone();
        }
    }
    kept
}

/// The names of a configuration's layers, from the lowest.
fn diff_ids(configuration: &Value) -> io::Result<Vec<String>> {
    let ids = configuration["rootfs"]["diff_ids"].as_array().into_iter().flatten();
    ids.map(|id| {
        let digits = id
            .as_str()
            .and_then(|id| id.strip_prefix("sha256:"))
            .unwrap_or_default();
        let digest: sandbox::ImageDigest = digits.parse().map_err(io::Error::other)?;
        Ok(digest.into())
    })
    .collect()
}

/// Layers that are taken in, and what all of them together may still have.
struct TakingIn<'h> {
    half: &'h Half,
    bytes: u64,
    /// Files, folders and links.
    entries: u64,
}

impl TakingIn<'_> {
    /// Unpacks one, which must be what its name says; gives its folder.
    fn layer(&mut self, source: &Source, name: &str, id: &str) -> io::Result<PathBuf> {
        let place = self.half.layer(id);
        let files = place.join(FILES);
        fs::create_dir_all(&files)?;
        for folder in [&place, &files] {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
        }
        let path = place.join(ARCHIVE);
        let mut archive = File::options().create_new(true).read(true).write(true).open(&path)?;
        let mut unpacked = decompressed(source.read(name)?)?;
        let mut hash = Sha256::new();
        let mut piece = vec![0; 1 << 18];
        loop {
            let read = unpacked.read(&mut piece)?;
            if read == 0 {
                break;
            }
            self.bytes = self.bytes.checked_sub(read as u64).ok_or_else(|| {
                let words =
                    "unpacked it has more than there is room for: remove images (belljar image gc) or other files";
                io::Error::new(io::ErrorKind::StorageFull, words)
            })?;
            self.half.room().must_hold(read as u64)?;
            hash.update(&piece[..read]);
            archive.write_all(&piece[..read])?;
        }
        if hex::encode(hash.finalize()) != id {
            return Err(io::Error::other(format!("it is not what its name, {id}, says")));
        }
        unpack(&archive, &files, &mut self.entries)?;
        Ok(place)
    }
}

fn decompressed<'s>(packed: Box<dyn Read + 's>) -> io::Result<Box<dyn Read + 's>> {
    let mut packed = BufReader::with_capacity(1 << 18, packed);
    Ok(match packed.fill_buf()? {
        [0x1f, 0x8b, ..] => Box::new(flate2::bufread::MultiGzDecoder::new(packed)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            Box::new(ruzstd::decoding::StreamingDecoder::new(packed).map_err(io::Error::other)?)
        }
        _ => Box::new(packed),
    })
}

/// A layer with what sandboxes need and none of these layers has; none where nothing is lacking.
fn lacking(half: &Half, layers: &[PathBuf]) -> Result<Option<Blob>, ImportError> {
    let is_there = |place: &str| {
        // What lies behind a link of the image lies elsewhere on this machine.
        let is_led = |layer: &PathBuf| {
            let mut above = Path::new(place).ancestors().skip(1);
            above.any(|above| layer.join(above).is_symlink())
        };
        let own = layers.iter().rev().filter(|layer| !is_led(layer));
        let mut found = own.map(|layer| layer.join(place).symlink_metadata());
        found.find_map(Result::ok).filter(|about| !whiteout::is_one(about))
    };
    let folders: Vec<_> = FOLDERS
        .iter()
        .filter(|name| !is_there(name).is_some_and(|about| about.is_dir()))
        .collect();
    let mounted: Vec<_> = MOUNTED
        .iter()
        .filter(|name| !is_there(name).is_some_and(|about| about.is_file()))
        .collect();
    if folders.is_empty() && mounted.is_empty() {
        return Ok(None);
    }
    let made = half.layer("new");
    let files = made.join(FILES);
    let make = |name: &str| -> io::Result<()> {
        let place = files.join(name);
        fs::create_dir_all(&place)?;
        let mode = if name == "tmp" { 0o1777 } else { 0o755 };
        fs::set_permissions(&place, fs::Permissions::from_mode(mode))?;
        if name == inside::WORKSPACE.trim_start_matches('/') {
            chown(&place, Some(inside::USER_ID), Some(inside::GROUP_ID))?;
        }
        Ok(())
    };
    let write = |name: &str| -> io::Result<()> {
        let place = files.join(name);
        fs::create_dir_all(place.parent().unwrap_or(&files))?;
        fs::write(&place, [])
    };
    let written = fs::create_dir_all(&files)
        .and_then(|()| folders.into_iter().try_for_each(|name| make(name)))
        .and_then(|()| mounted.into_iter().try_for_each(|name| write(name)))
        .and_then(|()| {
            [&made, &files]
                .into_iter()
                .try_for_each(|folder| fs::set_permissions(folder, fs::Permissions::from_mode(0o755)))
        });
    written.map_err(LibraryError::new("make the places of a sandbox in", &files))?;
    let layer = layer::write(&files, 0, &made.join(ARCHIVE))?;
    let named = half.layer(&layer.hex);
    fs::rename(&made, &named).map_err(LibraryError::new("name the layer", &named))?;
    Ok(Some(layer))
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    #[test]
    fn what_unpacks_to_more_than_there_is_room_for_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let layout = folder.path().join("layout");
        fs::create_dir(&layout).unwrap();
        let mut packed = GzEncoder::new(Vec::new(), Compression::best());
        packed.write_all(&vec![0; 10 << 20]).unwrap();
        fs::write(layout.join("bomb"), packed.finish().unwrap()).unwrap();
        let source = Source::open(&layout).unwrap();
        let half = ImageFolder::open(folder.path().join("images")).begin().unwrap();
        let mut taking = TakingIn {
            half: &half,
            bytes: 1 << 20,
            entries: 10,
        };
        let error = taking.layer(&source, "bomb", "id").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
        assert!(fs::metadata(half.layer("id").join(ARCHIVE)).unwrap().len() <= 1 << 20);
    }

    #[test]
    fn the_entries_of_all_layers_together_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let layout = folder.path().join("layout");
        fs::create_dir(&layout).unwrap();
        let layer = |names: &[&str]| {
            let mut archive = tar::Builder::new(Vec::new());
            for name in names {
                let mut header = tar::Header::new_gnu();
                header.set_size(0);
                header.set_mode(0o644);
                header.set_uid(0);
                header.set_gid(0);
                header.set_mtime(0);
                archive.append_data(&mut header, name, io::empty()).unwrap();
            }
            let bytes = archive.into_inner().unwrap();
            let id = hex::encode(Sha256::digest(&bytes));
            fs::write(layout.join(&id), bytes).unwrap();
            id
        };
        let half = ImageFolder::open(folder.path().join("images")).begin().unwrap();
        let mut taking = TakingIn {
            half: &half,
            bytes: 1 << 20,
            entries: 6,
        };
        let source = Source::open(&layout).unwrap();
        let mut take = |id: String| taking.layer(&source, &id, &id);
        take(layer(&["a", "b"])).unwrap();
        // Folders count of which the archive says nothing.
        take(layer(&["c/d/e"])).unwrap();
        let error = take(layer(&["f/g"])).unwrap_err();
        assert!(error.to_string().contains("all layers together"), "{error}");
    }
}
