//! Sandboxes as containers of an OCI runtime, made by root on this machine.
//!
//! The runtime's command (`runc`, `crun`…) is used once per sandbox, to make the container and start its PID 1. What is
//! particular to it is done here; what is the same for every container is done in crate `containers`:
//!
//! - `network`: a network namespace with nothing but loopback, in which every address leads to the runtime
//! - `root`: the root file system, overlaid on the image, with owners mapped to the sandbox's own range of ids
//! - `bundle`: what the OCI runtime is told: namespaces, capabilities, system calls, limits
//! - `memory`: files in the machine's memory, which are kept with processes; `write`: what writes them
//! - `maker`: all of it together
//!
//! The mounts are made by a thread in a mount namespace of its own, and the OCI runtime is started from there. So the
//! machine's own mount table never shows a sandbox, and whatever is half done when this process is killed vanishes with
//! the thread. A living sandbox holds its own mounts and namespaces; they go with its last process. The network is not named
//! to the OCI runtime: that thread enters it, and what it starts inherits it. So it belongs to the machine's root, whose
//! rights nobody inside has, and an OCI runtime that first enters the sandbox's users need not join it from there.

mod bundle;
mod maker;
mod memory;
mod network;
mod root;
mod write;

use std::path::PathBuf;
use std::sync::Arc;

use containers::library::Library;
use containers::{Config, ContainerProvider};
use sandbox::ProviderError;

use crate::maker::OciMaker;

/// Begins to provide sandboxes by this OCI runtime's command. As [`ContainerProvider::open`].
///
/// # Errors
/// As there.
pub fn open(
    command: impl Into<PathBuf>,
    config: Config,
    library: Arc<dyn Library>,
) -> Result<ContainerProvider, ProviderError> {
    let maker = OciMaker::new(command.into(), config.run.join("oci"), &config.cgroup)?;
    ContainerProvider::open(config, library, maker)
}
