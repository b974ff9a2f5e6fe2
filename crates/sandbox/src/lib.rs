//! The seam between what wants sandboxes and what makes them.
//!
//! A [`SandboxProvider`] makes isolated machines from an image, each with a session's disk, with limits, and with one way
//! out: a listening socket, its link. What a provider is made of (containers, pods, micro-VMs) stays behind the trait;
//! what every one of them must do is written down as a program, [`conformance`], which is run against each of them and
//! against the [`Simulator`], so that tests built on the simulator mean something.
//!
//! - [`SandboxProvider`], [`ProviderError`]: what can be asked, and how it can fail
//! - [`SandboxSpec`], [`Limits`], [`ImageDigest`]: what is wanted
//! - [`SandboxStatus`], [`SandboxState`], [`SandboxUsage`]: what there is; [`Kept`]: what is left of it
//! - [`SnapshotStatus`], [`Snapshots`]: what is kept of disks
//! - [`ImageStatus`]: what sandboxes are made from
//! - [`inside`], [`capture`]: what a runtime finds when it starts; the contract between providers and `belljar-runtime`
//! - [`Simulator`]: a provider without machines; [`conformance`]: the suite

pub mod capture;
pub mod conformance;
mod image;
pub mod inside;
mod provider;
mod simulator;
mod snapshot;
mod spec;
mod status;

pub use image::ImageStatus;
pub use provider::{ProviderError, SandboxProvider};
pub use simulator::{Program, Simulator, Started, dialing};
pub use snapshot::{SnapshotStatus, Snapshots};
pub use spec::{ImageDigest, Limits, ParseDigestError, SandboxSpec};
pub use status::{Kept, SandboxState, SandboxStatus, SandboxUsage};
