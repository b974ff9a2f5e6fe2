//! Which user ids of this machine a sandbox has: those that no other has, whichever host agent made it.
//!
//! Every range that was given out is a file, named after its first id, that names the folder of the sandbox which has it. The
//! range is the sandbox's as long as its folder is there: whatever was killed when, nothing is given out twice and nothing is
//! lost. Processes that are kept of a sandbox which is gone keep its range, as the folder's that they are in. Where somebody removed the folders, and processes with such ids live on, their ranges are left alone.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use sandbox::ProviderError;

use crate::attempt::{Attempt, unless_missing};
use crate::maker::IDS;
use crate::process;
use crate::record::{Folder, make_folder};

/// Where all host agents of a machine look. Gone with a restart of the machine, as sandboxes are.
const OF_THIS_MACHINE: &str = "/run/belljar-ids";

/// The ids from one on.
#[derive(Debug)]
pub(crate) struct Ids {
    folder: PathBuf,
    first: u32,
    /// Ranges of which processes lived when this began.
    inhabited: HashSet<u32>,
}

impl Ids {
    pub(crate) fn from(first: u32) -> Self {
        Self {
            folder: OF_THIS_MACHINE.into(),
            first,
            inhabited: inhabited(first),
        }
    }

    /// Makes a sandbox's folder and gives it a range that nobody has; returns the first of its ids.
    pub(crate) fn give(&self, sandbox: &Folder) -> Result<u32, ProviderError> {
        let _alone = self.lock()?;
        for uid in (self.first..=u32::MAX - IDS).step_by(IDS as usize) {
            if self.holder(uid)?.is_none() && !self.inhabited.contains(&uid) {
                sandbox.make()?;
                return self.note(uid, sandbox.path()).map(|()| uid);
            }
        }
        Err(ProviderError::Limit("every range of user ids is taken".into()))
    }

    /// Sees to it that a range which a sandbox has is known to be its.
    pub(crate) fn keep(&self, uid: u32, sandbox: &Folder) -> Result<(), ProviderError> {
        let _alone = self.lock()?;
        match self.holder(uid)? {
            None => self.note(uid, sandbox.path()),
            Some(holder) if holder == sandbox.path() => Ok(()),
            Some(holder) => {
                tracing::error!(uid, sandbox = %sandbox.path().display(), other = %holder.display(), "two sandboxes have the same user ids: end one of them");
                Ok(())
            }
        }
    }

    /// Gives a range that this one has, or nobody, to another, whose folder is there. False: it is somebody else's.
    pub(crate) fn hand_over(&self, uid: u32, from: &Path, to: &Path) -> Result<bool, ProviderError> {
        let _alone = self.lock()?;
        match self.holder(uid)? {
            Some(holder) if holder != from && holder != to => Ok(false),
            _ => self.note(uid, to).map(|()| true),
        }
    }

    /// Takes a range back from a sandbox; one that it does not have stays whose it is.
    pub(crate) fn take_back(&self, uid: u32, sandbox: &Folder) -> Result<(), ProviderError> {
        let _alone = self.lock()?;
        let file = self.file(uid);
        let attempt = || format!("give back the user ids of {}", file.display());
        if noted(&file)
            .attempt(attempt)?
            .is_some_and(|noted| noted == sandbox.path())
        {
            unless_missing(fs::remove_file(&file)).attempt(attempt)?;
        }
        Ok(())
    }

    /// The folder of the sandbox that has a range.
    fn holder(&self, uid: u32) -> Result<Option<PathBuf>, ProviderError> {
        let file = self.file(uid);
        let noted = noted(&file).attempt(|| format!("find out from {} who has these user ids", file.display()))?;
        Ok(noted.filter(|folder| folder.exists()))
    }

    fn note(&self, uid: u32, holder: &Path) -> Result<(), ProviderError> {
        let file = self.file(uid);
        let noted = fs::write(&file, holder.as_os_str().as_bytes());
        noted.attempt(|| format!("write {}", file.display()))
    }

    fn file(&self, uid: u32) -> PathBuf {
        self.folder.join(uid.to_string())
    }

    /// Whoever holds this looks and writes alone.
    fn lock(&self) -> Result<File, ProviderError> {
        make_folder(&self.folder, 0o700)?;
        let attempt = || format!("lock {}", self.folder.display());
        let folder = File::open(&self.folder).attempt(attempt)?;
        folder.lock().attempt(attempt)?;
        Ok(folder)
    }
}

/// The ranges from an id on of which processes live; one that ends meanwhile is none.
fn inhabited(first: u32) -> HashSet<u32> {
    let users = process::all().filter_map(process::user);
    users
        .filter_map(|uid| uid.checked_sub(first))
        .map(|above| first + above / IDS * IDS)
        .collect()
}

fn noted(file: &Path) -> io::Result<Option<PathBuf>> {
    match fs::read(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        read => read.map(|folder| Some(std::ffi::OsStr::from_bytes(&folder).into())),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;

    use super::*;

    struct Machine(tempfile::TempDir);

    impl Machine {
        fn ids(&self) -> Ids {
            Ids {
                folder: self.0.path().join("ids"),
                first: 2_000_000,
                inhabited: HashSet::new(),
            }
        }

        fn sandbox(&self, name: &str) -> Folder {
            Folder::new(self.0.path().join(name))
        }
    }

    #[test]
    fn no_range_is_given_to_two_whoever_gives() {
        let machine = Machine(tempfile::tempdir().unwrap());
        let sandbox = |name: &str| machine.sandbox(name);
        let (one, other) = (machine.ids(), machine.ids());
        let first = one.give(&sandbox("run/sandboxes/a")).unwrap();
        let second = other.give(&sandbox("run2/sandboxes/b")).unwrap();
        assert_eq!((first, second), (2_000_000, 2_000_000 + IDS));
        // What another has is not given back in its place.
        other.take_back(first, &sandbox("run2/sandboxes/b")).unwrap();
        assert_eq!(one.give(&sandbox("run/sandboxes/c")).unwrap(), second + IDS);
        one.take_back(first, &sandbox("run/sandboxes/a")).unwrap();
        assert_eq!(other.give(&sandbox("run2/sandboxes/d")).unwrap(), first);
    }

    #[test]
    fn what_was_killed_gives_back_with_its_folder_and_what_lives_is_found_again() {
        let machine = Machine(tempfile::tempdir().unwrap());
        let (killed, lives) = (machine.sandbox("killed"), machine.sandbox("lives"));
        let ids = machine.ids();
        let (first, second) = (ids.give(&killed).unwrap(), ids.give(&lives).unwrap());
        killed.remove().unwrap();
        assert_eq!(ids.give(&machine.sandbox("next")).unwrap(), first);
        // Somebody has removed what was noted, and a host agent starts that finds a sandbox.
        fs::remove_dir_all(&ids.folder).unwrap();
        ids.keep(second, &lives).unwrap();
        ids.keep(second, &machine.sandbox("next")).unwrap();
        assert_eq!(ids.holder(second).unwrap().unwrap(), lives.path());
        assert_eq!(ids.give(&machine.sandbox("another")).unwrap(), first);
        assert_eq!(ids.give(&machine.sandbox("third")).unwrap(), second + IDS);
    }

    #[test]
    fn a_range_goes_from_hand_to_hand_and_to_nobody_else() {
        let machine = Machine(tempfile::tempdir().unwrap());
        let (first, kept, next) = (
            machine.sandbox("first"),
            machine.sandbox("kept"),
            machine.sandbox("next"),
        );
        let ids = machine.ids();
        let uid = ids.give(&first).unwrap();
        kept.make().unwrap();
        assert!(ids.hand_over(uid, first.path(), kept.path()).unwrap());
        first.remove().unwrap();
        // What ends later than it was taken from has nothing to give back.
        ids.take_back(uid, &first).unwrap();
        assert_eq!(ids.give(&machine.sandbox("other")).unwrap(), uid + IDS);
        next.make().unwrap();
        assert!(ids.hand_over(uid, kept.path(), next.path()).unwrap());
        assert!(!ids.hand_over(uid, first.path(), kept.path()).unwrap());
        assert_eq!(ids.holder(uid).unwrap().unwrap(), next.path());
        // One that nobody has, as after a restart of the machine.
        next.remove().unwrap();
        assert!(ids.hand_over(uid, kept.path(), kept.path()).unwrap());
    }

    #[test]
    fn ids_of_processes_that_nobody_knows_are_not_given_out() {
        let machine = Machine(tempfile::tempdir().unwrap());
        let first = 3_900_000_000;
        let mut forgotten = std::process::Command::new("sleep")
            .arg("600")
            .uid(first + IDS + 1_000)
            .spawn()
            .unwrap();
        let ids = Ids {
            first,
            inhabited: inhabited(first),
            ..machine.ids()
        };
        let given = ["a", "b"].map(|name| ids.give(&machine.sandbox(name)).unwrap());
        forgotten.kill().unwrap();
        forgotten.wait().unwrap();
        assert_eq!(given, [first, first + 2 * IDS]);
    }

    #[test]
    fn of_many_at_once_each_has_its_own() {
        let machine = Machine(tempfile::tempdir().unwrap());
        let given: Vec<_> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..16)
                .map(|number| {
                    let (ids, sandbox) = (machine.ids(), machine.sandbox(&number.to_string()));
                    scope.spawn(move || ids.give(&sandbox).unwrap())
                })
                .collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let different: std::collections::BTreeSet<_> = given.iter().collect();
        assert_eq!(different.len(), 16, "{given:?}");
    }
}
