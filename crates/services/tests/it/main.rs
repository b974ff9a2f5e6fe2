//! Calls of services, against real HTTP servers on this machine that check what they are sent.

#![allow(clippy::unwrap_used, reason = "what is unexpected in a test is a failure")]

mod answers;
mod calls;
mod credentials;
mod hostile;
mod limits;
mod mcp;
mod nats;
mod places;
mod programs;
mod refresh;
mod rig;
mod scripts;
mod shop;
mod sql;
mod tls;
mod tokens;
