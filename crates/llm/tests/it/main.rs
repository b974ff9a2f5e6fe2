//! The conversions as a caller sees them.

#![allow(clippy::unwrap_used, reason = "a test ends where something is amiss")]

mod bounds;
mod decode;
mod dice;
mod encode;
mod foreign;
mod foreign_bounds;
mod golden;
mod round_trip;
