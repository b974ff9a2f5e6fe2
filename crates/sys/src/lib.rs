//! What the kernel offers and safe Rust does not reach: the only crate with `unsafe`.
//!
//! Each module wraps a family of system calls in functions that cannot be misused from safe code; what `rustix` covers
//! safely is not repeated here.
//!
//! - [`btrfs`]: subvolumes and their quotas
//! - [`child`]: what becomes of a child process
//! - [`descriptor`]: what a process inherits open
//! - [`failure`]: whose fault a failure is
//! - [`listed`]: whether a list of system calls is held to
//! - [`loop_device`]: files as block devices
//! - [`mount`]: attributes of mounts, the mapping of ids among them
//! - [`namespace`]: user namespaces that map ids
//! - [`removal`]: trees of any depth, removed

pub mod btrfs;
pub mod child;
pub mod descriptor;
pub mod failure;
pub mod listed;
pub mod loop_device;
pub mod mount;
pub mod namespace;
pub mod removal;
