//! Sandboxes as containers of this machine: all that is the same whoever makes the container.
//!
//! A [`maker::Maker`] makes a container and starts its PID 1. Everything around it is done here, most of it by single system
//! calls:
//!
//! - `asleep`: what is kept of processes while nobody uses their sandbox
//! - [`attempt`]: errors that say what was tried
//! - [`cgroup`]: freezing, killing and counting, in cgroups of either version
//! - [`confinement`], [`seccomp`]: what a container may see and do, and which system calls it has
//! - [`disk`]: the session's disk with its limit, from a pool; [`mount`]: mounts by descriptor
//! - [`filtered`]: whether the list of system calls holds for what was started
//! - `ids`: user ids that no other sandbox of this machine has
//! - [`kernel`]: whose kernel answers what an OCI runtime starts
//! - [`library`]: the images of this machine; [`overlay`]: their layers, with what a session writes
//! - [`owners`]: ids on disk, shown as a sandbox's
//! - [`process`]: a sandbox's PID 1, told apart from whoever gets its number later
//! - `provider`: who has which sandbox, and in which order things happen to it
//! - [`record`]: what is written down, so that a provider that was restarted finds its sandboxes again
//! - [`words`]: what PID 1 says to nobody in particular
//! - `workshop`: what sandboxes are made with; the link

mod asleep;
pub mod attempt;
pub mod cgroup;
mod config;
pub mod confinement;
pub mod disk;
pub mod filtered;
mod ids;
pub mod kernel;
pub mod library;
pub mod maker;
pub mod mount;
pub mod overlay;
pub mod owners;
pub mod process;
mod provider;
pub mod record;
pub mod seccomp;
pub mod words;
mod workshop;

pub use config::{Config, DiskChoice};
pub use disk::DiskKind;
pub use provider::ContainerProvider;
pub use workshop::stamp;
