//! Dialling servers of the tests' own on loopback, by names that only the tests' resolvers know.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails there")]

mod dialling;
mod proxies;
mod rig;
