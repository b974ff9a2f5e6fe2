//! Files that are still to come into folders which are there already. Whoever deletes such a folder deletes them too.
//!
//! The folders are held open, so that it is known what becomes of them: one that was renamed was not deleted.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use rustix::fs::{OFlags, fstat};

use crate::tree::{Relative, open_beneath, split};

/// Folders that are held, and files that come into them, at most. Of others it is not known whether they were deleted: they
/// come.
const FOLDERS: usize = 256;
pub(crate) const FILES: usize = 10_000;

#[derive(Default)]
pub(crate) struct Waiting {
    folders: BTreeMap<Relative, Folder>,
    files: usize,
    /// What was to come into folders that were deleted.
    deleted: Vec<Relative>,
}

struct Folder {
    opened: OwnedFd,
    /// What is to come into it, or into folders in it that are not there yet.
    files: Vec<Relative>,
}

impl Waiting {
    /// Takes note of a file that is still to come.
    pub(crate) fn insert(&mut self, root: &OwnedFd, file: &[u8]) {
        let (mut folder, _) = split(file);
        while !folder.is_empty() && self.files < FILES {
            if !self.folders.contains_key(folder) && self.folders.len() < FOLDERS {
                let opened = open_beneath(root, folder, OFlags::PATH | OFlags::DIRECTORY);
                let opened = opened.map(|opened| Folder {
                    opened,
                    files: Vec::new(),
                });
                self.folders.extend(opened.map(|opened| (folder.to_vec(), opened)));
            }
            if let Some(folder) = self.folders.get_mut(folder) {
                self.files += 1;
                return folder.files.push(file.to_vec());
            }
            (folder, _) = split(folder);
        }
    }

    /// Files whose folders were deleted, until they are forgotten.
    pub(crate) fn deleted(&mut self) -> &[Relative] {
        self.folders.retain(|_, folder| {
            let is_deleted = folder.is_deleted();
            if is_deleted {
                self.deleted.append(&mut folder.files);
            }
            !is_deleted
        });
        &self.deleted
    }

    /// Forgets those.
    pub(crate) fn forget_deleted(&mut self) {
        self.files -= self.deleted.len();
        self.deleted.clear();
    }
}

impl Folder {
    fn is_deleted(&self) -> bool {
        fstat(&self.opened).is_ok_and(|status| status.st_nlink == 0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use std::fs;

    use super::*;

    fn held(folders: &[impl AsRef<str>], files: &[impl AsRef<str>]) -> (tempfile::TempDir, Waiting) {
        let root = tempfile::tempdir().unwrap();
        for folder in folders {
            fs::create_dir_all(root.path().join(folder.as_ref())).unwrap();
        }
        let opened = OwnedFd::from(fs::File::open(root.path()).unwrap());
        let mut waiting = Waiting::default();
        for file in files {
            waiting.insert(&opened, file.as_ref().as_bytes());
        }
        assert_eq!(waiting.deleted(), Vec::<Relative>::new());
        (root, waiting)
    }

    fn bytes(paths: &[&str]) -> Vec<Relative> {
        paths.iter().map(|path| path.as_bytes().to_vec()).collect()
    }

    #[test]
    fn what_is_deleted_is_known_by_any_name_and_what_is_renamed_is_not_deleted() {
        let folders = ["kept/in", "gone/in", "gone/moved", "made anew", "renamed and gone"];
        let files = [
            "top",
            "kept/in/a",
            "gone/a",
            "gone/in/a",
            "gone/moved/a",
            "gone/never/there/a",
            "made anew/a",
            "renamed and gone/a",
        ];
        let (root, mut waiting) = held(&folders, &files);
        let path = |name: &str| root.path().join(name);
        fs::rename(path("gone/moved"), path("kept/moved")).unwrap();
        fs::remove_dir_all(path("gone")).unwrap();
        fs::remove_dir(path("made anew")).unwrap();
        fs::create_dir(path("made anew")).unwrap();
        fs::rename(path("renamed and gone"), path("x")).unwrap();
        fs::remove_dir(path("x")).unwrap();
        let wanted = [
            "gone/a",
            "gone/never/there/a",
            "gone/in/a",
            "made anew/a",
            "renamed and gone/a",
        ];
        assert_eq!(waiting.deleted(), bytes(&wanted));
        waiting.forget_deleted();
        assert_eq!(waiting.deleted(), Vec::<Relative>::new());
        fs::remove_dir_all(path("kept")).unwrap();
        assert_eq!(waiting.deleted(), bytes(&["gone/moved/a", "kept/in/a"]));
    }

    #[test]
    fn of_what_is_too_much_to_be_held_nothing_is_said() {
        let names: Vec<String> = (0..FOLDERS + 10).map(|number| format!("{number}")).collect();
        let files: Vec<String> = names.iter().map(|name| format!("{name}/file")).collect();
        let (root, mut waiting) = held(&names, &files);
        for name in names {
            fs::remove_dir(root.path().join(name)).unwrap();
        }
        assert_eq!(waiting.deleted().len(), FOLDERS);
    }
}
