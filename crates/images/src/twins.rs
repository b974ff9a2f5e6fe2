//! Files with several names in one tree.
//!
//! How many names a file has says its count of links; where they are it does not: a layer that was merged of others has its
//! files from them, and each has a name there too.

use std::collections::HashSet;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::bounds::{MOST, Names, must_be_shallow};

/// The files that have more than one name below a folder. Of each file nine bytes are held while they are looked for.
#[derive(Debug, Default)]
pub(crate) struct Twins {
    device: u64,
    once: HashSet<u64>,
    twice: HashSet<u64>,
}

impl Twins {
    pub(crate) fn below(root: &Path) -> io::Result<Self> {
        let mut twins = Self {
            device: root.symlink_metadata()?.dev(),
            ..Self::default()
        };
        twins.look(root, Path::new(""), Names::default())?;
        twins.once = HashSet::new();
        Ok(twins)
    }

    pub(crate) fn has(&self, about: &Metadata) -> bool {
        about.dev() == self.device && self.twice.contains(&about.ino())
    }

    fn look(&mut self, root: &Path, relative: &Path, mut names: Names) -> io::Result<()> {
        must_be_shallow(relative)?;
        let mut folders = Vec::new();
        for entry in fs::read_dir(root.join(relative))? {
            let entry = entry?;
            let about = entry.metadata()?;
            if about.is_dir() {
                let name = entry.file_name();
                names.hold(&name)?;
                folders.push(name);
            } else if about.nlink() > 1 && about.dev() == self.device && !self.once.insert(about.ino()) {
                self.twice.insert(about.ino());
            }
            if self.once.len() as u64 > MOST {
                return Err(io::Error::other(format!("there are more than {MOST} files")));
            }
        }
        folders
            .iter()
            .try_for_each(|name| self.look(root, &relative.join(name), names))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_in_the_tree_itself_make_twins() {
        let folder = tempfile::tempdir().unwrap();
        let (tree, other) = (folder.path().join("tree"), folder.path().join("other"));
        fs::create_dir_all(tree.join("deep")).unwrap();
        fs::create_dir(&other).unwrap();
        for name in ["shared", "twin", "alone"] {
            fs::write(tree.join(name), name).unwrap();
        }
        fs::hard_link(tree.join("shared"), other.join("shared")).unwrap();
        fs::hard_link(tree.join("twin"), tree.join("deep/twin")).unwrap();
        let twins = Twins::below(&tree).unwrap();
        let is_twin = |name: &str| twins.has(&tree.join(name).metadata().unwrap());
        assert_eq!(
            ["shared", "twin", "deep/twin", "alone"].map(is_twin),
            [false, true, true, false]
        );
    }
}
