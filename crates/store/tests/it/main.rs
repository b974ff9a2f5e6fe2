//! The store as others use it: real files, real processes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod addresses;
mod approvals;
mod audit;
mod backup;
mod disk_full;
mod durability;
mod events;
mod files;
mod generations;
mod history;
mod many_sessions;
mod measure;
mod money;
mod parts;
mod prompts;
mod results;
mod runs;
mod service_writes;
mod sessions;
mod snapshots;
mod store;
mod tokens;
mod turns;
mod writer;
