//! The tools on a real workspace, with real programs.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there")]

mod archives;
mod bench;
mod changes;
mod demo;
mod exec;
mod files;
mod git;
mod processes;
mod progress;
mod read;
mod safebash;
mod skill;
