//! A scope, as it is written.

use serde::{Deserialize, Serialize};

use crate::rules::Verdict;
use crate::{HostPattern, Limits, MethodPattern, NamePattern, Outcome, Ports, Question, Rules, Tools};

/// What somebody or something may do. Every key may be left out: then it is left to the other layers.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scope {
    /// Methods of services.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub services: Option<Rules<MethodPattern>>,
    /// Tools of the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<Tools>,
    /// Skills.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skills: Option<Rules<NamePattern>>,
    /// Hosts that connections may leave for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress: Option<Rules<HostPattern>>,
    /// Models, by their names in the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub models: Option<Rules<NamePattern>>,
    /// What may be used up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
}

impl Scope {
    /// What everybody may where the operator says nothing: every tool, skill and model; no service, and no way out.
    #[must_use]
    pub fn standard() -> Self {
        let every = || Rules::allowing("*".parse().into_iter().collect());
        Self {
            services: Some(Rules::allowing(Vec::new())),
            tools: Some(Tools::all()),
            skills: Some(every()),
            egress: Some(Rules::allowing(Vec::new())),
            models: Some(every()),
            limits: None,
        }
    }

    /// A scope that allows nothing.
    #[must_use]
    pub fn nothing() -> Self {
        Self {
            services: Some(Rules::allowing(Vec::new())),
            tools: Some(Tools::default()),
            skills: Some(Rules::allowing(Vec::new())),
            egress: Some(Rules::allowing(Vec::new())),
            models: Some(Rules::allowing(Vec::new())),
            limits: None,
        }
    }

    /// This scope, and of `base` the keys that it leaves out.
    #[must_use]
    pub fn or(self, base: Self) -> Self {
        Self {
            services: self.services.or(base.services),
            tools: self.tools.or(base.tools),
            skills: self.skills.or(base.skills),
            egress: self.egress.or(base.egress),
            models: self.models.or(base.models),
            limits: self.limits.or(base.limits),
        }
    }

    /// What is left of this scope without the keys that any of `others` has.
    #[must_use]
    pub fn without_keys_of<'a>(mut self, others: impl IntoIterator<Item = &'a Self>) -> Self {
        for other in others {
            self.services = self.services.filter(|_| other.services.is_none());
            self.tools = self.tools.filter(|_| other.tools.is_none());
            self.skills = self.skills.filter(|_| other.skills.is_none());
            self.egress = self.egress.filter(|_| other.egress.is_none());
            self.models = self.models.filter(|_| other.models.is_none());
            self.limits = self.limits.filter(|_| other.limits.is_none());
        }
        self
    }

    /// What it has to say to a question.
    pub(crate) fn verdict(&self, question: &Question) -> Verdict {
        let said = match question {
            Question::Method { service, method } => self
                .services
                .as_ref()
                .map(|rules| rules.verdict(|_, pattern| pattern.matches(service, method))),
            Question::Tool(name) => self.tools.as_ref().map(|tools| tools.verdict(name)),
            Question::Skill(name) => self
                .skills
                .as_ref()
                .map(|rules| rules.verdict(|_, pattern| pattern.matches(name))),
            Question::Model(name) => self
                .models
                .as_ref()
                .map(|rules| rules.verdict(|_, pattern| pattern.matches(name))),
            Question::Egress { destination, port } => self.egress.as_ref().map(|rules| {
                let said = rules.verdict(|outcome, pattern| match port {
                    Some(port) => pattern.matches(destination, *port),
                    None if outcome == Outcome::Allow => pattern.names(destination),
                    // Where no port is known yet, nothing is asked or denied that might not be at the port that comes.
                    None => pattern.names(destination) && pattern.ports() == Ports::All,
                });
                let asks = |outcome, pattern: &HostPattern| outcome == Outcome::Ask && pattern.names(destination);
                match (said, rules.verdict(asks)) {
                    // What nothing allows, and a person is asked about at some port.
                    (Verdict::Silent | Verdict::Unlisted, ask @ Verdict::Ruled(..)) if port.is_none() => ask,
                    (said, _) => said,
                }
            }),
        };
        said.unwrap_or(Verdict::Silent)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json, to_value};

    use super::*;

    #[test]
    fn what_is_no_scope_is_refused_in_words() {
        for (written, words) in [
            (json!({"service": []}), "unknown field `service`"),
            (json!({"services": {"allowed": []}}), "unknown field `allowed`"),
            (json!({"services": "crm.*"}), "a list of what is allowed"),
            (json!({"services": ["crm"]}), "service.method"),
            (json!({"services": ["crm.sea rch"]}), "which no name here has"),
            (json!({"tools": {"shell": true}}), "unknown variant `shell`"),
            (json!({"tools": {"exec": "maybe"}}), "write true, false"),
            (json!({"limits": {"step": 1}}), "unknown field `step`"),
            (json!({"limits": {"run_dollars": -1}}), "0 to 9000000 dollars"),
            (json!({"egress": ["*.co.uk"]}), "names of different owners"),
            (json!({"egress": ["a.example:99999"]}), "no port"),
            (json!({"skills": vec!["a"; 1_001]}), "at most 1000"),
        ] {
            let error = from_value::<Scope>(written.clone()).unwrap_err().to_string();
            assert!(error.contains(words), "{written}: {error}");
        }
    }

    #[test]
    fn a_scope_is_written_as_it_is_read() {
        let written: Value = json!({
            "services": ["crm.*"],
            "tools": {"exec": "allow", "write": "ask", "read": "deny"},
            "skills": {"ask": ["crm"], "deny": ["whimsy"]},
            "egress": {"allow": ["a.example:22"], "ask": ["**.b.example"]},
            "models": [],
            "limits": {"steps": 3, "run_dollars": 2.5},
        });
        let scope: Scope = from_value(written.clone()).unwrap();
        assert_eq!(to_value(&scope).unwrap(), written);
        let toml = "services = [\"crm.*\"]\ntools = { exec = true, write = \"ask\", read = false }\n[skills]\nask = [\"crm\"]\ndeny = [\"whimsy\"]\n\
            [egress]\nallow = [\"a.example:22\"]\nask = [\"**.b.example\"]\n[limits]\nsteps = 3\nrun_dollars = 2.50\n";
        let mut from_toml: Scope = toml::from_str(toml).unwrap();
        from_toml.models = Some(Rules::allowing(Vec::new()));
        assert_eq!(from_toml, scope);
        assert_eq!(from_value::<Scope>(json!({})).unwrap(), Scope::default());
    }

    #[test]
    fn keys_that_others_have_are_taken_out() {
        let other: Scope = from_value(json!({"services": [], "tools": {"exec": true}})).unwrap();
        let left = Scope::standard().without_keys_of([&other]);
        assert_eq!((left.services, left.tools), (None, None));
        assert_eq!(
            (left.skills, left.egress),
            (Scope::standard().skills, Scope::standard().egress)
        );
    }
}
