//! What is kept of processes while nobody uses their sandbox.
//!
//! `<data>/asleep/<session>/` holds a folder of what the maker wrote, with a note of what it was made with. Only root may look
//! into it; no sandbox is shown it, and no snapshot has it. The folder is called `half` until the sandbox is gone whose
//! processes they were, then `kept`, and `used` before a process of it goes on, or when it is to go. Names are on the disk
//! before anything depends on them. So whoever is killed when, and if the power goes, what is kept goes on once at most, and
//! never beside the sandbox that it was.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use domain::{SandboxId, SessionId};
use sandbox::{ProviderError, SandboxSpec};
use serde::{Deserialize, Serialize};
use sys::removal::remove_tree;

use crate::attempt::{Attempt, unless_missing};

const HALF: &str = "half";
const KEPT: &str = "kept";
const USED: &str = "used";
const NOTE: &str = "note.json";

/// What processes were kept with. They go on with the same alone.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Note {
    pub(crate) version: u32,
    /// The sandbox that they were in.
    pub(crate) spec: SandboxSpec,
    /// The user id outside of its root.
    pub(crate) root_uid: u32,
    /// [`crate::workshop::Workshop::programs`] when it was made.
    pub(crate) programs: String,
}

impl Note {
    pub(crate) const VERSION: u32 = 1;

    /// Why they cannot go on in a sandbox that is wanted so, by these programs; none where they can.
    pub(crate) fn unfit(&self, wanted: &SandboxSpec, programs: Option<&str>) -> Option<&'static str> {
        if self.spec.image != wanted.image {
            return Some("they began with another image");
        }
        if self.spec.limits != wanted.limits {
            return Some("they had other limits");
        }
        (Some(self.programs.as_str()) != programs)
            .then_some("belljar-runtime, or the OCI runtime that kept them, was replaced since")
    }
}

/// The folder of all of it.
#[derive(Debug)]
pub(crate) struct Asleep(PathBuf);

impl Asleep {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self(folder)
    }

    /// Where a session's is, whether it is there or not.
    pub(crate) fn place(&self, session: SessionId) -> PathBuf {
        self.0.join(session.to_string())
    }

    /// Makes an empty folder for a session's processes, in the place of whatever was there.
    pub(crate) fn begin(&self, session: SessionId) -> Result<PathBuf, ProviderError> {
        self.forget(session)?;
        let half = self.place(session).join(HALF);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&half);
        made.attempt(|| format!("make the folder {}", half.display()))?;
        Ok(half)
    }

    /// Notes what the processes are kept with; they are not kept yet.
    pub(crate) fn note(&self, session: SessionId, note: &Note) -> Result<(), ProviderError> {
        let path = self.place(session).join(HALF).join(NOTE);
        let attempt = || format!("write {}", path.display());
        let text = serde_json::to_vec_pretty(note).attempt(attempt)?;
        fs::write(&path, text).attempt(attempt)
    }

    /// From here on they are kept, as their sandbox is gone; also if the power goes.
    pub(crate) fn finish(&self, session: SessionId) -> Result<(), ProviderError> {
        let place = self.place(session);
        let finish = || {
            let half = place.join(HALF);
            for entry in fs::read_dir(&half)? {
                File::open(entry?.path())?.sync_all()?;
            }
            File::open(&half)?.sync_all()?;
            fs::rename(&half, place.join(KEPT))?;
            File::open(&place)?.sync_all()
        };
        finish().attempt(|| format!("keep the processes in {}", place.display()))
    }

    /// What is kept of a session's; none where nothing is.
    pub(crate) fn kept(&self, session: SessionId) -> Result<Option<Note>, ProviderError> {
        let path = self.place(session).join(KEPT).join(NOTE);
        let attempt = || format!("read {}", path.display());
        match fs::read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            read => {
                let note: Note = serde_json::from_slice(&read.attempt(attempt)?).attempt(attempt)?;
                if note.version != Note::VERSION {
                    return Err(ProviderError::failed(attempt(), "it was written by a newer release"));
                }
                Ok(Some(note))
            }
        }
    }

    /// Whether the processes of this sandbox are kept.
    pub(crate) fn has_kept(&self, sandbox: SandboxId) -> bool {
        let sessions = self.sessions().unwrap_or_default().into_iter();
        let mut notes = sessions.filter_map(|session| self.kept(session).ok().flatten());
        notes.any(|note| note.spec.id == sandbox)
    }

    /// Uses a session's up, and says where they are: they go on from there, and never again.
    pub(crate) fn take(&self, session: SessionId) -> Result<PathBuf, ProviderError> {
        let used = self.place(session).join(USED);
        self.use_up(session)
            .attempt(|| format!("take the processes in {}", used.display()))?;
        Ok(used)
    }

    /// Removes what was taken of a session's; what is kept since stays.
    pub(crate) fn spend(&self, session: SessionId) -> Result<(), ProviderError> {
        let place = self.place(session);
        let attempt = || format!("remove what was used in {}", place.display());
        unless_missing(remove_tree(&place.join(USED))).attempt(attempt)?;
        match fs::remove_dir(&place) {
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => Ok(()),
            removed => unless_missing(removed).attempt(attempt),
        }
    }

    /// Removes what is kept of a session's, or was to be. What is not there is removed already.
    pub(crate) fn forget(&self, session: SessionId) -> Result<(), ProviderError> {
        let place = self.place(session);
        let attempt = || format!("remove {}", place.display());
        unless_missing(self.use_up(session)).attempt(attempt)?;
        unless_missing(remove_tree(&place)).attempt(attempt)
    }

    /// The sessions of which something is here.
    pub(crate) fn sessions(&self) -> Result<Vec<SessionId>, ProviderError> {
        let attempt = || format!("list {}", self.0.display());
        let entries = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.attempt(attempt)?,
        };
        let mut sessions = Vec::new();
        for entry in entries {
            let name = entry.attempt(attempt)?.file_name();
            sessions.extend(name.to_str().and_then(|name| name.parse::<SessionId>().ok()));
        }
        Ok(sessions)
    }

    /// What was kept is not any more, even if the power goes this moment.
    fn use_up(&self, session: SessionId) -> io::Result<()> {
        let place = self.place(session);
        let used = place.join(USED);
        unless_missing(remove_tree(&used))?;
        fs::rename(place.join(KEPT), &used)?;
        File::open(&place)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use sandbox::{ImageDigest, Limits};

    use super::*;

    fn note() -> Note {
        Note {
            version: Note::VERSION,
            spec: SandboxSpec {
                id: SandboxId::new(),
                session: SessionId::new(),
                image: ImageDigest::from_bytes([1; 32]),
                limits: Limits::default(),
                builder: false,
            },
            root_uid: 2_000_000,
            programs: "these".to_owned(),
        }
    }

    #[test]
    fn what_is_kept_is_there_once_and_for_root_alone() {
        let folder = tempfile::tempdir().unwrap();
        let asleep = Asleep::new(folder.path().join("asleep"));
        let (note, session) = (note(), SessionId::new());
        let half = asleep.begin(session).unwrap();
        fs::write(half.join("memory"), "a secret").unwrap();
        asleep.note(session, &note).unwrap();
        assert_eq!(asleep.kept(session).unwrap(), None, "its sandbox is not gone yet");
        assert!(!asleep.has_kept(note.spec.id));
        asleep.finish(session).unwrap();
        assert_eq!(asleep.kept(session).unwrap(), Some(note.clone()));
        assert!(asleep.has_kept(note.spec.id));
        for folder in [folder.path().join("asleep"), asleep.place(session)] {
            let mode = fs::metadata(&folder).unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0, "{}", folder.display());
        }

        let used = asleep.take(session).unwrap();
        assert_eq!(fs::read(used.join("memory")).unwrap(), b"a secret");
        assert_eq!(asleep.kept(session).unwrap(), None);
        assert!(asleep.take(session).is_err(), "it goes on once");
        assert_eq!(asleep.sessions().unwrap(), [session]);
        asleep.spend(session).unwrap();
        assert_eq!(asleep.sessions().unwrap(), []);
        asleep.spend(session).unwrap();
        asleep.forget(session).unwrap();
        asleep.forget(session).unwrap();
        assert_eq!(asleep.sessions().unwrap(), []);
    }

    #[test]
    fn what_is_begun_anew_takes_the_place_of_what_was_kept() {
        let folder = tempfile::tempdir().unwrap();
        let asleep = Asleep::new(folder.path().join("asleep"));
        let session = SessionId::new();
        for _ in 0..2 {
            asleep.begin(session).unwrap();
            asleep.note(session, &note()).unwrap();
            asleep.finish(session).unwrap();
        }
        // Who was woken is put to sleep again before what it was woken from is gone.
        asleep.take(session).unwrap();
        asleep.begin(session).unwrap();
        asleep.spend(session).unwrap();
        assert_eq!(asleep.kept(session).unwrap(), None);
        asleep.note(session, &note()).unwrap();
        asleep.finish(session).unwrap();
        assert!(asleep.kept(session).unwrap().is_some());
    }

    #[test]
    fn processes_go_on_with_what_they_were_kept_with() {
        let note = note();
        let unfit = |change: &dyn Fn(&mut SandboxSpec), programs| {
            let mut wanted = SandboxSpec {
                id: SandboxId::new(),
                ..note.spec.clone()
            };
            change(&mut wanted);
            note.unfit(&wanted, programs)
        };
        assert_eq!(unfit(&|_| {}, Some("these")), None);
        assert!(unfit(&|_| {}, Some("others")).unwrap().contains("replaced"));
        assert!(unfit(&|_| {}, None).is_some());
        let other_image = |wanted: &mut SandboxSpec| wanted.image = ImageDigest::from_bytes([2; 32]);
        assert!(unfit(&other_image, Some("these")).unwrap().contains("image"));
        let other_limits = |wanted: &mut SandboxSpec| wanted.limits.pids += 1;
        assert!(unfit(&other_limits, Some("these")).unwrap().contains("limits"));
    }
}
