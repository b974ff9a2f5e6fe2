//! What makes the containers of a provider: an OCI runtime's command, or an engine.

use std::fmt;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use domain::SandboxId;
use sandbox::{ProviderError, SandboxSpec};

use crate::cgroup::Group;
use crate::library::Image;
use crate::process::Process;
use crate::record::Folder;
use crate::words::Words;

/// How many ids a sandbox has.
pub const IDS: u32 = 65_536;

/// Makes containers. All that is done before and after is the same for all: [`crate::ContainerProvider`].
pub trait Maker: fmt::Debug + Send + Sync + 'static {
    /// Does what is to be done once, when the provider has its folder for itself. Blocks.
    ///
    /// # Errors
    /// Where it cannot be done.
    fn begin(&self) -> Result<(), ProviderError> {
        Ok(())
    }

    /// Makes ready what the next container needs; shows at once whether the machine can do it at all. Blocks.
    ///
    /// # Errors
    /// What the machine lacks.
    fn prepare(&self) -> Result<(), ProviderError>;

    /// The uid outside of every sandbox's root; none where each has a range of ids of its own.
    fn root_uid(&self) -> Option<u32>;

    /// The groups that hold all processes of a sandbox, which need not be there.
    fn group(&self, id: SandboxId) -> Group;

    /// Makes a sandbox's container and starts its PID 1. Blocks.
    ///
    /// # Errors
    /// What went wrong; what was made so far is removed by the removal of the groups, and by [`Maker::forget`].
    fn make(&self, order: &Order<'_>) -> Result<Process, ProviderError>;

    /// Removes whatever is noted of a sandbox whose processes were killed, or never were; its groups are removed afterwards.
    /// Blocks.
    ///
    /// # Errors
    /// Where something cannot be removed.
    fn forget(&self, id: SandboxId) -> Result<(), ProviderError>;

    /// Buries what ended of a sandbox without having been in its groups then; it has these users. `finished`: it lived once. Blocks.
    fn bury(&self, _users: &Range<u32>, _finished: bool) {}

    /// Whether it stops a sandbox's processes itself, as freezing its groups would do them harm.
    fn stops(&self) -> bool {
        false
    }

    /// Has a sandbox's processes stop, where [`Maker::stops`]; nothing happens where they have. Blocks.
    ///
    /// # Errors
    /// Where they do not.
    fn stop(&self, _id: SandboxId) -> Result<(), ProviderError> {
        Ok(())
    }

    /// Has them go on; nothing happens where they do. Blocks.
    ///
    /// # Errors
    /// Where they do not.
    fn go_on(&self, _id: SandboxId) -> Result<(), ProviderError> {
        Ok(())
    }

    /// Names the program that keeps processes, and what of it must be the same where they go on; none where they cannot be kept.
    fn keeper(&self) -> Option<String> {
        None
    }

    /// Writes a sandbox's processes with their memory into a folder, and ends them. They go on where [`Order::kept`] names it.
    /// Blocks.
    ///
    /// # Errors
    /// Where they cannot be kept, or not in `most` bytes, or in time. They may live still, or not.
    fn keep(&self, id: SandboxId, _into: &Path, _most: u64) -> Result<(), ProviderError> {
        Err(ProviderError::failed(
            format!("keep the processes of sandbox {id}"),
            "what made it keeps none",
        ))
    }

    /// How many processes a sandbox has, where its groups do not tell. Blocks.
    fn processes(&self, _id: SandboxId) -> Option<u32> {
        None
    }

    /// What PID 1 said, where it does not say it into [`Order::words`]. Blocks.
    fn words(&self, _id: SandboxId) -> Option<String> {
        None
    }

    /// Whether the kernel ended the sandbox for want of memory, where its groups no longer tell. Blocks.
    fn ran_out_of_memory(&self, _id: SandboxId) -> bool {
        false
    }
}

/// A sandbox that is to be made.
pub struct Order<'a> {
    /// What is wanted.
    pub spec: &'a SandboxSpec,
    /// The folder of the sandbox, with its link; what is made in it is removed with it.
    pub folder: &'a Folder,
    /// The listening end of its link.
    pub link: BorrowedFd<'a>,
    /// Where PID 1's words go.
    pub words: &'a Words,
    /// The uid outside of its root.
    pub root_uid: u32,
    /// What it is made from.
    pub image: &'a Image,
    /// The session's disk, as a mount that is attached nowhere; to be called once.
    pub disk: &'a (dyn Fn() -> Result<OwnedFd, ProviderError> + Sync),
    /// Where that disk is for whoever sees no mount of this process; none where it is one.
    pub disk_folder: Option<PathBuf>,
    /// The program that is PID 1.
    pub runtime: &'a Path,
    /// Files that every sandbox has, by their place.
    pub files: &'a [(&'static str, PathBuf)],
    /// Where the processes are that go on in it, instead of a PID 1 that is started.
    pub kept: Option<&'a Path>,
}
