//! The control plane against its real neighbours: the store on a disk, links over real sockets, a provider over HTTP; and
//! sandboxes that are tasks, with a runtime that speaks the real protocol.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod approvals;
mod asleep;
mod budgets;
mod clock;
mod early;
mod files;
mod generations;
mod hostile;
mod killing;
mod no_room;
mod pictures;
mod prompts;
mod raw;
mod rights;
mod sandboxes;
mod secrecy;
mod services;
mod sleep;
mod snapshots;
mod steps;
mod tokens;
mod traces;
mod turns;
mod unheard;
mod warm;
mod watching;
mod way_out;
mod world;
