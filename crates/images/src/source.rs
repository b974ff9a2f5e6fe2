//! Where an image comes from: an OCI image layout in a folder or an archive, or an archive of `docker save`.
//!
//! A stranger made it. Names in it are looked up beneath it without following a link, and what is read whole is bounded.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use sandbox::ImageDigest;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tar::EntryType;

use crate::layout::{BLOBS, architecture, digest};

/// The most that is read whole: a description.
const LONGEST: u64 = 8 << 20;
/// Names in an archive.
const MOST: usize = 100_000;
/// Bytes of one, where it is of use.
const LONGEST_NAMED: usize = 1_024;
/// Indexes in each other.
const DEEPEST: usize = 4;

/// What an image is read from.
pub(crate) enum Source {
    Folder(OwnedFd),
    Archive(File, BTreeMap<String, (u64, u64)>),
}

/// A description of an image: its configuration, and the names of its layers in the source.
pub(crate) struct Described {
    pub(crate) configuration: Value,
    pub(crate) layers: Vec<String>,
}

impl Source {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        if path.is_dir() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            return Ok(Self::Folder(openat(CWD, path, flags, Mode::empty())?));
        }
        let mut file = File::open(path)?;
        bounded(&file).map_err(|error| {
            io::Error::other(format!(
                "it is neither an archive of an image (tar, not compressed as a whole) nor a folder with one: {error}"
            ))
        })?;
        let mut names = BTreeMap::new();
        file.rewind()?;
        let mut archive = tar::Archive::new(&file);
        for entry in archive.entries_with_seek()? {
            let entry = entry?;
            if entry.header().entry_type() != EntryType::Regular {
                continue;
            }
            let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            if name.len() > LONGEST_NAMED {
                // Nothing that is looked for is called so.
                continue;
            }
            names.insert(
                name.trim_start_matches("./").to_owned(),
                (entry.raw_file_position(), entry.size()),
            );
            if names.len() > MOST {
                return Err(io::Error::other(format!("it holds more than {MOST} files")));
            }
        }
        Ok(Self::Archive(file, names))
    }

    pub(crate) fn read(&self, name: &str) -> io::Result<Box<dyn Read + '_>> {
        match self {
            Self::Folder(folder) => {
                let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
                let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = File::from(openat2(folder, name, flags, Mode::empty(), beneath)?);
                if !file.metadata()?.is_file() {
                    return Err(io::Error::other(format!("{name} is no file")));
                }
                Ok(Box::new(file))
            }
            Self::Archive(file, names) => {
                let (at, length) = *names
                    .get(name.trim_start_matches("./"))
                    .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("there is no {name} in it")))?;
                let mut file = file;
                file.seek(SeekFrom::Start(at))?;
                Ok(Box::new(file.take(length)))
            }
        }
    }

    fn whole(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.read(name)?.take(LONGEST + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > LONGEST {
            return Err(io::Error::other(format!("{name} has more than {LONGEST} bytes")));
        }
        Ok(bytes)
    }

    /// A blob that must be what its name says.
    fn blob(&self, named: &ImageDigest) -> io::Result<Value> {
        let bytes = self.whole(&blob(named))?;
        if hex::encode(Sha256::digest(&bytes)) != named.as_str() {
            return Err(io::Error::other(format!("the blob {named} is not what its name says")));
        }
        Ok(serde_json::from_slice(&bytes)?)
    }

    /// The image for this machine's processor.
    pub(crate) fn describe(&self) -> io::Result<Described> {
        match self.whole("index.json") {
            Ok(index) => self.manifest(&serde_json::from_slice(&index)?, 0),
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.saved(),
            Err(error) => Err(error),
        }
    }

    fn manifest(&self, index: &Value, depth: usize) -> io::Result<Described> {
        let entries: Vec<&Value> = index["manifests"].as_array().into_iter().flatten().collect();
        let fits = |entry: &&&Value| {
            let platform = &entry["platform"];
            platform.is_null() || (platform["architecture"] == architecture() && platform["os"] == "linux")
        };
        let entry = entries
            .iter()
            .find(fits)
            .ok_or_else(|| io::Error::other(format!("it holds no image for Linux on {}", architecture())))?;
        let manifest = self.blob(&digest(entry)?)?;
        if manifest["manifests"].is_array() {
            if depth == DEEPEST {
                return Err(io::Error::other("its indexes name indexes without end"));
            }
            return self.manifest(&manifest, depth + 1);
        }
        let layers = manifest["layers"].as_array().into_iter().flatten();
        Ok(Described {
            configuration: self.blob(&digest(&manifest["config"])?)?,
            layers: layers
                .map(|layer| Ok(blob(&digest(layer)?)))
                .collect::<io::Result<_>>()?,
        })
    }

    /// What `docker save` wrote before it wrote layouts.
    fn saved(&self) -> io::Result<Described> {
        let manifest: Value =
            serde_json::from_slice(&self.whole("manifest.json").map_err(|error| {
                io::Error::other(format!("it has neither index.json nor manifest.json ({error})"))
            })?)?;
        let images = manifest.as_array().map(Vec::as_slice).unwrap_or_default();
        let [image] = images else {
            return Err(io::Error::other(format!(
                "it holds {} images: save one alone",
                images.len()
            )));
        };
        let name = |value: &Value| {
            let name = value.as_str().map(str::to_owned);
            name.ok_or_else(|| io::Error::other("its manifest.json names something that is no text"))
        };
        let layers = image["Layers"].as_array().into_iter().flatten();
        Ok(Described {
            configuration: serde_json::from_slice(&self.whole(&name(&image["Config"])?)?)?,
            layers: layers.map(name).collect::<io::Result<_>>()?,
        })
    }
}

fn blob(digest: &ImageDigest) -> String {
    format!("{BLOBS}/{digest}")
}

/// Refuses an archive whose long names, which are read whole, are absurd; and one that could be read in two ways, so that what
/// was looked at here is what is read later.
pub(crate) fn bounded(mut file: &File) -> io::Result<()> {
    const LONGEST_NAME: u64 = 1 << 20;
    file.rewind()?;
    let mut archive = tar::Archive::new(file);
    // What was said of the next file's size, beside its own header.
    let mut said = Vec::new();
    for entry in archive.entries_with_seek()?.raw(true) {
        let mut entry = entry?;
        let kind = entry.header().entry_type();
        let is_read_whole = kind.is_gnu_longname()
            || kind.is_gnu_longlink()
            || kind.is_pax_local_extensions()
            || kind.is_pax_global_extensions();
        if is_read_whole && entry.size() > LONGEST_NAME {
            return Err(io::Error::other("a name in it is absurdly long"));
        }
        if kind.is_gnu_sparse() {
            return Err(io::Error::other(
                "it holds a sparse file, which is not understood: pack it without",
            ));
        }
        if kind.is_pax_local_extensions() {
            for extension in entry.pax_extensions()?.into_iter().flatten() {
                let extension = extension?;
                if extension.key_bytes() == b"size" {
                    said.push(extension.value_bytes().to_owned());
                }
            }
        }
        if !is_read_whole && said.drain(..).any(|said| said != entry.size().to_string().as_bytes()) {
            return Err(io::Error::other("it says two sizes of one file"));
        }
    }
    file.rewind()
}
