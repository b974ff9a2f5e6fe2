//! What the policy wants a person to be asked about: asked once for the same thing, and what waits for the answer waits
//! here. The rows of the store are what counts; here is only who is told when one changes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use causes::with_causes;
use domain::{ApprovalId, ApprovalKind, ApprovalState, Door, ToolCallId};
use policy::{Decision, Layer, Outcome, Rules, Scope};
use serde_json::Value;
use store::{Approval, Asker, NewApproval, StoreError};
use tokio::sync::watch;
use tokio::time::{Instant, interval, sleep_until};

use crate::live::{Active, Live, lock};
use crate::{Control, ControlError};

mod access;
mod tools;
mod waits;

pub(crate) use access::{GRANT as ACCESS, SERVICE as ACCESS_SERVICE};
pub(crate) use tools::answer_denied;
pub(crate) use waits::{Waiting, Waits};

/// The longest request that a person is asked about: what nobody can read is not approved.
const LONGEST: usize = 64 << 10;
/// How often it is looked for questions that nobody answered in time.
const SWEEP: Duration = Duration::from_secs(10);

/// Told when an approval may have changed.
#[derive(Debug)]
pub(crate) struct Approvals(watch::Sender<u64>);

impl Default for Approvals {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

impl Approvals {
    /// Whoever waits looks again.
    pub(crate) fn tell(&self) {
        self.0.send_modify(|changes| *changes = changes.wrapping_add(1));
    }
}

/// Something that people approved for a session, and that still counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Approved {
    id: ApprovalId,
    kind: ApprovalKind,
    subject: String,
    by: String,
    proposal: bool,
    /// For connections of this run only.
    once: bool,
    used: bool,
}

impl Approved {
    /// From what the store keeps.
    pub(crate) fn of(approval: Approval) -> Self {
        Self {
            id: approval.id,
            kind: approval.kind,
            subject: approval.subject,
            by: approval.decided_by.unwrap_or_default(),
            proposal: approval.proposal,
            once: approval.state == ApprovalState::ApprovedOnce,
            used: approval.used.is_some(),
        }
    }

    /// Where it is for connections of one run to this, and was not used: it is now.
    pub(crate) fn take_once(&mut self, subject: &str) -> Option<ApprovalId> {
        if !self.once || self.used || self.subject != subject {
            return None;
        }
        self.used = true;
        Some(self.id)
    }

    /// A proposal as if it were approved.
    fn proposed(kind: ApprovalKind, subject: &str) -> Self {
        Self {
            id: ApprovalId::new(),
            kind,
            subject: subject.to_owned(),
            by: String::new(),
            proposal: true,
            once: false,
            used: false,
        }
    }

    /// What an approved proposal adds to the roles.
    pub(crate) fn grant(&self) -> Option<Layer> {
        let scope = match self.kind {
            _ if !self.proposal => return None,
            ApprovalKind::Service => Scope {
                services: Some(Rules::allowing(vec![self.subject.parse().ok()?])),
                ..Scope::default()
            },
            ApprovalKind::Egress => Scope {
                egress: Some(Rules::allowing(vec![self.subject.parse().ok()?])),
                ..Scope::default()
            },
            ApprovalKind::Tool => return None,
        };
        Some(Layer::new(format!("approval of {}", self.by), scope))
    }
}

/// A decision to ask, where a person has said yes for this session already.
pub(crate) fn with_approved(
    approved: &[Approved],
    kind: ApprovalKind,
    subject: &str,
    decision: Decision,
) -> (Decision, Option<ApprovalId>) {
    if decision.outcome != Outcome::Ask {
        return (decision, None);
    }
    let found = approved
        .iter()
        .find(|approved| !approved.proposal && approved.kind == kind && approved.subject == subject);
    match found {
        Some(Approved { id, by, .. }) => {
            let reason = format!("{}; {by} approved {subject} for this session", decision.reason);
            let outcome = Outcome::Allow;
            (
                Decision {
                    outcome,
                    reason,
                    ..decision
                },
                Some(*id),
            )
        }
        None => (decision, None),
    }
}

/// What is to be asked.
pub(crate) struct Wanted {
    pub(crate) kind: ApprovalKind,
    pub(crate) subject: String,
    pub(crate) proposal: bool,
    pub(crate) call: Option<ToolCallId>,
    /// All of it.
    pub(crate) request: Value,
    /// The layer and rule that want it, and why.
    pub(crate) decision: Decision,
}

/// Why nobody is asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    #[error("a person is asked about {LONGEST} bytes at most, and this has {0}: do it in smaller parts")]
    TooLong(usize),
    #[error("{0}; wait until they are answered, or do without")]
    TooMany(String),
    #[error("people cannot be asked at the moment")]
    Store(#[source] StoreError),
}

/// Whether whoever came by this door is there to be asked.
const fn is_interactive(door: Door) -> bool {
    matches!(door, Door::Api | Door::Cli | Door::Slack)
}

impl Control {
    /// Asks a person, or finds what was asked before.
    pub(crate) async fn ask(&self, live: &Live, active: Option<&Active>, wanted: Wanted) -> Result<Approval, AskError> {
        let request = canonical(&wanted.request);
        if request.len() > LONGEST {
            return Err(AskError::TooLong(request.len()));
        }
        let began_by = lock(&live.rights).door();
        let doors = [active.and_then(|active| active.door), began_by];
        let nobody_there = doors.into_iter().flatten().any(|door| !is_interactive(door));
        let question = NewApproval {
            session: live.session,
            run: active.map(|active| active.run),
            call: wanted.call,
            kind: wanted.kind,
            subject: wanted.subject,
            proposal: wanted.proposal,
            admins_only: wanted.proposal || nobody_there,
            request,
            layer: wanted.decision.layer,
            rule: wanted.decision.rule,
            why: wanted.decision.reason,
            life: self.0.config.approvals_expire,
        };
        let mut writing = live.writing.lock().await;
        match self.0.store.ask(Asker::System, question).await {
            Ok(asked) => {
                live.note(&mut writing, asked.events);
                Ok(asked.approval)
            }
            Err(StoreError::Conflict { reason, .. }) => Err(AskError::TooMany(reason)),
            Err(error) => {
                tracing::error!(session = %live.session, error = with_causes(&error), "could not ask a person");
                Err(AskError::Store(error))
            }
        }
    }

    /// The question as soon as nobody needs to answer it any more; as it stands when `until` has come.
    pub(crate) async fn answered(&self, id: ApprovalId, until: Option<Instant>) -> Result<Approval, StoreError> {
        let mut changes = self.0.approvals.0.subscribe();
        loop {
            changes.borrow_and_update();
            let approval = self.0.store.approval(Asker::System, id).await?;
            if approval.state != ApprovalState::Pending {
                return Ok(approval);
            }
            let too_late = async {
                match until {
                    Some(until) => sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // The sender lives as long as this control plane.
                _ = changes.changed() => {}
                () = too_late => return Ok(approval),
            }
        }
    }

    /// Reads anew what people approved for a session; it counts for open connections too.
    pub(crate) async fn refresh_rights(&self, live: &Live) -> Result<(), ControlError> {
        let door = lock(&live.rights).forget_standing();
        self.layers_for(live, door).await?;
        self.recheck(live);
        Ok(())
    }

    /// Connections that were approved for the run that has just ended are over.
    pub(crate) async fn end_approvals(&self, live: &Live) {
        self.0.approvals.tell();
        let any = lock(&live.rights).approved().iter().any(|approved| approved.once);
        if any && let Err(error) = self.refresh_rights(live).await {
            tracing::warn!(session = %live.session, error = with_causes(&error), "could not read what is approved");
        }
    }

    /// Takes note that a connection was opened which was approved for this run.
    pub(crate) async fn connected(&self, live: &Live, subject: &str) {
        let once = lock(&live.rights).take_once(subject);
        if let Some(id) = once
            && let Err(error) = self.0.store.use_approval(Asker::System, id).await
        {
            tracing::error!(session = %live.session, error = with_causes(&error), "could not write down the use of an approval");
        }
    }

    /// Begins to end questions that nobody answers in time.
    pub(crate) fn begin_expiry(&self) {
        let control = self.clone();
        self.0.tasks.spawn_until_stopped(async move {
            let mut ticks = interval(SWEEP.min(control.0.config.approvals_expire));
            loop {
                ticks.tick().await;
                if let Err(error) = control.expire().await {
                    tracing::error!(error = with_causes(&error), "could not end approvals that have expired");
                }
            }
        });
    }

    async fn expire(&self) -> Result<(), ControlError> {
        for (session, events) in self.0.store.expire_approvals(Asker::System).await? {
            if let Some(live) = self.0.lives.find(session) {
                let mut writing = live.writing.lock().await;
                live.note(&mut writing, events);
                drop(writing);
                self.end_approvals(&live).await;
            }
        }
        Ok(())
    }
}

/// JSON in one spelling: names in their order, no spaces.
pub(crate) fn canonical(value: &Value) -> String {
    match value {
        Value::Object(members) => {
            let sorted: BTreeMap<_, _> = members.iter().collect();
            let members: Vec<_> = sorted
                .into_iter()
                .map(|(name, value)| format!("{}:{}", Value::from(name.as_str()), canonical(value)))
                .collect();
            format!("{{{}}}", members.join(","))
        }
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(canonical).collect();
            format!("[{}]", items.join(","))
        }
        other => other.to_string(),
    }
}

/// What a person who said no is quoted with.
pub(crate) fn denied_words(approval: &Approval, what: &str) -> String {
    let by = approval.decided_by.as_deref().unwrap_or("somebody");
    let words = approval.words.as_ref().map(|words| format!(": {words}"));
    match approval.state {
        ApprovalState::Expired => format!("nobody approved {what} in time"),
        ApprovalState::Withdrawn => format!("the question whether {what} may be done was withdrawn"),
        _ => format!("{by} denied {what}{}", words.unwrap_or_default()),
    }
}

/// The run under way, if there is one.
pub(crate) fn active_of(live: &Live) -> Option<Arc<Active>> {
    live.active().filter(|active| !active.over.is_cancelled())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_request_has_one_spelling() {
        let text = r#"{"b":[1,{"z":null,"a":"é\n"}],"a":{"y":1,"x":2.5}}"#;
        let other = r#"{ "a" : {"x":2.5,"y":1}, "b": [1, {"a":"\u00e9\n","z":null}] }"#;
        let [one, same] = [text, other].map(|text| canonical(&serde_json::from_str(text).unwrap()));
        assert_eq!(one, same);
        assert_eq!(one, r#"{"a":{"x":2.5,"y":1},"b":[1,{"a":"é\n","z":null}]}"#);
        assert_ne!(canonical(&json!({"id": "1"})), canonical(&json!({"id": 1})));
    }
}
