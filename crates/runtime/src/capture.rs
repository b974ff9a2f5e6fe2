//! Every connection and question of the sandbox arrives here and goes over the link, or nowhere.
//!
//! The network is set up so from outside, or by this process before anything else. Where neither was done nothing arrives, and
//! there is no other way out either.

use std::sync::Arc;
use std::time::Duration;

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

/// How long what listens may take to let go.
const LETS_GO_WITHIN: Duration = Duration::from_secs(5);

/// What listens.
pub(crate) struct Capture {
    client: Client,
    names: Arc<Names>,
    /// Those that listen, and carry what has come to them. They end with the process, or before others take their place.
    listening: Tasks,
}

impl Capture {
    /// Starts listening.
    pub(crate) fn start(client: &Client) -> Self {
        let capture = Self {
            client: client.clone(),
            names: Arc::new(Names::default()),
            listening: Tasks::new(),
        };
        capture.listen();
        capture
    }

    /// Listens anew: this process was kept, and goes on in another network, where its sockets are dead. Names keep their
    /// addresses.
    pub(crate) async fn renew(&mut self) {
        // What is not gone by then holds nothing that is alive.
        self.listening.shut_down(LETS_GO_WITHIN).await;
        self.listening = Tasks::new();
        self.listen();
    }

    fn listen(&self) {
        let (client, names, tasks) = (&self.client, &self.names, &self.listening);
        let resolver = Arc::new(questions::Resolver::new(client.clone(), Arc::clone(names)));
        questions::listen(&resolver, tasks);
        connections::listen(client, names, &resolver, tasks);
        proxy::listen(client, names, tasks);
    }
}
