//! What a program may open and execute, held by the kernel (Landlock).

use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus,
};
use rustix::fs::{FileType, fstat};
use serde::{Deserialize, Serialize};

/// The newest version of Landlock that is made use of; older kernels enforce what they know of it.
const NEWEST: ABI = ABI::V5;

/// What a program may open and execute; everything else is refused by the kernel. Paths that do not exist are left out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Confinement {
    /// The program is not started where the kernel cannot do this.
    pub(crate) required: bool,
    /// Files and folders to read.
    pub(crate) read: Vec<PathBuf>,
    /// Files to read and write.
    pub(crate) write: Vec<PathBuf>,
    /// Files to execute: the program itself and what loads it.
    pub(crate) execute: Vec<PathBuf>,
}

/// A program could not be confined.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConfineError {
    #[error("the kernel refuses to confine it")]
    Ruleset(#[from] RulesetError),
    #[error(
        "this kernel has no Landlock, without which the program is not safe to run on files of strangers; use exec"
    )]
    Missing,
}

impl Confinement {
    /// Confines the calling thread, and what it starts, for ever.
    pub(super) fn enforce(&self) -> Result<(), ConfineError> {
        let mut rules = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(NEWEST))?
            .handle_access(AccessNet::from_all(NEWEST))?
            .create()?;
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        for (paths, access) in [
            (&self.read, read),
            (&self.write, AccessFs::ReadFile | AccessFs::WriteFile),
            (&self.execute, AccessFs::ReadFile | AccessFs::Execute),
        ] {
            for path in paths {
                let Ok(opened) = PathFd::new(path) else { continue };
                // A rule for a file may not speak of folders.
                let is_folder = fstat(&opened).is_ok_and(|status| FileType::from_raw_mode(status.st_mode).is_dir());
                let access = if is_folder {
                    access
                } else {
                    access & AccessFs::from_file(NEWEST)
                };
                rules = rules.add_rule(PathBeneath::new(opened, access))?;
            }
        }
        if rules.restrict_self()?.ruleset == RulesetStatus::NotEnforced && self.required {
            return Err(ConfineError::Missing);
        }
        Ok(())
    }
}
