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
//! snapshots                      what is kept of a session, what it goes back to, and its forks
//! generations                    the image as new sessions get it, built anew from time to time
//! files                          workspaces, kept where their disks are not
//! rights, brought, offer         what a session may do, what its image brings, and what a run is given of both
//! approvals                      what people are asked, and what waits for their answers
//! link, calls, way_out, attempts what comes out of sandboxes
//! turns, history, compaction     one call of a model
//! raw                            calls of models that programs in a sandbox make by themselves
//! money                          what it may cost, and what it did
//! memory                         what is kept for speed alone, within bounds
//! unseen                         pictures that a provider refused
//! masks                          secrets that no model is told, and none says
//! traces                         what a collector of traces is told
//! ```

mod api;
mod approvals;
mod attempts;
mod brought;
mod calls;
mod compaction;
mod config;
mod control;
mod dispatch;
mod drive;
mod error;
mod files;
mod generations;
mod history;
mod housing;
mod link;
mod live;
mod masks;
mod memory;
mod money;
mod offer;
mod patience;
mod prompts;
mod raw;
mod rights;
mod snapshots;
mod traces;
mod turns;
mod unseen;
mod watch;
mod way_out;

pub use ::link::server::ServiceAnswer;
pub use api::{
    FileStream, GenerationEntry, Health, ImageEntry, ImageUse, RemovedSandboxes, SandboxEntry, SandboxFigures,
};
pub use brought::ReadSkills;
pub use calls::Callable;
pub use config::{Base, Config, Refresh, WarmPool};
pub use control::{Control, Outside};
pub use error::ControlError;
pub use files::Files;
pub use generations::RefreshFigures;
pub use housing::meters::TransitionFigures;
pub use prompts::NewPrompt;
pub use protocol::{SERVICE_REQUEST_PARTS, ServiceFailure, ServiceRequest, parse};
pub use snapshots::{NewFork, SnapshotList};
pub use telemetry::Figures as TraceFigures;
pub use watch::{ParsePositionError, Position, Watched};
pub use way_out::MakeBroker;
