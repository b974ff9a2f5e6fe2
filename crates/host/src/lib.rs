//! The host API, both ends: how `belljar serve`, which holds secrets and may do nothing, asks `belljar host`, which may do
//! everything and knows nothing, for sandboxes.
//!
//! An order holds ids, an image's digest and limits: never a path, a mount or a command line. So a control plane that went
//! wrong can waste sandboxes and no more. The API is one unix socket with a line of JSON per message; both sides say first
//! what they speak; orders run side by side, and an order that was begun is carried out even when whoever gave it is gone.
//! The listening socket of a sandbox's link travels as a descriptor beside the reply that announces it. A host agent works
//! for one installation, which the control plane names in its first line.
//!
//! - [`listen`], [`serve`]: the end that has the machine; admits one user and root
//! - [`HostClient`]: the other end, a [`sandbox::SandboxProvider`] like any other
//! - [`doctor`]: what this machine lacks, found out by trying

mod claim;
mod client;
pub mod doctor;
mod listen;
mod server;
mod wire;

pub use client::HostClient;
pub use listen::{ListenError, listen};
pub use server::serve;
