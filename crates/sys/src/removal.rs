//! Trees of folders that strangers made are removed: however deep they are, and wherever links in them lead.
//!
//! Nobody goes down into such a tree. What lies in a folder of its uppermost one is moved up into that, under a number, and is
//! then such a folder itself. So no path has more than two names, a handful of descriptors is open, and nothing is remembered
//! but the next number. Where there is no room for another name, something is removed first.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, openat, openat2, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::path::{Arg, DecInt};

/// How often a folder is gone through anew in which something is left. Whoever keeps writing to it has to be ended first.
const ROUNDS: usize = 8;

/// Removes a folder with all that is in it. Of anything else that stands there it removes the name: of a link that of the link,
/// and nothing that it leads to. After an interruption it may be done again.
///
/// # Errors
/// `ENOENT` where nothing stands there; `EXDEV` or `EBUSY` where something is mounted in it, which stays as it is; `ENOTEMPTY`
/// where somebody keeps writing to it.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = openat(CWD, parent.unwrap_or(Path::new(".")), flags, Mode::empty())?;
    let top = match open_folder(&parent, name) {
        Err(Errno::NOTDIR | Errno::LOOP) => return Ok(unlinkat(&parent, name, AtFlags::empty())?),
        top => top?,
    };
    let mut emptying = Emptying {
        top,
        end: 0,
        removed: false,
        lacks_room: None,
    };
    let mut rounds = 0;
    while rounds < ROUNDS {
        emptying.round()?;
        match unlinkat(&parent, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY) => {}
            removed => return Ok(removed?),
        }
        match emptying.lacks_room.take() {
            None => rounds += 1,
            Some(error) if !emptying.removed && !emptying.remove_one()? => return Err(error.into()),
            Some(_) => {}
        }
    }
    Err(Errno::NOTEMPTY.into())
}

/// The uppermost folder of a tree, on the way to be empty.
struct Emptying {
    top: OwnedFd,
    /// The next number.
    end: u64,
    /// Whether this round removed something.
    removed: bool,
    /// Why something was not moved up, in this round.
    lacks_room: Option<Errno>,
}

impl Emptying {
    /// Removes all that can be.
    fn round(&mut self) -> Result<(), Errno> {
        self.removed = false;
        let mut number = self.end;
        let top = self
            .top
            .try_clone()
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        for_each(&top, |name, is_folder| match is_folder {
            true => self.remove_folder(name),
            false => self.remove(&top, name, AtFlags::empty()),
        })?;
        while number < self.end {
            match self.remove_folder(DecInt::new(number).as_c_str()) {
                // The number was a file's, for which it was passed over.
                Err(Errno::NOTDIR | Errno::LOOP) => {}
                removed => removed?,
            }
            number += 1;
        }
        Ok(())
    }

    /// Removes a folder of the uppermost one. Those in it that are not empty are moved up, under the numbers from `end` on.
    fn remove_folder(&mut self, name: &CStr) -> Result<(), Errno> {
        let folder = match open_folder(&self.top, name) {
            Err(Errno::NOENT) => return Ok(()),
            folder => folder?,
        };
        for_each(&folder, |name, is_folder| {
            if !is_folder {
                return self.remove(&folder, name, AtFlags::empty());
            }
            match self.remove(&folder, name, AtFlags::REMOVEDIR) {
                Err(Errno::NOTEMPTY) => {}
                removed => return removed,
            }
            loop {
                let number = DecInt::new(self.end);
                self.end += 1;
                match renameat(&folder, name, &self.top, number) {
                    // The stranger has something of that name there. It goes like all else.
                    Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
                    Err(error @ (Errno::NOSPC | Errno::DQUOT)) => {
                        self.lacks_room = Some(error);
                        return Ok(());
                    }
                    moved => return unless_gone(moved),
                }
            }
        })?;
        match unlinkat(&self.top, name, AtFlags::REMOVEDIR) {
            // Not all was moved, or somebody wrote to it this moment: the next round finds it.
            Err(Errno::NOTEMPTY) => Ok(()),
            removed => unless_gone(removed).map(|()| self.removed = true),
        }
    }

    /// Goes down to the first folder that has none which is not empty, and removes it. False: there is none.
    fn remove_one(&mut self) -> Result<bool, Errno> {
        let mut above = open_folder(&self.top, c".")?;
        let Some(mut name) = first_folder(&above)? else {
            return Ok(false);
        };
        loop {
            let folder = open_folder(&above, &name)?;
            match first_folder(&folder)? {
                Some(inner) => (above, name) = (folder, inner),
                None => {
                    for_each(&folder, |name, _| self.remove(&folder, name, AtFlags::empty()))?;
                    return unlinkat(&above, &name, AtFlags::REMOVEDIR).map(|()| true);
                }
            }
        }
    }

    fn remove(&mut self, folder: &OwnedFd, name: &CStr, flags: AtFlags) -> Result<(), Errno> {
        unless_gone(unlinkat(folder, name, flags)).map(|()| self.removed = true)
    }
}

fn first_folder(folder: &OwnedFd) -> Result<Option<CString>, Errno> {
    let mut first = None;
    for_each(folder, |name, is_folder| {
        if is_folder && first.is_none() {
            first = Some(name.to_owned());
        }
        Ok(())
    })?;
    Ok(first)
}

/// Goes through what is in a folder; whether each is a folder itself is said beside its name.
fn for_each(folder: &OwnedFd, mut what: impl FnMut(&CStr, bool) -> Result<(), Errno>) -> Result<(), Errno> {
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => continue,
                about => FileType::from_raw_mode(about?.st_mode),
            },
            kind => kind,
        };
        what(name, kind == FileType::Directory)?;
    }
    Ok(())
}

/// Opens a folder that stands directly in another, on the same mount; no link.
fn open_folder(folder: impl AsFd, name: impl Arg) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    openat2(folder, name, flags, Mode::empty(), beneath)
}

fn unless_gone(removed: Result<(), Errno>) -> Result<(), Errno> {
    match removed {
        Err(Errno::NOENT) => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

    use rustix::fs::{mkdirat, symlinkat};
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;

    /// A folder to be removed, beside others that are not; in memory, where a new folder costs no disk the reading of what it
    /// knows of its free inodes.
    fn place() -> (tempfile::TempDir, PathBuf) {
        let all = tempfile::tempdir_in("/dev/shm").unwrap();
        let tree = all.path().join("tree");
        fs::create_dir(&tree).unwrap();
        (all, tree)
    }

    /// Folders in each other, beside whatever `beside` makes in each.
    fn deep(tree: &Path, levels: usize, beside: impl Fn(&OwnedFd)) {
        let mut folder = OwnedFd::from(fs::File::open(tree).unwrap());
        for _ in 0..levels {
            mkdirat(&folder, "deeper", Mode::RWXU).unwrap();
            beside(&folder);
            folder = open_folder(&folder, "deeper").unwrap();
        }
    }

    #[test]
    fn a_tree_of_any_depth_is_removed_with_few_descriptors_and_no_link_in_it_followed() {
        let few = Rlimit {
            current: Some(200),
            ..getrlimit(Resource::Nofile)
        };
        setrlimit(Resource::Nofile, few).unwrap();
        let (all, tree) = place();
        let outside = all.path().join("outside");
        fs::create_dir_all(outside.join("kept")).unwrap();
        deep(&tree, 20_000, |folder| {
            symlinkat(&outside, folder, "out").unwrap();
            symlinkat("..", folder, "up").unwrap();
        });
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
        assert!(outside.join("kept").exists());
        let again = remove_tree(&tree).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn no_room_is_needed_for_what_is_removed() {
        struct Mounted(PathBuf);
        impl Drop for Mounted {
            fn drop(&mut self) {
                run("umount", &[self.0.as_os_str()]);
            }
        }
        fn run(program: &str, arguments: &[&std::ffi::OsStr]) {
            let ran = std::process::Command::new(program).args(arguments).output().unwrap();
            assert!(ran.status.success(), "{program}: {ran:?}");
        }
        let all = tempfile::tempdir().unwrap();
        let (disk, mounted) = (all.path().join("disk"), all.path().join("mounted"));
        fs::File::create(&disk).unwrap().set_len(1 << 20).unwrap();
        fs::create_dir(&mounted).unwrap();
        // Folders are lists of names, in blocks of 1,024 bytes.
        let flags = ["-q", "-t", "ext2", "-b", "1024", "-m", "0", "-O", "^dir_index"].map(std::ffi::OsStr::new);
        run("mke2fs", &[&flags[..], &[disk.as_os_str()]].concat());
        run(
            "mount",
            &["-o".as_ref(), "loop".as_ref(), disk.as_os_str(), mounted.as_os_str()],
        );
        let _mounted = Mounted(mounted.clone());

        let tree = mounted.join("tree");
        // A name takes 8 bytes more than it has letters. Beside itself and the one above, four of these and one fill the first
        // block, and five each of the others to its last 4 bytes: there is no room for another name.
        for number in 0..25 {
            let letters = if number == 4 { 176 } else { 196 };
            fs::create_dir_all(tree.join(format!("{number:0letters$}/in/it/lies"))).unwrap();
        }
        let mut ballast = fs::File::create(mounted.join("ballast")).unwrap();
        while std::io::Write::write_all(&mut ballast, &[1; 1024]).is_ok() {}
        let crowded = fs::create_dir(tree.join("another")).unwrap_err();
        assert_eq!(crowded.kind(), io::ErrorKind::StorageFull);
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
    }

    #[test]
    fn names_that_it_gives_itself_may_be_there_already() {
        let (_all, tree) = place();
        for number in 0..5 {
            fs::create_dir_all(tree.join(format!("{number}/{number}/0/1/2"))).unwrap();
            fs::write(tree.join(format!("{number}/file")), "").unwrap();
        }
        for number in 5..10 {
            fs::write(tree.join(number.to_string()), "").unwrap();
        }
        fs::create_dir_all(tree.join("10")).unwrap();
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
    }

    #[test]
    fn folders_that_nobody_may_enter_are_removed_by_root() {
        let (_all, tree) = place();
        let locked = tree.join("locked/inner");
        fs::create_dir_all(locked.join("innermost")).unwrap();
        for folder in [locked.join("innermost"), locked.clone(), tree.join("locked")] {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o0)).unwrap();
        }
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
    }

    #[test]
    fn what_is_no_folder_loses_its_name_alone() {
        let (all, tree) = place();
        fs::write(tree.join("kept"), "").unwrap();
        let (link, file) = (all.path().join("link"), all.path().join("file"));
        symlink(&tree, &link).unwrap();
        fs::write(&file, "").unwrap();
        for path in [&link, &file] {
            remove_tree(path).unwrap();
            assert!(path.symlink_metadata().is_err());
        }
        assert!(tree.join("kept").exists());
    }
}
