//! The host API over its real socket, and the doctor on this machine.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod agent;
mod callers;
mod doctor;
mod recorded;
mod sandboxes;
