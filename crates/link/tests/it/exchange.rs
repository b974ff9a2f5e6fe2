//! An exchange that has in it everything that the two ends of a link say to each other: what each of them does, in order, and
//! what it is to hear. Neither does anything before the link has told it to.

use std::collections::BTreeMap;
use std::sync::Mutex;

use async_trait::async_trait;
use bytes::Bytes;
use domain::{RunLimits, SandboxId, SessionId, ToolCall, ToolCallId, ToolResult};
use futures::stream::{self, BoxStream, StreamExt};
use http::HeaderValue;
use link::client::{Client, ClientError, ServiceResult};
use link::server::{Carrier, Connection, LinkError, LinkHandler, Linked, Outfit, ServiceAnswer};
use protocol::{
    Denial, FileEntry, FileKind, Grants, ModelRequest, ModelRoute, PLACEHOLDER, Refusal, RefusalCode, ServiceFailure,
    ServiceRequest, Start, ToControl, ToRuntime, Transfer, TurnReply, TurnRequest,
};
use secret::Secret;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::rig::within;

const SESSION: &str = "0197f0a0-0000-7000-8000-000000000001";
const OTHER_SESSION: &str = "0197f0a0-0000-7000-8000-000000000002";
const RUN: &str = "0197f0a0-0000-7000-8000-000000000003";
const MESSAGE: &str = "0197f0a0-0000-7000-8000-000000000004";

fn of<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn start() -> Start {
    let grants = grants();
    of(json!({
        "run": RUN, "epoch": 3, "turn": 1, "tools": ["exec", "read"], "limits": RunLimits::default(), "grants": grants,
        "traced": true,
    }))
}

fn grants() -> Grants {
    of(json!({
        "services": [{
            "name": "crm", "summary": "Customers", "methods": ["echo"], "types": "declare const crm: unknown;",
            "tools": [{"name": "echo", "summary": "Says it again", "read_only": true, "arguments": {"type": "object"}}],
        }],
        "models": ["small"],
        "skills": ["reports"],
        "background_seconds": 600,
    }))
}

fn outfit() -> Outfit {
    Outfit {
        environment: BTreeMap::from([("KEY".to_owned(), PLACEHOLDER.to_owned())]),
        authorities: "-----BEGIN CERTIFICATE-----\n".to_owned(),
        known_hosts: "* ssh-ed25519 AAAA\n".to_owned(),
        filled: true,
        woken: false,
    }
}

fn calls() -> [ToolCall; 2] {
    ["c1", "c2"].map(|id| ToolCall {
        id: ToolCallId(id.to_owned()),
        name: "exec".to_owned(),
        input: json!({"code": format!("return {id}")}),
    })
}

fn results() -> [ToolResult; 2] {
    [
        ToolResult::text(ToolCallId("c1".to_owned()), "it is done"),
        ToolResult::error(ToolCallId("c2".to_owned()), "it is not"),
    ]
}

fn entries() -> Vec<FileEntry> {
    let entry = |path: &str, kind| FileEntry {
        path: path.to_owned(),
        kind,
        bytes: 7,
        changed: 1_764_000_000_000,
    };
    vec![
        entry("out", FileKind::Folder),
        entry("out/data.csv", FileKind::File),
        entry("out/latest", FileKind::Link),
        entry("out/pipe", FileKind::Special),
    ]
}

/// What the control plane orders, and what it is to hear from the runtime. `filled`, `traced` and programs in the background are
/// for a runtime that knows of them.
pub(crate) async fn control_plane(linked: &Linked, events: &mut mpsc::Receiver<ToControl>) {
    within(linked.connected()).await;
    let token = Secret::new("first");
    let Outfit {
        authorities,
        known_hosts,
        ..
    } = outfit();
    linked.trust(authorities, known_hosts).await.unwrap();
    within(linked.claim(of(json!(SESSION)), &token, outfit()))
        .await
        .unwrap();
    let refused = within(linked.claim(of(json!(OTHER_SESSION)), &token, Outfit::default()))
        .await
        .unwrap_err();
    assert!(
        matches!(&refused, LinkError::Failed { reason, .. } if reason == "this sandbox belongs to another session"),
        "{refused}"
    );
    linked.token(&Secret::new("second")).await.unwrap();

    linked.start(start()).await.unwrap();
    let ended = ToControl::LoopEnded {
        run: of(json!(RUN)),
        epoch: domain::Epoch(3),
        failure: Some("the run was taken over".to_owned()),
    };
    assert_eq!(within(events.recv()).await, Some(ended));

    linked.prepare(true, grants()).await.unwrap();
    assert_eq!(within(events.recv()).await, Some(ToControl::HandsReplaced));
    for (call, result) in calls().into_iter().zip(results()) {
        let progress = ToControl::Progress {
            call: call.id.clone(),
            text: "half".to_owned(),
        };
        let answered = within(linked.call(call, RunLimits::default())).await.unwrap();
        assert_eq!(answered, result);
        assert_eq!(within(events.recv()).await, Some(progress));
    }
    linked.prepare(false, Grants::default()).await.unwrap();

    let source = stream::iter([Ok(Bytes::from_static(b"one ")), Ok(Bytes::from_static(b"two"))]).boxed();
    within(linked.write_file("in/data.txt", source)).await.unwrap();
    let mut file = within(linked.read_file("out/data.csv")).await.unwrap();
    let mut bytes = Vec::new();
    while let Some(piece) = within(file.chunk()).await.unwrap() {
        bytes.extend_from_slice(&piece);
    }
    drop(file);
    assert_eq!(bytes, b"a,b\n1,2\n");
    let missing = within(linked.read_file("nothing")).await.unwrap_err();
    assert!(
        matches!(&missing, LinkError::Failed { reason, .. } if reason == "there is no such file"),
        "{missing}"
    );
    assert_eq!(within(linked.list_files("out")).await.unwrap(), entries());
    within(linked.stop()).await.unwrap();
    within(linked.stop_all()).await.unwrap();
}

/// What the control plane answers.
pub(crate) struct Answers {
    events: mpsc::Sender<ToControl>,
    seen: Mutex<Vec<String>>,
}

impl Answers {
    pub(crate) fn new() -> (Self, mpsc::Receiver<ToControl>) {
        let (events, heard) = mpsc::channel(64);
        let seen = Mutex::default();
        (Self { events, seen }, heard)
    }

    /// What was asked, as the control plane understood it.
    pub(crate) fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }

    /// Everything that [`runtime`] asks.
    pub(crate) const SEEN: [&str; 12] = [
        "turn 1 Auto 0",
        "resolve good.test",
        "resolve bad.test",
        "connect good.test 5432",
        "connect 2001:db8::7 22",
        "service crm.echo {\"limit\":3} c1 c1-1",
        "service crm.limited null - -",
        "model messages [context-1m] {\"model\":\"small\"}",
        "model responses [] {}",
        "turn 2 None 2",
        "turn 3 Required 0",
        "turn 4 Auto 0",
    ];

    fn see(&self, token: &Secret, what: String) -> Result<(), Refusal> {
        if token.expose() != "second" {
            return Err(Refusal::new(RefusalCode::Unauthorized, "this token opens nothing here"));
        }
        self.seen.lock().unwrap().push(what);
        Ok(())
    }
}

fn answer(media_type: &str, length: Option<u64>, pieces: &[&'static str]) -> ServiceAnswer {
    let pieces: Vec<_> = pieces
        .iter()
        .map(|piece| Ok(Bytes::from_static(piece.as_bytes())))
        .collect();
    ServiceAnswer {
        media_type: media_type.to_owned(),
        length,
        body: stream::iter(pieces).boxed(),
    }
}

fn limited() -> ServiceFailure {
    ServiceFailure {
        retry_after: Some(7),
        ..ServiceFailure::new(429, "rate_limited", "crm takes 10 calls a second").remedy("wait a little")
    }
}

fn denied() -> Refusal {
    let denial = Denial {
        reason: "no_rule".to_owned(),
        rule: Some("egress.1".to_owned()),
        remedy: Some("ask an admin for it".to_owned()),
    };
    Refusal::denied("no rule allows it", denial)
}

#[async_trait]
impl LinkHandler for Answers {
    async fn invoke_llm(&self, _: SandboxId, token: &Secret, request: TurnRequest) -> Result<TurnReply, Refusal> {
        let results = request.results.len();
        self.see(
            token,
            format!("turn {} {:?} {results}", request.turn, request.tool_choice),
        )?;
        if !request.results.is_empty() {
            assert_eq!(request.results, results_of_the_loop());
        }
        match request.turn {
            1 => Ok(of(json!({"message": MESSAGE, "calls": calls(), "stop": "tool_use"}))),
            2 => Ok(of(json!({"message": MESSAGE, "calls": [], "stop": "end_turn"}))),
            3 => Err(Refusal::new(RefusalCode::Unavailable, "the control plane is starting")),
            _ => Err(Refusal::new(RefusalCode::Stale, "the run was taken over")),
        }
    }

    async fn connect(&self, _: SandboxId, token: &Secret, host: &str, port: u16) -> Result<Box<dyn Carrier>, Refusal> {
        self.see(token, format!("connect {host} {port}"))?;
        if host == "good.test" {
            return Ok(Box::new(Replies));
        }
        Err(denied())
    }

    async fn resolve(&self, _: SandboxId, token: &Secret, name: &str) -> Result<Option<u32>, Refusal> {
        self.see(token, format!("resolve {name}"))?;
        if name == "good.test" { Ok(None) } else { Err(denied()) }
    }

    async fn service(
        &self,
        _: SandboxId,
        token: &Secret,
        request: ServiceRequest,
    ) -> Result<ServiceAnswer, ServiceFailure> {
        let ServiceRequest {
            service, method, args, ..
        } = request;
        let call = request.call.map_or("-".to_owned(), |call| call.0);
        let key = request.idempotency_key.unwrap_or("-".to_owned());
        self.see(token, format!("service {service}.{method} {args} {call} {key}"))?;
        if method == "echo" {
            return Ok(answer("application/json", Some(11), &["{\"limit\":3}"]));
        }
        Err(limited())
    }

    async fn model(
        &self,
        _: SandboxId,
        token: &Secret,
        request: ModelRequest,
    ) -> Result<ServiceAnswer, ServiceFailure> {
        let ModelRequest { route, betas, body } = request;
        let (route, body) = (route.path(), String::from_utf8_lossy(&body));
        self.see(token, format!("model {route} [{}] {body}", betas.join(",")))?;
        if route == "messages" {
            return Ok(answer("text/event-stream", None, &["data: one\n\n", "data: two\n\n"]));
        }
        Err(ServiceFailure::new(403, "denied", "no model has this route"))
    }

    async fn event(&self, _: SandboxId, event: ToControl) {
        let _ = self.events.send(event).await;
    }
}

/// Hears five bytes, answers with five, and waits for the end.
struct Replies;

#[async_trait]
impl Carrier for Replies {
    async fn carry(self: Box<Self>, mut near: Box<dyn Connection>) {
        let mut heard = [0; 5];
        near.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"hello");
        near.write_all(b"world").await.unwrap();
        let mut rest = Vec::new();
        near.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b" and the end");
        near.shutdown().await.unwrap();
    }
}

/// Obeys as a runtime does, until the control plane closes the control stream.
pub(crate) async fn runtime(client: &Client) {
    let mut control = within(client.control()).await.unwrap();
    let mut owner: Option<SessionId> = None;
    while let Some(order) = within(control.reader.next()).await.unwrap() {
        let answers = match order {
            ToRuntime::Trust {
                authorities,
                known_hosts,
            } => {
                assert!(owner.is_none());
                assert_eq!((authorities, known_hosts), (outfit().authorities, outfit().known_hosts));
                Vec::new()
            }
            ToRuntime::Claim {
                session,
                token,
                environment,
                authorities,
                known_hosts,
                ..
            } => {
                let failure = if owner.is_none_or(|owner| owner == session) {
                    let Outfit {
                        environment: theirs, ..
                    } = outfit();
                    assert_eq!((environment, authorities), (theirs, outfit().authorities));
                    assert_eq!(known_hosts, outfit().known_hosts);
                    client.set_token(token);
                    owner = Some(session);
                    None
                } else {
                    Some("this sandbox belongs to another session".to_owned())
                };
                vec![ToControl::Claimed { failure }]
            }
            ToRuntime::Token { token } => {
                assert_eq!(token.expose(), "second");
                client.set_token(token);
                Vec::new()
            }
            ToRuntime::Start(order) => {
                assert_eq!((order.run, order.epoch, order.turn), (start().run, start().epoch, 1));
                assert_eq!((order.tools, order.limits), (start().tools, start().limits));
                assert_eq!(order.grants.services, grants().services);
                vec![ToControl::LoopEnded {
                    run: order.run,
                    epoch: order.epoch,
                    failure: Some(the_loop(client).await.to_string()),
                }]
            }
            ToRuntime::Prepare { on: true, grants: told } => {
                assert_eq!((told.models, told.skills), (grants().models, grants().skills));
                vec![ToControl::HandsReplaced]
            }
            ToRuntime::Prepare { on: false, .. } => Vec::new(),
            ToRuntime::Call { call, limits } => {
                assert!(calls().contains(&call) && limits == RunLimits::default(), "{call:?}");
                let result = results().into_iter().find(|result| result.id == call.id).unwrap();
                let progress = ToControl::Progress {
                    call: call.id,
                    text: "half".to_owned(),
                };
                vec![progress, ToControl::Result { result }]
            }
            ToRuntime::Stop { request, .. } => vec![ToControl::Stopped { request }],
            ToRuntime::Transfer { request, transfer } => transferred(client, request, transfer).await,
            other => panic!("{other:?} is no part of this exchange"),
        };
        for answer in answers {
            within(control.writer.send(&answer)).await.unwrap();
        }
    }
}

async fn transferred(client: &Client, request: u64, transfer: Transfer) -> Vec<ToControl> {
    let answer = |entries, failure: Option<&str>| {
        let failure = failure.map(ToOwned::to_owned);
        vec![ToControl::Transferred {
            request,
            entries,
            failure,
            missing: false,
        }]
    };
    match transfer {
        Transfer::Write { path } => {
            assert_eq!(path, "in/data.txt");
            let mut body = within(client.fetch_file(request)).await.unwrap();
            let mut bytes = Vec::new();
            while let Some(piece) = within(body.chunk()).await.unwrap() {
                bytes.extend_from_slice(&piece);
            }
            assert_eq!(bytes, b"one two");
            answer(Vec::new(), None)
        }
        Transfer::Read { path } if path == "out/data.csv" => {
            let pieces = pieces(&["a,b\n", "1,2\n"]);
            within(client.send_file(request, pieces)).await.unwrap();
            Vec::new()
        }
        Transfer::Read { path } => {
            assert_eq!(path, "nothing");
            answer(Vec::new(), Some("there is no such file"))
        }
        Transfer::List { path } => {
            assert_eq!(path, "out");
            answer(entries(), None)
        }
        other => panic!("{other:?} is no part of this exchange"),
    }
}

fn pieces(pieces: &[&'static str]) -> BoxStream<'static, std::io::Result<Bytes>> {
    let pieces: Vec<_> = pieces
        .iter()
        .map(|piece| Ok(Bytes::from_static(piece.as_bytes())))
        .collect();
    stream::iter(pieces).boxed()
}

fn results_of_the_loop() -> Vec<ToolResult> {
    results().into()
}

/// A loop that asks for everything, and what ends it.
async fn the_loop(client: &Client) -> ClientError {
    let turn = |turn: u32, results: &[ToolResult], choice: &str| -> TurnRequest {
        of(json!({"run": RUN, "epoch": 3, "turn": turn, "results": results, "tool_choice": choice}))
    };
    let reply = within(client.invoke_llm(&turn(1, &[], "auto"))).await.unwrap();
    assert_eq!(
        json!(reply),
        json!({"message": MESSAGE, "calls": calls(), "stop": "tool_use"})
    );

    within(client.resolve("good.test")).await.unwrap();
    assert_denied(within(client.resolve("bad.test")).await.unwrap_err());

    let mut tunnel = within(client.connect("good.test", 5432)).await.unwrap();
    tunnel.write_all(b"hello").await.unwrap();
    let mut heard = [0; 5];
    within(tunnel.read_exact(&mut heard)).await.unwrap();
    assert_eq!(&heard, b"world");
    tunnel.write_all(b" and the end").await.unwrap();
    tunnel.shutdown().await.unwrap();
    assert_eq!(within(tunnel.read(&mut heard)).await.unwrap(), 0);
    drop(tunnel);
    assert_denied(within(client.connect("2001:db8::7", 22)).await.unwrap_err());

    let asked = r#"{"service":"crm","method":"echo","args":{"limit":3},"call":"c1","idempotency_key":"c1-1"}"#;
    let echoed = within(client.service(Bytes::from_static(asked.as_bytes()))).await;
    assert_eq!(
        whole(echoed.unwrap()).await,
        ("application/json".to_owned(), r#"{"limit":3}"#.to_owned())
    );
    let asked = Bytes::from_static(br#"{"service":"crm","method":"limited"}"#);
    match within(client.service(asked)).await {
        Err(ClientError::Failed(failure)) => assert_eq!(failure, limited()),
        other => panic!("{other:?}"),
    }

    let beta = HeaderValue::from_static("context-1m");
    let asked = pieces(&[r#"{"model":"#, r#""small"}"#]);
    let told = within(client.model(ModelRoute::Messages, [beta], asked)).await.unwrap();
    let streamed = ("text/event-stream".to_owned(), "data: one\n\ndata: two\n\n".to_owned());
    assert_eq!(whole(told).await, streamed);
    match within(client.model(ModelRoute::Responses, [], pieces(&["{}"]))).await {
        Err(ClientError::Failed(failure)) => assert_eq!((failure.status, failure.code.as_str()), (403, "denied")),
        other => panic!("{other:?}"),
    }

    let reply = within(client.invoke_llm(&turn(2, &results(), "none"))).await.unwrap();
    assert_eq!(
        json!(reply),
        json!({"message": MESSAGE, "calls": [], "stop": "end_turn"})
    );
    match within(client.invoke_llm(&turn(3, &[], "required"))).await {
        Err(ClientError::Refused(refusal)) => assert!(refusal.code.may_retry()),
        other => panic!("{other:?}"),
    }
    within(client.invoke_llm(&turn(4, &[], "auto"))).await.unwrap_err()
}

fn assert_denied(error: ClientError) {
    match error {
        ClientError::Refused(refusal) => assert_eq!(refusal, denied()),
        other => panic!("{other:?}"),
    }
}

async fn whole(mut result: ServiceResult) -> (String, String) {
    let mut body = Vec::new();
    while let Some(bytes) = within(result.body.chunk()).await.unwrap() {
        body.extend_from_slice(&bytes);
    }
    let media_type = result.media_type.unwrap().to_str().unwrap().to_owned();
    (media_type, String::from_utf8(body).unwrap())
}
