//! What can be asked of a provider.

use std::error::Error;
use std::os::unix::net::UnixListener;

use async_trait::async_trait;
use domain::{SandboxId, SessionId};

use crate::{ImageDigest, SandboxSpec, SandboxStatus, SandboxUsage};

/// Makes, holds and removes sandboxes.
///
/// A provider finds its sandboxes again after its own restart. An order that was begun is carried out even if the caller no
/// longer waits for it. Orders for different sandboxes do not wait for each other; orders for one are carried out in turn.
#[async_trait]
pub trait SandboxProvider: Send + Sync + 'static {
    /// Makes a sandbox and starts its runtime. The link can be connected to before this returns. The session's disk is
    /// made if there is none, and kept when the sandbox goes. After a failure nothing is left.
    ///
    /// # Errors
    /// [`ProviderError::Exists`] where the id was used before, [`ProviderError::DiskInUse`] where the session has a
    /// sandbox already, [`ProviderError::ImageMissing`], [`ProviderError::Limit`] where limits are absurd or more than
    /// this provider gives, [`ProviderError::Machine`] where the machine lacks something.
    async fn create(&self, spec: &SandboxSpec) -> Result<SandboxStatus, ProviderError>;

    /// The listening socket of the sandbox's link; each call returns another descriptor of the same socket, which is
    /// non-blocking. After a restart of the provider it must be asked for again.
    ///
    /// # Errors
    /// [`ProviderError::NotFound`].
    async fn link(&self, id: SandboxId) -> Result<UnixListener, ProviderError>;

    /// Stops every process of the sandbox where it stands. Nothing happens if it is frozen already.
    ///
    /// # Errors
    /// [`ProviderError::NotFound`]; [`ProviderError::Dead`] where no process is left.
    async fn freeze(&self, id: SandboxId) -> Result<(), ProviderError>;

    /// Lets every process of the sandbox go on. Nothing happens if it is not frozen.
    ///
    /// # Errors
    /// [`ProviderError::NotFound`]; [`ProviderError::Dead`] where no process is left.
    async fn thaw(&self, id: SandboxId) -> Result<(), ProviderError>;

    /// Kills every process of the sandbox, frozen or not, and removes all that belongs to it but the session's disk. When
    /// this returns nothing of it is left. A sandbox that is not there is destroyed already.
    ///
    /// # Errors
    /// Where something could not be removed; it may be asked again.
    async fn destroy(&self, id: SandboxId) -> Result<(), ProviderError>;

    /// How a sandbox is.
    ///
    /// # Errors
    /// [`ProviderError::NotFound`].
    async fn status(&self, id: SandboxId) -> Result<SandboxStatus, ProviderError>;

    /// What a sandbox takes at the moment.
    ///
    /// # Errors
    /// [`ProviderError::NotFound`]; [`ProviderError::Dead`] where no process is left.
    async fn usage(&self, id: SandboxId) -> Result<SandboxUsage, ProviderError>;

    /// Every sandbox of this provider, the dead ones that were not destroyed included; sorted by id.
    ///
    /// # Errors
    /// Where the provider itself cannot be reached.
    async fn list(&self) -> Result<Vec<SandboxStatus>, ProviderError>;

    /// Removes a session's disk and all its files. A disk that is not there is removed already.
    ///
    /// # Errors
    /// [`ProviderError::DiskInUse`] while the session has a sandbox.
    async fn remove_disk(&self, session: SessionId) -> Result<(), ProviderError>;
}

/// Why a provider did not do what it was asked. Each variant is something that a caller may act on.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// There is no such sandbox (any more).
    #[error("there is no sandbox {0}")]
    NotFound(SandboxId),
    /// The id is taken.
    #[error("sandbox {0} exists already")]
    Exists(SandboxId),
    /// Its processes are gone; it can only be destroyed.
    #[error("sandbox {id} is dead: {reason}")]
    Dead {
        /// Which.
        id: SandboxId,
        /// What ended it, as far as it is known.
        reason: String,
    },
    /// The session has a sandbox, which holds its disk.
    #[error("the disk of session {session} is in use by sandbox {sandbox}: destroy that one first")]
    DiskInUse {
        /// Whose disk.
        session: SessionId,
        /// Which sandbox has it.
        sandbox: SandboxId,
    },
    /// The image is not there, or not whole.
    #[error("image {image} cannot be used: {reason}")]
    ImageMissing {
        /// Which.
        image: ImageDigest,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// A limit that makes no sense, or more than this provider gives.
    #[error("{0}")]
    Limit(String),
    /// The machine lacks something that sandboxes need.
    #[error("this machine cannot run sandboxes: {lacks}")]
    Machine {
        /// What is lacking and what mends it, in words.
        lacks: String,
    },
    /// The provider cannot be reached, or is overloaded; the same order may succeed later.
    #[error("the sandbox provider is not available: {0}")]
    Unavailable(String),
    /// Something went wrong that no caller can mend.
    #[error("could not {attempt}")]
    Failed {
        /// What was tried, on what.
        attempt: String,
        /// Why it failed.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

impl ProviderError {
    /// A failure that no caller can mend.
    pub fn failed(attempt: impl Into<String>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Failed {
            attempt: attempt.into(),
            source: source.into(),
        }
    }
}
