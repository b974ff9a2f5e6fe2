//! The broker between sandboxes and servers, all of them on loopback.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod intercept;
mod passing;
mod proxied;
mod rig;
mod rotation;
mod rules;
mod ssh;
mod ssh_peers;
mod threats;
