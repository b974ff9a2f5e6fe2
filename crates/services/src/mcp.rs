//! Services of kind `mcp`: the tools of an MCP server, as far as somebody has looked at them.
//!
//! The methods are those of the definition, never those that the server happens to list. What a tool says of itself was
//! approved once and is pinned ([`pin`]); before a method is called, what the server lists now is held against that, at each
//! connection, whenever the server says that its list changed, and every minute. What a model reads are the definition's
//! words: a server's instructions, its descriptions of the hour and its notifications reach nobody.
//!
//! One connection serves all sessions. It is made when it is needed and made anew after it broke. A program has its secret from its
//! beginning: where that is another one now, or gone, the program is ended within a second, with whatever it was doing.

mod confine;
pub(crate) mod pin;
mod program;
pub(crate) mod result;
pub(crate) mod schema;
mod watch;
mod wire;

use std::collections::HashMap;
use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use causes::with_causes;
use lifecycle::Tasks;
use rmcp::RoleClient;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities, ClientConfig, ClientRequest,
    ClientResult, ErrorCode, ErrorData, Implementation, ListToolsRequest, PaginatedRequestParams, ProtocolVersion,
    ServerNotification, ServerRequest, ServerResult, SubscriptionFilter,
};
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, ClientServiceExt, NotificationContext, RequestContext, RunningService,
    Service, ServiceError,
};
use rmcp::transport::streamable_http_client::{
    StreamableHttpClientTransport, StreamableHttpClientTransportConfig, StreamableHttpError,
};
use scrub::Scrub;
use secret::Secret;
use serde_json::{Map, Value};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::credentials::Credentials;
use crate::definition::{Access, Action, Command, Method, Tool};
use crate::refusal::words;
use crate::{Code, Failure, withhold};
use program::{Budget, Program};
use wire::Told;

pub(crate) use wire::{Parts, Wire};

/// How long a list of tools counts where the server does not say that it changed.
const LISTED: Duration = Duration::from_secs(60);
/// How often is asked whether a program's secret is still what it was given.
const WATCHED: Duration = Duration::from_millis(500);
/// The most tools of one server, and pages of their list.
const MAX_TOOLS: usize = 2_000;
const MAX_PAGES: usize = 100;
/// The most bytes of a list of tools.
const LIST_BYTES: usize = 8 << 20;

/// An MCP server, ready to be called.
pub(crate) struct McpPlan {
    service: String,
    way: Way,
    /// The most bytes of one answer.
    bytes: u64,
    state: Mutex<Option<Open>>,
}

/// How the server is reached.
pub(crate) enum Way {
    /// Over HTTP.
    Url(Wire),
    /// As a program.
    Program(Arc<Launch>),
}

/// How a program is started.
pub(crate) struct Launch {
    pub(crate) folder: PathBuf,
    pub(crate) command: Command,
    /// The variable that holds the secret.
    pub(crate) variable: Option<String>,
    pub(crate) credentials: Credentials,
    pub(crate) tasks: Tasks,
}

/// A connection, and what the server lists over it.
struct Open {
    connection: Arc<Connection>,
    tools: Arc<HashMap<String, Listed>>,
    at: Instant,
}

struct Connection {
    running: RunningService<RoleClient, Handler>,
    changed: Arc<AtomicBool>,
    budget: Budget,
    /// What a program was given, and what must not come back.
    secret: Option<Secret>,
    scrub: Scrub,
    program: StdMutex<Option<Program>>,
}

/// A tool as the server lists it now.
enum Listed {
    Once(Value),
    /// Which of them is meant, nobody can say.
    Several,
}

/// What a server may ask of us: nothing.
struct Handler {
    changed: Arc<AtomicBool>,
}

/// A call of a tool.
struct Asked<'a> {
    /// `service.method`
    what: &'a str,
    method: &'a Method,
    tool: &'a Tool,
    arguments: Map<String, Value>,
    answer_bytes: u64,
}

impl McpPlan {
    pub(crate) fn new(service: &str, way: Way, bytes: u64) -> Self {
        Self {
            service: service.to_owned(),
            way,
            bytes,
            state: Mutex::default(),
        }
    }

    /// Calls a tool, if it is what was approved; a JSON text. Where the connection broke before there was an answer, what only
    /// reads, or may be repeated, is asked once more over a new one.
    pub(crate) async fn call(
        &self,
        what: &str,
        method: &Method,
        answer_bytes: u64,
        arguments: Map<String, Value>,
        deadline: Instant,
    ) -> Result<Bytes, Failure> {
        let Action::Mcp(tool) = &method.action else {
            return Err(Failure::new(Code::UnknownMethod, format!("{what} is no tool")));
        };
        let asked = Asked {
            what,
            method,
            tool,
            arguments,
            answer_bytes,
        };
        let may_repeat = method.access == Access::Read || method.idempotent;
        let calling = async {
            match self.attempt(&asked).await {
                Err(failure) if failure.code == Code::AnswerCut && may_repeat => self.attempt(&asked).await,
                ended => ended,
            }
        };
        tokio::time::timeout_at(deadline, calling)
            .await
            .unwrap_or_else(|_| Err(late(what)))
    }

    async fn attempt(&self, asked: &Asked<'_>) -> Result<Bytes, Failure> {
        let (connection, tools) = self.ready(asked.what).await?;
        unchanged(asked.what, &self.service, asked.tool, tools.get(&asked.tool.name))?;
        connection.budget.grant(self.bytes);
        let parameters = CallToolRequestParams::new(asked.tool.name.clone()).with_arguments(asked.arguments.clone());
        let answer = match connection.running.call_tool_once(parameters).await {
            Ok(CallToolResponse::Complete(answer)) => answer,
            Ok(CallToolResponse::InputRequired(_) | CallToolResponse::Task(_)) => {
                return Err(Failure::new(
                    Code::Refused,
                    format!(
                        "{}: the server wants to ask somebody before it answers, and there is nobody",
                        asked.what
                    ),
                ));
            }
            Ok(_) => return Err(self.failed(asked.what, &ServiceError::UnexpectedResponse)),
            Err(error) => return Err(self.failed(asked.what, &error)),
        };
        self.read(asked, &connection.scrub, answer)
    }

    /// The result in an answer: without secrets, and not too much of it.
    fn read(&self, asked: &Asked<'_>, scrub: &Scrub, answer: CallToolResult) -> Result<Bytes, Failure> {
        let clean = |failure: Failure| Failure {
            message: String::from_utf8_lossy(&scrub.clean(failure.message.into())).into_owned(),
            ..failure
        };
        let text = result::result(asked.what, asked.method, answer)
            .map_err(clean)?
            .to_string();
        if text.len() as u64 > asked.answer_bytes {
            return Err(Failure::new(
                Code::AnswerTooLarge,
                format!(
                    "{}: the server answers with {} bytes, and {} are the method's limit",
                    asked.what,
                    text.len(),
                    asked.answer_bytes
                ),
            )
            .remedy("ask for less at once: fewer items, fewer fields, a narrower filter"));
        }
        Ok(withhold::from_json(scrub.clean(text.into())))
    }

    /// Every tool that the server lists now, in its order; those of one name each.
    pub(crate) async fn tools(&self, deadline: Instant) -> Result<Vec<Value>, Failure> {
        let listing = async {
            let connection = self.connect(&self.service).await?;
            self.list(&self.service, &connection).await
        };
        tokio::time::timeout_at(deadline, listing)
            .await
            .unwrap_or_else(|_| Err(late(&self.service)))
    }

    /// A connection, with a list of tools that counts. Who comes while another sees to that waits for it.
    async fn ready(&self, what: &str) -> Result<(Arc<Connection>, Arc<HashMap<String, Listed>>), Failure> {
        let mut state = self.state.lock().await;
        let open = state.take().filter(|open| !open.connection.is_over());
        let secret = match (self.way.secret(), &open) {
            (Err(failure), Some(open)) => {
                open.connection.end();
                return Err(failure);
            }
            (secret, _) => secret?,
        };
        let open = open.filter(|open| {
            let same = open.connection.secret == secret;
            if !same {
                open.connection.end();
            }
            same
        });
        let open = match open {
            Some(open) if !open.connection.changed.load(Ordering::Acquire) && open.at.elapsed() < LISTED => open,
            Some(open) => match self.open(what, Arc::clone(&open.connection)).await {
                // It may have broken since it was last used.
                Err(failure) if failure.code == Code::AnswerCut => self.open(what, self.connect(what).await?).await?,
                opened => opened?,
            },
            None => self.open(what, self.connect(what).await?).await?,
        };
        let ready = (Arc::clone(&open.connection), Arc::clone(&open.tools));
        *state = Some(open);
        Ok(ready)
    }

    async fn open(&self, what: &str, connection: Arc<Connection>) -> Result<Open, Failure> {
        // Before it is asked: a change during the asking counts.
        connection.changed.store(false, Ordering::Release);
        let mut tools = HashMap::new();
        for tool in self.list(what, &connection).await? {
            let name = tool["name"].as_str().unwrap_or_default().to_owned();
            let listed = if tools.contains_key(&name) {
                Listed::Several
            } else {
                Listed::Once(tool)
            };
            tools.insert(name, listed);
        }
        Ok(Open {
            connection,
            tools: Arc::new(tools),
            at: Instant::now(),
        })
    }

    /// A new connection: by the newest protocol, which has no handshake, or by the handshake of those before it.
    async fn connect(&self, what: &str) -> Result<Arc<Connection>, Failure> {
        let newest = ClientLifecycleMode::Auto {
            preferred_versions: vec![ProtocolVersion::LATEST],
            legacy_version: Some(ProtocolVersion::LATEST_WITH_INITIALIZE),
        };
        let connection = match self.attach(what, newest).await? {
            // It knows how to be asked, and speaks an older one all the same.
            Err(ClientInitializeError::NoCompatibleProtocolVersion { .. }) => {
                self.attach(what, ClientLifecycleMode::Initialize).await?
            }
            attached => attached,
        };
        let connection = Arc::new(connection.map_err(|error| self.unconnected(what, &error))?);
        self.listen(&connection).await;
        self.watch(&connection);
        Ok(connection)
    }

    /// Ends a program soon after its secret is another one, or gone, whether anybody calls it or not.
    fn watch(&self, connection: &Arc<Connection>) {
        let Way::Program(launch) = &self.way else { return };
        if connection.secret.is_none() {
            return;
        }
        let (launch, watched) = (Arc::clone(launch), Arc::downgrade(connection));
        launch.tasks.clone().spawn_until_stopped(async move {
            loop {
                tokio::time::sleep(WATCHED).await;
                let Some(connection) = watched.upgrade().filter(|connection| !connection.is_over()) else {
                    return;
                };
                if launch.secret().is_ok_and(|secret| secret == connection.secret) {
                    continue;
                }
                return connection.end();
            }
        });
    }

    /// Connects in one way; an inner error is the protocol's.
    async fn attach(
        &self,
        what: &str,
        lifecycle: ClientLifecycleMode,
    ) -> Result<Result<Connection, ClientInitializeError>, Failure> {
        let changed = Arc::new(AtomicBool::new(false));
        let handler = Handler {
            changed: Arc::clone(&changed),
        };
        let budget = Budget::default();
        let (running, budget, secret, program) = match &self.way {
            Way::Url(wire) => {
                let mut config = StreamableHttpClientTransportConfig::with_uri(wire.0.base.as_str());
                config.max_concurrent_requests = 64;
                let transport = StreamableHttpClientTransport::with_client(wire.clone(), config);
                let running = handler.serve_with_lifecycle(transport, lifecycle).await;
                (running, budget, None, None)
            }
            Way::Program(launch) => {
                let Launch {
                    folder,
                    command,
                    variable,
                    tasks,
                    ..
                } = &**launch;
                let secret = self.way.secret()?;
                let line = usize::try_from(self.bytes)
                    .unwrap_or(usize::MAX)
                    .saturating_add(64 << 10);
                let given = variable.as_deref().zip(secret.as_ref());
                let started = Program::start(&self.service, folder, command, given, line, tasks);
                let (program, pipes, budget) = started.map_err(|error| {
                    Failure::new(
                        Code::Unreachable,
                        format!("{what}: the server's program does not start: {}", with_causes(&error)),
                    )
                    .remedy(format!(
                        "an administrator mends server.command of the service {}",
                        self.service
                    ))
                })?;
                budget.grant(self.bytes);
                let running = handler.serve_with_lifecycle(pipes, lifecycle).await;
                (running, budget, secret, Some(program))
            }
        };
        Ok(running.map(|running| Connection {
            running,
            changed,
            budget,
            scrub: Scrub::of(&secret),
            secret,
            program: StdMutex::new(program),
        }))
    }

    /// Asks a server of the newest protocol to say when its list changes; the older ones say it unasked.
    async fn listen(&self, connection: &Arc<Connection>) {
        let Some(peer) = connection.running.peer_info() else {
            return;
        };
        let tells = peer.capabilities.tools.as_ref().and_then(|tools| tools.list_changed);
        if peer.protocol_version.has_initialize() || tells != Some(true) {
            return;
        }
        let filter = SubscriptionFilter::builder().tools_list_changed().build();
        let Ok(mut subscription) = connection.running.listen(filter).await else {
            // Then it is asked every minute.
            return;
        };
        let changed = Arc::clone(&connection.changed);
        let tasks = match &self.way {
            Way::Url(wire) => &wire.0.tasks,
            Way::Program(launch) => &launch.tasks,
        };
        tasks.spawn_until_stopped(async move {
            while let Ok(Some(_)) = subscription.next().await {
                changed.store(true, Ordering::Release);
            }
            // What happened after the end is not known.
            changed.store(true, Ordering::Release);
        });
    }

    /// Every tool, as the server describes it. The answers are never taken from a cache: a server could name a day as the
    /// time for which its words count.
    async fn list(&self, what: &str, connection: &Connection) -> Result<Vec<Value>, Failure> {
        let endless = || {
            Failure::new(
                Code::AnswerTooLarge,
                format!("{what}: the server's list of tools has no end"),
            )
            .remedy("the server's owner has to mend it")
        };
        let (mut tools, mut bytes) = (Vec::new(), 0);
        let mut cursor = None;
        for _ in 0..MAX_PAGES {
            connection.budget.grant(self.bytes);
            let parameters = PaginatedRequestParams::default().with_cursor(cursor);
            let request = ListToolsRequest {
                method: Default::default(),
                params: Some(parameters),
                extensions: Default::default(),
            };
            let listed = match connection
                .running
                .send_request(ClientRequest::ListToolsRequest(request))
                .await
            {
                Ok(ServerResult::ListToolsResult(listed)) => listed,
                Ok(_) => return Err(self.failed(what, &ServiceError::UnexpectedResponse)),
                Err(error) => return Err(self.failed(what, &error)),
            };
            for tool in listed.tools {
                let tool = serde_json::to_value(tool).unwrap_or_default();
                bytes += tool.to_string().len();
                tools.push(tool);
            }
            if tools.len() > MAX_TOOLS || bytes > LIST_BYTES {
                return Err(endless());
            }
            cursor = listed.next_cursor;
            if cursor.is_none() {
                return Ok(tools);
            }
        }
        Err(endless())
    }

    fn unconnected(&self, what: &str, error: &ClientInitializeError) -> Failure {
        if let ClientInitializeError::TransportError { error, .. } = error
            && let Some(failure) = told(error.error.as_ref())
        {
            return failure.clone();
        }
        if let ClientInitializeError::LegacyFallbackFailed { fallback, .. } = error {
            return self.unconnected(what, fallback);
        }
        let (code, why) = match error {
            ClientInitializeError::ConnectionClosed(_) | ClientInitializeError::TransportError { .. } => (
                Code::Unreachable,
                match self.way {
                    Way::Url(_) => "the server ends the connection".to_owned(),
                    Way::Program(_) => "the server's program ends before it answers; the log has its words".to_owned(),
                },
            ),
            ClientInitializeError::NoCompatibleProtocolVersion { .. } => (
                Code::AnswerMalformed,
                "the server speaks no version of the protocol that Belljar does".to_owned(),
            ),
            ClientInitializeError::JsonRpcError(error) => (
                Code::UpstreamFailed,
                format!(
                    "the server refuses the connection ({}): {}",
                    error.code.0,
                    words(error.message.as_ref().into())
                ),
            ),
            _ => (
                Code::AnswerMalformed,
                "the server does not speak the Model Context Protocol".to_owned(),
            ),
        };
        Failure::new(code, format!("{what}: {why}"))
    }

    fn failed(&self, what: &str, error: &ServiceError) -> Failure {
        let (code, why) = match error {
            ServiceError::TransportSend(error) => match told(error.error.as_ref()) {
                Some(failure) => return failure.clone(),
                None => (Code::AnswerCut, "the connection to the server broke".to_owned()),
            },
            ServiceError::TransportClosed | ServiceError::Cancelled { .. } => (
                Code::AnswerCut,
                "the server ended the connection before it answered".to_owned(),
            ),
            ServiceError::McpError(error) => {
                if let (wire::BROKEN, Way::Url(wire)) = (error.code, &self.way)
                    && let Some(failure) = wire.why(&error.message)
                {
                    return failure;
                }
                let code = match error.code {
                    ErrorCode::INVALID_PARAMS | ErrorCode::INVALID_REQUEST | ErrorCode::METHOD_NOT_FOUND => {
                        Code::Refused
                    }
                    _ => Code::UpstreamFailed,
                };
                let said = words(error.message.as_ref().into());
                (code, format!("the server refuses ({}): {said}", error.code.0))
            }
            _ => (
                Code::AnswerMalformed,
                "the server's answer is none to what was asked".to_owned(),
            ),
        };
        Failure::new(code, format!("{what}: {why}"))
    }
}

impl Way {
    /// What a program is given, as it is now.
    fn secret(&self) -> Result<Option<Secret>, Failure> {
        match self {
            Self::Program(launch) => launch.secret(),
            Self::Url(_) => Ok(None),
        }
    }
}

impl Launch {
    fn secret(&self) -> Result<Option<Secret>, Failure> {
        self.variable.as_ref().map(|_| self.credentials.token()).transpose()
    }
}

impl Connection {
    /// Ends the program, also for those who wait for an answer of it.
    fn end(&self) {
        let program = self.program.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(program);
    }

    fn is_over(&self) -> bool {
        let has_ended = || {
            let program = self.program.lock().unwrap_or_else(PoisonError::into_inner);
            self.secret.is_some() && program.is_none()
        };
        has_ended() || self.running.is_closed() || self.running.is_transport_closed()
    }
}

/// Whether what is listed is what was approved.
fn unchanged(what: &str, service: &str, tool: &Tool, listed: Option<&Listed>) -> Result<(), Failure> {
    let changed = match listed {
        Some(Listed::Once(now)) if pin::pin(now) == tool.pin => return Ok(()),
        Some(Listed::Once(now)) => format!(
            "the server describes the tool otherwise than when it was approved: {} changed",
            pin::changes(&tool.approved, &pin::approved(now)).join(" and ")
        ),
        Some(Listed::Several) => "the server has two tools of its name, and nobody knows which was approved".to_owned(),
        None => "the server does not have the tool any more".to_owned(),
    };
    Err(
        Failure::new(Code::SchemaChanged, format!("{what}: {changed}")).remedy(format!(
            "an administrator looks at it with `belljar service approve {service}`, and approves it there"
        )),
    )
}

fn late(what: &str) -> Failure {
    Failure::new(Code::Timeout, format!("{what}: the server did not answer in time"))
}

/// The failure that an error of the transport carries.
fn told<'e>(error: &'e (dyn Error + Send + Sync + 'static)) -> Option<&'e Failure> {
    let mut cause: Option<&'e (dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(StreamableHttpError::Client(Told(failure))) = error.downcast_ref::<StreamableHttpError<Told>>() {
            return Some(failure);
        }
        if let Some(Told(failure)) = error.downcast_ref::<Told>() {
            return Some(failure);
        }
        cause = error.source();
    }
    None
}

impl Service<RoleClient> for Handler {
    async fn handle_request(
        &self,
        request: ServerRequest,
        _: RequestContext<RoleClient>,
    ) -> Result<ClientResult, ErrorData> {
        match request {
            ServerRequest::PingRequest(_) => Ok(ClientResult::empty(())),
            // Questions to a model or a person, and where files are.
            _ => Err(ErrorData::new(
                ErrorCode::METHOD_NOT_FOUND,
                "this client answers no questions",
                None,
            )),
        }
    }

    async fn handle_notification(
        &self,
        notification: ServerNotification,
        _: NotificationContext<RoleClient>,
    ) -> Result<(), ErrorData> {
        if matches!(notification, ServerNotification::ToolListChangedNotification(_)) {
            self.changed.store(true, Ordering::Release);
        }
        Ok(())
    }

    fn get_info(&self) -> ClientConfig {
        ClientConfig::new(
            ClientCapabilities::default(),
            Implementation::new("belljar", env!("CARGO_PKG_VERSION")),
        )
    }
}
