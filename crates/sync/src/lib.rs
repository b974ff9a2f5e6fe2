//! Keeps the files of a workspace: sees what changes, has it uploaded, and brings it back to another disk.
//!
//! A process of its own, as the sandbox's user, with no token and no way out but a socket to PID 1, which asks the control
//! plane for it. What it reads was made by the same user and may be anything: it opens over no link, waits for no pipe, and
//! believes no length. It does one thing after another on one thread, holds no file's bytes but a small piece, and sleeps
//! while nothing changes.
//!
//! Events of the kernel only say where to look: a folder, or some names in it, is *dirty*. What is there is then compared
//! with the [`index`] of what was recorded, and what differs is recorded anew. So a lost event is mended by looking
//! everywhere, and the same look that finds a deleted file finds a renamed one.
//!
//! ```text
//! work      dirty folders, rounds, the order to keep everything now
//! look      what is there, against what is known
//! batch     files of a round: offered, uploaded, recorded
//! read      a file cut into pieces, holes left out
//! place     files brought back, in the place of nothing else
//! room      room on the disk, taken before anything is fetched
//! index     what was recorded, by folder
//! disk      the id of the disk
//! watch     the kernel's events
//! rules     what is not kept
//! signed    URLs that are good for some minutes
//! uplink    the socket to PID 1
//! ```

mod batch;
mod disk;
mod index;
mod look;
mod place;
mod read;
mod room;
mod rules;
mod signed;
mod tree;
mod uplink;
mod watch;
mod work;

pub use uplink::UplinkError;
pub use work::{Settings, SyncError, run};
