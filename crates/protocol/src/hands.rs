//! The hands protocol: what runs a tool and what it answers. It travels over a socketpair (one JSON value a line, files as
//! descriptors), over the control stream, or stays in the process.

use std::collections::BTreeMap;

use domain::{RunLimits, ToolCall, ToolCallId, ToolResult};
use serde::{Deserialize, Serialize};

use crate::{FileEntry, Grants};

/// How the names of folders begin in which an archive is put together beside the workspace's own.
pub const IMPORT_FOLDERS: &str = ".belljar-import-";

/// What the runtime says to its hands.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToHands {
    /// Environment of the processes that tools start.
    Environment {
        /// Added to what the image says.
        environment: BTreeMap<String, String>,
    },
    /// Use a tool.
    Call {
        /// The call.
        call: ToolCall,
        /// What it may use up.
        limits: RunLimits,
    },
    /// Kill every process of a call whose result nobody waits for any more.
    Cancel {
        /// The call.
        call: ToolCallId,
    },
    /// A run has begun, or ended: have something started ahead, or nothing.
    Prepare {
        /// It has begun.
        on: bool,
        /// What it may use. The declarations of services are left out: PID 1 keeps them.
        grants: Grants,
    },
    /// Kill every process of every call. Answered by `stopped`.
    Stop {
        /// Given back with the answer.
        request: u64,
        /// The programs in the background too.
        #[serde(default)]
        background: bool,
    },
    /// Start a program that belongs to no call, and kill it with all that is beneath it when its time is up. Answered by
    /// `background`, and by `background_ended` when it is gone.
    Background {
        /// Given back with both.
        request: u64,
        /// For `/bin/sh -c`, in /workspace.
        command: String,
        /// Its time.
        seconds: u64,
    },
    /// Open or list files. Answered by `file`, with the descriptor beside it where one is opened.
    File {
        /// Given back with the answer.
        request: u64,
        /// What is wanted.
        file: FileRequest,
    },
}

/// What the runtime wants of the workspace's files.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FileRequest {
    /// A descriptor to read a regular file.
    Open {
        /// Relative to /workspace.
        path: String,
    },
    /// A descriptor to write a new file beside its place; folders on the way are made.
    Create {
        /// Relative to /workspace.
        path: String,
    },
    /// Puts the file that was created in its place.
    Commit {
        /// The request of the `create`.
        created: u64,
    },
    /// Removes a file that was created and not committed.
    Discard {
        /// The request of the `create`.
        created: u64,
    },
    /// A pipe from which the whole workspace can be read as an archive (tar). It is whole if a `commit` says so.
    Pack,
    /// A pipe into which an archive is written that is to take the workspace's place, with a `commit`.
    Unpack,
    /// Lists a folder and what is below.
    List {
        /// Relative to /workspace; empty for all of it.
        path: String,
    },
}

/// What the hands answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FromHands {
    /// The hands are there.
    Ready,
    /// More of a call's output.
    Progress {
        /// The call.
        call: ToolCallId,
        /// The words.
        text: String,
    },
    /// A call's result.
    Result {
        /// The result.
        result: ToolResult,
    },
    /// Every process of every call is dead.
    Stopped {
        /// From the order.
        request: u64,
    },
    /// What was started ahead for a run that has ended is dead.
    Rested,
    /// A program runs in the background, or could not be started.
    Background {
        /// From the order.
        request: u64,
        /// Why it could not be started.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<String>,
    },
    /// A program in the background is gone, with all that was beneath it.
    BackgroundEnded {
        /// From the order.
        request: u64,
    },
    /// What was asked of the files.
    File {
        /// From the order.
        request: u64,
        /// A descriptor comes with this line.
        #[serde(default)]
        opened: bool,
        /// What was listed.
        #[serde(default)]
        entries: Vec<FileEntry>,
        /// Why it failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<String>,
        /// It failed because nothing is at the path.
        #[serde(default)]
        missing: bool,
    },
}
