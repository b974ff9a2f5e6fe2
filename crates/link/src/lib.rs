//! The link: the only way out of a sandbox, HTTP/1.1 on a unix socket.
//!
//! [`server`] is the control plane's end: it trusts the connection's uid (the sandbox's mapped root) and nothing that the
//! other end says. [`client`] is the runtime's end. Both speak the types of `protocol`:
//!
//! | request | body | answer |
//! |---|---|---|
//! | `POST /v1/control`, upgraded | a `Hello` each way, then lines of JSON | until one side closes |
//! | `POST /v1/turns` | `TurnRequest` | `TurnReply` |
//! | `POST /v1/results` | `EarlyResults` | 204 |
//! | `POST /v1/names` | `NameRequest` | 204 |
//! | `POST /v1/services` | `ServiceRequest` | the bytes of a result, or a `ServiceError` |
//! | `POST /v1/models/ROUTE` | what a program asks of a model | what it answers, or a `ServiceError` |
//! | `CONNECT host:port` | | the connection |
//! | `POST /v1/sync` | `SyncCall` | `SyncAnswer` |
//! | `PUT /v1/objects/…`, signed | a content of a file | 204 |
//! | `GET /v1/objects/…`, signed | | a content of a file |
//! | `GET /v1/files/N` | | bytes to be written to a file |
//! | `PUT /v1/files/N` | bytes of a file that was asked for | 204 |
//!
//! Every request but the first carries the session's token, in the `Authorization` header and nowhere else. A request that
//! is refused is answered by a `Refusal`. A connection carries one request.

pub mod client;
pub mod server;

mod lines;
