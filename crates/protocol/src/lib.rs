//! What the control plane and a sandbox's runtime say to each other over the link, and the runtime to its hands.
//!
//! Wire types and versions only: no IO. The link is HTTP/1.1 on a unix socket. `POST /v1/control` is upgraded to the
//! control stream: a [`Hello`] from each side, then one JSON value a line, [`ToRuntime`] one way and [`ToControl`] the
//! other. `POST /v1/turns` is a [`TurnRequest`], answered by a [`TurnReply`] or a [`Refusal`]. `CONNECT name:port` is a
//! connection that somebody inside opened; `POST /v1/names` a [`NameRequest`]. `GET` and `PUT /v1/files/N` carry
//! the bytes of a file that the control plane asked for on the control stream.

mod control;
mod hands;
mod turn;
mod version;

pub use control::{FileEntry, FileKind, Start, ToControl, ToRuntime, Transfer};
pub use hands::{FileRequest, FromHands, ToHands};
pub use turn::{NameRequest, Refusal, RefusalCode, StopReason, ToolChoice, TurnReply, TurnRequest};
pub use version::{Hello, PROTOCOL, VersionError};
