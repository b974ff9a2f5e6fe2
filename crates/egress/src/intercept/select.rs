//! The one rule that a request follows.

use std::sync::Arc;

use http::Method;

use super::path::Segments;
use super::{Decided, Matching};
use crate::inject::{Head, query};
use crate::{Code, Denied, Rule};

/// The rule that a request follows: of those that let it pass, the one that injects, else the most precise.
///
/// Two that inject are a contradiction, and refused rather than guessed (threat 42).
pub(super) fn rule(decided: &Decided, matching: &Matching, head: &Head) -> Result<Arc<Rule>, Denied> {
    let mut refused = None;
    let mut passing: Vec<&Arc<Rule>> = Vec::new();
    for rule in &matching.rules {
        match admits(decided, rule, head) {
            Ok(()) => passing.push(rule),
            Err(denied) => {
                refused.get_or_insert(denied);
            }
        }
    }
    let mut injecting = passing.iter().filter(|rule| rule.injects());
    match (injecting.next(), injecting.next()) {
        (Some(first), Some(second)) => Err(Denied::new(
            Code::Ambiguous,
            format!(
                "two rules would put a secret into this request: {} and {}",
                first.name, second.name
            ),
            "narrow their methods or paths until only one of them matches",
        )
        .by(&first.name)),
        (Some(rule), None) => Ok(Arc::clone(rule)),
        (None, _) => match passing.first() {
            Some(rule) => Ok(Arc::clone(rule)),
            None => Err(refused.unwrap_or_else(|| {
                Denied::new(
                    Code::NoRule,
                    format!("no rule is about {}:{}", decided.host, decided.port),
                    format!("ask for a rule for {}", decided.host),
                )
            })),
        },
    }
}

/// Whether a rule lets a request pass (threats 32, 39, 52).
fn admits(decided: &Decided, rule: &Rule, head: &Head) -> Result<(), Denied> {
    let name = &rule.name;
    let denied = |reason: String| {
        let remedy = format!("ask for it to be added to the rule {name}");
        Err(Denied::new(Code::NotInRule, reason, remedy).by(name))
    };
    if !rule.schemes.contains(&decided.scheme) {
        return denied(format!("the rule does not allow {}", decided.scheme.as_str()));
    }
    if let Some(methods) = &rule.methods {
        if !methods.iter().any(|method| method == head.method.as_str()) {
            return denied(format!("the rule does not allow the method {}", head.method));
        }
        if query::asks_for_method(head.query.as_deref()) {
            return denied("the query asks for another method than the request has".to_owned());
        }
    }
    if rule.paths.is_none() && rule.git.is_none() {
        return Ok(());
    }
    let Some(path) = Segments::parse(&head.path) else {
        return denied("the path can be read in more than one way, and the rule is about paths".to_owned());
    };
    if let Some(paths) = &rule.paths
        && !paths.iter().any(|pattern| pattern.matches(&path))
    {
        return denied(format!("the rule does not allow the path {}", head.path));
    }
    if let Some(git) = &rule.git
        && let Err(reason) = git.admit(head, &path)
    {
        return denied(reason);
    }
    Ok(())
}

/// Whether no rule can allow a method here: it makes a tunnel or an echo (threats 35, 45).
pub(super) fn is_barred(method: &Method) -> bool {
    matches!(*method, Method::CONNECT | Method::TRACE) || method.as_str().eq_ignore_ascii_case("TRACK")
}

/// Headers by which some servers take another method than the request's (threat 32).
pub(super) const METHOD_OVERRIDES: [&str; 4] = [
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
    "x-original-method",
];

/// Headers by which some servers take another path than the request's.
pub(super) const PATH_OVERRIDES: [&str; 4] = [
    "x-original-url",
    "x-rewrite-url",
    "x-original-uri",
    "x-forwarded-prefix",
];
