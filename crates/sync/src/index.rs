//! What was recorded, folder by folder. Names share their folder's path, and of a file only its stamp is held: a hundred
//! thousand files take some megabytes.

use std::collections::BTreeMap;

use crate::tree::{Relative, join, split};

/// What is known of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Known {
    pub(crate) stamp: i64,
    pub(crate) folder: bool,
}

#[derive(Default)]
pub(crate) struct Index {
    folders: BTreeMap<Relative, BTreeMap<Box<[u8]>, Known>>,
}

impl Index {
    pub(crate) fn get(&self, folder: &[u8], name: &[u8]) -> Option<Known> {
        self.folders.get(folder)?.get(name).copied()
    }

    pub(crate) fn insert(&mut self, path: &[u8], known: Known) {
        let (folder, name) = split(path);
        let names = match self.folders.get_mut(folder) {
            Some(names) => names,
            None => self.folders.entry(folder.to_vec()).or_default(),
        };
        names.insert(name.into(), known);
    }

    /// Forgets a path and all below it.
    pub(crate) fn remove(&mut self, path: &[u8]) {
        let (folder, name) = split(path);
        let Some(known) = self.folders.get_mut(folder).and_then(|names| names.remove(name)) else {
            return;
        };
        if known.folder {
            for below in self.below(path) {
                self.folders.remove(&below);
            }
        }
    }

    /// The names that are known in a folder.
    pub(crate) fn names(&self, folder: &[u8]) -> impl Iterator<Item = &[u8]> {
        self.folders
            .get(folder)
            .into_iter()
            .flat_map(|names| names.keys().map(AsRef::as_ref))
    }

    /// The folder itself where something is known in it, and those below it.
    fn below(&self, folder: &[u8]) -> Vec<Relative> {
        let inside = join(folder, b"");
        let known = self.folders.range(folder.to_vec()..).map(|(path, _)| path);
        known
            .take_while(|path| path.starts_with(folder))
            .filter(|path| *path == folder || path.starts_with(&inside))
            .cloned()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_goes_with_all_below_it_and_nothing_beside_it() {
        let mut index = Index::default();
        let known = |folder| Known { stamp: 1, folder };
        for (path, folder) in [
            ("a", true),
            ("a/x", true),
            ("a/x/y", false),
            ("a-b", true),
            ("a-b/c", false),
            ("ab", false),
        ] {
            index.insert(path.as_bytes(), known(folder));
        }
        index.remove(b"a");
        assert_eq!(index.get(b"a/x", b"y"), None);
        assert_eq!(index.get(b"", b"a"), None);
        assert_eq!(index.get(b"a-b", b"c"), Some(known(false)));
        assert_eq!(index.names(b"").collect::<Vec<_>>(), [&b"a-b"[..], b"ab"]);
    }
}
