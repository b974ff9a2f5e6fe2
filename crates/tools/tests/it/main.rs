//! The tools on a real workspace, with real programs.

mod bench;
mod changes;
mod demo;
mod exec;
mod files;
mod git;
mod processes;
mod read;
mod safebash;
mod skill;
