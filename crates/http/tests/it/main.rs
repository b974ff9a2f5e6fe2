//! The HTTP API as its callers see it: over real connections, in front of a real control with a real store; models and sandboxes speak
//! their real protocols and are played by tests.

#![allow(clippy::unwrap_used, reason = "what is unexpected in a test is a failure")]
#![allow(unreachable_pub, reason = "nobody uses a test program")]

mod approvals;
mod describes;
mod limits;
mod proxy;
mod strangers;
mod watches;
mod works;
mod world;
