//! The two that must say yes, asked before anything happens outside.

use std::collections::BTreeSet;
use std::sync::Arc;

use domain::SessionId;
use policy::{Destination, Outcome};
use rustls::ServerConfig;

use super::Inner;
use crate::intercept::{Decided, Matching};
use crate::rules::Match;
use crate::session::Session;
use crate::{Code, Denied, Scheme};

/// The longest name that DNS knows, as text.
const LONGEST: usize = 253;

/// What was asked for, made fit to be shown.
pub(super) fn shown(host: &str) -> String {
    let letter = |letter: char| if letter.is_control() { '\u{fffd}' } else { letter };
    host.chars().take(LONGEST).map(letter).collect()
}

/// Reads what was asked for. This one reading counts from here on: it is checked, and it is dialled.
pub(super) fn destination(host: &str) -> Result<Destination, Denied> {
    Destination::parse(host).map_err(|error| {
        Denied::new(
            Code::InvalidHost,
            format!("`{}` is not reached: {error}", shown(host)),
            "write the host's name, or its address in the plain spelling",
        )
    })
}

impl Inner {
    pub(super) fn judge_name(&self, id: SessionId, name: &str) -> Result<(), Denied> {
        let destination = destination(name)?;
        if destination.name().is_none() {
            return Err(Denied::new(
                Code::InvalidHost,
                format!("`{destination}` is not resolved: it is an address"),
                "connect to it, if a rule names it",
            ));
        }
        let session = self.session(id);
        self.judge(id, &session, &destination, None).map(drop)
    }

    /// The rules for a destination, if the session's scope has nothing against it.
    pub(super) fn judge(
        &self,
        id: SessionId,
        session: &Session,
        destination: &Destination,
        port: Option<u16>,
    ) -> Result<Vec<Match>, Denied> {
        let matches = self.rules.matching(destination, port);
        let Some(first) = matches.first() else {
            return Err(self.no_rule(destination, port));
        };
        let decision = (self.decide)(id, destination, port);
        let place = place(destination, port);
        let (code, remedy) = match decision.outcome {
            Outcome::Allow => {
                if let Some(name) = destination.name() {
                    session
                        .may_name(name, &first.pattern)
                        .map_err(|denied| denied.by(&first.rule.name))?;
                }
                return Ok(matches);
            }
            Outcome::Ask => (
                Code::NeedsApproval,
                "a person is asked; go on with something else, and connect again when they have approved it".to_owned(),
            ),
            Outcome::Deny => (
                Code::OutOfScope,
                format!(
                    "ask whoever gave this session its scope to add `{destination}` to its `egress`; {}",
                    asking(destination, port)
                ),
            ),
        };
        let reason = format!("{place} is not reached: {}", decision.reason);
        Err(Denied::new(code, reason, remedy).by(decision.rule).of(decision.layer))
    }

    fn no_rule(&self, destination: &Destination, port: Option<u16>) -> Denied {
        let place = place(destination, port);
        let reason = if port.is_some() && !self.rules.matching(destination, None).is_empty() {
            format!("{place} is not reached: rules of this installation name the host, but not this port")
        } else {
            match destination {
                Destination::Name(_) => format!("{place} is not reached: no rule of this installation names it"),
                Destination::Address(_) => format!(
                    "{place} is not reached: it is an address that no rule of this installation names, and no name was asked for before"
                ),
            }
        };
        let remedy = format!(
            "use a service that reaches it, or ask whoever runs this installation for a rule under [egress.rules] with hosts = [\"{place}\"]; {}",
            asking(destination, port)
        );
        Denied::new(Code::NoRule, reason, remedy)
    }

    /// The rules for one request, as they are now.
    pub(super) fn matching(&self, decided: &Decided) -> Result<Arc<Matching>, Denied> {
        let session = self.session(decided.session);
        // Read first: a change in between makes the next request ask again.
        let generation = session.generation();
        let matches = self.judge(decided.session, &session, &decided.host, Some(decided.port))?;
        let rules: Vec<_> = speaking(&matches, decided.scheme)
            .map(|found| Arc::clone(&found.rule))
            .collect();
        if rules.is_empty() {
            return Err(unspoken(&matches, decided, decided.scheme.as_str()));
        }
        let everywhere = self.rules.matching(&decided.host, None);
        let bound: BTreeSet<_> = everywhere
            .iter()
            .flat_map(|found| found.rule.bound())
            .cloned()
            .collect();
        Ok(Arc::new(Matching {
            generation,
            rules,
            bound: bound.into_iter().collect(),
        }))
    }

    /// How to be the host towards the session.
    pub(super) fn server(&self, decided: &Decided) -> Result<Arc<ServerConfig>, Denied> {
        let session = self.session(decided.session);
        session.leaves.server(&decided.host, &self.authorities, (self.clock)())
    }
}

/// The rules that allow a scheme.
pub(super) fn speaking(matches: &[Match], scheme: Scheme) -> impl Iterator<Item = &Match> {
    matches.iter().filter(move |found| found.rule.schemes.contains(&scheme))
}

/// Nobody allows what is spoken.
pub(super) fn unspoken(matches: &[Match], decided: &Decided, spoken: &str) -> Denied {
    let mut schemes: Vec<_> = matches
        .iter()
        .flat_map(|found| &found.rule.schemes)
        .map(|scheme| scheme.as_str())
        .collect();
    schemes.sort_unstable();
    schemes.dedup();
    let (host, port, schemes) = (&decided.host, decided.port, schemes.join(" and "));
    let denied = Denied::new(
        Code::Protocol,
        format!("what was sent to {host}:{port} is {spoken}, and rules let only {schemes} pass there"),
        format!("speak {schemes}, or ask whoever runs this installation to add to the rule's `schemes`"),
    );
    match matches.first() {
        Some(first) => denied.by(&first.rule.name),
        None => denied,
    }
}

/// How a program in the sandbox asks for access itself.
pub(super) fn asking(destination: &Destination, port: Option<u16>) -> String {
    let place = place(destination, port.or(Some(443)));
    format!("services.belljar.requestAccess({{ host: \"{place}\", reason }}) in exec asks an admin")
}

fn place(destination: &Destination, port: Option<u16>) -> String {
    match port {
        Some(port) => format!("{destination}:{port}"),
        None => destination.to_string(),
    }
}
