//! Images as they are really built: with mmdebstrap, from packages.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod base;
mod tiny;
