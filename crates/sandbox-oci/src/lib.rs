//! Sandboxes as containers of an OCI runtime, made by root on this machine.
//!
//! The runtime's command (`runc`, `crun`, `youki`…) is used once per sandbox, to make the container and start its PID 1.
//! Everything around it is done here, most of it by single system calls:
//!
//! - [`network`]: a network namespace with nothing but loopback, in which every address leads to the runtime
//! - [`disk`]: the session's disk with its limit, from a pool
//! - [`root`]: the root file system, overlaid on the image, with owners mapped to the sandbox's own range of ids
//! - [`bundle`]: what the OCI runtime is told: namespaces, capabilities, system calls, limits
//! - [`cgroup`]: freezing, killing and counting, in cgroups of either version
//! - [`process`]: a sandbox's PID 1, told apart from whoever gets its number later
//! - [`record`]: what is written down, so that a provider that was restarted finds its sandboxes again
//! - [`words`]: what PID 1 says to nobody in particular
//!
//! The mounts are made by a thread in a mount namespace of its own, and the OCI runtime is started from there. So the
//! machine's own mount table never shows a sandbox, and whatever is half done when this process is killed vanishes with
//! the thread. A living sandbox holds its own mounts and namespaces; they go with its last process.

mod attempt;
mod bundle;
mod cgroup;
mod config;
mod create;
mod disk;
mod network;
mod process;
mod provider;
mod record;
mod root;
mod words;

pub use config::{Config, DiskChoice};
pub use disk::DiskKind;
pub use provider::OciProvider;
