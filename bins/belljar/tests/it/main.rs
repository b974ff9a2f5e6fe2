//! The program as a person or a script meets it: typed commands, what they print, how they end.

#![allow(clippy::unwrap_used, reason = "what is unexpected in a test is a failure")]
#![allow(unreachable_pub, reason = "nobody uses a test program")]

mod approvals;
mod audit;
mod breaks;
mod client;
mod configured;
mod database;
mod develops;
mod page;
mod program;
mod secrets;
mod serves;
mod worker;

// The API with a model and sandboxes that are played, as in its own tests.
#[path = "../../../../crates/http/tests/it/world.rs"]
#[allow(dead_code, reason = "each test program needs another part of it")]
mod world;
