//! The HTTP API: translates, authenticates, and calls `control`.
//!
//! Everything but `/healthz` asks for a bearer token in the `Authorization` header, before it looks at anything else of a
//! request: a stranger cannot even learn which paths exist. What is asked is decided by `control` and `store`, which are told who asks;
//! what is not for the one who asks does not exist (404). Errors are chosen here once: one status and one
//! `{"error": {"code", "message"}}` for each kind of no. The OpenAPI description is made from the handlers themselves, so that it
//! cannot say what the code does not do.
//!
//! * [`serve`]: connections, their limits, and how they end
//! * [`router`], [`description`], [`manual`]: the API and what describes it
//! * `authenticate`: who asks
//! * `body`: what is read of a request, and how much
//! * `error`: every no
//! * `routes`: a file for each kind of thing
//! * `metrics`: what Prometheus reads
//! * `streams`: how many event streams a user has

mod api;
mod authenticate;
mod body;
mod error;
mod manual;
mod metrics;
mod routes;
mod server;
mod streams;

pub use api::{Parts, description, router};
pub use manual::manual;
pub use routes::models::Model;
pub use server::{Config, serve};
