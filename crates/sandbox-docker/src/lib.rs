//! Sandboxes as containers of Docker's engine, on Linux, asked over its unix socket.
//!
//! What is particular to the engine is done here; what is the same for every container is done in crate `containers`:
//!
//! - `engine`: the engine, asked from threads that may wait
//! - `image`: our images in the engine, each base given to it once; `knowledge`: what was committed since, beside it
//! - `container`: what it is told of a sandbox; `shown`: how it is shown folders of ours
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
mod shown;
mod trial;

use std::path::Path;
use std::sync::Arc;

use containers::library::Library;
use containers::{Config, ContainerProvider, DiskChoice};
use sandbox::ProviderError;

pub use crate::engine::{About, Engine};
use crate::maker::DockerMaker;
use crate::shown::Shown;
pub use crate::shown::Volume;
pub use crate::trial::try_image;

/// Begins to provide sandboxes by the engine behind this socket. As [`ContainerProvider::open`]. `volume`: the host agent is in
/// a container, and the data directory is the mount of this volume of the engine's.
///
/// # Errors
/// As there; [`ProviderError::Machine`] where the engine or the volume cannot be used.
pub fn open(
    socket: &Path,
    volume: Option<&str>,
    mut config: Config,
    library: Arc<dyn Library>,
) -> Result<ContainerProvider, ProviderError> {
    let engine = Engine::connect(socket, volume.is_some())?;
    let shown = match volume {
        None => Shown::ByPlace,
        Some(name) => {
            let volume = Volume::find(&engine, name, &config.data, &config.run)?;
            config.runtime = volume.take_in(&config.runtime, &config.run)?;
            config.disk = DiskChoice::Folders;
            Shown::In(volume)
        }
    };
    let maker = DockerMaker::new(engine, shown, &config, Arc::clone(&library))?;
    ContainerProvider::open(config, library, maker)
}
