//! The services there are, and calls of their methods.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dial::Dialer;
use domain::{SessionId, UserId};
use http::HeaderMap;
use lifecycle::Tasks;
use secret::Custody;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;
use tokio::time::Instant;
use url::Url;
use worker::Worker;

use crate::client::{ClientError, host};
use crate::definition::{Access, Action, Answer as Output, Catalogue, Method};
use crate::exchange::{Exchange, Received};
use crate::gate::{Admitted, Caller, Gate, Place, admit};
use crate::plan::{HttpPlan, MethodPlan, Plan, Problem, Shared, Unplanned, Upstream};
use crate::request::Outgoing;
use crate::select::Json;
use crate::settings::ServiceSettings;
use crate::sql::Calling;
use crate::{Answer, Code, Failure, Trust, pages, sql};

/// How long a server may take to list its tools.
const LISTING: Duration = Duration::from_secs(60);

/// The services there are, ready to be called. Clones are cheap and share connections, tokens and limits.
#[derive(Clone)]
pub struct Services {
    plans: Arc<HashMap<String, Plan>>,
    tasks: Tasks,
}

/// A call of a method. Whether the session may make it was decided before.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Who calls.
    pub session: SessionId,
    /// Whose session that is: what all of their sessions use together is bounded.
    pub user: UserId,
    /// The service's name.
    pub service: &'a str,
    /// The method's name.
    pub method: &'a str,
    /// Its arguments: an object, or null for none.
    pub arguments: &'a RawValue,
    /// The same for each repeat of the same call, and for no other call of the session.
    pub idempotency_key: Option<&'a str>,
}

/// What a repeat of a call does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Changes {
    /// The method reads.
    Nothing,
    /// What the first did, and no more.
    Once,
    /// The same once more.
    Each,
}

/// A call whose arguments are good.
struct Ready<'a> {
    call: &'a Call<'a>,
    arguments: Map<String, Value>,
    deadline: Instant,
}

impl Services {
    /// Prepares every service of a catalogue. `settings` are by the service's name. One that cannot be used is left out, and
    /// all its problems are told; the others can be called. Tokens are made by tasks of `tasks`, statements read by `worker`;
    /// without a place for their successors in `secrets`, refresh tokens that a provider replaces are held in memory.
    pub fn new(
        catalogue: &Catalogue,
        settings: &BTreeMap<String, ServiceSettings>,
        secrets: impl Into<Custody>,
        dialer: Dialer,
        trust: Trust,
        tasks: Tasks,
        worker: Worker,
    ) -> Result<(Self, Vec<Problem>), ClientError> {
        let mut problems = Vec::new();
        for name in settings.keys().filter(|name| catalogue.service(name).is_none()) {
            problems.push(Problem {
                place: format!("services.{name}"),
                problem: "there is no service of this name".to_owned(),
                remedy: "`belljar service list` shows those that there are; definitions stand in the folder that \
                         server.services names, or in `services` beside belljar.toml"
                    .to_owned(),
            });
        }
        let mut plans = HashMap::new();
        if catalogue.services().next().is_none() {
            let plans = Arc::new(plans);
            return Ok((Self { plans, tasks }, problems));
        }
        // Of each, one user has half.
        let shares = |places: usize| Arc::new(Gate::new(u32::try_from(places).unwrap_or(u32::MAX), None, None));
        let shared = Shared {
            secrets: secrets.into(),
            dialer,
            tls: trust.tls()?,
            tasks: tasks.clone(),
            checks: shares(worker.checkers()),
            scripts: shares(worker.scripts()),
            files: shares(worker.files()),
            worker,
        };
        let unsaid = ServiceSettings::default();
        for service in catalogue.services() {
            let settings = settings.get(&service.name).unwrap_or(&unsaid);
            match Plan::new(service, settings, &shared) {
                Ok(plan) => {
                    plans.insert(service.name.clone(), plan);
                }
                Err(Unplanned::Problems(found)) => problems.extend(found),
                Err(Unplanned::Client(error)) => return Err(error),
            }
        }
        let plans = Arc::new(plans);
        Ok((Self { plans, tasks }, problems))
    }

    /// What is wrong with the statements that definitions hold, each read by a worker for the database that it is bound to. They
    /// are read at each call besides: what is told here is told before there is one.
    pub async fn statements(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        for plan in self.plans.values() {
            let Upstream::Sql(database) = &plan.upstream else {
                continue;
            };
            for method in plan.service.methods.values() {
                let Action::Sql(statement) = &method.action else {
                    continue;
                };
                if let Err(failure) = database.check_fixed(&method.name, statement).await {
                    problems.push(Problem {
                        place: format!("services.{}.methods.{}.sql", plan.service.name, method.name),
                        problem: failure.message,
                        remedy: failure.remedy.unwrap_or_default(),
                    });
                }
            }
        }
        problems.sort_by(|one, other| one.place.cmp(&other.place));
        problems
    }

    /// Whether a method can be called.
    #[must_use]
    pub fn has(&self, service: &str, method: &str) -> bool {
        self.find(service, method).is_ok()
    }

    /// Whether a call is one at all: of a registered method, with arguments that fit.
    pub fn check(&self, call: &Call<'_>) -> Result<(), Failure> {
        let (_, method) = self.find(call.service, call.method)?;
        method.arguments.read(&method.what, call.arguments).map(drop)
    }

    /// Whether a method may change something, and whether a repeat does no harm all the same; none where there is no such method.
    #[must_use]
    pub fn changes(&self, service: &str, method: &str) -> Option<Changes> {
        let (plan, method) = self.find(service, method).ok()?;
        let definition = plan.method(method);
        Some(match definition.access {
            Access::Read => Changes::Nothing,
            Access::Write if definition.idempotent || definition.idempotency_header.is_some() => Changes::Once,
            Access::Write => Changes::Each,
        })
    }

    /// Whether a call that failed so has done nothing. What makes more than one request, or is a program, may have done something
    /// before it was refused.
    #[must_use]
    pub fn did_nothing(&self, service: &str, code: Code) -> bool {
        let is_one_request = matches!(
            self.plans.get(service).map(|plan| &plan.upstream),
            Some(Upstream::Http(_) | Upstream::Sql(_))
        );
        code.is_local() || is_one_request && code.is_refusal()
    }

    /// Calls a method: checks the arguments, asks the upstream, and reads what it answers, all before the method's deadline.
    /// Bytes that flow may come later than this returns, but not later than the deadline.
    pub async fn call(&self, call: Call<'_>) -> Result<Answer, Failure> {
        self.call_after(call, std::future::ready(Ok(()))).await
    }

    /// The same. The first request leaves after `leaves` has said yes, which is asked when the call can be made and has its place.
    pub async fn call_after<E: From<Failure>>(
        &self,
        call: Call<'_>,
        leaves: impl Future<Output = Result<(), E>>,
    ) -> Result<Answer, E> {
        let (plan, method) = self.find(call.service, call.method)?;
        let deadline = Instant::now() + method.timeout;
        let arguments = method.arguments.read(&method.what, call.arguments)?;
        match &plan.upstream {
            Upstream::Http(http) => {
                let ready = Ready {
                    call: &call,
                    arguments,
                    deadline,
                };
                self.ask(plan, http, method, ready, leaves).await
            }
            Upstream::Script(script) => {
                let definition = plan.method(method);
                let _places = enter(admitted(plan, method, &call)?, method, deadline).await?;
                leaves.await?;
                let called = script
                    .call(&definition.name, method, arguments, &self.tasks, deadline)
                    .await;
                Ok(called.map(Answer::json)?)
            }
            Upstream::Mcp(server) => {
                let definition = plan.method(method);
                let _places = enter(admitted(plan, method, &call)?, method, deadline).await?;
                leaves.await?;
                let called = server
                    .call(&method.what, definition, method.answer_bytes, arguments, deadline)
                    .await;
                Ok(called.map(Answer::json)?)
            }
            Upstream::Sql(database) => {
                let Action::Sql(statement) = &plan.method(method).action else {
                    // A method is of the same kind as its service.
                    return Err(Failure::new(Code::UnknownMethod, method.what.as_str()).into());
                };
                let admitted = admitted(plan, method, &call)?;
                let calling = Calling {
                    caller: caller(&call),
                    what: &method.what,
                    statement,
                    arguments,
                    deadline,
                    bytes: method.answer_bytes,
                };
                // Whoever waits for their statement to be read has no place at the database yet.
                let query = database.read(calling).await?;
                let places = enter(admitted, method, deadline).await?;
                leaves.await?;
                Ok(match database.run(query, &self.tasks).await? {
                    sql::Received::Whole(text) => Answer::json(text),
                    sql::Received::Flowing { media_type, pieces } => {
                        Answer::written(media_type, pieces, self.hold(places, deadline))
                    }
                })
            }
        }
    }

    /// Calls a method of an API over HTTP.
    async fn ask<E: From<Failure>>(
        &self,
        plan: &Plan,
        http: &HttpPlan,
        method: &MethodPlan,
        ready: Ready<'_>,
        leaves: impl Future<Output = Result<(), E>>,
    ) -> Result<Answer, E> {
        let Ready {
            call,
            arguments,
            deadline,
        } = ready;
        let cursor = arguments.get("cursor").and_then(Value::as_str).map(str::to_owned);
        let definition = plan.method(method);
        let asked = http.method(&definition.name);
        let request = Outgoing::new(
            http,
            asked,
            definition.pages.as_ref(),
            arguments,
            &idempotency_key(call),
        )
        .map_err(|unfit| {
            Failure::new(Code::InvalidArguments, format!("{}: {unfit}", method.what))
                .remedy("call it with the arguments that its types say")
        })?;
        let places = enter(admitted(plan, method, call)?, method, deadline).await?;
        leaves.await?;
        let exchange = Exchange {
            plan: http,
            method,
            definition,
            asked,
            tasks: &self.tasks,
            deadline,
            may_repeat: definition.access == Access::Read
                || definition.idempotent
                || asked.idempotency_header.is_some(),
            refused: Default::default(),
        };
        match exchange.run(request).await? {
            Received::Flowing { body, media_type } => {
                let held = self.hold(places, deadline);
                Ok(Answer::flowing(media_type, body, held))
            }
            Received::Whole { body, headers, .. } => {
                let text = result(definition, &method.what, &http.base, &body, &headers, cursor.as_deref())?;
                Ok(Answer::json(text))
            }
        }
    }

    /// Every tool that a service of kind `mcp` lists now, as its server describes it: name, description, schemas and hints. It
    /// is what an untrusted party says.
    pub async fn tools(&self, service: &str) -> Result<Vec<Value>, Failure> {
        match self.plans.get(service).map(|plan| &plan.upstream) {
            Some(Upstream::Mcp(server)) => server.tools(Instant::now() + LISTING).await,
            _ => Err(Failure::new(
                Code::UnknownService,
                format!("there is no service of kind mcp {} that can be asked", named(service)),
            )),
        }
    }

    /// Keeps places until what is returned is dropped, and no longer than the deadline: whoever does not read what flows keeps
    /// nobody else from calling.
    fn hold(&self, places: Vec<Place>, deadline: Instant) -> oneshot::Sender<()> {
        let (held, dropped) = oneshot::channel();
        self.tasks.spawn_until_stopped(async move {
            // Either way the places are free then.
            let _ = tokio::time::timeout_at(deadline, dropped).await;
            drop(places);
        });
        held
    }

    /// The plan of a registered method, and of nothing else.
    fn find(&self, service: &str, method: &str) -> Result<(&Plan, &MethodPlan), Failure> {
        let plan = self.plans.get(service).ok_or_else(|| {
            Failure::new(Code::UnknownService, format!("there is no service {}", named(service)))
                .remedy("`services` in exec has those that there are for you, `belljar service list` all of them")
        })?;
        let method = plan.methods.get(method).ok_or_else(|| {
            Failure::new(
                Code::UnknownMethod,
                format!("the service {service} has no method {}", named(method)),
            )
            .remedy(format!(
                "`describe({service:?})` in exec and `belljar service show {service}` say which it has"
            ))
        })?;
        Ok((plan, method))
    }
}

fn caller(call: &Call<'_>) -> Caller {
    Caller {
        user: call.user,
        session: call.session,
    }
}

/// Lets a call wait for what it takes up: of its method, of its service, of what all services share.
fn admitted(plan: &Plan, method: &MethodPlan, call: &Call<'_>) -> Result<Admitted, Failure> {
    let of_all_services = match &plan.upstream {
        Upstream::Script(script) => Some(&*script.running),
        Upstream::Sql(database) => database.files(),
        Upstream::Http(_) | Upstream::Mcp(_) => None,
    };
    let gates = method.gate.iter().chain([&plan.gate]).chain(of_all_services);
    admit(gates, caller(call), &method.what)
}

/// The places that a call takes up, as soon as there are any.
async fn enter(admitted: Admitted, method: &MethodPlan, deadline: Instant) -> Result<Vec<Place>, Failure> {
    let entering = tokio::time::timeout_at(deadline, admitted.enter(&method.what));
    entering.await.unwrap_or_else(|_| {
        Err(Failure::new(
            Code::Timeout,
            format!("{}: other calls took all the time there was", method.what),
        )
        .remedy("make fewer calls at once"))
    })
}

/// The result in an answer, as a JSON text.
fn result(
    definition: &Method,
    what: &str,
    base: &Url,
    body: &Bytes,
    headers: &HeaderMap,
    cursor: Option<&str>,
) -> Result<Bytes, Failure> {
    if definition.answer == Output::Text {
        return Ok(Value::from(String::from_utf8_lossy(body)).to_string().into());
    }
    let malformed = |why: String| {
        Failure::new(
            Code::AnswerMalformed,
            format!("{what}: in the answer of {} {why}", host(base)),
        )
    };
    let json = Json::check(body).map_err(|error| malformed(error.to_string()))?;
    match &definition.pages {
        Some(pages) => pages::page(pages, json, headers, base, cursor)
            .map(Bytes::from)
            .ok_or_else(|| malformed(format!("there is no list at {:?}", pages.items.0))),
        None => json
            .at(&definition.select.0)
            .map(|part| part.of(body))
            .ok_or_else(|| malformed(format!("there is nothing at {:?}", definition.select.0))),
    }
}

/// What an upstream that knows such keys is given: always the same for the same call, and guessable by no other session,
/// since an upstream may answer a known key with what it answered before.
fn idempotency_key(call: &Call<'_>) -> String {
    let Some(key) = call.idempotency_key else {
        return hex::encode(rand::random::<[u8; 16]>());
    };
    let mut hash = Sha256::new();
    for part in [&call.session.to_string(), call.service, call.method, key] {
        hash.update(part.len().to_be_bytes());
        hash.update(part);
    }
    hex::encode(&hash.finalize()[..16])
}

/// A name that nobody checked, as it may be repeated.
fn named(name: &str) -> String {
    format!("{:?}", name.chars().take(80).collect::<String>())
}
