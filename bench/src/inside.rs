//! Sandboxes that are only tasks, behind a real host API and real links: what is measured then is the gateway, and no sandbox.
//!
//! A loop that is started in one is handed to the bench as a [`Seat`], which asks for turns as the runtime does.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::{Bytes, BytesMut};
use domain::ToolResult;
use futures::StreamExt;
use futures::stream;
use lifecycle::{DropGuard, Tasks};
use link::client::{Client, ClientError, Control, ServiceResult};
use protocol::{ModelRoute, Start, ToControl, ToRuntime, ToolChoice, TurnRequest};
use sandbox::{Program, Simulator, Started};
use secret::Secret;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::http::Client as HttpClient;
use crate::installation::{Api, Installation, Programs};
use crate::models::{Models, Script};

/// What every tool says.
const RESULT: &str = "total 12\ndrwxr-xr-x 2 agent agent 4096 notes\n-rw-r--r-- 1 agent agent 1204 figures.csv\n-rw-r--r-- 1 agent agent 377 report.md\n";

/// With which an answer of the Messages API ends.
const LAST_EVENT: &[u8] = b"\"type\":\"message_stop\"}\n\n";

/// Loops that wait to be taken.
const WAITING: usize = 4_096;

/// A control plane over simulated sandboxes, with its model.
pub(crate) struct World {
    pub(crate) installation: Installation,
    pub(crate) models: Models,
    pub(crate) api: Api,
    tasks: Tasks,
}

/// The loops that are started, in their order.
pub(crate) struct Seats(mpsc::Receiver<Seat>);

/// A loop that was started.
pub(crate) struct Seat {
    client: Client,
    request: TurnRequest,
    say: mpsc::Sender<ToControl>,
    start: Start,
    token: Secret,
}

impl World {
    /// Starts everything; `more` is configuration, `core` the control plane's own.
    pub(crate) async fn start(
        programs: &Programs,
        script: Script,
        core: Option<usize>,
        more: &str,
    ) -> anyhow::Result<(Self, Seats)> {
        let models = Models::start(script).await?;
        let mut installation = Installation::new(programs, Some(models.address), more)?;
        if let Some(core) = core {
            installation = installation.pin(core);
        }
        Self::around(installation, models).await
    }

    /// Starts the control plane of an installation over simulated sandboxes.
    pub(crate) async fn around(mut installation: Installation, models: Models) -> anyhow::Result<(Self, Seats)> {
        let tasks = Tasks::new();
        let (send, seats) = mpsc::channel(WAITING);
        let image = testkit::miniature().digest.parse()?;
        let simulator = Simulator::new([image], program(send))?;
        let listener = host::listen(&installation.socket(), 0)?;
        let serving = host::serve(listener, Arc::new(simulator), 0, installation.claim(), tasks.child());
        tasks.spawn_until_stopped(async move {
            if let Err(error) = serving.await {
                eprintln!("bench: the simulated host broke down: {error}");
            }
        });
        // Elsewhere, since it waits for a host that answers here.
        let (installation, started) = tokio::task::spawn_blocking(move || {
            let started = installation.start_serve();
            (installation, started)
        })
        .await?;
        started?;
        let api = installation.api()?;
        Ok((
            Self {
                installation,
                models,
                api,
                tasks,
            },
            Seats(seats),
        ))
    }

    /// Starts the control plane anew.
    pub(crate) fn restart_serve(&mut self) -> anyhow::Result<Duration> {
        let took = self.installation.start_serve()?;
        self.api = self.installation.api()?;
        Ok(took)
    }

    /// A client of the model itself.
    pub(crate) fn direct(&self) -> HttpClient {
        HttpClient::new(self.models.address, "Bearer none")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.installation.stop_serve();
        self.tasks.stop().cancel();
    }
}

impl Seats {
    /// The next loop that is started.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Seat> {
        let seat = timeout(Duration::from_secs(60), self.0.recv()).await;
        seat.context("no loop was started")?
            .context("there are no sandboxes any more")
    }

    /// A new session with a loop that has begun.
    pub(crate) async fn begin(&mut self, world: &World) -> anyhow::Result<Seat> {
        let session = world.api.session().await?;
        world
            .api
            .prompt(&session, "Go through the notes and figures, and say what you find.")
            .await?;
        self.next().await
    }

    /// Does this with every loop that is started, until the guard is dropped.
    pub(crate) fn each<F>(mut self, work: impl Fn(Seat) -> F + Send + 'static) -> DropGuard
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let tasks = Tasks::new();
        let working = tasks.clone();
        tasks.spawn_until_stopped(async move {
            while let Some(seat) = self.0.recv().await {
                working.spawn_until_stopped(work(seat));
            }
        });
        tasks.stop().drop_guard()
    }

    /// Plays every loop that is started, the first `together` of them when all of those are there; until the guard is dropped.
    pub(crate) fn play(mut self, together: usize) -> DropGuard {
        let tasks = Tasks::new();
        let playing = tasks.clone();
        tasks.spawn_until_stopped(async move {
            let mut held = Vec::new();
            while let Some(seat) = self.0.recv().await {
                held.push(seat);
                if held.len() >= together {
                    break;
                }
            }
            for seat in held {
                playing.spawn_until_stopped(seat.play());
            }
            while let Some(seat) = self.0.recv().await {
                playing.spawn_until_stopped(seat.play());
            }
        });
        tasks.stop().drop_guard()
    }
}

impl Seat {
    /// The session's token, as only the runtime has it.
    pub(crate) fn token(&self) -> &Secret {
        &self.token
    }

    /// A call of a service, as a process inside makes it; gives the result.
    pub(crate) async fn service(&self, request: Bytes) -> Result<Bytes, ClientError> {
        whole(self.client.service(request).await?).await
    }

    /// A call of a model that a program inside makes by itself, to the last word.
    pub(crate) async fn model(&self, request: Bytes) -> Result<Bytes, ClientError> {
        let body = stream::iter([Ok(request)]).boxed();
        whole(self.client.model(ModelRoute::Messages, [], body).await?).await
    }

    /// How long such a call takes until the last event of its answer is there. It is paid when the stream ends, which is waited for.
    pub(crate) async fn heard(&self, request: Bytes) -> anyhow::Result<Duration> {
        let began = Instant::now();
        let body = stream::iter([Ok(request)]).boxed();
        let mut answer = self.client.model(ModelRoute::Messages, [], body).await?.body;
        let (mut said, mut heard) = (BytesMut::new(), None);
        while let Some(piece) = answer.chunk().await? {
            said.extend_from_slice(&piece);
            if heard.is_none() && said.windows(LAST_EVENT.len()).any(|words| words == LAST_EVENT) {
                heard = Some(began.elapsed());
            }
        }
        heard.with_context(|| format!("the model was cut short: {}", String::from_utf8_lossy(&said)))
    }

    /// One turn; the tools that it wants have said their words by the next.
    pub(crate) async fn turn(&mut self) -> Result<bool, ClientError> {
        let reply = self.client.invoke_llm(&self.request).await?;
        let results = reply.calls.iter().map(|call| ToolResult::text(call.id.clone(), RESULT));
        self.request.results = results.collect();
        self.request.turn += 1;
        Ok(!self.request.results.is_empty())
    }

    /// Says that the loop has ended.
    pub(crate) async fn end(self) {
        let ended = ToControl::LoopEnded {
            run: self.start.run,
            epoch: self.start.epoch,
            failure: None,
        };
        // Where nobody listens any more, nobody wants to know.
        let _ = self.say.send(ended).await;
    }

    /// Goes on until the model stops or a turn is refused, as the runtime does.
    async fn play(mut self) {
        loop {
            match self.turn().await {
                Ok(true) => {}
                Ok(false) => break,
                Err(ClientError::Refused(refusal)) if !refusal.code.may_retry() => break,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
        self.end().await;
    }
}

async fn whole(mut result: ServiceResult) -> Result<Bytes, ClientError> {
    let mut whole = BytesMut::new();
    while let Some(piece) = result.body.chunk().await? {
        whole.extend_from_slice(&piece);
    }
    Ok(whole.freeze())
}

fn program(seats: mpsc::Sender<Seat>) -> Program {
    Arc::new(move |started| Box::pin(runtime(started, seats.clone())))
}

async fn runtime(started: Started, seats: mpsc::Sender<Seat>) {
    let tasks = Tasks::new();
    let _end = tasks.stop().drop_guard();
    let client = Client::new(&started.socket, &tasks);
    loop {
        if let Ok(control) = client.control().await {
            obey(control, &client, &seats).await;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn obey(control: Control, client: &Client, seats: &mpsc::Sender<Seat>) {
    let Control { mut reader, mut writer } = control;
    let (say, mut said) = mpsc::channel(16);
    let mut shown = None;
    loop {
        let answer = tokio::select! {
            Some(line) = said.recv() => Some(line),
            order = reader.next() => match order {
                Ok(Some(ToRuntime::Claim { token, .. })) => {
                    shown = Some(token.clone());
                    client.set_token(token);
                    Some(ToControl::Claimed { failure: None })
                }
                Ok(Some(ToRuntime::Token { token })) => {
                    shown = Some(token.clone());
                    client.set_token(token);
                    None
                }
                Ok(Some(ToRuntime::Start(start))) => {
                    let Some(token) = shown.clone() else { return };
                    let seat = Seat { client: client.clone(), request: first(&start), say: say.clone(), start, token };
                    // With so many that wait, nothing is measured any more.
                    let _ = seats.try_send(seat);
                    None
                }
                Ok(Some(ToRuntime::Pulse)) => Some(ToControl::Alive),
                Ok(Some(ToRuntime::Stop { request, .. })) => Some(ToControl::Stopped { request }),
                Ok(Some(ToRuntime::Call { .. } | ToRuntime::Transfer { .. })) => None,
                _ => return,
            },
        };
        if let Some(line) = answer
            && writer.send(&line).await.is_err()
        {
            return;
        }
    }
}

fn first(start: &Start) -> TurnRequest {
    TurnRequest {
        run: start.run,
        epoch: start.epoch,
        turn: start.turn,
        results: Vec::new(),
        times: Vec::new(),
        tool_choice: ToolChoice::Auto,
    }
}
