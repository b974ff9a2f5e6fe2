//! Every connection and question of the sandbox arrives here and goes over the link, or nowhere.
//!
//! The network is set up so from outside, or by this process before anything else. Where neither was done nothing arrives, and
//! there is no other way out either.

use std::sync::Arc;

use lifecycle::Tasks;
use link::client::Client;

use names::Names;

/// Bytes that are under way in each direction of a connection.
const UNDER_WAY: usize = 64 << 10;

mod connections;
mod message;
mod names;
mod proxy;
mod questions;

/// Starts listening.
pub(crate) fn start(client: &Client, tasks: &Tasks) {
    let names = Arc::new(Names::default());
    let resolver = Arc::new(questions::Resolver::new(client.clone(), Arc::clone(&names)));
    questions::listen(&resolver, tasks);
    connections::listen(client, &names, &resolver, tasks);
    proxy::listen(client, &names, tasks);
}
