//! Mistakes in rules that each alone is well written.

use std::collections::HashSet;

use policy::Ports;

use super::{Rule, Scheme};
use crate::inject::{Injection, Slot};

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
        say("it names no scheme: write https, http, ssh or tcp, or leave `schemes` out for https".to_owned());
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
    mistakes.extend(ssh(rule).into_iter().map(|words| mistake(rule, words)));
    mistakes.extend(fillings(rule).into_iter().map(|words| mistake(rule, words)));
    mistakes
}

/// Mistakes in what a rule says of SSH.
fn ssh(rule: &Rule) -> Vec<String> {
    let mut words = Vec::new();
    let Some(ssh) = &rule.ssh else {
        if rule.schemes.contains(&Scheme::Ssh) {
            words.push("`ssh` among the schemes wants a table: write ssh = { user = \"…\", secret = \"store:…\", host_keys = [\"SHA256:…\"] }".to_owned());
        }
        return words;
    };
    if rule.schemes != [Scheme::Ssh] {
        words.push(
            "a rule with `ssh` is about nothing else: write schemes = [\"ssh\"], and another rule for the rest"
                .to_owned(),
        );
    }
    for host in &rule.hosts {
        if !matches!(host.ports(), Ports::One(_)) {
            let name = host.to_string();
            let name = name.trim_end_matches(":*");
            words.push(format!(
                "`{host}` does not say at which port SSH is spoken (without one it means 80 and 443): write `{name}:22`"
            ));
        }
    }
    let reads = rule.methods.is_some()
        || rule.paths.is_some()
        || rule.injects()
        || rule.tokens.is_some()
        || rule.token_paths.is_some()
        || rule.body_limit.is_some();
    if reads {
        words.push("what may be said over HTTP means nothing over SSH: take it out of the rule with `ssh`".to_owned());
    }
    if ssh.host_keys.is_empty() {
        words.push(
            "`ssh` pins no host key: write at least one into `host_keys`, as `ssh-keyscan HOST | ssh-keygen -lf -` shows it"
                .to_owned(),
        );
    }
    if ssh.user.is_empty() {
        words.push("`ssh` says no user: write who logs in, `git` for most hosts of git".to_owned());
    }
    if ssh.commands.as_ref().is_some_and(Vec::is_empty) && ssh.subsystems.is_empty() {
        words.push(
            "`commands` is empty, so nothing could run: write some, or leave it out for every command".to_owned(),
        );
    }
    words
}

/// Mistakes in what a rule puts into requests.
fn fillings(rule: &Rule) -> Vec<String> {
    let mut words = Vec::new();
    let mut slots: Vec<Slot> = rule.inject.iter().map(Injection::slot).collect();
    if rule.git.is_some() || rule.aws.is_some() {
        slots.push(Slot::Header("authorization".to_owned()));
    }
    if rule.git.is_some() && rule.aws.is_some() {
        words.push("`git` and `aws` both sign the request: write a rule for each".to_owned());
    }
    let mut seen = HashSet::new();
    for slot in &slots {
        if !seen.insert(slot) {
            words.push(format!("two secrets are put into {slot}: take one of them out"));
        }
    }
    for slot in &slots {
        let Slot::Header(name) = slot else { continue };
        if http::HeaderName::try_from(name.as_str()).is_err() || FRAMING.contains(&name.as_str()) {
            words.push(format!("`{name}` is no header that a secret can be put into"));
        }
    }
    if let Some(aws) = &rule.aws
        && (aws.regions.is_empty() || aws.services.is_empty())
    {
        words.push("`aws` names no region or no service: write at least one of each".to_owned());
    }
    if let Some(git) = &rule.git {
        if git.repositories.is_empty() {
            words.push("`git` names no repository: write owner/name, or owner/*".to_owned());
        }
        if rule.paths.is_some() || rule.methods.is_some() {
            words.push("`git` says its paths and methods itself: leave `paths` and `methods` out".to_owned());
        }
    }
    words
}

/// Headers that say where a request ends or where it goes.
const FRAMING: [&str; 8] = [
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "upgrade",
    "te",
    "trailer",
    "expect",
];

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
