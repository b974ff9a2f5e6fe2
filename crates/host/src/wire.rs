//! What is said on the socket.

use std::error::Error;
use std::fmt;

use domain::{InstallationId, SandboxId, SessionId, SnapshotId};
use sandbox::{
    ImageDigest, ImageStatus, Kept, ProviderError, SandboxSpec, SandboxStatus, SandboxUsage, SnapshotStatus, Snapshots,
};
use serde::{Deserialize, Serialize};

/// The number of the host API that this build speaks; it also understands the one before.
pub(crate) const PROTOCOL: u32 = 2;

/// From this number on a control plane says in its hello of which installation it is.
pub(crate) const NAMES_INSTALLATION: u32 = 2;

/// The longest line that asks for something. Orders are small.
pub(crate) const LONGEST_REQUEST: usize = 64 << 10;
/// The longest line that answers: a list of some ten thousand sandboxes.
pub(crate) const LONGEST_REPLY: usize = 16 << 20;

/// The first line of each side.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) protocol: u32,
    pub(crate) build: String,
    /// Of which installation a control plane is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) installation: Option<InstallationId>,
}

impl Hello {
    /// What a host agent says.
    pub(crate) fn ours() -> Self {
        Self {
            protocol: PROTOCOL,
            build: env!("CARGO_PKG_VERSION").to_owned(),
            installation: None,
        }
    }

    /// What a control plane says.
    pub(crate) fn of(installation: InstallationId) -> Self {
        Self {
            installation: Some(installation),
            ..Self::ours()
        }
    }

    /// Whether we understand a side that said this; if not, why in words. A newer side decides that for us both.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.protocol + 1 >= PROTOCOL {
            return Ok(());
        }
        Err(format!(
            "the other side (build {}) speaks host API {}, this one (build {}) speaks {PROTOCOL} and the one before: \
             run the same release of Belljar on both sides",
            self.build.chars().take(40).collect::<String>(),
            self.protocol,
            env!("CARGO_PKG_VERSION"),
        ))
    }
}

/// An order with the number that its reply will bear.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Request {
    pub(crate) number: u64,
    pub(crate) order: Order,
}

/// What can be asked for.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Order {
    Create(SandboxSpec),
    Assign { id: SandboxId, session: SessionId },
    Link(SandboxId),
    Freeze(SandboxId),
    Thaw(SandboxId),
    Destroy(SandboxId),
    Hibernate(SandboxId),
    Wake(SandboxSpec),
    Forget(SessionId),
    Status(SandboxId),
    Usage(SandboxId),
    Words(SandboxId),
    List,
    Disks,
    RemoveDisk(SessionId),
    Snapshot { session: SessionId, snapshot: SnapshotId },
    Restore { snapshot: SnapshotId, session: SessionId },
    RemoveSnapshot(SnapshotId),
    Snapshots,
    Commit(SandboxId),
    Images,
    RemoveImage(ImageDigest),
}

impl Order {
    /// The first number of the host API that has it.
    pub(crate) const fn since(&self) -> u32 {
        match self {
            Self::Create(spec) if spec.builder => 2,
            Self::Create(_)
            | Self::Link(_)
            | Self::Freeze(_)
            | Self::Thaw(_)
            | Self::Destroy(_)
            | Self::Status(_)
            | Self::Usage(_)
            | Self::List
            | Self::RemoveDisk(_) => 1,
            Self::Assign { .. }
            | Self::Hibernate(_)
            | Self::Wake(_)
            | Self::Forget(_)
            | Self::Words(_)
            | Self::Disks
            | Self::Snapshot { .. }
            | Self::Restore { .. }
            | Self::RemoveSnapshot(_)
            | Self::Snapshots
            | Self::Commit(_)
            | Self::Images
            | Self::RemoveImage(_) => 2,
        }
    }

    /// Whether it copies or removes all files of a disk or an image, which may take minutes.
    pub(crate) const fn copies(&self) -> bool {
        matches!(
            self,
            Self::Snapshot { .. }
                | Self::Restore { .. }
                | Self::RemoveDisk(_)
                | Self::RemoveSnapshot(_)
                | Self::Commit(_)
                | Self::RemoveImage(_)
        )
    }
}

/// What the host agent says after its hello.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Saying {
    /// The first line, if the caller is admitted.
    Hello(Hello),
    /// The last line: the connection ends here, and why.
    Refused(String),
    /// The answer to an order.
    Reply { number: u64, answer: Answer },
}

/// How an order went.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Done,
    /// The socket's descriptor came with this line.
    Link,
    Status(SandboxStatus),
    Statuses(Vec<SandboxStatus>),
    Usage(SandboxUsage),
    Kept(Kept),
    Snapshot(SnapshotStatus),
    Snapshots(Snapshots),
    Words(String),
    Sessions(Vec<SessionId>),
    Image(ImageDigest),
    Images(Vec<ImageStatus>),
    Failed(Failure),
}

/// A [`ProviderError`] that can travel.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Failure {
    NotFound(SandboxId),
    Exists(SandboxId),
    Dead { id: SandboxId, reason: String },
    DiskInUse { session: SessionId, sandbox: SandboxId },
    NothingKept { session: SessionId, reason: String },
    NoDisk(SessionId),
    NoSnapshot(SnapshotId),
    SnapshotExists(SnapshotId),
    DiskExists(SessionId),
    Assigned(SandboxId),
    NotABuilder(SandboxId),
    ImageInUse { image: ImageDigest, sandbox: SandboxId },
    Full(String),
    ImageMissing { image: ImageDigest, reason: String },
    Limit(String),
    Machine { lacks: String },
    Unavailable(String),
    Failed { attempt: String, causes: Vec<String> },
}

impl Failure {
    /// The failure in the words of a control plane that speaks `protocol`.
    pub(crate) fn in_protocol(self, protocol: u32) -> Self {
        if self.since() <= protocol {
            return self;
        }
        Self::Failed {
            attempt: "carry out the order".to_owned(),
            causes: vec![ProviderError::from(self).to_string()],
        }
    }

    /// The first number of the host API that has it.
    const fn since(&self) -> u32 {
        match self {
            Self::NotFound(_)
            | Self::Exists(_)
            | Self::Dead { .. }
            | Self::DiskInUse { .. }
            | Self::ImageMissing { .. }
            | Self::Limit(_)
            | Self::Machine { .. }
            | Self::Unavailable(_)
            | Self::Failed { .. } => 1,
            Self::NothingKept { .. }
            | Self::NoDisk(_)
            | Self::NoSnapshot(_)
            | Self::SnapshotExists(_)
            | Self::DiskExists(_)
            | Self::Assigned(_)
            | Self::NotABuilder(_)
            | Self::ImageInUse { .. }
            | Self::Full(_) => 2,
        }
    }
}

impl From<ProviderError> for Failure {
    fn from(error: ProviderError) -> Self {
        match error {
            ProviderError::NotFound(id) => Self::NotFound(id),
            ProviderError::Exists(id) => Self::Exists(id),
            ProviderError::Dead { id, reason } => Self::Dead { id, reason },
            ProviderError::DiskInUse { session, sandbox } => Self::DiskInUse { session, sandbox },
            ProviderError::NothingKept { session, reason } => Self::NothingKept { session, reason },
            ProviderError::NoDisk(session) => Self::NoDisk(session),
            ProviderError::NoSnapshot(snapshot) => Self::NoSnapshot(snapshot),
            ProviderError::SnapshotExists(snapshot) => Self::SnapshotExists(snapshot),
            ProviderError::DiskExists(session) => Self::DiskExists(session),
            ProviderError::Assigned(id) => Self::Assigned(id),
            ProviderError::NotABuilder(id) => Self::NotABuilder(id),
            ProviderError::ImageInUse { image, sandbox } => Self::ImageInUse { image, sandbox },
            ProviderError::Full(attempt) => Self::Full(attempt),
            ProviderError::ImageMissing { image, reason } => Self::ImageMissing { image, reason },
            ProviderError::Limit(reason) => Self::Limit(reason),
            ProviderError::Machine { lacks } => Self::Machine { lacks },
            ProviderError::Unavailable(reason) => Self::Unavailable(reason),
            ProviderError::Failed { attempt, source } => {
                let first: &(dyn Error + 'static) = &*source;
                let causes = std::iter::successors(Some(first), |cause| (**cause).source());
                Self::Failed {
                    attempt,
                    causes: causes.map(ToString::to_string).collect(),
                }
            }
        }
    }
}

impl From<Failure> for ProviderError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NotFound(id) => Self::NotFound(id),
            Failure::Exists(id) => Self::Exists(id),
            Failure::Dead { id, reason } => Self::Dead { id, reason },
            Failure::DiskInUse { session, sandbox } => Self::DiskInUse { session, sandbox },
            Failure::NothingKept { session, reason } => Self::NothingKept { session, reason },
            Failure::NoDisk(session) => Self::NoDisk(session),
            Failure::NoSnapshot(snapshot) => Self::NoSnapshot(snapshot),
            Failure::SnapshotExists(snapshot) => Self::SnapshotExists(snapshot),
            Failure::DiskExists(session) => Self::DiskExists(session),
            Failure::Assigned(id) => Self::Assigned(id),
            Failure::NotABuilder(id) => Self::NotABuilder(id),
            Failure::ImageInUse { image, sandbox } => Self::ImageInUse { image, sandbox },
            Failure::Full(attempt) => Self::Full(attempt),
            Failure::ImageMissing { image, reason } => Self::ImageMissing { image, reason },
            Failure::Limit(reason) => Self::Limit(reason),
            Failure::Machine { lacks } => Self::Machine { lacks },
            Failure::Unavailable(reason) => Self::Unavailable(reason),
            Failure::Failed { attempt, causes } => {
                let cause = causes.into_iter().rev().fold(None, |source, text| {
                    Some(Cause {
                        text,
                        source: source.map(Box::new),
                    })
                });
                match cause {
                    Some(cause) => Self::failed(attempt, cause),
                    None => Self::failed(attempt, "the host agent did not say why"),
                }
            }
        }
    }
}

/// An error that happened in the host agent, and its source there.
#[derive(Debug)]
struct Cause {
    text: String,
    source: Option<Box<Cause>>,
}

impl fmt::Display for Cause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(formatter)
    }
}

impl Error for Cause {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_keeps_its_sources_over_the_wire() {
        let inner = std::io::Error::other(ProviderError::Limit("the least is 8".into()));
        let failure = Failure::from(ProviderError::failed("mount the disk", inner));
        let text = serde_json::to_string(&failure).unwrap();
        let error = ProviderError::from(serde_json::from_str::<Failure>(&text).unwrap());
        assert_eq!(error.to_string(), "could not mount the disk");
        assert_eq!(error.source().unwrap().to_string(), "the least is 8");
    }

    #[test]
    fn only_what_is_older_than_the_protocol_before_is_refused() {
        let speaks = |protocol| {
            Hello {
                protocol,
                ..Hello::ours()
            }
            .check()
            .is_ok()
        };
        assert!(speaks(PROTOCOL) && speaks(PROTOCOL - 1) && speaks(PROTOCOL + 1));
        assert!(!speaks(PROTOCOL - 2));
    }

    #[test]
    fn an_order_has_no_room_for_a_path() {
        let id = SandboxId::new();
        assert!(serde_json::from_str::<Request>(&format!(r#"{{"number":1,"order":{{"link":"{id}"}}}}"#)).is_ok());
        for text in [
            r#"{"number":1,"order":{"link":"../../etc"}}"#.to_owned(),
            format!(r#"{{"number":1,"order":{{"link":"{id}"}},"path":"/etc"}}"#),
            format!(r#"{{"number":1,"order":{{"snapshot":{{"session":"{id}","snapshot":"../{id}"}}}}}}"#),
            r#"{"number":1,"order":{"remove_image":"../../etc"}}"#.to_owned(),
            format!(r#"{{"number":1,"order":{{"create":{{"id":"{id}","session":"{id}","image":"/etc"}}}}}}"#),
        ] {
            assert!(serde_json::from_str::<Request>(&text).is_err(), "{text}");
        }
    }
}
