//! The way out of sandboxes: the broker decides and carries, here it is told who asks, and what it says is written down.

use std::sync::Arc;

use async_trait::async_trait;
use causes::with_causes;
use domain::{ApprovalKind, ApprovalState, Event, RunId, SessionId};
use egress::{Admitted, AuditReceiver, AuditSender, Broker, BrokerError, Code, Decide, Denied, Outcome, Record, Tried};
use lifecycle::Tasks;
use link::server::{Carrier, Connection};
use policy::Destination;
use protocol::{Denial, Refusal, RefusalCode};
use sandbox::capture::{NAMES, Synthetic};
use serde_json::json;
use store::{Asker, AuditEntry, StoreError};
use tokio::time::sleep;

use crate::Control;
use crate::approvals::{Wanted, active_of, denied_words};
use crate::attempts::{Target, WAITS};
use crate::live::{Live, Lives};

/// Makes a broker, given what the sessions' scopes say, who is told of what was tried, and who owns its tasks.
pub type MakeBroker = dyn FnOnce(Arc<Decide>, AuditSender, Tasks) -> Result<Broker, BrokerError> + Send;

/// The layer of rules that are no scope's: those of `[egress.rules]`, and that there are none.
const INSTALLATION: &str = "installation";

/// What to do where nothing leaves.
const NO_WAY: &str = "use a service that reaches it, or ask whoever runs this installation for a rule under [egress.rules]; \
                      services.belljar.requestAccess({ host, reason }) in exec asks an admin";

/// A connection that may be.
struct Allowed(Admitted);

#[async_trait]
impl Carrier for Allowed {
    async fn carry(self: Box<Self>, near: Box<dyn Connection>) {
        self.0.carry(near).await;
    }
}

/// A broker, and what it tells.
pub(crate) fn make(
    make: Box<MakeBroker>,
    lives: &Arc<Lives>,
    tasks: &Tasks,
) -> Result<(Broker, AuditReceiver), BrokerError> {
    let (teller, told) = egress::audit_queue();
    let lives = Arc::clone(lives);
    let decide: Arc<Decide> = Arc::new(move |session, destination, port| {
        Control::decide_egress(lives.find(session).as_deref(), destination, port)
    });
    Ok((make(decide, teller, tasks.clone())?, told))
}

impl Control {
    /// Has a connection carried, or says why not.
    pub(crate) async fn carry(&self, live: &Live, host: &str, port: u16) -> Result<Box<dyn Carrier>, Refusal> {
        let Some(broker) = &self.0.broker else {
            return Err(self.no_way(live, Target::new(host, port, "tcp")).await);
        };
        self.know_rights(live).await?;
        let named = self.name_at(live, host).await?;
        let host = named.as_deref().unwrap_or(host);
        match broker.admit(live.session, host, port) {
            Ok(admitted) => {
                if let Ok(destination) = Destination::parse(host) {
                    self.connected(live, &format!("{destination}:{port}")).await;
                }
                Ok(Box::new(Allowed(admitted)))
            }
            Err(denied) if denied.code == Code::NeedsApproval => {
                Err(self.ask_for_connection(live, host, port, denied).await)
            }
            Err(denied) => Err(self.denied(live, denied).await),
        }
    }

    /// A person is asked about connections; this one is refused meanwhile.
    async fn ask_for_connection(&self, live: &Live, host: &str, port: u16, denied: Denied) -> Refusal {
        let (Ok(destination), Some(layers)) = (Destination::parse(host), live.layers()) else {
            return self.denied(live, denied).await;
        };
        let subject = format!("{destination}:{port}");
        let wanted = Wanted {
            kind: ApprovalKind::Egress,
            subject: subject.clone(),
            proposal: false,
            call: None,
            request: json!({
                "session": live.session,
                "kind": ApprovalKind::Egress,
                "host": destination.to_string(),
                "port": port,
            }),
            decision: layers.egress(&destination, Some(port)),
        };
        let denied = match self.ask(live, active_of(live).as_deref(), wanted).await {
            Ok(approval) if approval.state == ApprovalState::Denied => Denied {
                code: Code::OutOfScope,
                reason: denied_words(&approval, &format!("connections to {subject}")),
                remedy: "do without, or ask them why".to_owned(),
                ..denied
            },
            Ok(approval) => Denied {
                reason: format!("{} ({})", denied.reason, approval.id),
                ..denied
            },
            Err(error) => Denied {
                remedy: error.to_string(),
                ..denied
            },
        };
        self.denied(live, denied).await
    }

    /// The name that a synthetic address of the session stands for: a program may have it from an earlier sandbox of the session,
    /// or from the one that this was forked from.
    async fn name_at(&self, live: &Live, host: &str) -> Result<Option<String>, Refusal> {
        let Some(number) = host.parse().ok().and_then(Synthetic::number) else {
            return Ok(None);
        };
        let named = self.0.store.name_at(Asker::System, live.session, number).await;
        named.map_err(|error| unread(live, &error))
    }

    /// Whether a name may be known inside, and the number of its address in this session. Nothing is resolved.
    pub(crate) async fn name(&self, live: &Live, name: &str) -> Result<Option<u32>, Refusal> {
        let Some(broker) = &self.0.broker else {
            return Err(self.no_way(live, Target::new(name, 53, "dns")).await);
        };
        self.know_rights(live).await?;
        if let Err(denied) = broker.resolve(live.session, name) {
            return Err(self.denied(live, denied).await);
        }
        let number = self.0.store.address_of(Asker::System, live.session, name, NAMES).await;
        match number {
            Ok(Some(number)) => Ok(Some(number)),
            // What builds an image is no session: its sandbox is its only one.
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(unread(live, &error)),
            Ok(None) => {
                let words = format!("this session has asked for {NAMES} names, and no further one gets an address");
                Err(Refusal::new(RefusalCode::Unavailable, words))
            }
        }
    }

    /// What a session may do has changed: it counts for open connections too.
    pub(crate) fn recheck(&self, live: &Live) {
        if let Some(broker) = &self.0.broker {
            broker.recheck(live.session);
        }
    }

    /// The certificates that a sandbox is to trust.
    pub(crate) fn authorities(&self) -> String {
        let Some(broker) = &self.0.broker else {
            return String::new();
        };
        broker.authorities().unwrap_or_else(|error| {
            tracing::error!(
                error = with_causes(&error),
                "no certificates for a sandbox: connections whose TLS is intercepted will fail in it"
            );
            String::new()
        })
    }

    /// The keys of SSH hosts that a sandbox is to trust.
    pub(crate) fn known_hosts(&self) -> String {
        self.0.broker.as_ref().map(Broker::known_hosts).unwrap_or_default()
    }

    /// The broker asks from memory.
    async fn know_rights(&self, live: &Live) -> Result<(), Refusal> {
        match self.layers(live).await {
            Ok(_) => Ok(()),
            Err(error) => {
                tracing::warn!(session = %live.session, error = with_causes(&error), "nothing is known of a session's rights");
                let words = "what this session may do cannot be read at present";
                Err(Refusal::new(RefusalCode::Unavailable, words))
            }
        }
    }

    /// The refusal of what the broker refused, which it has told already.
    async fn denied(&self, live: &Live, denied: Denied) -> Refusal {
        if !self.0.attempts.is_prompt(live.session) {
            sleep(WAITS).await;
        }
        live.note_refused(|| denied.to_string());
        let denial = Denial {
            reason: denied.code.as_str().to_owned(),
            rule: denied.rule.clone(),
            remedy: Some(denied.remedy.clone()),
        };
        Refusal::denied(denied.to_string(), denial)
    }

    /// Where there is no broker, nothing leaves.
    async fn no_way(&self, live: &Live, target: Target) -> Refusal {
        if self.0.attempts.is_news(live.session, &target) {
            let detail = json!({ "port": target.port, "protocol": target.protocol });
            let run = live.active().map(|active| active.run);
            let mut entry = AuditEntry::about("egress.denied", live.session, detail)
                .of(live.session, run)
                .decided("deny", INSTALLATION, "no_egress");
            entry.facts.host = Some(target.host.clone());
            self.write_down(live.session, vec![entry], vec![target.event()]).await;
        }
        if !self.0.attempts.is_prompt(live.session) {
            sleep(WAITS).await;
        }
        live.note_refused(|| target.refusal());
        let denial = Denial {
            reason: "no_egress".to_owned(),
            rule: None,
            remedy: Some(NO_WAY.to_owned()),
        };
        Refusal::denied(target.refusal(), denial)
    }

    /// Writes down what the broker tells, until it is gone.
    pub(crate) async fn write_records(self, mut told: AuditReceiver) {
        while let Some(Tried {
            session,
            records,
            left_out,
        }) = told.next().await
        {
            let active = self.0.lives.find(session).and_then(|live| live.active());
            let run = active.map(|active| active.run);
            let (mut entries, mut events) = (Vec::new(), Vec::new());
            for record in records {
                if let Outcome::Denied(denied) = &record.outcome {
                    let target = Target::new(&record.host, record.port, record.protocol);
                    // What has left before it was refused is written down each time.
                    let has_left = record.sent > 0 || record.request.as_ref().is_some_and(|request| request.injected);
                    if !self.0.attempts.is_news(session, &target) && !has_left {
                        continue;
                    }
                    events.push(Event::EgressDenied {
                        reason: denied.to_string(),
                        host: target.host,
                        port: target.port,
                        protocol: target.protocol.to_owned(),
                    });
                }
                entries.push(entry(&record, run));
            }
            if left_out > 0 {
                let entry = AuditEntry::about("egress.left_out", session, json!({ "attempts": left_out }));
                entries.push(entry.of(session, run));
            }
            self.write_down(session, entries, events).await;
        }
    }

    async fn write_down(&self, session: SessionId, entries: Vec<AuditEntry>, events: Vec<Event>) {
        if entries.is_empty() {
            return;
        }
        if let Err(error) = self.0.store.audit(Asker::Session(session), entries).await {
            tracing::error!(%session, error = with_causes(&error), "could not audit what left a sandbox, or wanted to");
        }
        if events.is_empty() {
            return;
        }
        match self.live(Asker::System, session).await {
            Ok(live) if live.is_own() => {}
            Ok(live) => self.record(&live, events).await,
            Err(error) => {
                tracing::error!(%session, error = with_causes(&error), "could not tell of a refused connection");
            }
        }
    }
}

/// The addresses of a session cannot be read at present.
fn unread(live: &Live, error: &StoreError) -> Refusal {
    tracing::warn!(session = %live.session, error = with_causes(error), "the names of a session's addresses cannot be read");
    Refusal::new(
        RefusalCode::Unavailable,
        "the names of this session's addresses cannot be read at present",
    )
}

fn entry(record: &Record, run: Option<RunId>) -> AuditEntry {
    let (action, decision, layer, code) = match &record.outcome {
        Outcome::Allowed => ("egress.allowed", "allow", INSTALLATION, None),
        Outcome::Denied(denied) => {
            let layer = denied.layer.as_deref().unwrap_or(INSTALLATION);
            ("egress.denied", "deny", layer, Some(denied.code.as_str()))
        }
    };
    let request = record.request.as_ref().map(|request| {
        json!({
            "method": request.method,
            "path": request.path,
            "status": request.status,
            "injected": request.injected,
        })
    });
    let detail = json!({
        "port": record.port,
        "protocol": record.protocol,
        "code": code,
        "request": request,
        "sent": record.sent,
        "received": record.received,
    });
    let mut entry = AuditEntry::about(action, record.session, detail)
        .of(record.session, run)
        .decided(decision, layer, record.rule.as_deref().unwrap_or_default())
        .carried(record.sent.saturating_add(record.received), record.took);
    entry.facts.host = Some(record.host.clone());
    entry
}
