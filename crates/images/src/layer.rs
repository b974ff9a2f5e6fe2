//! A root file system as one layer: a tar whose bytes follow from the files alone.

use std::fs::{File, Metadata};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use sandbox::ImageDigest;
use sha2::{Digest, Sha256};
use tar::{EntryType, Header};

use crate::bounds::{Firsts, Names, Room, must_be_shallow};
use crate::twins::Twins;
use crate::{BuildError, whiteout};

/// Bytes with their name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Blob {
    /// 64 hexadecimal digits.
    pub(crate) hex: String,
    pub(crate) bytes: u64,
}

impl Blob {
    pub(crate) fn of(content: &[u8]) -> Self {
        Self {
            hex: hex::encode(Sha256::digest(content)),
            bytes: content.len() as u64,
        }
    }

    /// Its name as others know it.
    pub(crate) fn digest(&self) -> ImageDigest {
        let mut bytes = [0; 32];
        // The name is the hexadecimal form of 32 bytes.
        let _ = hex::decode_to_slice(&self.hex, &mut bytes);
        ImageDigest::from_bytes(bytes)
    }
}

/// Writes the files of `root` to `to`: sorted by name, nothing younger than `epoch`, owners by number.
///
/// What the files take away of lower layers becomes entries of OCI's kind. Devices, pipes and sockets are left out: a sandbox
/// gets its own. So are extended attributes.
pub(crate) fn write(root: &Path, epoch: u64, to: &Path) -> Result<Blob, BuildError> {
    write_beside(Names::default(), root, epoch, to)
}

/// The same, while these names are held.
fn write_beside(names: Names, root: &Path, epoch: u64, to: &Path) -> Result<Blob, BuildError> {
    let file = File::create(to).map_err(BuildError::file("make", to))?;
    let beside = file.try_clone().map_err(BuildError::file("make", to))?;
    let writer = Hashing {
        inner: BufWriter::with_capacity(1 << 18, file),
        hash: Sha256::new(),
        bytes: 0,
    };
    let mut layer = Layer {
        root,
        epoch,
        tar: tar::Builder::new(writer),
        room: Room::of(&beside),
        twins: Twins::below(root).map_err(BuildError::file("look for files with several names in", root))?,
        firsts: Firsts::default(),
        names,
    };
    layer.folder(Path::new(""))?;
    let writer = layer.tar.into_inner().map_err(BuildError::file("write", to))?;
    let file = writer
        .inner
        .into_inner()
        .map_err(|error| BuildError::file("write", to)(error.into_error()))?;
    file.sync_all().map_err(BuildError::file("write", to))?;
    Ok(Blob {
        hex: hex::encode(writer.hash.finalize()),
        bytes: writer.bytes,
    })
}

struct Layer<'a> {
    root: &'a Path,
    epoch: u64,
    tar: tar::Builder<Hashing>,
    room: Room<'a>,
    twins: Twins,
    firsts: Firsts,
    names: Names,
}

impl Layer<'_> {
    fn folder(&mut self, relative: &Path) -> Result<(), BuildError> {
        let path = self.root.join(relative);
        let mut names = Vec::new();
        let before = self.names;
        for entry in std::fs::read_dir(&path).map_err(BuildError::file("list", &path))? {
            let name = entry.map_err(BuildError::file("list", &path))?.file_name();
            self.names.hold(&name).map_err(BuildError::file("list", &path))?;
            names.push(name);
        }
        names.sort_unstable();
        for name in names {
            let relative = relative.join(name);
            let path = self.root.join(&relative);
            let about = path.symlink_metadata().map_err(BuildError::file("look at", &path))?;
            self.entry(&relative, &path, &about)
                .map_err(BuildError::file("add to the layer", &path))?;
            if about.is_dir() {
                must_be_shallow(&relative).map_err(BuildError::file("add to the layer", &path))?;
                self.folder(&relative)?;
            }
        }
        self.names = before;
        Ok(())
    }

    fn entry(&mut self, relative: &Path, path: &Path, about: &Metadata) -> io::Result<()> {
        let kind = about.file_type();
        let mut header = Header::new_gnu();
        header.set_mode(about.mode() & 0o7777);
        header.set_uid(about.uid().into());
        header.set_gid(about.gid().into());
        header.set_mtime(u64::try_from(about.mtime()).unwrap_or_default().min(self.epoch));
        header.set_size(0);
        if kind.is_symlink() {
            header.set_entry_type(EntryType::Symlink);
            return self.tar.append_link(&mut header, relative, std::fs::read_link(path)?);
        }
        if kind.is_dir() {
            header.set_entry_type(EntryType::Directory);
            self.tar.append_data(&mut header, relative, io::empty())?;
            if containers::overlay::is_opaque(path)? {
                self.absence(&relative.join(whiteout::OPAQUE))?;
            }
            return Ok(());
        }
        if whiteout::is_one(about) {
            let name = relative.file_name().unwrap_or_default();
            let mut absent = std::ffi::OsString::from(whiteout::PREFIX);
            absent.push(name);
            return self.absence(&relative.with_file_name(absent));
        }
        if kind.is_block_device() || kind.is_char_device() || kind.is_fifo() || kind.is_socket() {
            return Ok(());
        }
        if self.twins.has(about) {
            let first = self.firsts.find(about.dev(), about.ino(), relative)?;
            if let Some(first) = first {
                header.set_entry_type(EntryType::Link);
                return self.tar.append_link(&mut header, relative, first);
            }
        }
        header.set_entry_type(EntryType::Regular);
        header.set_size(about.len());
        self.room.must_hold(about.len())?;
        self.tar.append_data(&mut header, relative, File::open(path)?)
    }
}

impl Layer<'_> {
    /// What says that something of lower layers is not there.
    fn absence(&mut self, name: &Path) -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_mode(0o600);
        header.set_size(0);
        header.set_entry_type(EntryType::Regular);
        self.tar.append_data(&mut header, name, io::empty())
    }
}

struct Hashing {
    inner: BufWriter<File>,
    hash: Sha256,
    bytes: u64,
}

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;
    use crate::bounds::DEEPEST;

    /// The same files, made in another order and at another time.
    fn root(names: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for name in names {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, name).unwrap();
        }
        std::fs::hard_link(root.path().join("a/one"), root.path().join("b/same")).unwrap();
        symlink("one", root.path().join("a/link")).unwrap();
        root
    }

    #[test]
    fn the_same_files_are_the_same_bytes() {
        let long = format!("b/{}", "long/".repeat(60) + "name");
        let (first, second) = (root(&["a/one", "b/two", &long]), root(&[&long, "b/two", "a/one"]));
        let out = tempfile::tempdir().unwrap();
        let (one, two) = (out.path().join("one"), out.path().join("two"));
        let blob = write(first.path(), 1_000, &one).unwrap();
        assert_eq!(blob, write(second.path(), 1_000, &two).unwrap());
        assert_eq!(blob, Blob::of(&std::fs::read(&one).unwrap()));

        std::fs::write(second.path().join("b/two"), "TWO").unwrap();
        assert_ne!(blob.hex, write(second.path(), 1_000, &two).unwrap().hex);
    }

    #[test]
    fn names_of_a_folder_and_of_those_above_count_together() {
        let root = root(&["a/one", "b/two"]);
        let to = tempfile::tempdir().unwrap();
        let written = |count| {
            write_beside(
                Names::with_room_for(count, 4),
                root.path(),
                1_000,
                &to.path().join("layer"),
            )
        };
        written(4).unwrap();
        let error = std::error::Error::source(&written(3).unwrap_err()).unwrap().to_string();
        assert!(error.contains("more names in one folder"), "{error}");
    }

    #[test]
    fn folders_in_each_other_are_gone_into_as_deep_as_any_that_is_taken_over_and_no_deeper() {
        let root = tempfile::tempdir().unwrap();
        let out = tempfile::tempdir().unwrap();
        let mut deepest = root.path().join("knowledge/".to_owned() + &"d/".repeat(DEEPEST));
        std::fs::create_dir_all(&deepest).unwrap();
        std::fs::write(deepest.join("file"), "").unwrap();
        write(root.path(), 1_000, &out.path().join("layer")).unwrap();
        deepest.push("d/".repeat(1_000));
        std::fs::create_dir_all(&deepest).unwrap();
        let error = write(root.path(), 1_000, &out.path().join("layer")).unwrap_err();
        let error = std::error::Error::source(&error).unwrap().to_string();
        assert!(error.contains("more than 128 times"), "{error}");
    }

    #[test]
    fn what_is_unpacked_is_what_was_packed() {
        let root = root(&["b/two", "b/three", "a/one"]);
        let out = tempfile::tempdir().unwrap();
        let path = out.path().join("layer.tar");
        write(root.path(), 1_000, &path).unwrap();
        let mut archive = tar::Archive::new(File::open(&path).unwrap());
        let names: Vec<PathBuf> = archive
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().into())
            .collect();
        assert_eq!(
            names,
            ["a", "a/link", "a/one", "b", "b/same", "b/three", "b/two"].map(PathBuf::from)
        );
        let to = out.path().join("unpacked");
        tar::Archive::new(File::open(&path).unwrap()).unpack(&to).unwrap();
        assert_eq!(std::fs::read_to_string(to.join("b/same")).unwrap(), "a/one");
        assert_eq!(std::fs::metadata(to.join("a/one")).unwrap().nlink(), 2);
        assert_eq!(std::fs::read_link(to.join("a/link")).unwrap(), Path::new("one"));
        assert_eq!(std::fs::metadata(to.join("b/two")).unwrap().mtime(), 1_000);
    }
}
