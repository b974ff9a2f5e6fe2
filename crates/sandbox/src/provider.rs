//! What can be asked of a provider.

use std::error::Error;
use std::os::unix::net::UnixListener;

use async_trait::async_trait;
use domain::{SandboxId, SessionId, SnapshotId};

use crate::{ImageDigest, ImageStatus, Kept, SandboxSpec, SandboxStatus, SandboxUsage, SnapshotStatus, Snapshots};

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

    /// Gives a sandbox, and the disk that was made with it, to a session that has neither: for one that was made ahead, for a
    /// session that nobody has. A sandbox is given to one session and never to another; given to the same again, nothing
    /// happens. Once this has returned, the session has the disk for
    /// good; a provider that ends at any moment before leaves it with its old owner or with the new one. The old one has
    /// nothing then, and until the sandbox is destroyed nothing can be made for it.
    ///
    /// # Errors
    /// [`ProviderError::NotFound`]; [`ProviderError::Dead`] where no process is left; [`ProviderError::Assigned`] where it was
    /// given to another before; [`ProviderError::DiskInUse`] where the session has a sandbox, [`ProviderError::DiskExists`]
    /// where it has a disk: the sandbox can then be given to another session. After any other it can only be destroyed.
    async fn assign(&self, id: SandboxId, session: SessionId) -> Result<SandboxStatus, ProviderError>;

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

    /// The same, and keeps the sandbox's processes on disk where that can be: their memory, and no connection out of the sandbox.
    /// Where it cannot be, or takes too long or too much room, they end as ever, and that is said. A builder's are not kept.
    ///
    /// What is kept is its session's. It goes on once at most ([`SandboxProvider::wake`]), and is gone when anything else is done
    /// with the session's disk: a sandbox is made, a snapshot restored, the disk removed. It is in no snapshot, and no sandbox
    /// sees it.
    ///
    /// # Errors
    /// Where something could not be removed; it may be asked again. Nothing is kept then.
    async fn hibernate(&self, id: SandboxId) -> Result<Kept, ProviderError>;

    /// Makes a sandbox in which the processes go on that are kept of its session. They are used up by that, whatever comes of it.
    /// Its runtime is what it was: it dials the link anew, and belongs to its session.
    ///
    /// # Errors
    /// [`ProviderError::NothingKept`] where none are, or they fit neither what is wanted nor what is here any more;
    /// [`ProviderError::Exists`], [`ProviderError::DiskInUse`] and [`ProviderError::Limit`] as for
    /// [`SandboxProvider::create`], which use nothing up. After any other no sandbox is left, and one can be made.
    async fn wake(&self, spec: &SandboxSpec) -> Result<SandboxStatus, ProviderError>;

    /// Removes what is kept of a session's processes. What is not there is removed already.
    ///
    /// # Errors
    /// Where it could not be removed; it may be asked again.
    async fn forget(&self, session: SessionId) -> Result<(), ProviderError>;

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

    /// The last words of its runtime, for people: what it wrote to its standard output and error. Empty where it said nothing,
    /// or nobody kept it. They come out of the sandbox: show them, believe nothing.
    ///
    /// # Errors
    /// [`ProviderError::NotFound`].
    async fn words(&self, id: SandboxId) -> Result<String, ProviderError>;

    /// Every sandbox of this provider, the dead ones that were not destroyed included; sorted by id.
    ///
    /// # Errors
    /// Where the provider itself cannot be reached.
    async fn list(&self) -> Result<Vec<SandboxStatus>, ProviderError>;

    /// The sessions that have a disk, whether they have a sandbox or not; sorted.
    ///
    /// # Errors
    /// Where the provider itself cannot be reached, or cannot read its pool.
    async fn disks(&self) -> Result<Vec<SessionId>, ProviderError>;

    /// Removes a session's disk and all its files. A disk that is not there is removed already.
    ///
    /// # Errors
    /// [`ProviderError::DiskInUse`] while the session has a sandbox.
    async fn remove_disk(&self, session: SessionId) -> Result<(), ProviderError>;

    /// Keeps the session's disk as it is at one moment, whether its sandbox runs (it stands still meanwhile), is frozen, is
    /// dead, or there is none. When this returns the snapshot outlives everything, the disk included; a snapshot that is
    /// listed is whole.
    ///
    /// # Errors
    /// [`ProviderError::NoDisk`]; [`ProviderError::SnapshotExists`] where the id was used before; where there is no room for
    /// it, in which case nothing is left.
    async fn snapshot(&self, session: SessionId, snapshot: SnapshotId) -> Result<SnapshotStatus, ProviderError>;

    /// Makes the session's disk what the snapshot is; the disk that it has goes, in one step with the new one's coming. The
    /// session may be another than the snapshot's: that is a fork. Whatever is written to either is seen by nobody else.
    ///
    /// # Errors
    /// [`ProviderError::NoSnapshot`]; [`ProviderError::DiskInUse`] while the session has a sandbox; where there is no room
    /// for it, in which case the session's disk is as it was.
    async fn restore(&self, snapshot: SnapshotId, session: SessionId) -> Result<(), ProviderError>;

    /// Removes a snapshot; disks that were made from it stay. One that is not there is removed already.
    ///
    /// # Errors
    /// Where it could not be removed; it may be asked again.
    async fn remove_snapshot(&self, snapshot: SnapshotId) -> Result<(), ProviderError>;

    /// Every snapshot of this provider, sorted by id.
    ///
    /// # Errors
    /// Where the provider itself cannot be reached.
    async fn snapshots(&self) -> Result<Snapshots, ProviderError>;

    /// Makes an image of the one that a builder has, with what it has below [`crate::inside::KNOWLEDGE`] as its newest layer.
    /// The sandbox stands still meanwhile; it may be frozen, or dead. The image has the name and the base of the one before
    /// and costs what differs from it; where nothing differs it is that one. When this returns the image outlives everything;
    /// an image that is listed is whole. Asked again it makes the same image.
    ///
    /// Owners, times, permissions, links and the absence of files are kept. Devices, sockets, pipes, extended attributes and
    /// set-user-id bits are not.
    ///
    /// # Errors
    /// [`ProviderError::NotFound`]; [`ProviderError::NotABuilder`]; [`ProviderError::Limit`] where what is below the folder is
    /// more than the sandbox's disk could hold, or cannot be in an image; where there is no room for it. Nothing is left then.
    async fn commit(&self, id: SandboxId) -> Result<ImageDigest, ProviderError>;

    /// Every whole image, sorted by digest.
    ///
    /// # Errors
    /// Where the provider itself cannot be reached, or cannot read its images.
    async fn images(&self) -> Result<Vec<ImageStatus>, ProviderError>;

    /// Removes an image, and of its layers those that no other image has. One that is not there is removed already.
    ///
    /// # Errors
    /// [`ProviderError::ImageInUse`]; where it could not be removed, in which case it may be asked again.
    async fn remove_image(&self, image: &ImageDigest) -> Result<(), ProviderError>;
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
    /// Nothing is kept of the session's processes, or nothing that could go on here.
    #[error("no processes of session {session} can go on: {reason}")]
    NothingKept {
        /// Whose.
        session: SessionId,
        /// Why not.
        reason: String,
    },
    /// The session has no disk: none was made for it yet, or it was removed.
    #[error("session {0} has no disk")]
    NoDisk(SessionId),
    /// There is no such snapshot (any more).
    #[error("there is no snapshot {0}")]
    NoSnapshot(SnapshotId),
    /// The snapshot's id is taken.
    #[error("snapshot {0} exists already")]
    SnapshotExists(SnapshotId),
    /// The session has a disk, and files on it.
    #[error("session {0} has a disk already: make a sandbox for it instead of giving it one that was made ahead")]
    DiskExists(SessionId),
    /// The sandbox is a session's.
    #[error("sandbox {0} was given to a session before: it is never given to another")]
    Assigned(SandboxId),
    /// What a session did in its sandbox never becomes an image, which others would get.
    #[error("sandbox {0} was not made to build: only a builder's /knowledge becomes an image")]
    NotABuilder(SandboxId),
    /// A sandbox was made from the image.
    #[error("image {image} is in use by sandbox {sandbox}: destroy that one first")]
    ImageInUse {
        /// Which.
        image: ImageDigest,
        /// Which sandbox has it.
        sandbox: SandboxId,
    },
    /// There is no room left for disks and snapshots.
    #[error("the host's disk pool is full, so it could not {0}: remove snapshots or sessions that are not needed")]
    Full(String),
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
