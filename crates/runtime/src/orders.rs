//! What the control plane orders.

use std::collections::BTreeMap;
use std::sync::Arc;

use causes::with_causes;
use domain::SessionId;
use lifecycle::Tasks;
use link::client::{Client, ClientError, Control, ControlReader};
use protocol::{ToControl, ToRuntime};
use tokio::sync::Semaphore;
use tracing::{info, warn};

use crate::capture::Capture;
use crate::gateway::backoff;
use crate::grants::Granted;
use crate::hands::Hands;
use crate::outbox::{Outbox, Outgoing};
use crate::sync::Keeper;
use crate::transfers;
use crate::trust;
use crate::work::Work;

/// Transfers at once; further ones are refused.
const TRANSFERS: usize = 16;

/// Whom the user's programs trust.
#[derive(Clone, Default, PartialEq)]
struct Trusted {
    authorities: String,
    known_hosts: String,
}

impl Trusted {
    /// Has the user's programs trust them; what their environment says of it. None where that failed.
    async fn establish(self) -> Option<BTreeMap<String, String>> {
        let trusting = move || {
            trust::establish_hosts(&self.known_hosts);
            trust::establish(&self.authorities)
        };
        match tokio::task::spawn_blocking(trusting).await {
            Ok(Ok(environment)) => Some(environment),
            Ok(Err(error)) => {
                warn!(
                    error = with_causes(&error),
                    "programs inside will not trust the control plane where it reads their traffic"
                );
                None
            }
            // A panic would have ended the process.
            Err(_) => None,
        }
    }
}

/// Everything that an order can reach.
pub(crate) struct Orders {
    client: Client,
    hands: Arc<Hands>,
    sync: Keeper,
    capture: Capture,
    outbox: Outbox,
    tasks: Tasks,
    work: Work,
    granted: Arc<Granted>,
    session: Option<SessionId>,
    /// What was prepared while the sandbox was nobody's, and what the environment says of it.
    prepared: Option<(Trusted, BTreeMap<String, String>)>,
    transfers: Arc<Semaphore>,
}

impl Orders {
    pub(crate) fn new(
        client: &Client,
        hands: &Arc<Hands>,
        sync: &Keeper,
        capture: Capture,
        outbox: &Outbox,
        tasks: &Tasks,
    ) -> Self {
        let granted = Arc::new(Granted::new(client, hands, outbox, tasks));
        Self {
            work: Work::new(client, hands, &granted, outbox, tasks),
            granted,
            client: client.clone(),
            hands: Arc::clone(hands),
            sync: sync.clone(),
            capture,
            outbox: outbox.clone(),
            tasks: tasks.clone(),
            session: None,
            prepared: None,
            transfers: Arc::new(Semaphore::new(TRANSFERS)),
        }
    }

    /// Keeps a control stream open and obeys, for ever: the control plane may go and come back at any time.
    pub(crate) async fn obey(mut self, outgoing: Outgoing) {
        let mut attempt = 0;
        loop {
            match self.client.control().await {
                Ok(Control { mut reader, mut writer }) => {
                    attempt = 0;
                    info!("connected to the control plane");
                    let error = tokio::select! {
                        error = self.take_orders(&mut reader) => error,
                        error = outgoing.flow_into(&mut writer) => Some(error),
                    };
                    match error {
                        None => info!("the control plane closed the link"),
                        Some(error) => warn!(error = with_causes(&error), "the link to the control plane broke"),
                    }
                }
                // The control plane is not there yet, or starts anew: said once, tried for ever.
                Err(error)
                    if attempt == 0 || !matches!(error, ClientError::Connect { .. } | ClientError::Lost { .. }) =>
                {
                    warn!(
                        error = with_causes(&error),
                        "cannot reach the control plane; trying again"
                    );
                }
                Err(_) => {}
            }
            attempt += 1;
            tokio::time::sleep(backoff(attempt)).await;
        }
    }

    async fn take_orders(&mut self, reader: &mut ControlReader) -> Option<ClientError> {
        loop {
            match reader.next().await {
                Ok(Some(order)) => self.take(order).await,
                Ok(None) => return None,
                Err(error) => return Some(error),
            }
        }
    }

    async fn take(&mut self, order: ToRuntime) {
        match order {
            ToRuntime::Claim {
                session,
                token,
                environment,
                authorities,
                known_hosts,
                filled,
                woken,
            } => {
                if self.session.is_some_and(|mine| mine != session) {
                    let failure = Some("this sandbox belongs to another session".to_owned());
                    return self.outbox.say(ToControl::Claimed { failure }).await;
                }
                self.session = Some(session);
                self.client.set_token(token);
                if woken {
                    self.capture.renew().await;
                }
                self.sync.begin(filled);
                let trusted = Trusted {
                    authorities,
                    known_hosts,
                };
                // Whoever works in the sandbox from now on may change what was written, so it counts once.
                let mut whole = match self.prepared.take().filter(|(before, _)| *before == trusted) {
                    Some((_, environment)) => environment,
                    None => trusted.establish().await.unwrap_or_default(),
                };
                whole.extend(environment);
                self.hands.set_environment(whole).await;
                self.hands.ready().await;
                self.outbox.say(ToControl::Claimed { failure: None }).await;
                self.hands.repeat_background().await;
            }
            ToRuntime::Trust {
                authorities,
                known_hosts,
            } if self.session.is_none() => {
                let trusted = Trusted {
                    authorities,
                    known_hosts,
                };
                // What failed now is tried again with the claim.
                let environment = trusted.clone().establish().await;
                self.prepared = environment.map(|environment| (trusted, environment));
            }
            ToRuntime::Trust { .. } => {}
            ToRuntime::Token { token } => self.client.set_token(token),
            ToRuntime::Prepare { on: true, grants } => self.granted.begin(grants).await,
            ToRuntime::Prepare { on: false, .. } => self.granted.end().await,
            ToRuntime::Start(start) => self.work.start(start).await,
            ToRuntime::Call { call, limits } => self.work.call(call, limits),
            ToRuntime::Pulse if self.session.is_none() => {
                let (hands, outbox) = (Arc::clone(&self.hands), self.outbox.clone());
                // Beside the orders: a claim waits for nothing.
                self.tasks.spawn_until_stopped(async move {
                    if hands.rehearse().await {
                        outbox.say(ToControl::Alive).await;
                    }
                });
            }
            ToRuntime::Pulse => self.outbox.say(ToControl::Alive).await,
            ToRuntime::Stop { request, background } => {
                if background {
                    // Nobody starts another meanwhile.
                    self.granted.end().await;
                }
                self.work.stop(background).await;
                self.granted.end().await;
                self.outbox.say(ToControl::Stopped { request }).await;
            }
            ToRuntime::Transfer { request, transfer } => {
                let Ok(place) = Arc::clone(&self.transfers).try_acquire_owned() else {
                    let failure = Some(format!(
                        "{TRANSFERS} transfers are under way; try again when one is done"
                    ));
                    let entries = Vec::new();
                    return self
                        .outbox
                        .say(ToControl::Transferred {
                            request,
                            entries,
                            failure,
                            missing: false,
                        })
                        .await;
                };
                let (client, hands, outbox) = (self.client.clone(), Arc::clone(&self.hands), self.outbox.clone());
                let sync = self.sync.clone();
                self.tasks.spawn_until_stopped(async move {
                    let _place = place;
                    let answer = transfers::carry_out(&client, &hands, &sync, request, transfer).await;
                    outbox.say(answer).await;
                });
            }
        }
    }
}
