//! What the control plane and a sandbox's runtime say to each other over the link, and the runtime to its hands.
//!
//! Wire types and versions only: no IO. The link is HTTP/1.1 on a unix socket. `POST /v1/control` is upgraded to the
//! control stream: a [`Hello`] from each side, then one JSON value a line, [`ToRuntime`] one way and [`ToControl`] the
//! other. `POST /v1/turns` is a [`TurnRequest`], answered by a [`TurnReply`] or a [`Refusal`]; `POST /v1/results` hands in
//! [`EarlyResults`]. `CONNECT name:port` is a connection that somebody inside opened; `POST /v1/names` a [`NameRequest`],
//! answered by a [`NameAnswer`];
//! `POST /v1/services` a [`ServiceRequest`], answered by the bytes of a result or by a [`ServiceError`]; `POST
//! /v1/models/ROUTE` a request in the language of its [`ModelRoute`], answered so or by a [`ServiceError`]. `GET` and `PUT
//! /v1/files/N` carry the bytes of a file that the control plane asked for on the control stream. `POST /v1/sync` is a
//! [`SyncCall`], answered by a [`SyncAnswer`]; `PUT` and `GET /v1/objects/…` carry contents of files to and from where they are
//! kept.

mod control;
mod hands;
mod json;
mod model;
mod service;
mod sync;
mod turn;
mod version;

use std::collections::BTreeMap;

pub use control::{FileEntry, FileKind, Start, ToControl, ToRuntime, Transfer};
pub use hands::{FileRequest, FromHands, IMPORT_FOLDERS, ToHands};
pub use json::parse;
pub use model::{BETA_HEADER, MODEL_REQUEST_BYTES, ModelRequest, ModelRoute};
pub use service::{
    Grants, MethodGrant, SERVICE_REQUEST_BYTES, SERVICE_REQUEST_PARTS, ServiceError, ServiceFailure, ServiceGrant,
    ServiceRequest,
};
pub use sync::{
    Content, DiskId, Fault, FileRecord, FromSync, Kept, KnownFile, Offered, PIECE, PathBytes, Piece, SYNC_BYTES,
    SYNC_ITEMS, SYNC_PARTS, SYNC_PIECES, SignedUrl, SyncAnswer, SyncCall, SyncCursor, SyncRequest, ToSync,
};
pub use turn::{
    CallTime, Denial, EarlyResults, NameAnswer, NameRequest, Refusal, RefusalCode, StopReason, ToolChoice, TurnReply,
    TurnRequest,
};
pub use version::{Hello, PROTOCOL, VersionError};

/// What stands in the environment of a user's process where others have a key: the egress broker puts the real one in.
pub const PLACEHOLDER: &str = "credential-brokered";

/// Where programs look for a key without which they ask nobody: GitHub's command line, and clients of AWS, which sign with whatever stands
/// there.
const KEYS: [&str; 4] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "GH_ENTERPRISE_TOKEN",
    "GH_TOKEN",
];

/// What the environment of every sandbox says of keys: that whoever asks is given one on the way.
#[must_use]
pub fn placeholders() -> BTreeMap<String, String> {
    KEYS.map(|name| (name.to_owned(), PLACEHOLDER.to_owned())).into()
}
