//! Calls of services: decided by the policy, made by the services, written down with what came of them, and never with what
//! was handed in or came back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use causes::with_causes;
use domain::{ApprovalId, ApprovalKind, ApprovalState, Event, RunId, ToolCallId};
use futures::stream::StreamExt;
use link::server::ServiceAnswer;
use policy::{Decision, Outcome};
use protocol::{MethodGrant, ServiceFailure, ServiceGrant, ServiceRequest};
use secret::Secret;
use serde_json::{Value, json};
use services::{Call, Catalogue, Failure, Media, PRELUDE, Services};
use store::{Asker, AuditEntry, NotMade, StoreError, WriteEnd};

use crate::Control;
use crate::approvals::{ACCESS_SERVICE, AskError, Waiting, Wanted, denied_words, with_approved};
use crate::attempts::{self, Target};
use crate::live::{Active, Live, lock};

mod writes;

/// How long the link waits for a call's answer, and what is left of a limit when a waiting call answers that it waits.
const LINK_WAITS: Duration = Duration::from_secs(600);
const MARGIN: Duration = Duration::from_secs(15);
/// The longest name of a service or method that is written down.
const LONGEST_NAME: usize = 100;

/// The services of an installation.
#[derive(Clone)]
pub struct Callable {
    catalogue: Arc<Catalogue>,
    services: Services,
}

impl Callable {
    /// Services that can be called, with what is said of them.
    #[must_use]
    pub const fn new(catalogue: Arc<Catalogue>, services: Services) -> Self {
        Self { catalogue, services }
    }

    /// Whether a method can be called.
    pub(crate) fn has(&self, service: &str, method: &str) -> bool {
        self.services.has(service, method)
    }

    /// Those of which some method is allowed, and can be called.
    pub(crate) fn within(&self, allowed: impl Fn(&str, &str) -> bool) -> Vec<ServiceGrant> {
        let grant = |service: &Arc<services::Service>| {
            let shown = |method: &str| self.services.has(&service.name, method) && allowed(&service.name, method);
            let tools = service.methods.values().filter(|method| shown(&method.name));
            Some(ServiceGrant {
                tools: tools.map(tool).collect(),
                types: format!("{PRELUDE}{}", service.types(shown)?),
                name: service.name.clone(),
                summary: service.summary.clone(),
                methods: service.methods.keys().filter(|method| shown(method)).cloned().collect(),
            })
        };
        self.catalogue.services().filter_map(grant).collect()
    }
}

/// A method as programs are told of it that know tools and no TypeScript.
fn tool(method: &services::Method) -> MethodGrant {
    MethodGrant {
        name: method.name.clone(),
        summary: method.summary.clone(),
        read_only: method.access == services::Access::Read,
        arguments: method.arguments.value().clone(),
    }
}

/// What a call came to, as far as it is known; written down when this is dropped.
struct Span {
    control: Control,
    live: Arc<Live>,
    run: Option<RunId>,
    call: Option<ToolCallId>,
    service: String,
    method: String,
    decision: Decision,
    /// What a person approved, where one was asked.
    approval: Option<ApprovalId>,
    began: Instant,
    status: u16,
    code: Option<String>,
    bytes: u64,
    /// What may be told of the arguments.
    arguments: Value,
    /// The write that it is, where it was begun and is not settled.
    write: Option<writes::Begun>,
    /// It is not worth writing down.
    forgotten: bool,
}

impl Span {
    fn fail(&mut self, failure: &ServiceFailure) {
        self.status = failure.status;
        self.code = Some(failure.code.clone());
    }

    fn trace(&self) {
        let Some(active) = self.live.active().filter(|active| Some(active.run) == self.run) else {
            return;
        };
        let place = active.call_place(self.call.as_ref()).any_beneath();
        let took = self.began.elapsed();
        // What is denied may be called anything.
        let allowed = self.decision.is_allowed();
        let name = |name: &str| telemetry::Value::from(if allowed { name } else { "denied" });
        let about = [
            ("rpc.service", name(&self.service)),
            ("rpc.method", name(&self.method)),
            ("http.response.status_code", i64::from(self.status).into()),
        ];
        let traces = &self.control.0.traces;
        traces.was("service", place, (took, took), self.code.as_deref(), about);
    }

    fn micros(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// What the audit log has of it; of a write with its key, so that its entries are found beside each other.
    fn entry(&self, action: &str, key: Option<&str>) -> AuditEntry {
        let decision = &self.decision;
        let mut detail = json!({
            "call": self.call,
            "method": self.method,
            "arguments": self.arguments,
            "approval": self.approval,
        });
        if let Some(key) = key {
            detail["key"] = shown(key).into();
        }
        let mut entry = AuditEntry::about(action, self.live.session, Value::Null)
            .of(self.live.session, self.run)
            .decided(decision.outcome.as_str(), &decision.layer, &decision.rule);
        if action != writes::BEGUN {
            detail["status"] = self.status.into();
            detail["code"] = self.code.clone().into();
            entry = entry.carried(self.bytes, Duration::from_micros(self.micros()));
        }
        entry.detail = detail;
        entry.facts.service = Some(self.service.clone());
        entry
    }

    /// What watchers see of it.
    fn event(&self) -> Event {
        Event::ServiceCalled {
            run: self.run,
            call: self.call.clone(),
            service: self.service.clone(),
            method: self.method.clone(),
            outcome: self.decision.outcome.as_str().to_owned(),
            status: self.status,
            code: self.code.clone(),
            micros: self.micros(),
            bytes: self.bytes,
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if self.forgotten {
            return;
        }
        self.trace();
        if let Some(write) = self.write.take() {
            if let Some(failure) = write.unsaid().filter(|_| self.code.is_none()) {
                self.fail(&failure);
            }
            let settled = self.settled(write);
            self.control.0.tasks.spawn(settled);
            return;
        }
        let action = if self.decision.is_allowed() {
            "service.called"
        } else {
            "service.denied"
        };
        let (entry, event) = (self.entry(action, None), self.event());
        let (control, live) = (self.control.clone(), Arc::clone(&self.live));
        self.control.0.tasks.spawn(async move {
            let store = &control.0.store;
            if let Err(error) = store.audit(Asker::Session(live.session), vec![entry]).await {
                tracing::error!(session = %live.session, error = with_causes(&error), "could not audit a call of a service");
            }
            control.record(&live, vec![event]).await;
        });
    }
}

impl Control {
    /// Whether a token is that of a session at work, so that its bearer may be told what is wrong with a request.
    pub async fn knows_session(&self, token: &Secret) -> bool {
        self.bearer(token).await.is_some()
    }

    /// Calls a method of a service for whoever shows a session's token.
    ///
    /// # Errors
    /// The token is no living session's; the session may not; there is no such method; it failed.
    pub async fn proxy(&self, token: &Secret, request: ServiceRequest) -> Result<ServiceAnswer, ServiceFailure> {
        let live = self.bearer(token).await;
        let Some(live) = live.filter(|live| live.seat.is_taken()) else {
            let words = "the token is no living session's, or no longer good";
            return Err(ServiceFailure::new(401, "unauthorized", words)
                .remedy("services are called with the token of a session whose sandbox runs"));
        };
        self.call_service(&live, request).await
    }

    /// Calls a method of a service for a session.
    pub(crate) async fn call_service(
        &self,
        live: &Arc<Live>,
        request: ServiceRequest,
    ) -> Result<ServiceAnswer, ServiceFailure> {
        let ServiceRequest {
            service,
            method,
            args,
            call,
            idempotency_key,
        } = request;
        let layers = self.layers(live).await.map_err(|error| {
            tracing::warn!(session = %live.session, error = with_causes(&error), "nothing is known of a session's rights");
            ServiceFailure::new(503, "unavailable", "what this session may do cannot be read at present")
        })?;
        // Whoever may not run code has nothing to call services with.
        let code = layers.tool("exec");
        if service == ACCESS_SERVICE && code.outcome != Outcome::Deny {
            return self.request_access(live, &layers, &method, args).await;
        }
        let decision = match code.outcome {
            Outcome::Deny => code,
            Outcome::Allow | Outcome::Ask => layers.service(&service, &method),
        };
        let (decision, approval) = {
            let (rights, subject) = (lock(&live.rights), format!("{service}.{method}"));
            with_approved(rights.approved(), ApprovalKind::Service, &subject, decision)
        };
        let active = live.active();
        let names_a_call = call.is_some();
        let known = |call: &ToolCallId| {
            active
                .as_ref()
                .is_some_and(|active| lock(&active.calls).contains_key(call))
        };
        let mut span = Span {
            control: self.clone(),
            live: Arc::clone(live),
            run: active.as_ref().map(|active| active.run),
            call: call.filter(known),
            service: shown(&service),
            method: shown(&method),
            decision,
            approval,
            began: Instant::now(),
            status: 200,
            code: None,
            bytes: 0,
            arguments: self.audited(&service, &method, &args),
            write: None,
            forgotten: false,
        };
        if span.decision.outcome == Outcome::Deny {
            let failure = refusal(&span.decision, &span.service, &span.method);
            return Err(self.went_nowhere(span, failure).await);
        }
        let callable = self.0.services.as_ref();
        let key = idempotency_key.as_deref();
        let write = match callable.map(|callable| callable.write_of(&span, (&service, &method, &args), key)) {
            Some(Ok(write)) => write.filter(|_| !live.is_own()),
            Some(Err(failure)) => return Err(self.went_nowhere(span, failure).await),
            None => None,
        };
        if write.is_some() && names_a_call && span.call.is_none() {
            return match span.run {
                Some(_) => self.not_made(span, NotMade::CallOver).await,
                None => Err(self.went_nowhere(span, no_run()).await),
            };
        }
        if span.decision.outcome == Outcome::Ask {
            // What was done is not asked about again.
            if let Some(write) = write.as_ref().filter(|_| key.is_some())
                && let Some(earlier) = self.earlier(write).await.inspect_err(|failure| span.fail(failure))?
            {
                return self.not_made(span, earlier).await;
            }
            match self
                .await_approval(live, active.as_ref(), &span, &service, &method, &args)
                .await
            {
                Ok(approval) => {
                    span.approval = Some(approval);
                    span.decision.outcome = Outcome::Allow;
                    // How long people take is not how long the call took.
                    span.began = Instant::now();
                }
                Err(failure) => return Err(self.went_nowhere(span, failure).await),
            }
        }
        let (Some(callable), Ok(arguments)) = (callable, serde_json::value::to_raw_value(&args)) else {
            let failure = unknown(&span.service, &span.method);
            return Err(self.went_nowhere(span, failure).await);
        };
        if let Some(write) = write {
            return self.make_write(callable.clone(), span, write, arguments).await;
        }
        let key = key.map(|key| writes::sent_key(span.run, key));
        let call = Call {
            session: live.session,
            user: live.owner,
            service: &service,
            method: &method,
            arguments: &arguments,
            idempotency_key: key.as_deref(),
        };
        match callable.services.call(call).await {
            Ok(answer) => Ok(counted(answer, span)),
            Err(failure) => self.failed(span, &failure).await,
        }
    }

    /// A call that failed without having been begun as a write.
    async fn failed(&self, mut span: Span, failure: &Failure) -> Result<ServiceAnswer, ServiceFailure> {
        let is_local = failure.code.is_local();
        let failure = failed(failure);
        if is_local {
            return Err(self.went_nowhere(span, failure).await);
        }
        span.fail(&failure);
        Err(failure)
    }

    /// What the audit is told of a call's arguments, as the method's definition wants it.
    fn audited(&self, service: &str, method: &str, arguments: &Value) -> Value {
        self.schema(service, method)
            .map_or(Value::Null, |schema| schema.audited(arguments))
    }

    /// What a person is shown of a call's arguments, as the method's definition wants it.
    fn shown_to_people(&self, service: &str, method: &str, arguments: &Value) -> Value {
        self.schema(service, method)
            .map_or(Value::Null, |schema| schema.shown(arguments))
    }

    fn schema(&self, service: &str, method: &str) -> Option<&services::Schema> {
        let service = self.0.services.as_ref()?.catalogue.service(service)?;
        service.methods.get(method).map(|method| &method.arguments)
    }

    /// A call that went nowhere is written down the first time in a while: nobody fills the books with them.
    async fn went_nowhere(&self, mut span: Span, failure: ServiceFailure) -> ServiceFailure {
        span.fail(&failure);
        self.in_vain(&mut span).await;
        failure
    }

    /// The same, of a span that says what it came to.
    async fn in_vain(&self, span: &mut Span) {
        let target = Target::new(&format!("{}.{}", span.service, span.method), span.status, "service");
        let session = span.live.session;
        span.forgotten = !self.0.attempts.is_news(session, &target);
        if !self.0.attempts.is_prompt(session) {
            tokio::time::sleep(attempts::WAITS).await;
        }
    }
}

fn media_type(answer: &services::Answer) -> String {
    match answer.media() {
        Media::Json => "application/json".to_owned(),
        Media::Bytes(media_type) => media_type.clone(),
    }
}

/// An answer whose bytes come. What came of the call is written down when they have been read, or nobody wants them.
fn counted(answer: services::Answer, mut span: Span) -> ServiceAnswer {
    let (media_type, length) = (media_type(&answer), answer.length());
    let body = answer
        .into_stream()
        .map(move |piece| match piece {
            Ok(bytes) => {
                span.bytes += bytes.len() as u64;
                Ok(bytes)
            }
            Err(failure) => {
                span.fail(&failed(&failure));
                let code = failure.code.as_str().to_owned();
                span.ended(WriteEnd::Unknown { code });
                Err(std::io::Error::other(failure.message))
            }
        })
        .boxed();
    ServiceAnswer {
        media_type,
        length,
        body,
    }
}

impl Control {
    /// Waits until a person has approved a call, as long as whoever made it is there; what they approve once is used up by this.
    async fn await_approval(
        &self,
        live: &Arc<Live>,
        active: Option<&Arc<Active>>,
        span: &Span,
        service: &str,
        method: &str,
        arguments: &Value,
    ) -> Result<ApprovalId, ServiceFailure> {
        let subject = format!("{service}.{method}");
        self.check_call(live, span, service, method, arguments)?;
        let active = active.filter(|active| !active.over.is_cancelled());
        let until = active.map(|active| active.waits.replied() + patience(active.limits.tool()));
        loop {
            let wanted = Wanted {
                kind: ApprovalKind::Service,
                subject: subject.clone(),
                proposal: false,
                call: span.call.clone(),
                request: json!({
                    "session": live.session,
                    "kind": ApprovalKind::Service,
                    "service": service,
                    "method": method,
                    // What is secret stands here as its digest: the hash of this is still of these arguments alone.
                    "arguments": self.shown_to_people(service, method, arguments),
                }),
                decision: span.decision.clone(),
            };
            let asked = self
                .ask(live, active.map(Arc::as_ref), wanted)
                .await
                .map_err(not_asked)?;
            let approval = match (active, until) {
                (Some(active), Some(until))
                    if asked.state == ApprovalState::Pending && until > tokio::time::Instant::now() =>
                {
                    let _waiting = Waiting::begin(self, live, active).await;
                    tokio::select! {
                        biased;
                        () = active.over.cancelled() => return Err(withdrawn(&subject)),
                        approval = self.answered(asked.id, Some(until)) => approval.map_err(unread)?,
                    }
                }
                _ => asked,
            };
            let denied = |code| ServiceFailure::new(403, code, denied_words(&approval, &subject));
            match approval.state {
                ApprovalState::ApprovedAlways => return Ok(approval.id),
                ApprovalState::ApprovedOnce => {
                    let used = self.0.store.use_approval(Asker::System, approval.id).await;
                    if used.map_err(unread)? {
                        return Ok(approval.id);
                    }
                }
                // That once was for an equal call beside this one, which is asked for by itself.
                ApprovalState::Used => {}
                ApprovalState::Denied => return Err(denied("denied").remedy("do without, or ask them why")),
                ApprovalState::Expired => return Err(denied("approval_expired")),
                ApprovalState::Withdrawn => return Err(withdrawn(&subject)),
                ApprovalState::Pending => {
                    if let Some(active) = active {
                        active.waits.ask(true);
                    }
                    let words = format!(
                        "{subject} waits for a person to approve it ({}): {}",
                        approval.id, approval.why
                    );
                    return Err(ServiceFailure::new(403, "approval_pending", words).remedy(
                        "end this code, and then make the same call again with the same arguments: a person will have answered",
                    ));
                }
            }
        }
    }

    /// Nobody is asked about a call that cannot be made.
    fn check_call(
        &self,
        live: &Live,
        span: &Span,
        service: &str,
        method: &str,
        arguments: &Value,
    ) -> Result<(), ServiceFailure> {
        let no_such = || unknown(&span.service, &span.method);
        let callable = self.0.services.as_ref().ok_or_else(no_such)?;
        let arguments = serde_json::value::to_raw_value(arguments).map_err(|_| no_such())?;
        let call = Call {
            session: live.session,
            user: live.owner,
            service,
            method,
            arguments: &arguments,
            idempotency_key: None,
        };
        callable.services.check(&call).map_err(|failure| failed(&failure))
    }
}

/// How long a call waits for a person before it answers that it waits: the tool that it is made in is not to be stopped for
/// it, nor the request on the link.
fn patience(tool: Duration) -> Duration {
    let longest = tool.min(LINK_WAITS);
    longest.saturating_sub((longest / 10).min(MARGIN))
}

fn not_asked(error: AskError) -> ServiceFailure {
    let (status, code) = match error {
        AskError::TooLong(_) => (413, "too_large"),
        AskError::TooMany(_) => (429, "too_many_questions"),
        AskError::Store(_) => (503, "unavailable"),
    };
    ServiceFailure::new(status, code, error.to_string())
}

fn unread(error: StoreError) -> ServiceFailure {
    tracing::error!(error = with_causes(&error), "could not read an approval");
    ServiceFailure::new(503, "unavailable", "approvals cannot be read at the moment")
}

fn withdrawn(subject: &str) -> ServiceFailure {
    let words = format!("the question whether {subject} may be called was withdrawn: its run has ended");
    ServiceFailure::new(409, "stale", words)
}

/// A name as an untrusted party wrote it, made fit to be shown.
fn shown(name: &str) -> String {
    name.chars()
        .take(LONGEST_NAME)
        .map(|letter| if letter.is_control() { '\u{fffd}' } else { letter })
        .collect()
}

fn refusal(decision: &Decision, service: &str, method: &str) -> ServiceFailure {
    if decision.rule == "services.no_name" {
        return unknown(service, method);
    }
    ServiceFailure::new(
        403,
        "denied",
        format!("{service}.{method} is denied: {}", decision.reason),
    )
    .remedy("services.belljar.requestAccess({ service, reason }) asks an admin for it; or do without")
}

fn unknown(service: &str, method: &str) -> ServiceFailure {
    let words = format!("there is no method {service}.{method}");
    ServiceFailure::new(404, "unknown_method", words).remedy("call one of those that the session's types show")
}

/// Of a write that names a tool call while no run is under way: it may be one that is taken up again in a moment.
fn no_run() -> ServiceFailure {
    let words = "the call was not made: it names a tool call, and no run is under way that this could belong to";
    ServiceFailure::new(503, "unavailable", words).remedy("make it again in a moment")
}

fn failed(failure: &Failure) -> ServiceFailure {
    let seconds = |delay: Duration| u32::try_from(delay.as_millis().div_ceil(1_000)).unwrap_or(u32::MAX);
    ServiceFailure {
        remedy: failure.remedy.clone(),
        retry_after: failure.retry_after.map(seconds),
        ..ServiceFailure::new(failure.status(), failure.code.as_str(), failure.message.clone())
    }
}
