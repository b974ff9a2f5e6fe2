//! What a session may do: the roles of its owner, the ceilings of the doors by which it was asked, and what its requests
//! took away. Read once, kept in memory, and only ever narrowed.

use std::sync::Arc;

use domain::{Door, SessionId};
use policy::{Decision, Destination, Explanation, Layer, Layers, Outcome, Question, Scope};
use serde_json::Value;
use store::Asker;

use crate::live::{Live, lock};
use crate::{Control, ControlError};

/// What is known of a session's rights, whoever prompts it.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    person: String,
    door: Door,
    narrowings: Vec<Scope>,
}

/// What counts in a session at present.
#[derive(Debug, Default)]
pub(crate) struct Rights {
    standing: Option<Standing>,
    /// Of the run under way, or else of the last one.
    layers: Option<Arc<Layers>>,
    /// How often something was taken away: what was read before then may not know of it.
    narrowed: u64,
}

impl Live {
    /// What counts at present; nothing before anybody asked for it.
    pub(crate) fn layers(&self) -> Option<Arc<Layers>> {
        lock(&self.rights).layers.clone()
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
            let granted = self.0.config.policies.layers(&standing.person, &doors);
            let layers = Arc::new(standing.narrowings.iter().cloned().fold(granted, narrowed));
            let mut rights = lock(&live.rights);
            if rights.narrowed == before {
                rights.standing = Some(standing);
                rights.layers = Some(Arc::clone(&layers));
                return Ok(layers);
            }
            rights.standing = None;
        }
    }

    async fn standing(&self, live: &Live) -> Result<Standing, ControlError> {
        let store = &self.0.store;
        let (owner, session, narrowings) = tokio::try_join!(
            store.user(Asker::System, live.owner),
            store.session(Asker::System, live.session),
            store.narrowings(Asker::System, live.session),
        )?;
        Ok(Standing {
            person: owner.name,
            door: session.door,
            narrowings: narrowings.into_iter().map(read).collect(),
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
                let granted = self.0.config.policies.layers(&standing.person, &[standing.door, door]);
                standing.narrowings.into_iter().fold(granted, narrowed)
            }
            None => {
                let owner = self.0.store.user(Asker::System, owner).await?;
                self.0.config.policies.layers(&owner.name, &[door])
            }
        };
        Ok(scope.cloned().into_iter().fold(granted, narrowed))
    }

    /// Whether a session may connect to this, or know its address where there is no port; from memory.
    pub(crate) fn decide_egress(live: Option<&Live>, destination: &Destination, port: Option<u16>) -> Decision {
        match live.and_then(Live::layers) {
            Some(layers) => settled(layers.egress(destination, port)),
            None => Decision {
                outcome: Outcome::Deny,
                reason: "nothing is known of this session".to_owned(),
                layer: String::new(),
                rule: "egress.unknown_session".to_owned(),
            },
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
        let layers = match session {
            None => self.0.config.policies.layers(person, &[door]),
            Some(session) => {
                let live = self.live(asker, session).await?;
                self.foreseen(Some(&live), live.owner, door, None).await?
            }
        };
        let explained = layers.explain(question);
        Ok(Explanation {
            decision: settled(explained.decision),
            ..explained
        })
    }
}

/// Nobody can be asked yet, so what would be asked is denied, with the reason.
pub(crate) fn settled(decision: Decision) -> Decision {
    match decision.outcome {
        Outcome::Allow | Outcome::Deny => decision,
        Outcome::Ask => Decision {
            outcome: Outcome::Deny,
            reason: format!("{}; this release cannot ask yet, so it is refused", decision.reason),
            ..decision
        },
    }
}
