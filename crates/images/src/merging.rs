//! Several layers as one that shows the same over whatever is below them.

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use containers::overlay::shown_as;
use rustix::fs::{AtFlags, CWD, utimensat};

use crate::attributes::changed;
use crate::bounds::{MOST, Names, Room};
use crate::{LibraryError, whiteout};

/// Makes a layer's files, in a folder that is not there, of those of others, from the uppermost. They stay, and what is not a
/// folder is shared.
pub(crate) fn merge(folders: &[PathBuf], to: &Path) -> Result<(), LibraryError> {
    let merged = || {
        fs::create_dir(to)?;
        let opened = File::open(to)?;
        let mut merging = Merging {
            room: Room::of(&opened),
            left: MOST,
            names: Names::default(),
        };
        merging.fill(folders, to)
    };
    merged().map_err(LibraryError::new("merge layers in", to))
}

struct Merging<'f> {
    room: Room<'f>,
    /// Files, folders and links that there may still be.
    left: u64,
    names: Names,
}

impl Merging<'_> {
    fn fill(&mut self, folders: &[PathBuf], to: &Path) -> io::Result<()> {
        let mut seen = BTreeSet::new();
        let before = self.names;
        for (depth, folder) in folders.iter().enumerate() {
            for entry in fs::read_dir(folder)? {
                let name = entry?.file_name();
                if !seen.insert(name.clone()) {
                    continue;
                }
                self.names.hold(&name)?;
                self.left = self.left.checked_sub(1).ok_or_else(|| {
                    io::Error::other(format!("together they have more than {MOST} files and folders"))
                })?;
                let (uppermost, place) = (folder.join(&name), to.join(&name));
                let about = uppermost.symlink_metadata()?;
                if !about.is_dir() {
                    fs::hard_link(&uppermost, &place)?;
                    continue;
                }
                self.room.must_hold(0)?;
                let (shown, hides) = shown_as(folders[depth..].iter().map(|folder| folder.join(&name)))?;
                fs::create_dir(&place)?;
                self.fill(&shown, &place)?;
                if hides {
                    whiteout::make_opaque(File::open(&place)?)?;
                }
                finish(&place, &about)?;
            }
        }
        self.names = before;
        Ok(())
    }
}

/// Gives a folder what another has beside its files.
fn finish(folder: &Path, about: &Metadata) -> io::Result<()> {
    chown(folder, Some(about.uid()), Some(about.gid()))?;
    fs::set_permissions(folder, fs::Permissions::from_mode(about.mode() & 0o7777))?;
    let times = changed(about.mtime(), about.mtime_nsec());
    Ok(utimensat(CWD, folder, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with a file at each place.
    fn folder(all: &Path, names: &[&str]) -> PathBuf {
        let folder = tempfile::tempdir_in(all).unwrap().keep();
        for name in names {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            File::create(path).unwrap();
        }
        folder
    }

    #[test]
    fn names_of_all_folders_and_of_those_above_count_together() {
        let all = tempfile::tempdir().unwrap();
        let merged = |folders: &[PathBuf], count| {
            let to = tempfile::tempdir_in(all.path()).unwrap().keep();
            let opened = File::open(&to).unwrap();
            let mut merging = Merging {
                room: Room::of(&opened),
                left: MOST,
                names: Names::with_room_for(count, 3),
            };
            merging.fill(folders, &to).map_err(|error| error.to_string())
        };
        let (one, other) = (folder(all.path(), &["aaa", "bbb"]), folder(all.path(), &["bbb", "ccc"]));
        let both = [one, other];
        merged(&both, 3).unwrap();
        let words = merged(&both, 2).unwrap_err();
        assert!(words.contains("more names in one folder"), "{words}");

        // Those of a folder that is done are held no longer.
        let nested = [folder(all.path(), &["aaa/xxx", "aaa/yyy", "bbb/xxx", "bbb/yyy"])];
        merged(&nested, 4).unwrap();
        merged(&nested, 2).unwrap_err();
    }
}
