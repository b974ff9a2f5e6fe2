//! What the run that is on may use: told to the hands, and offered to the user's processes.

use std::sync::Arc;

use lifecycle::Tasks;
use link::client::Client;
use protocol::Grants;

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
        self.offers.set(grants.services.clone());
        for service in &mut grants.services {
            // They stay here, for whoever asks.
            service.types.clear();
        }
        self.hands.prepare(true, grants).await;
    }

    /// It has ended.
    pub(crate) async fn end(&self) {
        self.offers.set(Vec::new());
        self.hands.prepare(false, Grants::default()).await;
    }
}
