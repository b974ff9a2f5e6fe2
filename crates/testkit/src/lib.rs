//! Parts that tests of many crates need; never a part of a program.
//!
//! Everything here panics with the reason when it cannot do its work: in a test that is the failure.

mod base_image;
pub mod clients;
mod collector;
mod command;
mod docker;
mod miniature;
pub mod model_server;
mod name_server;
mod s3;
pub mod upstream;
mod wait;

pub use base_image::PROMISES;
pub use collector::{CollectedSpan, Collector, Takes};
pub use command::{prepared, program, run, run_within};
pub use docker::DockerEngine;
pub use miniature::{Miniature, install_clients, miniature};
pub use name_server::NameServer;
pub use s3::S3Server;
pub use wait::{eventually, eventually_asked, eventually_async, free_port, within};
