//! The real program as the first process of a real jail: own process, mount and network namespaces, a root file system of its
//! own, the capabilities that a sandbox gives it, and the network rules that a sandbox has. And once in a sandbox itself.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod background;
mod calls;
mod clients;
mod control;
mod files;
mod handler;
mod harness;
mod jail;
mod link;
mod network;
mod proxy;
mod sandboxed;
mod services;
mod sync;
mod trust;
mod walls;
