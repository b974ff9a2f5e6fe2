//! Sandboxes as containers of Docker's engine, on Linux, asked over its unix socket.
//!
//! What is particular to the engine is done here; what is the same for every container is done in crate `containers`:
//!
//! - `engine`: the engine, asked from threads that may wait
//! - `image`: our images in the engine, each base given to it once; `knowledge`: what was committed since, beside it
//! - `container`: what it is told of a sandbox
//! - `maker`: all of it together
//! - [`try_image`]: whether it can be done at all
//!
//! The engine makes a network with loopback alone, which the runtime in the sandbox leads itself at its start. The root file
//! system cannot be written; the session's disk is seen at /workspace, /tmp, /var/tmp and the user's home, and over /knowledge. Freezing, killing
//! and counting go by the kernel's own files, past the engine. Unless the engine maps users, root inside is root outside, with
//! three capabilities left.

mod container;
mod engine;
mod image;
mod knowledge;
mod maker;
mod trial;

use std::path::Path;
use std::sync::Arc;

use containers::library::Library;
use containers::{Config, ContainerProvider};
use sandbox::ProviderError;

pub use crate::engine::{About, Engine};
use crate::maker::DockerMaker;
pub use crate::trial::try_image;

/// Begins to provide sandboxes by the engine behind this socket. As [`ContainerProvider::open`].
///
/// # Errors
/// As there; [`ProviderError::Machine`] where the engine cannot be used.
pub fn open(socket: &Path, config: Config, library: Arc<dyn Library>) -> Result<ContainerProvider, ProviderError> {
    let maker = DockerMaker::new(Engine::connect(socket)?, &config, Arc::clone(&library))?;
    ContainerProvider::open(config, library, maker)
}
