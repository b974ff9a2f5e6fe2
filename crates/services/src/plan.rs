//! A service as it is executed: its definition, bound to what the operator says.

mod http;
mod mcp;
mod script;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dial::Dialer;
use lifecycle::Tasks;
use rustls::ClientConfig;
use secret::Custody;
use worker::Worker;

pub(crate) use self::http::{HttpMethod, HttpPlan};
use crate::arguments::Arguments;
use crate::client::ClientError;
use crate::definition::{Answer as Output, Kind, Limits, Method, Service};
use crate::gate::Gate;
use crate::mcp::McpPlan;
use crate::script::ScriptPlan;
use crate::settings::{Bound, ServiceSettings};
use crate::sql::Database;

/// Belljar's own limits, where neither method nor service says any.
const TIMEOUT: Duration = Duration::from_secs(30);
const ANSWER: u64 = 8 << 20;
const FLOWING_ANSWER: u64 = 256 << 20;
const ARGUMENTS: u64 = 256 << 10;
const CONCURRENCY: u32 = 16;
const SESSION_PER_MINUTE: u32 = 600;

/// Slots that hold no secret, where a text may stand.
const OPEN_SLOTS: [&str; 6] = [
    "user",
    "client_id",
    "app_id",
    "installation_id",
    "access_key_id",
    "account",
];

/// A service, ready to be called.
pub(crate) struct Plan {
    pub(crate) service: Arc<Service>,
    pub(crate) gate: Gate,
    pub(crate) methods: HashMap<String, MethodPlan>,
    pub(crate) upstream: Upstream,
}

/// What answers the calls of a service.
pub(crate) enum Upstream {
    Http(Box<HttpPlan>),
    Mcp(Box<McpPlan>),
    Script(Box<ScriptPlan>),
    Sql(Box<Database>),
}

/// A method, ready to be called.
pub(crate) struct MethodPlan {
    name: String,
    /// `service.method`
    pub(crate) what: String,
    pub(crate) arguments: Arguments,
    pub(crate) timeout: Duration,
    pub(crate) answer_bytes: u64,
    /// Limits of its own, besides those of the service.
    pub(crate) gate: Option<Gate>,
}

/// A service cannot be called as it is configured.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{place}: {problem}; {remedy}")]
pub struct Problem {
    /// The key of belljar.toml, or the place in the definition.
    pub place: String,
    /// What is wrong.
    pub problem: String,
    /// What to write instead.
    pub remedy: String,
}

/// What all services share.
pub(crate) struct Shared {
    pub(crate) secrets: Custody,
    pub(crate) dialer: Dialer,
    pub(crate) tls: ClientConfig,
    pub(crate) tasks: Tasks,
    pub(crate) worker: Worker,
    /// Statements that are checked at once, of all services.
    pub(crate) checks: Arc<Gate>,
    /// Scripts that run at once, of all services.
    pub(crate) scripts: Arc<Gate>,
    /// Files that are read at once, of all services.
    pub(crate) files: Arc<Gate>,
}

/// Why a service has no plan.
#[derive(Debug)]
pub(crate) enum Unplanned {
    Problems(Vec<Problem>),
    Client(ClientError),
}

impl Plan {
    /// Binds a definition to what the operator says. All problems are told at once.
    pub(crate) fn new(service: &Arc<Service>, settings: &ServiceSettings, shared: &Shared) -> Result<Self, Unplanned> {
        let mut problems = Problems {
            service: &service.name,
            found: Vec::new(),
        };
        problems.slots(service, settings);
        let methods: HashMap<_, _> = service
            .methods
            .values()
            .filter_map(|method| Some((method.name.clone(), problems.method(service, method)?)))
            .collect();
        let upstream = match &service.kind {
            Kind::Http(http) => HttpPlan::new(service, http, settings, shared, &mut problems)
                .map_err(Unplanned::Client)?
                .map(|http| Upstream::Http(Box::new(http))),
            Kind::Mcp(server) => mcp::plan(service, server, &methods, settings, shared, &mut problems)
                .map_err(Unplanned::Client)?
                .map(|mcp| Upstream::Mcp(Box::new(mcp))),
            Kind::Script(script) => script::plan(service, script, settings, shared, &mut problems)
                .map_err(Unplanned::Client)?
                .map(|script| Upstream::Script(Box::new(script))),
            Kind::Sql(definition) => Database::new(&service.name, definition, settings, shared, &mut problems)
                .map(|database| Upstream::Sql(Box::new(database))),
        };
        let (Some(upstream), true) = (upstream, problems.found.is_empty()) else {
            return Err(Unplanned::Problems(problems.found));
        };
        let (concurrency, per_minute) = (
            settings.concurrency.or(service.limits.concurrency),
            settings.per_minute.or(service.limits.per_minute),
        );
        Ok(Self {
            service: Arc::clone(service),
            gate: Gate::new(
                concurrency.unwrap_or(CONCURRENCY),
                per_minute,
                Some(settings.session_per_minute.unwrap_or(SESSION_PER_MINUTE)),
            ),
            methods,
            upstream,
        })
    }

    /// The definition of a method of this plan.
    pub(crate) fn method(&self, method: &MethodPlan) -> &Method {
        // Plans of methods are made from these very definitions.
        &self.service.methods[&method.name]
    }
}

/// Collects everything that is wrong.
pub(crate) struct Problems<'a> {
    service: &'a str,
    found: Vec<Problem>,
}

impl Problems<'_> {
    /// Says that a key of the service is wrong.
    pub(crate) fn say(&mut self, key: &str, problem: impl Into<String>, remedy: impl Into<String>) {
        self.found.push(Problem {
            place: format!("services.{}.{key}", self.service),
            problem: problem.into(),
            remedy: remedy.into(),
        });
    }

    fn slots(&mut self, service: &Service, settings: &ServiceSettings) {
        let known: Vec<&str> = service
            .auth
            .iter()
            .flat_map(|auth| auth.required().into_iter().chain(auth.optional()))
            .collect();
        for (slot, bound) in &settings.auth {
            if !known.contains(&slot.as_str()) {
                self.say(
                    &format!("auth.{slot}"),
                    "the service has no use for it",
                    if known.is_empty() {
                        "take it out".to_owned()
                    } else {
                        format!("it takes: {}", known.join(", "))
                    },
                );
            } else if matches!(bound, Bound::Text(_)) && !OPEN_SLOTS.contains(&slot.as_str()) {
                self.say(
                    &format!("auth.{slot}"),
                    "a secret does not stand in the configuration itself",
                    format!(
                        "write where it is: \"env:NAME\", \"file:/path\" or \"store:{}-{slot}\", and set that with `belljar secret set`",
                        self.service
                    ),
                );
            }
        }
    }

    fn method(&mut self, service: &Service, method: &Method) -> Option<MethodPlan> {
        let what = format!("{}.{}", service.name, method.name);
        let limits = merged(method.limits, service.limits);
        let arguments = Arguments::new(method.arguments.value(), limits.arguments.unwrap_or(ARGUMENTS));
        let arguments = match arguments {
            Ok(arguments) => Some(arguments),
            Err(problem) => {
                self.say(
                    &format!("methods.{}.arguments", method.name),
                    problem,
                    "correct the definition's schema",
                );
                None
            }
        };
        let own = method.limits.concurrency.is_some() || method.limits.per_minute.is_some();
        let answer_bytes = match method.answer {
            Output::Json | Output::Text => ANSWER,
            Output::Binary => FLOWING_ANSWER,
        };
        Some(MethodPlan {
            name: method.name.clone(),
            what,
            arguments: arguments?,
            timeout: limits.timeout.unwrap_or(TIMEOUT),
            answer_bytes: limits.response.unwrap_or(answer_bytes),
            gate: own.then(|| {
                Gate::new(
                    method.limits.concurrency.unwrap_or(CONCURRENCY),
                    method.limits.per_minute,
                    None,
                )
            }),
        })
    }
}

/// What a method leaves out is taken from its service.
fn merged(method: Limits, service: Limits) -> Limits {
    Limits {
        timeout: method.timeout.or(service.timeout),
        response: method.response.or(service.response),
        arguments: method.arguments.or(service.arguments),
        concurrency: method.concurrency.or(service.concurrency),
        per_minute: method.per_minute.or(service.per_minute),
    }
}
