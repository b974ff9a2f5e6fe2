//! The control stream.

use std::collections::BTreeMap;

use domain::{Epoch, RunId, RunLimits, SessionId, ToolCall, ToolCallId, ToolResult};
use secret::Secret;
use serde::{Deserialize, Serialize, Serializer};

use crate::Grants;

/// What the control plane says to a runtime.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToRuntime {
    /// The sandbox belongs to this session from now on. Answered by `claimed`.
    Claim {
        /// The session.
        session: SessionId,
        /// What the runtime shows with each request; never leaves PID 1.
        #[serde(serialize_with = "expose")]
        token: Secret,
        /// Environment of the user's processes; holds no secret, but [`PLACEHOLDER`](crate::PLACEHOLDER)s.
        environment: BTreeMap<String, String>,
        /// Certificates (PEM) of the authorities that the user's programs are to trust beside those of the image: the
        /// installation's own. A claim that is repeated replaces them.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        authorities: String,
        /// Lines for `known_hosts`: the keys of SSH hosts that the user's programs are to trust beside those of the image. A
        /// claim that is repeated replaces them.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        known_hosts: String,
        /// No file is to be brought back from outside, so tools can be used at once. Since protocol 3.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        filled: bool,
        /// The sandbox's processes were kept meanwhile, and go on in another: what led out of it is dead, listening sockets may
        /// be. Since protocol 3.
        #[serde(default, skip_serializing_if = "is_no")]
        woken: bool,
    },
    /// Nobody's sandbox may prepare for these authorities and keys of hosts, which a claim is likely to bring: so that the
    /// claim has less to do. It binds nothing, a claim brings its own. Since protocol 3.
    Trust {
        /// As in a claim.
        authorities: String,
        /// As in a claim.
        known_hosts: String,
    },
    /// A newer token; the one before is good for half a minute more.
    Token {
        /// The token.
        #[serde(serialize_with = "expose")]
        token: Secret,
    },
    /// Runs the loop here. Answered by `loop_ended`.
    Start(Start),
    /// A run whose loop is in the control plane has begun, or ended. Since protocol 2.
    Prepare {
        /// It has begun.
        on: bool,
        /// What it may use.
        #[serde(default)]
        grants: Grants,
    },
    /// Uses a tool for a loop that runs in the control plane. Answered by `result`.
    Call {
        /// The call.
        call: ToolCall,
        /// What it may use up.
        limits: RunLimits,
    },
    /// Whether the runtime lives. Answered by `alive`. Since protocol 3.
    Pulse,
    /// Stops everything that is under way: the loop ends, every process of every call dies. Answered by `stopped`.
    Stop {
        /// Given back with the answer.
        request: u64,
        /// The programs in the background die too. Since protocol 3.
        #[serde(default, skip_serializing_if = "is_no")]
        background: bool,
    },
    /// Sends or fetches a file of the workspace by `GET` or `PUT /v1/files/{request}`; or lists a folder.
    /// Answered by `transferred`.
    Transfer {
        /// Names the transfer.
        request: u64,
        /// What is wanted.
        transfer: Transfer,
    },
}

impl ToRuntime {
    /// The order in the words of a runtime that speaks `protocol`: what one of the protocol before ours does not know is left
    /// out. Orders that it does not know at all are not for it.
    #[must_use]
    pub fn in_protocol(mut self, protocol: u32) -> Self {
        if protocol < 3 {
            match &mut self {
                Self::Claim { filled, woken, .. } => (*filled, *woken) = (false, false),
                Self::Start(start) => {
                    start.traced = false;
                    start.grants.background_seconds = 0;
                }
                Self::Prepare { grants, .. } => grants.background_seconds = 0,
                Self::Stop { background, .. } => *background = false,
                Self::Trust { .. } | Self::Token { .. } | Self::Call { .. } | Self::Pulse | Self::Transfer { .. } => {}
            }
        }
        self
    }
}

/// The order to run a loop.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Start {
    /// The run.
    pub run: RunId,
    /// The hold on the session that it has.
    pub epoch: Epoch,
    /// The first turn to ask for: 1, or where a lost sandbox's loop stood.
    pub turn: u32,
    /// Tools that the scope allows, by name.
    pub tools: Vec<String>,
    /// What it may use up.
    pub limits: RunLimits,
    /// What it may use beside its tools.
    #[serde(default)]
    pub grants: Grants,
    /// Its turns are to say how long their calls took. Since protocol 3.
    #[serde(default, skip_serializing_if = "is_no")]
    pub traced: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
fn is_no(flag: &bool) -> bool {
    !*flag
}

/// Tokens travel here and nowhere else, so the type that does not serialize is told to, here and nowhere else.
fn expose<S: Serializer>(token: &Secret, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(token.expose())
}

/// Something wanted of the workspace's files. Paths are relative to /workspace and never leave it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Transfer {
    /// The runtime sends the file's bytes with `PUT /v1/files/{request}`.
    Read {
        /// The file.
        path: String,
    },
    /// The runtime fetches the bytes with `GET /v1/files/{request}` and puts them in the file's place.
    Write {
        /// The file.
        path: String,
    },
    /// The runtime sends the whole workspace as an archive (tar) with `PUT /v1/files/{request}`. Since protocol 3.
    Pack,
    /// The runtime fetches an archive with `GET /v1/files/{request}` and puts what is in it in the workspace's place: all of it,
    /// or nothing. Since protocol 3.
    Unpack,
    /// The files under a folder, listed in the answer.
    List {
        /// The folder; empty for the whole workspace.
        path: String,
    },
    /// Everything that is there now is kept outside, by the requests of sync. Since those: a runtime that made one knows it.
    Flush,
}

/// What a runtime says to the control plane.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToControl {
    /// The claim is accepted; tools can be used. Or it is refused: a sandbox never changes its session.
    Claimed {
        /// Why it is refused.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<String>,
    },
    /// The loop has ended.
    LoopEnded {
        /// The run.
        run: RunId,
        /// The hold under which it was started.
        epoch: Epoch,
        /// Why, where it is not simply that the model finished.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<String>,
    },
    /// A call's result.
    Result {
        /// The result.
        result: ToolResult,
    },
    /// More of a call's output, as it happens.
    Progress {
        /// The call.
        call: ToolCallId,
        /// The words.
        text: String,
    },
    /// Nothing is under way any more: every process of every call is dead.
    Stopped {
        /// From the order.
        request: u64,
    },
    /// A transfer is done, or failed.
    Transferred {
        /// From the order.
        request: u64,
        /// What was listed.
        #[serde(default)]
        entries: Vec<FileEntry>,
        /// Why it failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<String>,
        /// It failed because nothing is at the path. Since protocol 3.
        #[serde(default, skip_serializing_if = "is_no")]
        missing: bool,
    },
    /// Programs in the background run for so many seconds more at most; none does where it is 0. Since protocol 3.
    Background {
        /// At most.
        seconds: u64,
    },
    /// The answer to `pulse`.
    Alive,
    /// The hands were lost (killed, out of memory) and are there again; calls under way were answered as interrupted.
    HandsReplaced,
}

/// A file of the workspace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileEntry {
    /// Relative to /workspace.
    pub path: String,
    /// What it is.
    pub kind: FileKind,
    /// Its length in bytes.
    pub bytes: u64,
    /// When it was changed, in milliseconds since 1970.
    pub changed: i64,
}

/// What a directory entry is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link; never followed.
    Link,
    /// A pipe, socket or device; never opened.
    Special,
}
