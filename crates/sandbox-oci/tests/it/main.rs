//! Real sandboxes, by real OCI runtimes, as root.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod conforms;
mod disks;
mod isolation;
mod leftovers;
mod limits;
mod network;
mod system_calls;
mod world;
