//! What a session may do: the roles of its owner, the ceilings of the doors by which it was asked, and what its requests
//! took away. Read once, kept in memory, and only ever narrowed.

use std::sync::Arc;

use domain::{ApprovalId, ApprovalKind, Door, SessionId};
use policy::{Decision, Destination, Explanation, Layer, Layers, Outcome, Question, Scope};
use serde_json::Value;
use store::Asker;

use crate::approvals::{Approved, with_approved};
use crate::live::{Live, lock};
use crate::{Control, ControlError};

/// What is known of a session's rights, whoever prompts it.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    person: String,
    door: Door,
    narrowings: Vec<Scope>,
    /// What people approved for the session.
    approved: Vec<Approved>,
}

/// What counts in a session at present.
#[derive(Debug, Default)]
pub(crate) struct Rights {
    standing: Option<Standing>,
    /// Of the run under way, or else of the last one.
    layers: Option<Arc<Layers>>,
    /// The door of the run under way, or else of the last one.
    door: Option<Door>,
    /// How often something was taken away: what was read before then may not know of it.
    narrowed: u64,
}

impl Rights {
    /// Rights that nobody asked for: a session of Belljar's own has them.
    pub(crate) fn fixed(layers: Layers) -> Self {
        Self {
            layers: Some(Arc::new(layers)),
            ..Self::default()
        }
    }

    /// The door by which the session began.
    pub(crate) fn door(&self) -> Option<Door> {
        self.standing.as_ref().map(|standing| standing.door)
    }

    /// What people approved for the session, and still counts.
    pub(crate) fn approved(&self) -> &[Approved] {
        self.standing.as_ref().map_or(&[], |standing| &standing.approved)
    }

    /// An approval of connections for one run that was not used yet; from now on it is.
    pub(crate) fn take_once(&mut self, subject: &str) -> Option<ApprovalId> {
        let standing = self.standing.as_mut()?;
        standing
            .approved
            .iter_mut()
            .find_map(|approved| approved.take_once(subject))
    }

    /// Forgets what was read, so that it is read anew. Gives the door of the run under way.
    pub(crate) fn forget_standing(&mut self) -> Option<Door> {
        self.standing = None;
        self.door
    }
}

impl Live {
    /// What counts at present; nothing before anybody asked for it.
    pub(crate) fn layers(&self) -> Option<Arc<Layers>> {
        lock(&self.rights).layers.clone()
    }

    /// From now on a session of Belljar's own may do this, and nothing else.
    pub(crate) fn fix_rights(&self, layers: Layers) {
        *lock(&self.rights) = Rights::fixed(layers);
    }

    /// Takes note of a scope that was stored with a request.
    pub(crate) fn narrow(&self, scope: &Scope) {
        let mut rights = lock(&self.rights);
        rights.narrowed += 1;
        if let Some(standing) = &mut rights.standing
            && standing.narrowings.last() != Some(scope)
        {
            standing.narrowings.push(scope.clone());
        }
        if let Some(layers) = rights.layers.take() {
            rights.layers = Some(Arc::new(narrowed(Layers::clone(&layers), scope.clone())));
        }
    }
}

/// Layers that a session's own scope is put over. One too many leaves nothing.
fn narrowed(layers: Layers, scope: Scope) -> Layers {
    layers
        .narrowed(Layer::new("session", scope))
        .unwrap_or_else(|_| Layers::of_roles(vec![Layer::new("too many scopes", Scope::nothing())]))
}

/// A scope as it was stored. One that a newer release wrote and this one does not understand allows nothing.
fn read(stored: Value) -> Scope {
    serde_json::from_value(stored).unwrap_or_else(|error| {
        tracing::warn!(%error, "a session's scope cannot be read: it may do nothing");
        Scope::nothing()
    })
}

impl Control {
    /// What counts in a session at present.
    pub(crate) async fn layers(&self, live: &Live) -> Result<Arc<Layers>, ControlError> {
        match live.layers() {
            Some(layers) => Ok(layers),
            None => self.layers_for(live, None).await,
        }
    }

    /// What counts for a run whose prompt came by `door`, from now on.
    pub(crate) async fn layers_for(&self, live: &Live, door: Option<Door>) -> Result<Arc<Layers>, ControlError> {
        loop {
            let (known, before) = {
                let rights = lock(&live.rights);
                (rights.standing.clone(), rights.narrowed)
            };
            let standing = match known {
                // The first prompt of a session that was opened without one says by which door it came.
                Some(standing) if door.is_none_or(|door| door == standing.door) => standing,
                _ => self.standing(live).await?,
            };
            let doors: Vec<Door> = door.into_iter().chain([standing.door]).collect();
            let layers = Arc::new(self.put_together(&standing, &doors));
            let mut rights = lock(&live.rights);
            if rights.narrowed == before {
                rights.standing = Some(standing);
                rights.door = door.or(rights.door);
                rights.layers = Some(Arc::clone(&layers));
                return Ok(layers);
            }
            rights.standing = None;
        }
    }

    /// What the operator wrote, what an admin approved, and what requests took away.
    fn put_together(&self, standing: &Standing, doors: &[Door]) -> Layers {
        let written = self.0.config.policies.layers(&standing.person, doors);
        let grants = standing.approved.iter().filter_map(Approved::grant);
        let granted = grants.fold(written, Layers::granted);
        standing.narrowings.iter().cloned().fold(granted, narrowed)
    }

    async fn standing(&self, live: &Live) -> Result<Standing, ControlError> {
        let store = &self.0.store;
        let (owner, session, narrowings, approved) = tokio::try_join!(
            store.user(Asker::System, live.owner),
            store.session(Asker::System, live.session),
            store.narrowings(Asker::System, live.session),
            store.approved(Asker::System, live.session),
        )?;
        Ok(Standing {
            person: owner.name,
            door: session.door,
            narrowings: narrowings.into_iter().map(read).collect(),
            approved: approved.into_iter().map(Approved::of).collect(),
        })
    }

    /// What would count for a request of this person by this door, with the scope that it brings.
    pub(crate) async fn foreseen(
        &self,
        live: Option<&Live>,
        owner: domain::UserId,
        door: Door,
        scope: Option<&Scope>,
    ) -> Result<Layers, ControlError> {
        let granted = match live {
            Some(live) => {
                let standing = self.standing(live).await?;
                self.put_together(&standing, &[standing.door, door])
            }
            None => {
                let owner = self.0.store.user(Asker::System, owner).await?;
                self.0.config.policies.layers(&owner.name, &[door])
            }
        };
        Ok(scope.cloned().into_iter().fold(granted, narrowed))
    }

    /// Whether a session may connect to this, or know its address where there is no port; from memory. Where a person is asked
    /// about connections, its name is known: the address is made up, and nothing leaves before somebody said yes.
    pub(crate) fn decide_egress(live: Option<&Live>, destination: &Destination, port: Option<u16>) -> Decision {
        let Some((live, layers)) = live.and_then(|live| Some((live, live.layers()?))) else {
            return Decision {
                outcome: Outcome::Deny,
                reason: "nothing is known of this session".to_owned(),
                layer: String::new(),
                rule: "egress.unknown_session".to_owned(),
            };
        };
        let decision = layers.egress(destination, port);
        match (decision.outcome, port) {
            (Outcome::Ask, None) => Decision {
                outcome: Outcome::Allow,
                ..decision
            },
            (Outcome::Ask, Some(port)) => {
                let rights = lock(&live.rights);
                let subject = format!("{destination}:{port}");
                with_approved(rights.approved(), ApprovalKind::Egress, &subject, decision).0
            }
            _ => decision,
        }
    }

    /// What every layer says to a question of a person whose request comes by this door, and what comes of it today. Of a
    /// session it is what its own requests are told: its owner counts instead of the person, and the door by which it began
    /// and what narrowed it count as well.
    ///
    /// # Errors
    /// The one who asks is no admin and asks about another; there is no such session.
    pub async fn explain(
        &self,
        asker: Asker,
        person: &str,
        door: Door,
        session: Option<SessionId>,
        question: &Question,
    ) -> Result<Explanation, ControlError> {
        let own = match asker {
            Asker::User { id, .. } => self.0.store.user(asker, id).await?.name == person,
            Asker::System => true,
            Asker::Session(_) => false,
        };
        if !own && !asker.is_admin() {
            let words = "only an admin may ask what somebody else may do".to_owned();
            return Err(ControlError::Denied(words));
        }
        let (layers, approved) = match session {
            None => (self.0.config.policies.layers(person, &[door]), Vec::new()),
            Some(session) => {
                let live = self.live(asker, session).await?;
                let standing = self.standing(&live).await?;
                (self.put_together(&standing, &[standing.door, door]), standing.approved)
            }
        };
        let explained = layers.explain(question);
        let decision = explained.decision;
        let decision = match question {
            Question::Method { .. } => with_approved(&approved, ApprovalKind::Service, &explained.question, decision).0,
            Question::Tool(name) => with_approved(&approved, ApprovalKind::Tool, name, decision).0,
            Question::Egress {
                destination,
                port: Some(port),
            } => {
                let subject = format!("{destination}:{port}");
                with_approved(&approved, ApprovalKind::Egress, &subject, decision).0
            }
            Question::Egress { port: None, .. } => decision,
            Question::Skill(_) | Question::Model(_) => settled(decision),
        };
        Ok(Explanation { decision, ..explained })
    }
}

/// People are asked about calls and connections, and not about skills and models: what would be asked of those is denied,
/// with the reason.
pub(crate) fn settled(decision: Decision) -> Decision {
    match decision.outcome {
        Outcome::Allow | Outcome::Deny => decision,
        Outcome::Ask => Decision {
            outcome: Outcome::Deny,
            reason: format!(
                "{}; people are asked about services, tools and connections only, so it is refused",
                decision.reason
            ),
            ..decision
        },
    }
}
