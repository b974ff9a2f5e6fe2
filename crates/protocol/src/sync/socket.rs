//! Between PID 1 and the process that watches the workspace: lines over a socketpair.

use serde::{Deserialize, Serialize};

use super::{DiskId, SignedUrl, SyncAnswer, SyncRequest};

/// What the process that watches the workspace says to PID 1. It has no token and no way out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FromSync {
    /// The first line: the disk that the workspace is on. Answered by `begin` where its files are kept; else the socket is
    /// closed.
    Disk {
        /// Its id.
        disk: DiskId,
    },
    /// Ask this of the control plane. Answered by `answer` or `failed`.
    Ask {
        /// Given back with the answer.
        number: u64,
        /// What is asked.
        request: SyncRequest,
    },
    /// Upload so many bytes of the descriptor that comes with this line. Answered by `done` or `failed`.
    Put {
        /// Given back with the answer.
        number: u64,
        /// Where to.
        url: SignedUrl,
        /// The first byte's place in the file.
        at: u64,
        /// How many.
        bytes: u64,
    },
    /// Fetch so many bytes into the descriptor that comes with this line. Answered by `done` or `failed`.
    Get {
        /// Given back with the answer.
        number: u64,
        /// Where from.
        url: SignedUrl,
        /// The first byte's place in the file.
        at: u64,
        /// How many.
        bytes: u64,
    },
    /// Everything that other disks recorded is back, but for what the disk has no room for.
    Filled {
        /// How many files those are.
        no_room: u64,
    },
    /// Everything that was there when this was ordered is kept, but for what has no room or cannot be read.
    Flushed {
        /// From the order.
        number: u64,
        /// How many files those are.
        left: u64,
    },
    /// A word for the log.
    Said {
        /// The words.
        words: String,
    },
}

/// What PID 1 says to the process that watches the workspace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToSync {
    /// The files are kept.
    Begin,
    /// What the control plane answered.
    Answer {
        /// From the request.
        number: u64,
        /// The answer.
        answer: SyncAnswer,
    },
    /// A transfer is done.
    Done {
        /// From the request.
        number: u64,
    },
    /// It failed.
    Failed {
        /// From the request.
        number: u64,
        /// What is to be done about it.
        fault: Fault,
        /// Why.
        reason: String,
    },
    /// Keep everything that is there now, and say so.
    Flush {
        /// Given back with the answer.
        number: u64,
    },
}

/// Why a transfer or a request failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The same may succeed later.
    Passing,
    /// It never will.
    Lasting,
    /// The disk of the sandbox has no room.
    NoRoom,
}
