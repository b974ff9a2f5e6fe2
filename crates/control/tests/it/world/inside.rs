//! What runs in a simulated sandbox: a runtime that speaks the real protocol, with tools that do what they are told.

use std::collections::HashMap;
use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use agent::{Gateway, GatewayError, Hands, run_loop};
use domain::{RunLimits, SandboxId, ToolCall, ToolResult};
use futures::StreamExt;
use futures::future::BoxFuture;
use lifecycle::{Stop, Tasks};
use link::client::{Client, ClientError, Control};
use protocol::{
    EarlyResults, FileEntry, FileKind, Grants, PROTOCOL, ServiceRequest, ToControl, ToRuntime, Transfer, TurnReply,
    TurnRequest,
};
use sandbox::{Program, Started};
use secret::Secret;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{Notify, mpsc};

type BeginKeeping = dyn Fn(SandboxId, &Client, &Path, &Tasks) + Send + Sync;
type KeepAll = dyn Fn(SandboxId) -> BoxFuture<'static, Result<(), String>> + Send + Sync;

/// What a runtime does to keep its workspace's files: begins with each claim, and has everything kept when it is ordered to.
pub(crate) struct Keeps {
    pub(crate) begin: Box<BeginKeeping>,
    pub(crate) flush: Box<KeepAll>,
}

/// What tests see and steer of all sandboxes.
#[derive(Default)]
pub(crate) struct Inside {
    /// The ways out, by sandbox, newest last.
    links: Mutex<Vec<(SandboxId, Client)>>,
    /// Where each sandbox's link is.
    sockets: Mutex<HashMap<SandboxId, PathBuf>>,
    tokens: Mutex<HashMap<SandboxId, Vec<Secret>>>,
    /// Whom sandboxes were told to trust: authorities and keys of hosts, by each order that says so.
    trusted: Mutex<HashMap<SandboxId, Vec<(String, String)>>>,
    /// Calls that were made, in order: their codes.
    made: Mutex<Vec<String>>,
    begun: Notify,
    /// What runs were granted, in order.
    granted: Mutex<Vec<Grants>>,
    /// The sandbox whose runtime does not say that it lives.
    hung: Mutex<Option<SandboxId>>,
    /// Runtimes do not say of a file that it is missing, as those of the release before.
    pub(crate) vague: AtomicBool,
    /// Runtimes that go on say that they are another session's.
    pub(crate) strangers: AtomicBool,
    /// How many claims said that a runtime goes on.
    woken: AtomicUsize,
    /// Sandboxes that are to die as soon as they are there.
    stillborn: Mutex<usize>,
    /// Lets calls of `wait` end.
    released: Stop,
    /// The ways to the control streams.
    says: Mutex<HashMap<SandboxId, mpsc::Sender<ToControl>>>,
    /// What keeps files, where a test wants that.
    pub(crate) keeps: OnceLock<Keeps>,
    /// The folder that programs take for `https://git.example.com/`.
    pub(crate) git: OnceLock<PathBuf>,
}

impl Inside {
    pub(crate) fn program(self: Arc<Self>) -> Program {
        Arc::new(move |started| {
            let inside = Arc::clone(&self);
            Box::pin(async move { runtime(inside, started).await })
        })
    }

    /// The newest sandbox and its way out.
    pub(crate) fn newest(&self) -> (SandboxId, Client) {
        self.links.lock().unwrap().last().cloned().expect("a sandbox")
    }

    /// How often a runtime was told that it goes on.
    pub(crate) fn woken(&self) -> usize {
        self.woken.load(Ordering::SeqCst)
    }

    /// How many runtimes were started.
    pub(crate) fn sandboxes(&self) -> usize {
        self.links.lock().unwrap().len()
    }

    /// The tokens that a sandbox was given, oldest first.
    pub(crate) fn tokens(&self, sandbox: SandboxId) -> Vec<Secret> {
        self.tokens.lock().unwrap().get(&sandbox).cloned().unwrap_or_default()
    }

    /// Whom a sandbox was told to trust, by each order that says so.
    pub(crate) fn trusted(&self, sandbox: SandboxId) -> Vec<(String, String)> {
        self.trusted.lock().unwrap().get(&sandbox).cloned().unwrap_or_default()
    }

    /// The codes of the calls that were made.
    pub(crate) fn made(&self) -> Vec<String> {
        self.made.lock().unwrap().clone()
    }

    /// Whether a run was granted anything, be it nothing.
    pub(crate) fn was_granted(&self) -> bool {
        !self.granted.lock().unwrap().is_empty()
    }

    /// What the newest run was granted.
    pub(crate) fn granted(&self) -> Grants {
        self.granted.lock().unwrap().last().cloned().expect("a run")
    }

    /// Waits until so many calls have been begun.
    pub(crate) async fn made_so_many(&self, count: usize) {
        testkit::within("calls to be made", async {
            loop {
                let begun = self.begun.notified();
                if self.made.lock().unwrap().len() >= count {
                    return;
                }
                begun.await;
            }
        })
        .await;
    }

    /// The next sandboxes die before they dial.
    pub(crate) fn stillborn(&self, count: usize) {
        *self.stillborn.lock().unwrap() = count;
    }

    /// This sandbox's runtime does not say any more that it lives.
    pub(crate) fn hang(&self, sandbox: SandboxId) {
        *self.hung.lock().unwrap() = Some(sandbox);
    }

    /// Somebody in a sandbox opens the control stream as a runtime would that is two releases old, and is refused.
    pub(crate) async fn greet_as_older(&self, sandbox: SandboxId) {
        let socket = self.sockets.lock().unwrap()[&sandbox].clone();
        let mut stream = UnixStream::connect(socket).await.unwrap();
        let greeting = format!(
            "POST /v1/control HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: belljar-control\r\n\r\n\
             {{\"protocol\":{},\"build\":\"older\"}}\n",
            PROTOCOL - 2
        );
        stream.write_all(greeting.as_bytes()).await.unwrap();
        stream.read_to_end(&mut Vec::new()).await.unwrap();
    }

    /// A sandbox's runtime says something unasked.
    pub(crate) async fn say_of(&self, sandbox: SandboxId, line: ToControl) {
        let say = self.says.lock().unwrap()[&sandbox].clone();
        say.send(line).await.unwrap();
    }

    /// Lets calls of `wait` end, those to come too.
    pub(crate) fn release(&self) {
        self.released.cancel();
    }

    fn is_stillborn(&self) -> bool {
        let mut left = self.stillborn.lock().unwrap();
        let is = *left > 0;
        *left = left.saturating_sub(1);
        is
    }
}

async fn runtime(inside: Arc<Inside>, started: Started) {
    if inside.is_stillborn() {
        return;
    }
    let tasks = Tasks::new();
    let _end = tasks.stop().drop_guard();
    let client = Client::new(&started.socket, &tasks);
    inside.links.lock().unwrap().push((started.id, client.clone()));
    inside
        .sockets
        .lock()
        .unwrap()
        .insert(started.id, started.socket.clone());
    let runtime = Runtime {
        inside,
        client,
        tasks,
        workspace: started.workspace,
        knowledge: started.knowledge,
        sandbox: started.id,
        work: Mutex::new(Stop::new()),
        in_background: Mutex::default(),
        say: Mutex::default(),
    };
    let runtime = Arc::new(runtime);
    loop {
        if let Ok(control) = runtime.client.control().await {
            runtime.serve(control).await;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

struct Runtime {
    inside: Arc<Inside>,
    client: Client,
    tasks: Tasks,
    workspace: PathBuf,
    knowledge: PathBuf,
    sandbox: SandboxId,
    /// Ends what is under way.
    work: Mutex<Stop>,
    /// For how many seconds programs in the background go on, as it says.
    in_background: Mutex<u64>,
    /// The way to the control stream, where there is one.
    say: Mutex<Option<mpsc::Sender<ToControl>>>,
}

impl Runtime {
    async fn serve(self: &Arc<Self>, control: Control) {
        let Control { mut reader, mut writer } = control;
        let (say, mut said) = mpsc::channel::<ToControl>(64);
        *self.say.lock().unwrap() = Some(say.clone());
        self.inside.says.lock().unwrap().insert(self.sandbox, say.clone());
        loop {
            tokio::select! {
                Some(line) = said.recv() => {
                    if writer.send(&line).await.is_err() {
                        return;
                    }
                }
                order = reader.next() => match order {
                    Ok(Some(order)) => self.obey(order, &say),
                    _ => return,
                },
            }
        }
    }

    fn obey(self: &Arc<Self>, order: ToRuntime, say: &mpsc::Sender<ToControl>) {
        match order {
            ToRuntime::Claim {
                token,
                authorities,
                known_hosts,
                woken,
                ..
            } => {
                self.inside.woken.fetch_add(usize::from(woken), Ordering::SeqCst);
                if woken && self.inside.strangers.load(Ordering::SeqCst) {
                    let failure = Some("this sandbox belongs to another session".to_owned());
                    let _ = say.try_send(ToControl::Claimed { failure });
                    return;
                }
                self.trust(authorities, known_hosts);
                return self.belong(token, say);
            }
            ToRuntime::Trust {
                authorities,
                known_hosts,
            } => return self.trust(authorities, known_hosts),
            _ => {}
        }
        let runtime = Arc::clone(self);
        let say = say.clone();
        let stop = self.work.lock().unwrap().clone();
        self.tasks.spawn_until_stopped(async move {
            let answer = match order {
                ToRuntime::Claim { .. } | ToRuntime::Trust { .. } => unreachable!("it was obeyed"),
                ToRuntime::Pulse => {
                    if *runtime.inside.hung.lock().unwrap() == Some(runtime.sandbox) {
                        return;
                    }
                    ToControl::Alive
                }
                ToRuntime::Token { token } => return runtime.take(token),
                ToRuntime::Prepare { on: false, .. } => return,
                ToRuntime::Prepare { on: true, grants } => return runtime.inside.granted.lock().unwrap().push(grants),
                ToRuntime::Start(start) => {
                    runtime.inside.granted.lock().unwrap().push(start.grants.clone());
                    let end = run_loop(&*runtime, &*runtime, &start, stop.cancelled()).await;
                    ToControl::LoopEnded {
                        run: start.run,
                        epoch: start.epoch,
                        failure: end.failure(),
                    }
                }
                ToRuntime::Call { call, limits } => {
                    let result = tokio::select! {
                        result = runtime.use_tool(&call, &limits) => result,
                        () = stop.cancelled() => return,
                    };
                    ToControl::Result { result }
                }
                ToRuntime::Stop { request, background } => {
                    stop.cancel();
                    if background {
                        runtime.end_background(&say).await;
                    }
                    *runtime.work.lock().unwrap() = Stop::new();
                    ToControl::Stopped { request }
                }
                ToRuntime::Transfer { request, transfer } => runtime.transfer(request, transfer).await,
            };
            let _ = say.send(answer).await;
        });
    }

    /// It is claimed. What goes on in it is said before anything else is answered: who claims it may not have heard of it.
    fn belong(&self, token: Secret, say: &mpsc::Sender<ToControl>) {
        self.take(token);
        if let Some(keeps) = self.inside.keeps.get() {
            (keeps.begin)(self.sandbox, &self.client, &self.workspace, &self.tasks);
        }
        let _ = say.try_send(ToControl::Claimed { failure: None });
        let seconds = *self.in_background.lock().unwrap();
        if seconds > 0 {
            let _ = say.try_send(ToControl::Background { seconds });
        }
    }

    fn trust(&self, authorities: String, known_hosts: String) {
        let mut trusted = self.inside.trusted.lock().unwrap();
        trusted
            .entry(self.sandbox)
            .or_default()
            .push((authorities, known_hosts));
    }

    fn take(&self, token: Secret) {
        self.client.set_token(token.clone());
        self.inside
            .tokens
            .lock()
            .unwrap()
            .entry(self.sandbox)
            .or_default()
            .push(token);
    }

    async fn transfer(&self, request: u64, transfer: Transfer) -> ToControl {
        let missing = matches!(&transfer, Transfer::Read { path } if !self.workspace.join(path).exists())
            && !self.inside.vague.load(Ordering::SeqCst);
        let done = match transfer {
            Transfer::Read { path } => self.read(request, &path).await,
            Transfer::Write { path } => self.write(request, &path).await,
            Transfer::List { path } => list(&self.workspace.join(path)),
            Transfer::Pack | Transfer::Unpack => Err("it knows no archives".to_owned()),
            Transfer::Flush => match self.inside.keeps.get() {
                Some(keeps) => (keeps.flush)(self.sandbox).await.map(|()| Vec::new()),
                None => Err("nothing is kept".to_owned()),
            },
        };
        let (entries, failure) = match done {
            Ok(entries) => (entries, None),
            Err(failure) => (Vec::new(), Some(failure)),
        };
        ToControl::Transferred {
            request,
            entries,
            missing,
            failure,
        }
    }

    async fn read(&self, request: u64, path: &str) -> Result<Vec<FileEntry>, String> {
        let bytes = std::fs::read(self.workspace.join(path)).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => format!("nothing is at {path}"),
            _ => error.to_string(),
        })?;
        let bytes = futures::stream::iter([Ok(bytes.into())]).boxed();
        self.client
            .send_file(request, bytes)
            .await
            .map_err(|error| error.to_string())?;
        Ok(Vec::new())
    }

    async fn write(&self, request: u64, path: &str) -> Result<Vec<FileEntry>, String> {
        let mut fetched = self
            .client
            .fetch_file(request)
            .await
            .map_err(|error| error.to_string())?;
        let mut bytes = Vec::new();
        while let Some(chunk) = fetched.chunk().await.map_err(|error| error.to_string())? {
            bytes.extend_from_slice(&chunk);
        }
        std::fs::write(self.workspace.join(path), bytes).map_err(|error| error.to_string())?;
        Ok(Vec::new())
    }
}

fn list(folder: &Path) -> Result<Vec<FileEntry>, String> {
    let entries = std::fs::read_dir(folder).map_err(|error| error.to_string())?;
    let entry = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.map_err(|error| error.to_string())?;
        Ok(FileEntry {
            path: entry.file_name().to_string_lossy().into_owned(),
            kind: FileKind::File,
            bytes: entry.metadata().map_err(|error| error.to_string())?.len(),
            changed: 0,
        })
    };
    entries.map(entry).collect()
}

impl Gateway for Runtime {
    async fn invoke_llm(&self, request: &TurnRequest) -> Result<TurnReply, GatewayError> {
        match self.client.invoke_llm(request).await {
            Ok(reply) => Ok(reply),
            Err(ClientError::Refused(refusal)) => Err(refusal.into()),
            Err(error) => Err(GatewayError::NoAnswer(Box::new(error))),
        }
    }

    async fn hand_in(&self, results: &EarlyResults) -> bool {
        loop {
            match self.client.hand_in(results).await {
                Ok(()) => return true,
                Err(ClientError::Refused(refusal)) if !refusal.code.may_retry() => return false,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    }

    async fn pause(&self, _attempt: u32) -> bool {
        tokio::time::sleep(Duration::from_millis(5)).await;
        true
    }
}

impl Runtime {
    async fn background(&self, seconds: u64) {
        *self.in_background.lock().unwrap() = seconds;
        let say = self.say.lock().unwrap().clone().unwrap();
        say.send(ToControl::Background { seconds }).await.unwrap();
    }

    /// Programs in the background write until they are killed, and are killed by this.
    async fn end_background(&self, say: &mpsc::Sender<ToControl>) {
        if std::mem::take(&mut *self.in_background.lock().unwrap()) > 0 {
            std::fs::write(self.workspace.join("last-words"), "of the background").unwrap();
            say.send(ToControl::Background { seconds: 0 }).await.unwrap();
        }
    }

    /// What a call of a service said: its answer, or status and code.
    async fn service(&self, call: &ToolCall, name: &str, arguments: &str) -> String {
        let (service, method) = name.split_once('.').unwrap();
        let request = ServiceRequest {
            service: service.to_owned(),
            method: method.to_owned(),
            args: serde_json::from_str(arguments).unwrap_or_default(),
            call: Some(call.id.clone()),
            idempotency_key: Some(call.id.to_string()),
        };
        match self.client.service(serde_json::to_vec(&request).unwrap().into()).await {
            Ok(mut answer) => {
                let mut bytes = Vec::new();
                while let Some(chunk) = answer.body.chunk().await.unwrap() {
                    bytes.extend_from_slice(&chunk);
                }
                String::from_utf8(bytes).unwrap()
            }
            Err(ClientError::Failed(failure)) => format!("{} {}", failure.status, failure.code),
            Err(error) => error.to_string(),
        }
    }
}

impl Runtime {
    /// A command of Belljar's own, as Node would run it.
    async fn command(&self, call: &ToolCall, order: &str, limits: &RunLimits) -> ToolResult {
        let order: serde_json::Value = serde_json::from_str(order).unwrap();
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        self.inside.made.lock().unwrap().push(text(&order["command"]));
        self.inside.begun.notify_waiters();
        let mut shell = tokio::process::Command::new("/bin/sh");
        shell
            .arg("-c")
            .arg(text(&order["command"]))
            .current_dir(&self.knowledge);
        for (name, value) in order["environment"].as_object().unwrap() {
            shell.env(name, text(value));
        }
        let git = self.inside.git.get().unwrap();
        shell.env("HOME", git);
        shell.env("GIT_CONFIG_COUNT", "1");
        shell.env("GIT_CONFIG_KEY_0", format!("url.file://{}/.insteadOf", git.display()));
        shell.env("GIT_CONFIG_VALUE_0", "https://git.example.com/");
        let ended = tokio::time::timeout(limits.tool(), shell.kill_on_drop(true).output()).await;
        let Ok(ended) = ended else {
            let words = format!("[killed: the code took longer than {} s]", limits.tool_seconds);
            return ToolResult::error(call.id.clone(), words);
        };
        let ended = ended.unwrap();
        let said = String::from_utf8([ended.stdout, ended.stderr].concat()).unwrap();
        let status = ended
            .status
            .code()
            .map_or("SIGKILL".to_owned(), |code| code.to_string());
        let answer = serde_json::json!({ "status": status, "said": said });
        ToolResult::text(call.id.clone(), answer.to_string())
    }
}

impl Hands for Runtime {
    /// `hang` never ends, `background N` says that programs in the background run for N seconds, `wait` waits to be released, `long N` says N bytes, `join A B` says AB, `shout N` shows N letters as its progress and waits, `connect HOST PORT` and `resolve NAME` try the way out (the latter says the number of the address), `service NAME.METHOD ARGUMENTS` calls a service; all else is said back.
    async fn use_tool(&self, call: &ToolCall, limits: &RunLimits) -> ToolResult {
        let code = call.input["code"].as_str().unwrap_or_default().to_owned();
        let mut lines = code.lines();
        let order = lines.find_map(|line| line.strip_prefix("const order = ")?.strip_suffix(';'));
        if let Some(order) = order {
            return self.command(call, order, limits).await;
        }
        self.inside.made.lock().unwrap().push(code.clone());
        self.inside.begun.notify_waiters();
        let words: Vec<&str> = code.split(' ').collect();
        let said = match words[..] {
            ["hang"] => pending().await,
            ["wait"] => {
                self.inside.released.cancelled().await;
                "waited".to_owned()
            }
            ["shout", letters] => {
                let say = self.say.lock().unwrap().clone().unwrap();
                let text = "ä".repeat(letters.parse().unwrap());
                say.send(ToControl::Progress {
                    call: call.id.clone(),
                    text,
                })
                .await
                .unwrap();
                self.inside.released.cancelled().await;
                "shouted".to_owned()
            }
            ["background", seconds] => {
                self.background(seconds.parse().unwrap()).await;
                "went to the background".to_owned()
            }
            ["long", bytes] => "x".repeat(bytes.parse().unwrap()),
            ["join", ref parts @ ..] => parts.concat(),
            ["connect", host, port] => match self.client.connect(host, port.parse().unwrap()).await {
                Ok(_) => "connected".to_owned(),
                Err(error) => error.to_string(),
            },
            ["resolve", name] => match self.client.resolve(name).await {
                Ok(number) => format!("resolved to {number:?}"),
                Err(error) => error.to_string(),
            },
            ["service", method, ref arguments @ ..] => self.service(call, method, &arguments.join(" ")).await,
            _ => format!("did {code}"),
        };
        ToolResult::text(call.id.clone(), said)
    }
}
