//! Asking for access from inside: a proposal, which an admin approves for one session, or not.

use std::sync::Arc;

use domain::{ApprovalKind, ApprovalState};
use futures::StreamExt;
use link::server::ServiceAnswer;
use policy::{Decision, Layers, Outcome, Question};
use protocol::{MethodGrant, ServiceFailure, ServiceGrant};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Approved, Wanted, active_of};
use crate::Control;
use crate::live::Live;

/// The service of Belljar itself; no definition's of this name is ever called.
pub(crate) const SERVICE: &str = "belljar";
const METHOD: &str = "requestAccess";
/// The longest reason that is given.
const REASON: usize = 1_000;

/// What a sandbox and a model are told of it.
pub(crate) const GRANT: fn() -> ServiceGrant = || ServiceGrant {
    name: SERVICE.to_owned(),
    summary: "requestAccess asks an admin for a method or host that this session is denied.".to_owned(),
    methods: vec![METHOD.to_owned()],
    types: TYPES.to_owned(),
    tools: vec![MethodGrant {
        name: METHOD.to_owned(),
        summary: "Ask an admin for a method or a host that this session is denied. Nothing is granted at once."
            .to_owned(),
        read_only: false,
        arguments: json!({
            "type": "object",
            "properties": {
                "service": { "type": "string", "description": "A method: service.method" },
                "host": { "type": "string", "description": "A host and its port: api.example.com:443" },
                "reason": { "type": "string", "description": "What for, for the person who decides" },
            },
            "required": ["reason"],
            "additionalProperties": false,
        }),
    }],
};

const TYPES: &str = "\
declare const services: Services;
interface Services {
  belljar: {
    /** Ask an admin for a method (`service: \"crm.deleteContact\"`) or a host (`host: \"api.example.com:443\"`) that this
     * session is denied. Nothing is granted at once: a person decides, and what they approve counts from the next run on. */
    requestAccess(args: { service?: string; host?: string; reason: string }): Promise<{
      state: \"pending\" | \"denied\" | \"not_needed\";
      approval?: string;
      message: string;
    }>;
  };
}
";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    service: Option<String>,
    host: Option<String>,
    reason: String,
}

fn unfit(words: impl Into<String>) -> ServiceFailure {
    ServiceFailure::new(422, "invalid_arguments", words)
        .remedy("hand in { service: \"crm.search\" } or { host: \"api.example.com:443\" }, and a reason")
}

impl Control {
    /// Takes a proposal from inside.
    pub(crate) async fn request_access(
        &self,
        live: &Arc<Live>,
        layers: &Layers,
        method: &str,
        arguments: Value,
    ) -> Result<ServiceAnswer, ServiceFailure> {
        if method != METHOD {
            let words = format!("{SERVICE} has the method {METHOD} and no other");
            return Err(ServiceFailure::new(404, "unknown_method", words));
        }
        let request: Request = serde_json::from_value(arguments).map_err(|error| unfit(error.to_string()))?;
        if request.reason.trim().is_empty() || request.reason.len() > REASON {
            return Err(unfit(format!("a reason is 1 to {REASON} bytes long")));
        }
        let (kind, question) = match (&request.service, &request.host) {
            (Some(method), None) => (ApprovalKind::Service, method.clone()),
            (None, Some(host)) => (ApprovalKind::Egress, format!("egress:{}", with_port(host))),
            _ => return Err(unfit("ask for a service's method or for a host, one at a time")),
        };
        let question: Question = question
            .parse()
            .map_err(|_| unfit("that names no method, or no host"))?;
        let subject = question.to_string();
        let subject = subject.strip_prefix("egress:").unwrap_or(&subject).to_owned();
        let decision = layers.decide(&question);
        // A host that no rule names is denied whatever the scope says.
        let unnamed = self.unnamed(&question);
        match decision.outcome {
            _ if unnamed.is_some() => {}
            Outcome::Allow => return Ok(told("not_needed", None, "it is allowed already")),
            Outcome::Ask => {
                let words = "a person is asked each time: just do it, and wait for their answer";
                return Ok(told("not_needed", None, words));
            }
            Outcome::Deny => {}
        }
        let mut why = self.would_help(layers, kind, &subject, &question)?;
        why.push_str(&format!("; asked for, because: {}", request.reason.trim()));
        let wanted = Wanted {
            kind,
            subject: subject.clone(),
            proposal: true,
            call: None,
            request: json!({
                "session": live.session,
                "kind": kind,
                "access": subject,
                "reason": request.reason.trim(),
                "why_denied": unnamed.as_ref().unwrap_or(&decision.reason),
            }),
            decision: Decision {
                reason: why,
                ..decision
            },
        };
        let active = active_of(live);
        let asked = self.ask(live, active.as_deref(), wanted).await;
        let approval = asked.map_err(|error| ServiceFailure::new(429, "too_many_questions", error.to_string()))?;
        Ok(match approval.state {
            ApprovalState::Denied => {
                let words = super::denied_words(&approval, &format!("access to {subject}"));
                told("denied", Some(&approval), &words)
            }
            _ => {
                let words = "an admin is asked; say to whoever you work for what you need and why, and end: what is approved counts from the next run on";
                let words = unnamed.map_or_else(|| words.to_owned(), |unnamed| format!("{unnamed}; {words}"));
                told("pending", Some(&approval), &words)
            }
        })
    }

    /// What an admin is to know beside the request. Refused where their yes would change nothing.
    fn would_help(
        &self,
        layers: &Layers,
        kind: ApprovalKind,
        subject: &str,
        question: &Question,
    ) -> Result<String, ServiceFailure> {
        if let Question::Method { service, method } = question {
            let known = self
                .0
                .services
                .as_ref()
                .is_some_and(|services| services.has(service, method));
            if !known {
                let words = format!("there is no method {subject}");
                return Err(ServiceFailure::new(404, "unknown_method", words));
            }
        }
        let approved = Approved::proposed(kind, subject);
        let granted = approved
            .grant()
            .map(|grant| layers.clone().granted(grant).decide(question));
        match granted {
            Some(decision) if decision.outcome == Outcome::Deny => Err(ServiceFailure::new(
                403,
                "cannot_be_granted",
                format!("nobody can approve it for this session: {}", decision.reason),
            )
            .remedy("do without, or ask the operator to change the policy")),
            None => Err(unfit("that cannot be asked for")),
            Some(_) => Ok(self
                .unnamed(question)
                .unwrap_or_else(|| format!("{subject} is not in this session's scope"))),
        }
    }

    /// Says where a right alone opens nothing, given by an approval or by a scope.
    pub(crate) fn unnamed(&self, question: &Question) -> Option<String> {
        let Question::Egress { destination, port } = question else {
            return None;
        };
        let named = self
            .0
            .broker
            .as_ref()
            .is_some_and(|broker| broker.names(destination, port.unwrap_or(443)));
        (!named).then(|| {
            format!(
                "no rule of this installation names {destination}: a right to reach it alone opens nothing, a rule under \
                 [egress.rules] must name it too"
            )
        })
    }
}

/// A host as it is asked for; HTTPS where no port is said.
fn with_port(host: &str) -> String {
    match host.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() && (!name.contains(':') || name.ends_with(']')) => {
            host.to_owned()
        }
        _ => format!("{host}:443"),
    }
}

fn told(state: &str, approval: Option<&store::Approval>, message: &str) -> ServiceAnswer {
    let id = approval.map(|approval| approval.id);
    let text = json!({ "state": state, "approval": id, "message": message }).to_string();
    ServiceAnswer {
        media_type: "application/json".to_owned(),
        length: Some(text.len() as u64),
        body: futures::stream::iter([Ok(text.into())]).boxed(),
    }
}
