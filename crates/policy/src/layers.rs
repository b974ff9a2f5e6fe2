//! Scopes over each other.

use crate::pattern::is_name;
use crate::rules::Verdict;
use crate::{Decision, Destination, Explanation, Limits, Outcome, Question, Scope, Seen};

/// The most scopes that a session and its parents may put over each other.
const MOST: usize = 64;

/// A scope and whose it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layer {
    /// Whose: `role engineer`, `door webhook`, `session`.
    pub name: String,
    /// What it says.
    pub scope: Scope,
}

impl Layer {
    /// A layer.
    #[must_use]
    pub fn new(name: impl Into<String>, scope: Scope) -> Self {
        Self {
            name: name.into(),
            scope,
        }
    }
}

/// The scopes that count for one session.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Layers {
    /// What a person has one of, they have: a list of one role adds to that of another.
    roles: Vec<Layer>,
    /// What an admin approved for the session: adds to the roles, and takes nothing away.
    grants: Vec<Layer>,
    /// What the operator wrote beside roles: may grant, and may take away.
    ceilings: Vec<Layer>,
    /// What came with requests: may only take away.
    narrowings: Vec<Layer>,
}

/// There are more scopes over each other than anybody means.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a session cannot be narrowed more than {MOST} times: begin a new one")]
pub struct TooMany;

/// What a layer has to say to a question.
struct Heard<'a> {
    layer: &'a str,
    verdict: Verdict,
    /// What it allows is granted by it, not only left standing.
    grants: bool,
}

impl Layers {
    /// What these roles of a person come to.
    #[must_use]
    pub const fn of_roles(roles: Vec<Layer>) -> Self {
        Self {
            roles,
            grants: Vec::new(),
            ceilings: Vec::new(),
            narrowings: Vec::new(),
        }
    }

    /// Adds what an admin approved for this session: as one more role would, below every ceiling and narrowing, and what it
    /// does not name is left to the others.
    #[must_use]
    pub fn granted(mut self, grant: Layer) -> Self {
        self.grants.push(grant);
        self
    }

    /// Puts a scope that the operator wrote over them: of a door.
    #[must_use]
    pub fn under(mut self, ceiling: Layer) -> Self {
        self.ceilings.push(ceiling);
        self
    }

    /// Puts a scope over them that came with a request, or that a parent gives its child. Whatever it says, nothing is
    /// allowed that was not before.
    ///
    /// # Errors
    /// When there are too many.
    pub fn narrowed(mut self, narrowing: Layer) -> Result<Self, TooMany> {
        if self.narrowings.len() >= MOST {
            return Err(TooMany);
        }
        self.narrowings.push(narrowing);
        Ok(self)
    }

    /// May this be done?
    #[must_use]
    pub fn decide(&self, question: &Question) -> Decision {
        decide(question, &self.hear(question))
    }

    /// May this method be called?
    #[must_use]
    pub fn service(&self, service: &str, method: &str) -> Decision {
        self.decide(&Question::method(service, method))
    }

    /// Is there this tool?
    #[must_use]
    pub fn tool(&self, name: &str) -> Decision {
        self.decide(&Question::Tool(name.to_owned()))
    }

    /// May this skill be loaded?
    #[must_use]
    pub fn skill(&self, name: &str) -> Decision {
        self.decide(&Question::Skill(name.to_owned()))
    }

    /// May this model be asked?
    #[must_use]
    pub fn model(&self, name: &str) -> Decision {
        self.decide(&Question::Model(name.to_owned()))
    }

    /// May a connection leave for this? Without a port: may it at any, so that its address may be known?
    #[must_use]
    pub fn egress(&self, destination: &Destination, port: Option<u16>) -> Decision {
        self.decide(&Question::Egress {
            destination: destination.clone(),
            port,
        })
    }

    /// What may be used up: of each limit the lowest.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.all()
            .filter_map(|layer| layer.scope.limits)
            .fold(Limits::default(), Limits::lowest)
    }

    /// The decision, and what each layer said to it.
    #[must_use]
    pub fn explain(&self, question: &Question) -> Explanation {
        let heard = self.hear(question);
        Explanation {
            question: question.to_string(),
            layers: heard.iter().map(|heard| seen(question, heard)).collect(),
            decision: decide(question, &heard),
        }
    }

    fn all(&self) -> impl Iterator<Item = &Layer> {
        let written = self.roles.iter().chain(&self.grants).chain(&self.ceilings);
        written.chain(&self.narrowings)
    }

    fn hear(&self, question: &Question) -> Vec<Heard<'_>> {
        let verdicts = |layers: &[Layer]| {
            layers
                .iter()
                .map(|layer| layer.scope.verdict(question))
                .collect::<Vec<_>>()
        };
        let (mut roles, mut granted) = (verdicts(&self.roles), verdicts(&self.grants));
        granted.iter_mut().for_each(silence);
        if roles.iter().chain(&granted).any(grants) {
            // Another role of the same person has it, or an admin approved it.
            roles.iter_mut().for_each(silence);
        }
        let narrowings = verdicts(&self.narrowings).into_iter().map(|verdict| (verdict, false));
        let written = roles
            .into_iter()
            .chain(granted)
            .chain(verdicts(&self.ceilings))
            .map(|verdict| (verdict, true));
        self.all()
            .zip(written.chain(narrowings))
            .map(|(layer, (verdict, grants))| Heard {
                layer: &layer.name,
                verdict,
                grants,
            })
            .collect()
    }
}

/// A list that does not name it leaves it to the others.
fn silence(verdict: &mut Verdict) {
    if *verdict == Verdict::Unlisted {
        *verdict = Verdict::Silent;
    }
}

const fn grants(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Ruled(Outcome::Allow | Outcome::Ask, _))
}

fn is_named(question: &Question) -> bool {
    match question {
        Question::Method { service, method } => is_name(service) && is_name(method),
        Question::Tool(name) | Question::Skill(name) | Question::Model(name) => is_name(name),
        Question::Egress { .. } => true,
    }
}

fn decide(question: &Question, heard: &[Heard<'_>]) -> Decision {
    let key = question.key();
    let what = question.in_words();
    let ruled = |wanted: Outcome| {
        heard.iter().find_map(|heard| match &heard.verdict {
            Verdict::Ruled(outcome, pattern) if *outcome == wanted => Some(Decision {
                outcome: wanted,
                reason: said(question, heard.layer, wanted, pattern),
                layer: heard.layer.to_owned(),
                rule: format!("{key}.{}:{pattern}", wanted.as_str()),
            }),
            _ => None,
        })
    };
    let denied = |reason: String, layer: &str, rule: &str| Decision {
        outcome: Outcome::Deny,
        reason,
        layer: layer.to_owned(),
        rule: format!("{key}.{rule}"),
    };
    if !is_named(question) {
        return denied(format!("there is no such name as in {what}"), "", "no_name");
    }
    let unlisted = || heard.iter().find(|heard| heard.verdict == Verdict::Unlisted);
    let granted = || heard.iter().any(|heard| heard.grants && grants(&heard.verdict));
    if let Some(decision) = ruled(Outcome::Deny) {
        decision
    } else if let Some(heard) = unlisted() {
        denied(unlisted_words(question, heard.layer), heard.layer, "unlisted")
    } else if !granted() {
        denied(format!("no role or door grants {what}"), "", "ungranted")
    } else {
        ruled(Outcome::Ask)
            .or_else(|| ruled(Outcome::Allow))
            .unwrap_or_else(|| denied(format!("nothing grants {what}"), "", "ungranted"))
    }
}

fn said(question: &Question, layer: &str, outcome: Outcome, pattern: &str) -> String {
    let (key, what) = (question.key(), question.in_words());
    let does = match outcome {
        Outcome::Allow => "allows",
        Outcome::Ask => "wants a person to be asked about",
        Outcome::Deny => "denies",
    };
    format!("{layer} {does} {what}: its {key} {} {pattern:?}", outcome.as_str())
}

fn unlisted_words(question: &Question, layer: &str) -> String {
    format!("{} is not among the {} of {layer}", question.in_words(), question.key())
}

fn seen(question: &Question, heard: &Heard<'_>) -> Seen {
    let (outcome, reason) = match &heard.verdict {
        Verdict::Silent => (
            None,
            format!("{} leaves {} to the others", heard.layer, question.in_words()),
        ),
        Verdict::Unlisted => (Some(Outcome::Deny), unlisted_words(question, heard.layer)),
        Verdict::Ruled(outcome, pattern) if grants(&heard.verdict) && !heard.grants => {
            let reason = said(question, heard.layer, *outcome, pattern);
            (Some(*outcome), format!("{reason}, as far as those before it do"))
        }
        Verdict::Ruled(outcome, pattern) => (Some(*outcome), said(question, heard.layer, *outcome, pattern)),
    };
    Seen {
        layer: heard.layer.to_owned(),
        outcome,
        reason,
    }
}

#[cfg(test)]
mod tests;
