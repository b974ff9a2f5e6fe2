//! OpenCode, from npm, with the bench's model: it runs in a network namespace that has nothing but loopback, and so does the part
//! of the bench that talks with it.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use base64::Engine;
use serde_json::json;
use tempfile::TempDir;

use super::{installed, run};
use crate::agent::{Agent, Conversation, Effort, Found, converse, script};
use crate::http::Client;
use crate::models::Models;
use crate::processes;
use crate::sample::{Sample, scaled};

/// The word that makes the bench its own child, without a network.
pub(crate) const WORD: &str = "opencode";

const PASSWORD: &str = "bench";
const PORT: u16 = 4096;

/// Where `scripts/bench` installed it.
pub(crate) fn program() -> anyhow::Result<PathBuf> {
    installed("node_modules/opencode-linux-x64/bin/opencode")
}

/// Talks with OpenCode in a child of this process.
pub(crate) fn in_a_network_of_its_own() -> anyhow::Result<Found> {
    let program = program()?;
    let script = "ip link set lo up && exec \"$0\" \"$@\"";
    let mut child = Command::new("unshare");
    child
        .args(["--net", "sh", "-c", script])
        .arg(std::env::current_exe()?)
        .arg(WORD)
        .arg(program);
    let output = run(&mut child)?;
    serde_json::from_slice(&output.stdout).context("the part that talks with OpenCode said something else than figures")
}

/// What the child does: it prints what it found.
pub(crate) async fn talk(program: &Path) -> anyhow::Result<()> {
    let models = Models::start(script).await?;
    let mut start = Sample::default();
    for _ in 0..scaled(5).min(5) {
        let began = Instant::now();
        let server = OpenCode::start(program, models.address).await?;
        start.add(began.elapsed());
        drop(server);
    }
    let server = OpenCode::start(program, models.address).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let memory = processes::resident(server.process.id())?;
    let effort = Effort {
        prompts: scaled(20),
        stops: scaled(100),
    };
    let mut found = converse(&server, &models, effort).await?;
    found.start = start;
    (found.memory, found.memory_of_each) = (memory, memory);
    println!("{}", serde_json::to_string(&found)?);
    Ok(())
}

struct OpenCode {
    process: Child,
    client: Client,
    _folder: TempDir,
}

impl OpenCode {
    async fn start(program: &Path, models: SocketAddr) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("bench-opencode")
            .tempdir_in("/var/tmp")?;
        let project = folder.path().join("project");
        fs::create_dir(&project)?;
        let model = json!({"limit": {"context": 200_000, "output": 8_192}, "cost": {"input": 3, "output": 15, "cache_read": 0.3, "cache_write": 3.75}});
        let options = json!({"baseURL": format!("http://{models}/v1"), "apiKey": "credential-brokered"});
        let config = json!({
            "$schema": "https://opencode.ai/config.json", "model": "proxy/m1", "small_model": "proxy/m1", "autoupdate": false,
            "share": "disabled", "enabled_providers": ["proxy"], "permission": {"*": "allow"},
            "provider": {"proxy": {"npm": "@ai-sdk/anthropic", "options": options, "models": {"m1": model}}},
        });
        fs::write(project.join("opencode.json"), config.to_string())?;
        let log = fs::File::create(folder.path().join("log"))?;
        let process = Command::new(program)
            .args(["serve", "--hostname", "127.0.0.1", "--port", &PORT.to_string()])
            .current_dir(&project)
            .env("HOME", folder.path())
            .env("XDG_CONFIG_HOME", folder.path().join("config"))
            .env("XDG_DATA_HOME", folder.path().join("data"))
            .env("XDG_CACHE_HOME", folder.path().join("cache"))
            .env("XDG_STATE_HOME", folder.path().join("state"))
            .env("OPENCODE_SERVER_PASSWORD", PASSWORD)
            .env("OPENCODE_DISABLE_AUTOUPDATE", "1")
            .env("OPENCODE_DISABLE_MODELS_FETCH", "1")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("OpenCode could not be started")?;
        let credentials = base64::engine::general_purpose::STANDARD.encode(format!("opencode:{PASSWORD}"));
        let client = Client::new(SocketAddr::from(([127, 0, 0, 1], PORT)), format!("Basic {credentials}"));
        let server = Self {
            process,
            client,
            _folder: folder,
        };
        let until = Instant::now() + Duration::from_secs(60);
        // It listens before it answers: what is asked too early is never answered.
        let asked = || tokio::time::timeout(Duration::from_secs(1), server.client.get("/session"));
        while !matches!(asked().await, Ok(Ok(_))) {
            if Instant::now() > until {
                bail!("OpenCode did not answer within a minute");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(server)
    }

    async fn seen(&self, conversation: &mut Conversation, kind: &str) -> anyhow::Result<()> {
        while let Some(frame) = conversation.events.next().await? {
            let properties = &frame.data["properties"];
            if frame.data["type"] == kind && properties["sessionID"] == conversation.session.as_str() {
                return Ok(());
            }
        }
        bail!("OpenCode's events ended")
    }
}

impl Drop for OpenCode {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Agent for OpenCode {
    async fn open(&self) -> anyhow::Result<Conversation> {
        let events = self.client.events("/event", None).await?;
        let session = self.client.post("/session", &json!({})).await?;
        let session = session["id"].as_str().context("a session has an id")?.to_owned();
        Ok(Conversation { session, events })
    }

    async fn say(&self, conversation: &Conversation, text: &str) -> anyhow::Result<()> {
        let path = format!("/session/{}/prompt_async", conversation.session);
        let body =
            json!({"parts": [{"type": "text", "text": text}], "model": {"providerID": "proxy", "modelID": "m1"}});
        self.client.post(&path, &body).await.map(drop)
    }

    async fn say_instead(&self, conversation: &Conversation, text: &str) -> anyhow::Result<()> {
        self.cancel(conversation).await?;
        self.say(conversation, text).await
    }

    async fn cancel(&self, conversation: &Conversation) -> anyhow::Result<()> {
        self.client
            .post(&format!("/session/{}/abort", conversation.session), &json!({}))
            .await
            .map(drop)
    }

    async fn idle(&self, conversation: &mut Conversation) -> anyhow::Result<()> {
        self.seen(conversation, "session.idle").await
    }

    async fn speaks(&self, conversation: &mut Conversation) -> anyhow::Result<()> {
        self.seen(conversation, "message.part.delta").await
    }

    async fn stale(&self, conversation: &mut Conversation, text: &str) -> anyhow::Result<f64> {
        let (mut shown, mut stale) = (false, 0.0);
        let mut old = Vec::new();
        while let Some(frame) = conversation.events.next().await? {
            let properties = &frame.data["properties"];
            if properties["sessionID"] != conversation.session.as_str() {
                continue;
            }
            match frame.data["type"].as_str() {
                Some("message.part.updated") if properties["part"]["text"] == text => shown = true,
                Some("message.part.delta") if !shown => old.push(properties["partID"].clone()),
                Some("message.part.delta") if old.contains(&properties["partID"]) => stale += 1.0,
                Some("session.idle") if shown => return Ok(stale),
                _ => {}
            }
        }
        bail!("OpenCode's events ended")
    }

    fn is_own(&self, command_line: &str) -> bool {
        command_line.contains("bin/opencode")
    }
}
