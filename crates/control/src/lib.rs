//! Sessions, runs, turns, money, the life of sandboxes: the only owner of what happens next.
//!
//! Doors ask [`Control`] on behalf of somebody; sandboxes ask it over their links. Between the two it decides, and writes
//! down what it decided before it acts: a prompt is a row before it is acknowledged, a run is taken under a lease and an
//! epoch before its loop starts, a model call is a claimed turn with reserved money before the model is asked. Nothing in
//! memory matters: whatever dies, the next holder of the lease goes on from the store.
//!
//! ```text
//! control, config, error         what doors see; sessions, prompts, people, files: one file each
//! live                           what is known of a session while something happens in it
//! watch                          events and deltas for those who look on
//! dispatch, drive                which run is next, and one run from its taking to its end
//! housing                        one sandbox per session: made, woken, frozen, removed, replaced
//! link, egress                   what comes out of sandboxes
//! turns, history, compaction     one call of a model
//! money                          what it may cost, and what it did
//! ```

mod api;
mod compaction;
mod config;
mod control;
mod dispatch;
mod drive;
mod egress;
mod error;
mod history;
mod housing;
mod link;
mod live;
mod money;
mod prompts;
mod turns;
mod watch;

pub use api::{FileStream, Health, SandboxEntry};
pub use config::Config;
pub use control::Control;
pub use error::ControlError;
pub use prompts::NewPrompt;
pub use watch::{ParsePositionError, Position, Watched};
