//! Both ends of the link over a real socket.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod exchange;
mod files;
mod hostile;
mod orders;
mod recorded;
mod recording;
mod requests;
mod rig;
mod services;
