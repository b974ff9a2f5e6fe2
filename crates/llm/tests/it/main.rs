//! The conversions as a caller sees them.

#![allow(clippy::unwrap_used, reason = "a test ends where something is amiss")]

mod bounds;
mod decode;
mod encode;
mod foreign;
mod golden;
mod round_trip;
