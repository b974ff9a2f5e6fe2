//! Mistakes in rules that each alone is well written.

use super::{Rule, Scheme};

/// A mistake in a rule.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("egress.rules.{rule}: {words}")]
pub struct Mistake {
    /// The rule's name.
    pub rule: String,
    /// What is wrong, and what to write instead.
    pub words: String,
}

pub(super) fn lint(rules: &[Rule]) -> Vec<Mistake> {
    let mut mistakes: Vec<_> = rules.iter().flat_map(alone).collect();
    mistakes.extend(together(rules));
    mistakes
}

fn mistake(rule: &Rule, words: impl Into<String>) -> Mistake {
    Mistake {
        rule: rule.name.clone(),
        words: words.into(),
    }
}

fn alone(rule: &Rule) -> Vec<Mistake> {
    let mut mistakes = Vec::new();
    let mut say = |words: String| mistakes.push(mistake(rule, words));
    if !is_name(&rule.name) {
        say("a rule's name has letters, digits, `-` and `_`".to_owned());
    }
    if rule.hosts.is_empty() {
        say("it names no host: an empty list lets nothing out; write hosts, or remove the rule".to_owned());
    }
    if rule.schemes.is_empty() {
        say("it names no scheme: write https, http or tcp, or leave `schemes` out for https".to_owned());
    }
    let reads = rule.intercepts();
    if rule.schemes.contains(&Scheme::Tcp) && reads {
        say("`tcp` passes bytes that nobody reads, so nothing in it can be restricted or injected: write a rule of its own for `tcp`".to_owned());
    }
    for method in rule.methods.iter().flatten() {
        let token = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-');
        if !token {
            say(format!(
                "`{method}` is no method: methods are compared to the letter, and written GET, POST, …"
            ));
        }
    }
    mistakes
}

/// Where one rule passes bytes unread and another must read them, the second could be walked around.
fn together(rules: &[Rule]) -> Vec<Mistake> {
    let mut mistakes = Vec::new();
    for raw in rules.iter().filter(|rule| rule.schemes.contains(&Scheme::Tcp)) {
        for read in rules.iter().filter(|rule| rule.intercepts()) {
            let overlap = raw
                .hosts
                .iter()
                .flat_map(|one| read.hosts.iter().map(move |other| (one, other)))
                .find(|(one, other)| one.covers(other) || other.covers(one));
            if let Some((one, other)) = overlap {
                let name = &read.name;
                mistakes.push(mistake(
                    raw,
                    format!("`{one}` passes by `tcp`, unread, what egress.rules.{name} reads (`{other}`): take one of them out"),
                ));
            }
        }
    }
    mistakes
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 64
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}
