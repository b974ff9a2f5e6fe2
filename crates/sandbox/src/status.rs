//! What sandboxes there are, and how they do.

use domain::{SandboxId, SessionId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::ImageDigest;

/// A sandbox that exists.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SandboxStatus {
    /// Its name.
    pub id: SandboxId,
    /// Whose disk it has.
    pub session: SessionId,
    /// What it was made from.
    pub image: ImageDigest,
    /// How it is.
    pub state: SandboxState,
    /// Who its runtime is to a socket's other end (`SO_PEERCRED`): nobody else has this uid while the sandbox lives.
    pub root_uid: u32,
    /// When it was made.
    pub created: Timestamp,
    /// It was made to build an image.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub builder: bool,
}

/// How a sandbox is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum SandboxState {
    /// Its processes run.
    Running,
    /// Its processes stand still.
    Frozen,
    /// Its processes are gone; it can only be destroyed.
    Dead {
        /// What ended it, as far as it is known.
        reason: String,
    },
}

/// What is left of a sandbox that was hibernated, beside its session's disk.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "kept", rename_all = "snake_case")]
pub enum Kept {
    /// Its processes, which can go on once.
    Processes,
    /// Nothing: its processes are gone.
    Nothing {
        /// Why they could not be kept, where that was tried.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
}

/// What a sandbox takes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SandboxUsage {
    /// Memory in bytes, the kernel's on its behalf included.
    pub memory_bytes: u64,
    /// Microseconds of processor time since it was made.
    pub cpu_micros: u64,
    /// Processes and threads.
    pub pids: u32,
    /// Bytes of the session's disk.
    pub disk_bytes: u64,
}
