//! Images as they are really built, with mmdebstrap from packages, and as others are made of them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod archives;
mod base;
mod committed;
mod hostile;
mod room;
mod tiny;
mod workshop;
