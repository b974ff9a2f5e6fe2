//! Objects in a folder, and in real services that speak S3.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod local;
mod services;
mod tickets;
