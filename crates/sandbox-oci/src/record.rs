//! What is written down about a sandbox.
//!
//! `<run>/sandboxes/<id>/` holds `record.json`, `link/` (the link's directory) and whatever the OCI runtime was told. The
//! record is written before anything is made, and again when the sandbox lives: a record without a process is of one that
//! was never finished, or of one whose process has ended.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use domain::Timestamp;
use sandbox::{ProviderError, SandboxSpec};
use serde::{Deserialize, Serialize};

use crate::attempt::{Attempt, unless_missing};
use crate::process::Identity;

const RECORD: &str = "record.json";

/// What a provider must know of a sandbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) version: u32,
    pub(crate) spec: SandboxSpec,
    pub(crate) created: Timestamp,
    /// The user id outside of root inside; 65,535 more follow.
    pub(crate) root_uid: u32,
    /// PID 1, once it lives.
    pub(crate) process: Option<Identity>,
}

impl Record {
    pub(crate) const VERSION: u32 = 1;
}

/// The folder of one sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn link(&self) -> PathBuf {
        self.0.join("link")
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
    pub(crate) fn read(&self) -> Result<Option<Record>, ProviderError> {
        let path = self.0.join(RECORD);
        let attempt = || format!("read {}", path.display());
        let text = match fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            read => read.attempt(attempt)?,
        };
        serde_json::from_slice(&text).attempt(attempt).map(Some)
    }

    pub(crate) fn remove(&self) -> Result<(), ProviderError> {
        unless_missing(fs::remove_dir_all(&self.0)).attempt(|| format!("remove {}", self.0.display()))
    }
}

/// Makes a folder with exactly this mode, and those above it open for passing through. One that is there keeps its mode.
pub(crate) fn make_folder(path: &Path, mode: u32) -> Result<(), ProviderError> {
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
    DirBuilder::new().mode(mode).create(path).attempt(attempt)
}
