//! What the run that is on may use: told to the hands, and offered to the user's processes.

use std::collections::BTreeMap;
use std::sync::Arc;

use lifecycle::Tasks;
use link::client::Client;
use protocol::{Grants, PLACEHOLDER};
use sandbox::inside::HARNESS_PORT;

use crate::hands::Hands;
use crate::offers::Offers;
use crate::outbox::Outbox;

pub(crate) struct Granted {
    hands: Arc<Hands>,
    offers: Offers,
}

impl Granted {
    pub(crate) fn new(client: &Client, hands: &Arc<Hands>, outbox: &Outbox, tasks: &Tasks) -> Self {
        Self {
            hands: Arc::clone(hands),
            offers: Offers::new(client, hands, outbox, tasks),
        }
    }

    /// A run has begun that may use this.
    pub(crate) async fn begin(&self, mut grants: Grants) {
        self.offers.set(&grants);
        let offered = if grants.models.is_empty() {
            BTreeMap::new()
        } else {
            for_programs()
        };
        self.hands.offer(offered).await;
        for service in &mut grants.services {
            // They stay here, for whoever asks.
            service.types.clear();
            service.tools.clear();
        }
        self.hands.prepare(true, grants).await;
    }

    /// It has ended.
    pub(crate) async fn end(&self) {
        self.offers.set(&Grants::default());
        self.hands.prepare(false, Grants::default()).await;
    }
}

/// What the environment says to programs that ask models: where to, and a key that is none.
fn for_programs() -> BTreeMap<String, String> {
    let address = format!("http://127.0.0.1:{HARNESS_PORT}");
    [
        ("ANTHROPIC_BASE_URL", address.clone()),
        ("ANTHROPIC_API_KEY", PLACEHOLDER.to_owned()),
        ("OPENAI_BASE_URL", format!("{address}/v1")),
        ("OPENAI_API_KEY", PLACEHOLDER.to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}
