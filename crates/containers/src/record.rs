//! What is written down about a sandbox.
//!
//! `<run>/sandboxes/<id>/` holds `record.json`, `link/` (the link's directory) and whatever the OCI runtime was told. The
//! record is written before anything is made, and again when the sandbox lives: a record without a process is of one that
//! was never finished, or of one whose process has ended.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use domain::{SessionId, Timestamp};
use sandbox::{ProviderError, SandboxSpec};
use serde::{Deserialize, Serialize};
use sys::failure::may_pass;
use sys::removal::remove_tree;

use crate::attempt::{Attempt, unless_missing};
use crate::mount;
use crate::process::Identity;

const RECORD: &str = "record.json";
/// Notes the command that makes the container, as long as it does.
const CREW: &str = "crew";
/// Is there while a sandbox that runs is held still for a moment.
const STANDING: &str = "standing";
/// Is there while a sandbox is stopped by who made it.
const STOPPED: &str = "stopped";

/// What a provider must know of a sandbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) version: u32,
    pub(crate) spec: SandboxSpec,
    /// The session that it was given to, where it was made ahead: its disk has that session's name, or is about to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) assigned: Option<SessionId>,
    pub(crate) created: Timestamp,
    /// The user id outside of root inside; 65,535 more follow.
    pub(crate) root_uid: u32,
    /// Its session had no disk before: where it is never finished, the disk goes too.
    #[serde(default)]
    pub(crate) new_disk: bool,
    /// PID 1, once it lives.
    pub(crate) process: Option<Identity>,
    /// The programs that it depends on, where its processes can be kept: what is kept goes on by the same alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) programs: Option<String>,
}

impl Record {
    pub(crate) const VERSION: u32 = 1;
}

/// What every version of a record has.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// Why a record is there and cannot be read.
#[derive(Debug)]
pub(crate) enum Unread {
    /// A newer release can, or this one when the machine is well again.
    Now(ProviderError),
    /// Nobody ever can.
    Ever(ProviderError),
}

/// The folder of one sandbox.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The link's directory in it.
    #[must_use]
    pub fn link(&self) -> PathBuf {
        self.0.join("link")
    }

    /// Where the command is noted that makes its container: [`crate::process::Crew`].
    #[must_use]
    pub fn crew(&self) -> PathBuf {
        self.0.join(CREW)
    }

    /// The container is made: what was noted of the command names nobody any more, or somebody else.
    pub(crate) fn forget_crew(&self) -> Result<(), ProviderError> {
        self.forget(CREW)
    }

    pub(crate) fn make(&self) -> Result<(), ProviderError> {
        // Root inside, who is nobody here, must be able to pass.
        make_folder(&self.0, 0o711)
    }

    pub(crate) fn write(&self, record: &Record) -> Result<(), ProviderError> {
        let path = self.0.join(RECORD);
        let attempt = || format!("write {}", path.display());
        let beside = self.0.join("record.json.new");
        let text = serde_json::to_vec_pretty(record).attempt(attempt)?;
        fs::write(&beside, text).attempt(attempt)?;
        fs::rename(&beside, &path).attempt(attempt)
    }

    /// The record; none where not even that was written.
    pub(crate) fn read(&self) -> Result<Option<Record>, Unread> {
        let path = self.0.join(RECORD);
        let attempt = || format!("read {}", path.display());
        let text = match fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) if may_pass(&error) => return Err(Unread::Now(ProviderError::failed(attempt(), error))),
            read => read.attempt(attempt).map_err(Unread::Ever)?,
        };
        let understood = serde_json::from_slice(&text).attempt(attempt);
        let Versioned { version } = understood.map_err(Unread::Ever)?;
        if version > Record::VERSION {
            let words = format!(
                "it was written by a newer release, as version {version}, and this one reads no later than version {}: start \
                 the newer release again",
                Record::VERSION
            );
            return Err(Unread::Now(ProviderError::failed(attempt(), words)));
        }
        let record: Record = serde_json::from_slice(&text).attempt(attempt).map_err(Unread::Ever)?;
        let name = record.spec.id.to_string();
        if !self.0.ends_with(&name) {
            let words = format!("it is what is written down of sandbox {name}");
            return Err(Unread::Ever(ProviderError::failed(attempt(), words)));
        }
        Ok(Some(record))
    }

    /// Writes down that the sandbox is only held still for a moment: whoever finds it so lets it go on.
    pub(crate) fn note_standing(&self) -> Result<(), ProviderError> {
        self.note(STANDING)
    }

    /// Writes down that it is stopped, where its groups do not tell.
    pub(crate) fn note_stopped(&self) -> Result<(), ProviderError> {
        self.note(STOPPED)
    }

    pub(crate) fn was_stopped(&self) -> bool {
        self.0.join(STOPPED).exists()
    }

    pub(crate) fn forget_stopped(&self) -> Result<(), ProviderError> {
        self.forget(STOPPED)
    }

    fn note(&self, name: &str) -> Result<(), ProviderError> {
        let path = self.0.join(name);
        fs::write(&path, []).attempt(|| format!("write {}", path.display()))
    }

    fn forget(&self, name: &str) -> Result<(), ProviderError> {
        let path = self.0.join(name);
        unless_missing(fs::remove_file(&path)).attempt(|| format!("remove {}", path.display()))
    }

    pub(crate) fn was_standing(&self) -> bool {
        self.0.join(STANDING).exists()
    }

    pub(crate) fn forget_standing(&self) -> Result<(), ProviderError> {
        self.forget(STANDING)
    }

    pub(crate) fn remove(&self) -> Result<(), ProviderError> {
        // Whoever made it may have been killed while a session's disk was mounted in it.
        mount::detach_below(&self.0).attempt(|| format!("unmount what is in {}", self.0.display()))?;
        unless_missing(remove_tree(&self.0)).attempt(|| format!("remove {}", self.0.display()))
    }
}

/// Makes a folder with exactly this mode, and those above it open for passing through. One that is there keeps its mode.
///
/// # Errors
/// Where it cannot be made.
pub fn make_folder(path: &Path, mode: u32) -> Result<(), ProviderError> {
    let attempt = || format!("make the folder {}", path.display());
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o711)
            .create(parent)
            .attempt(attempt)?;
    }
    match DirBuilder::new().mode(mode).create(path) {
        // Somebody made it this moment.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => made.attempt(attempt),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_a_newer_release_is_refused_in_words() {
        let all = tempfile::tempdir().unwrap();
        let folder = Folder::new(all.path().join("sandbox"));
        folder.make().unwrap();
        // Whatever else stands in it.
        fs::write(folder.path().join(RECORD), r#"{ "version": 2, "spec": "elsewhere" }"#).unwrap();
        let Err(Unread::Now(refused)) = folder.read() else {
            panic!("it was read");
        };
        let why = std::error::Error::source(&refused).unwrap().to_string();
        assert!(refused.to_string().contains("record.json"), "{refused}");
        assert!(
            why.starts_with("it was written by a newer release, as version 2,"),
            "{why}"
        );
    }

    #[test]
    fn a_record_that_says_nothing_is_lost() {
        let all = tempfile::tempdir().unwrap();
        let folder = Folder::new(all.path().join("sandbox"));
        folder.make().unwrap();
        assert!(folder.read().unwrap().is_none());
        for nothing in ["", "{", "null", r#"{ "version": 1 }"#, r#"{ "version": "2" }"#] {
            fs::write(folder.path().join(RECORD), nothing).unwrap();
            assert!(matches!(folder.read(), Err(Unread::Ever(_))), "{nothing}");
        }
        let record = folder.path().join(RECORD);
        fs::remove_file(&record).unwrap();
        fs::create_dir(&record).unwrap();
        assert!(matches!(folder.read(), Err(Unread::Ever(_))));
        fs::remove_dir(&record).unwrap();
        // A disk that fails says the same: EIO.
        std::os::unix::fs::symlink("/proc/self/mem", &record).unwrap();
        assert!(matches!(folder.read(), Err(Unread::Now(_))));
    }
}
