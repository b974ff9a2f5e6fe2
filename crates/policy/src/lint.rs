//! What a scope's patterns come to, given what there is.

use std::fmt;

use serde::Serialize;

use crate::{HostPattern, Outcome, Rules, Scope};

/// What there is to be allowed.
#[derive(Clone, Default, Debug)]
pub struct Catalogue {
    /// Every method, as service and method.
    pub methods: Vec<(String, String)>,
    /// Every skill.
    pub skills: Vec<String>,
    /// Every model.
    pub models: Vec<String>,
    /// What the installation lets out: the name of the rule, and one of its hosts.
    pub hosts: Vec<(String, HostPattern)>,
}

/// What is worth knowing of one pattern.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// The key of the scope.
    pub key: &'static str,
    /// What the pattern says.
    pub outcome: Outcome,
    /// The pattern.
    pub pattern: String,
    /// What it is.
    #[serde(flatten)]
    pub is: Is,
}

/// What a pattern is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Is {
    /// It stands for these.
    Expands {
        /// In their order.
        to: Vec<String>,
    },
    /// There is nothing that it matches.
    Empty,
    /// A stronger one of the same scope matches all that it does: it can never count.
    Beaten {
        /// The stronger one, with what it says.
        by: String,
    },
}

impl Finding {
    /// Whether it tells of a mistake rather than of what is meant.
    #[must_use]
    pub const fn is_doubtful(&self) -> bool {
        !matches!(self.is, Is::Expands { .. })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {} {:?} ", self.key, self.outcome.as_str(), self.pattern)?;
        match &self.is {
            Is::Expands { to } => write!(formatter, "is {}", to.join(", ")),
            Is::Empty if self.key == "egress" => {
                formatter.write_str("matches no host that a rule of [egress.rules] lets out")
            }
            Is::Empty => formatter.write_str("matches nothing that there is"),
            Is::Beaten { by } => write!(formatter, "never counts, since {by} matches all that it does"),
        }
    }
}

/// Looks at every pattern of a scope.
#[must_use]
pub fn lint(scope: &Scope, there: &Catalogue) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(rules) = &scope.services {
        let expand = |pattern: &crate::MethodPattern| {
            let methods = there
                .methods
                .iter()
                .filter(|(service, method)| pattern.matches(service, method));
            Some(methods.map(|(service, method)| format!("{service}.{method}")).collect())
        };
        look(&mut findings, "services", rules, crate::MethodPattern::covers, expand);
    }
    let named = |names: &[String], pattern: &crate::NamePattern| {
        // Where none is known, nothing is known of them.
        (!names.is_empty()).then(|| names.iter().filter(|name| pattern.matches(name)).cloned().collect())
    };
    let covers = crate::NamePattern::covers;
    if let Some(rules) = &scope.skills {
        look(&mut findings, "skills", rules, covers, |pattern| {
            named(&there.skills, pattern)
        });
    }
    if let Some(rules) = &scope.models {
        look(&mut findings, "models", rules, covers, |pattern| {
            named(&there.models, pattern)
        });
    }
    if let Some(rules) = &scope.egress {
        let expand = |pattern: &HostPattern| {
            let hosts = there.hosts.iter().filter(|(_, host)| pattern.meets(host));
            // What both let out, where one of them says it.
            let narrower = |host| {
                if HostPattern::covers(host, pattern) {
                    pattern
                } else {
                    host
                }
            };
            Some(
                hosts
                    .map(|(rule, host)| format!("{} (rule {rule})", narrower(host)))
                    .collect(),
            )
        };
        look(&mut findings, "egress", rules, HostPattern::covers, expand);
    }
    findings
}

/// `expand` says what a pattern stands for; nothing where nobody can list it.
fn look<P: fmt::Display>(
    findings: &mut Vec<Finding>,
    key: &'static str,
    rules: &Rules<P>,
    covers: impl Fn(&P, &P) -> bool,
    expand: impl Fn(&P) -> Option<Vec<String>>,
) {
    for (outcome, pattern) in rules.patterns() {
        let stronger = rules
            .patterns()
            .find(|(other, by)| *other > outcome && covers(by, pattern));
        let is = match (stronger, expand(pattern)) {
            (Some((other, by)), _) => Is::Beaten {
                by: format!("{} {:?}", other.as_str(), by.to_string()),
            },
            (None, Some(to)) if to.is_empty() => Is::Empty,
            (None, Some(to)) => Is::Expands { to },
            (None, None) => continue,
        };
        findings.push(Finding {
            key,
            outcome,
            pattern: pattern.to_string(),
            is,
        });
    }
}

#[cfg(test)]
mod tests;
