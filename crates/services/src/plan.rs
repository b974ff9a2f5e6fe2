//! A service as it is executed: its definition, bound to what the operator says.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dial::{Allow, Dialer};
use http::{HeaderMap, HeaderName, HeaderValue};
use rustls::ClientConfig;
use secret::Source;
use url::Url;

use crate::arguments::Arguments;
use crate::client::{Client, ClientError};
use crate::credentials::Credentials;
use crate::definition::{Access, Answer as Output, Body, Limits, Method, Service, Template};
use crate::gate::Gate;
use crate::graphql::{self, Operation};
use crate::settings::{Bound, ServiceSettings};

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
    pub(crate) base: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) client: Client,
    pub(crate) credentials: Credentials,
    pub(crate) gate: Gate,
    pub(crate) methods: HashMap<String, MethodPlan>,
}

/// A method, ready to be called.
pub(crate) struct MethodPlan {
    name: String,
    /// `service.method`
    pub(crate) what: String,
    pub(crate) arguments: Arguments,
    pub(crate) headers: Vec<(HeaderName, Template)>,
    pub(crate) idempotency_header: Option<HeaderName>,
    pub(crate) timeout: Duration,
    pub(crate) answer_bytes: u64,
    /// Limits of its own, besides those of the service.
    pub(crate) gate: Option<Gate>,
    accept: HeaderValue,
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
    pub(crate) secrets: Arc<dyn Source>,
    pub(crate) dialer: Dialer,
    pub(crate) tls: ClientConfig,
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
        let base = problems.base(settings.base_url.as_ref().unwrap_or(&service.base_url), settings);
        problems.slots(service, settings);
        let headers = problems.headers(&service.headers);
        let methods: HashMap<_, _> = service
            .methods
            .values()
            .filter_map(|method| Some((method.name.clone(), problems.method(service, method)?)))
            .collect();
        let (Some(base), true) = (base, problems.found.is_empty()) else {
            return Err(Unplanned::Problems(problems.found));
        };
        let allow = Allow {
            networks: settings.addresses.clone(),
        };
        let client = Client::new(&service.name, shared.tls.clone(), shared.dialer.clone(), allow);
        let (concurrency, per_minute) = (
            settings.concurrency.or(service.limits.concurrency),
            settings.per_minute.or(service.limits.per_minute),
        );
        Ok(Self {
            service: Arc::clone(service),
            base,
            headers,
            client: client.map_err(Unplanned::Client)?,
            credentials: Credentials::new(
                &service.name,
                &service.auth,
                settings.auth.clone(),
                Arc::clone(&shared.secrets),
            ),
            gate: Gate::new(
                concurrency.unwrap_or(CONCURRENCY),
                per_minute,
                Some(settings.session_per_minute.unwrap_or(SESSION_PER_MINUTE)),
            ),
            methods,
        })
    }

    /// The definition of a method of this plan.
    pub(crate) fn method(&self, method: &MethodPlan) -> &Method {
        // Plans of methods are made from these very definitions.
        &self.service.methods[&method.name]
    }
}

impl MethodPlan {
    /// What the method can read.
    pub(crate) fn accept(&self) -> HeaderValue {
        self.accept.clone()
    }
}

/// Collects everything that is wrong.
struct Problems<'a> {
    service: &'a str,
    found: Vec<Problem>,
}

impl Problems<'_> {
    fn say(&mut self, key: &str, problem: impl Into<String>, remedy: impl Into<String>) {
        self.found.push(Problem {
            place: format!("services.{}.{key}", self.service),
            problem: problem.into(),
            remedy: remedy.into(),
        });
    }

    fn base(&mut self, text: &str, settings: &ServiceSettings) -> Option<Url> {
        let usable = |url: &Url| {
            url.has_host()
                && url.username().is_empty()
                && url.password().is_none()
                && url.query().is_none()
                && url.fragment().is_none()
        };
        match Url::parse(text) {
            Ok(url) if url.scheme() == "https" && usable(&url) => Some(url),
            Ok(url) if url.scheme() == "http" && usable(&url) && !settings.addresses.is_empty() => Some(url),
            Ok(url) if url.scheme() == "http" && usable(&url) => {
                self.say(
                    "base_url",
                    format!("{text} is plain http, which would show the credential on its way"),
                    "write https, or name the address of an inner server in `addresses`",
                );
                None
            }
            _ => {
                self.say(
                    "base_url",
                    format!("{text:?} is no base of an API"),
                    "write https://host/path, without a user, a query and a fragment",
                );
                None
            }
        }
    }

    fn slots(&mut self, service: &Service, settings: &ServiceSettings) {
        let known: Vec<&str> = service
            .auth
            .iter()
            .flat_map(|auth| auth.required().iter().chain(auth.optional()).copied())
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

    fn headers(&mut self, written: &[(String, String)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in written {
            match (HeaderName::try_from(name.as_str()), HeaderValue::from_str(value)) {
                (Ok(name), Ok(value)) => {
                    headers.insert(name, value);
                }
                _ => self.say(&format!("headers.{name}"), "it is no header", "correct the definition"),
            }
        }
        headers
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
        let mut name = |name: &String| match HeaderName::try_from(name.as_str()) {
            Ok(name) => Some(name),
            Err(_) => {
                self.say(
                    &format!("methods.{}.headers", method.name),
                    format!("{name:?} is no header's name"),
                    "correct the definition",
                );
                None
            }
        };
        let headers: Vec<_> = method
            .request
            .headers
            .iter()
            .filter_map(|(header, template)| Some((name(header)?, template.clone())))
            .collect();
        let idempotency_header = method.idempotency_header.as_ref().and_then(name);
        self.document(method);
        let own = method.limits.concurrency.is_some() || method.limits.per_minute.is_some();
        let (accept, answer_bytes) = match method.answer {
            Output::Json => ("application/json", ANSWER),
            Output::Text => ("*/*", ANSWER),
            Output::Binary => ("*/*", FLOWING_ANSWER),
        };
        Some(MethodPlan {
            name: method.name.clone(),
            what,
            arguments: arguments?,
            headers,
            idempotency_header,
            timeout: limits.timeout.unwrap_or(TIMEOUT),
            answer_bytes: limits.response.unwrap_or(answer_bytes),
            gate: own.then(|| {
                Gate::new(
                    method.limits.concurrency.unwrap_or(CONCURRENCY),
                    method.limits.per_minute,
                    None,
                )
            }),
            accept: HeaderValue::from_static(accept),
        })
    }

    /// A method that reads holds no mutation.
    fn document(&mut self, method: &Method) {
        let Body::GraphQl { document, .. } = &method.request.body else {
            return;
        };
        let place = format!("methods.{}.graphql", method.name);
        match (graphql::operation(document), method.access) {
            (Ok(Operation::Query), _) | (Ok(Operation::Mutation), Access::Write) => {}
            (Ok(Operation::Mutation), Access::Read) => self.say(
                &place,
                "the document changes something, and the method only reads",
                "write access = \"write\", or a query",
            ),
            (Ok(Operation::Subscription), _) => self.say(&place, "a subscription has no end", "write a query"),
            (Err(error), _) => self.say(&place, error.to_string(), "correct the document"),
        }
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
