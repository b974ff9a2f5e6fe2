//! A: the agent, beside another one that gets the same prompts, the same model and the same command.

mod methods;
mod prefix;
mod runtime;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::http::Events;
use crate::installation::{Api, Installation, Programs, ended};
use crate::models::{Models, Say};
use crate::peers::opencode;
use crate::processes;
use crate::report::{Findings, Measure};
use crate::sample::{Sample, WARM_UPS, scaled, synced_write};
use crate::selection::Selection;

/// Prompts in one session, before the next one is begun.
const PROMPTS: usize = 10;

/// An agent that can be talked to.
pub(crate) trait Agent {
    /// Begins a conversation and watches it.
    async fn open(&self) -> anyhow::Result<Conversation>;
    /// Gives it a job; returns when it is accepted.
    async fn say(&self, conversation: &Conversation, text: &str) -> anyhow::Result<()>;
    /// Gives it another job in place of the one that it is at.
    async fn say_instead(&self, conversation: &Conversation, text: &str) -> anyhow::Result<()>;
    /// Stops what it is at.
    async fn cancel(&self, conversation: &Conversation) -> anyhow::Result<()>;
    /// Waits until it is idle.
    async fn idle(&self, conversation: &mut Conversation) -> anyhow::Result<()>;
    /// Waits until it has begun to speak.
    async fn speaks(&self, conversation: &mut Conversation) -> anyhow::Result<()>;
    /// Waits until it is idle, and counts the pieces of an older answer that come after this message was shown.
    async fn stale(&self, conversation: &mut Conversation, text: &str) -> anyhow::Result<f64>;
    /// Whether a process is the agent's own, and not one that a tool started.
    fn is_own(&self, command_line: &str) -> bool;
}

/// A conversation and its events.
pub(crate) struct Conversation {
    pub(crate) session: String,
    pub(crate) events: Events,
}

/// What was found of an agent.
#[derive(Serialize, Deserialize)]
pub(crate) struct Found {
    /// Process start → ready.
    pub(crate) start: Sample,
    /// Prompt sent → the model is asked.
    pub(crate) first: Sample,
    /// Prompt sent → idle, with one tool call between two answers.
    pub(crate) whole: Sample,
    /// Cancel → every process of the tool is dead, and the agent idle.
    pub(crate) cancel: Sample,
    /// A message in mid-run → the model is asked with it.
    pub(crate) instead: Sample,
    /// Pieces of the answer that it took the place of, seen after the message.
    pub(crate) stale: f64,
    /// Share of the model calls that begin with all that the call before held.
    pub(crate) same: f64,
    pub(crate) calls: usize,
    /// The first request of a session.
    pub(crate) bytes: f64,
    /// Resident memory, idle, in MiB.
    pub(crate) memory: f64,
    /// The same, with what its processes share counted for each.
    pub(crate) memory_of_each: f64,
}

/// How much is tried of an agent.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    pub(crate) prompts: usize,
    pub(crate) stops: usize,
}

/// Measures what of A is wanted.
pub(crate) async fn measure(programs: &Programs, wanted: &Selection, found: &mut Findings) {
    if wanted.any(&["A1", "A2", "A3", "A4", "A5", "A6", "A7", "A8"]) {
        found.take("A", compare(programs, wanted).await);
    }
    if wanted.has("A9") {
        found.take("A9", methods::measure(programs).await);
    }
}

async fn compare(programs: &Programs, wanted: &Selection) -> anyhow::Result<Vec<Measure>> {
    let ours = belljar(programs).await?;
    let theirs = opencode::in_a_network_of_its_own();
    if let Err(error) = &theirs {
        eprintln!("bench: no peer for A: {error:#}");
    }
    let theirs = theirs.ok();
    let times = |id, what, of: fn(&Found) -> &Sample, target| {
        let measure = Measure::times(id, what, of(&ours)).at_most(target, None);
        measure.beside_any("OpenCode", theirs.as_ref().map(|theirs| of(theirs).at(0.5)))
    };
    let value = |id, what: String, unit, of: fn(&Found) -> f64| {
        Measure::value(id, what, unit, of(&ours)).beside_any("OpenCode", theirs.as_ref().map(of))
    };
    let prefix = format!("prefix identical over {} model calls", ours.calls);
    let write = synced_write(Path::new("/var/tmp"))?;
    let all = vec![
        times("A1", "runtime: process start → ready", |found| &found.start, 50.0),
        times(
            "A2",
            "prompt sent → first model request, warm",
            |found| &found.first,
            10.0,
        ),
        times(
            "A3",
            "two-step turn with one tool, all of it",
            |found| &found.whole,
            20.0,
        ),
        Measure::times("A3", "  a write synced to this disk; such a turn needs six", &write),
        value(
            "A4",
            "PID 1, hands and sync: resident memory, idle".into(),
            "MiB",
            |found| found.memory,
        )
        .at_most(8.0, None),
        value(
            "A4",
            "  the same, what they share counted for each".into(),
            "MiB",
            |found| found.memory_of_each,
        ),
        value("A5", "first model request".into(), "bytes", |found| found.bytes).at_most(8_192.0, None),
        times(
            "A6",
            "cancel → tool processes dead, idle seen",
            |found| &found.cancel,
            20.0,
        ),
        times(
            "A7",
            "message in mid-run → its model request",
            |found| &found.instead,
            50.0,
        ),
        value(
            "A7",
            "  pieces of the old answer shown after it".into(),
            "pieces",
            |found| found.stale,
        )
        .at_most(0.0, None),
        value("A8", prefix, "%", |found| found.same).at_least(100.0),
    ];
    Ok(all.into_iter().filter(|measure| wanted.has(measure.id())).collect())
}

async fn belljar(programs: &Programs) -> anyhow::Result<Found> {
    let models = Models::start(script).await?;
    let caps = "[budget]\nrun = 10.00\nsession = 100.00\nuser = 1000.00\nday = 1000.00\n";
    let mut installation = Installation::new(programs, Some(models.address), caps)?;
    installation.start_host()?;
    installation.start_serve()?;
    let agent = Belljar(installation.api()?);
    let effort = Effort {
        prompts: scaled(100),
        stops: scaled(100),
    };
    let mut found = converse(&agent, &models, effort).await?;
    found.start = runtime::time_start(programs, scaled(100)).await?;
    (found.memory, found.memory_of_each) = memory(&agent).await?;
    Ok(found)
}

/// Everything that is measured by talking. Start and memory are the caller's to add.
pub(crate) async fn converse(agent: &impl Agent, models: &Models, effort: Effort) -> anyhow::Result<Found> {
    let (first, whole, bytes) = two_steps(agent, models, effort.prompts).await?;
    let cancel = cancels(agent, effort.stops).await?;
    let (instead, stale) = instead(agent, models, effort.stops).await?;
    let (same, calls) = prefixes(agent, models).await?;
    let start = Sample::default();
    Ok(Found {
        start,
        first,
        whole,
        cancel,
        instead,
        stale,
        same,
        calls,
        bytes,
        memory: f64::NAN,
        memory_of_each: f64::NAN,
    })
}

/// What the model says to the prompts of the bench. A request without tools is none of the agent's own work.
pub(crate) fn script(body: &[u8]) -> Say {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let tools: Vec<&str> = body["tools"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|tool| tool["name"].as_str())
        .collect();
    if tools.is_empty() {
        return Say::Words("A title");
    }
    let content = body["messages"]
        .as_array()
        .and_then(|messages| messages.last())
        .map_or(&Value::Null, |last| &last["content"]);
    let last = content.as_array().and_then(|blocks| blocks.last()).unwrap_or(content);
    let text = last["text"].as_str().or(last.as_str()).unwrap_or_default();
    let bash = |command: &str| Say::Call("bash", json!({"command": command, "description": "Does it"}));
    let is_bash = tools.contains(&"bash");
    if last["type"] == "tool_result" {
        Say::Words("That is what I saw.")
    } else if text.contains("TWO STEPS") {
        if is_bash {
            bash("ls")
        } else {
            Say::Call("safebash", json!({"command": "ls"}))
        }
    } else if let Some(number) = text
        .split("FOR EVER ")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next())
    {
        let code = format!(
            "const {{ spawn }} = await import('node:child_process'); spawn('sleep', ['{number}']); await new Promise(() => {{}});"
        );
        if is_bash {
            bash(&format!("sleep {number}"))
        } else {
            Say::Call("exec", json!({ "code": code }))
        }
    } else if text.contains("TALK") {
        Say::Slowly {
            pieces: 4_000,
            every: Duration::from_millis(5),
        }
    } else {
        Say::Words("Very well.")
    }
}

async fn two_steps(agent: &impl Agent, models: &Models, count: usize) -> anyhow::Result<(Sample, Sample, f64)> {
    let (mut first, mut whole) = (Sample::default(), Sample::default());
    let mut bytes = 0.0;
    for number in 0..count {
        let mut conversation = agent.open().await?;
        let rounds = PROMPTS.min(count - whole.len()) + WARM_UPS;
        for round in 0..rounds {
            let text = format!("TWO STEPS, number {number}.{round}, please");
            let (asked, began) = (models.count(), Instant::now());
            agent.say(&conversation, &text).await?;
            agent.idle(&mut conversation).await?;
            let ended = began.elapsed();
            let request = models.asked(asked, |body| is_work(body, &text)).await?;
            if round == 0 {
                #[allow(clippy::cast_precision_loss, reason = "a small number")]
                let length = request.body.len() as f64;
                bytes = length;
            }
            if round >= WARM_UPS {
                first.add(request.at.duration_since(began));
                whole.add(ended);
            }
        }
        if whole.len() >= count {
            break;
        }
    }
    Ok((first, whole, bytes))
}

/// Whether a request is the agent's own work on this prompt.
fn is_work(body: &[u8], text: &str) -> bool {
    let has = |text: &str| body.windows(text.len()).any(|window| window == text.as_bytes());
    has(text) && has("\"tools\":[{")
}

async fn cancels(agent: &impl Agent, count: usize) -> anyhow::Result<Sample> {
    let mut sample = Sample::default();
    let mut conversation = agent.open().await?;
    for number in 0..count + WARM_UPS {
        let seconds = 98_700_000 + number;
        agent
            .say(&conversation, &format!("Wait FOR EVER {seconds} please"))
            .await?;
        let processes = tool_processes(agent, &format!("sleep {seconds}")).await?;
        let began = Instant::now();
        let dead = std::thread::spawn(move || {
            while processes.iter().any(|process| processes::lives(*process)) {
                if began.elapsed() > Duration::from_secs(30) {
                    return None;
                }
                std::thread::sleep(Duration::from_micros(200));
            }
            Some(began.elapsed())
        });
        agent.cancel(&conversation).await?;
        agent.idle(&mut conversation).await?;
        let idle = began.elapsed();
        let dead = tokio::task::spawn_blocking(move || dead.join()).await?;
        let dead = dead.ok().flatten().context("a tool's process outlived its run")?;
        if number >= WARM_UPS {
            sample.add(idle.max(dead));
        }
    }
    Ok(sample)
}

/// The process that a tool started, and what stands over it.
async fn tool_processes(agent: &impl Agent, command: &str) -> anyhow::Result<Vec<u32>> {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let all = processes::all();
        let line = |number: u32| {
            all.iter()
                .find(|(known, _)| *known == number)
                .map(|(_, line)| line.as_str())
        };
        if let Some((found, _)) = all.iter().find(|(_, line)| line == command) {
            let mut chain = vec![*found];
            let mut next = processes::parent(*found);
            while let Some(number) =
                next.filter(|number| *number > 1 && line(*number).is_some_and(|line| !agent.is_own(line)))
            {
                chain.push(number);
                next = processes::parent(number);
            }
            return Ok(chain);
        }
        if Instant::now() > until {
            bail!("the tool did not start {command}");
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn instead(agent: &impl Agent, models: &Models, count: usize) -> anyhow::Result<(Sample, f64)> {
    let mut sample = Sample::default();
    let mut stale = 0.0;
    for number in 0..count + WARM_UPS {
        // Each in a session of its own: what was said before does not grow.
        let mut conversation = agent.open().await?;
        agent.say(&conversation, "Please TALK").await?;
        agent.speaks(&mut conversation).await?;
        let (asked, began) = (models.count(), Instant::now());
        let text = format!("No, this instead: {number}.");
        agent.say_instead(&conversation, &text).await?;
        let request = models.asked(asked, |body| is_work(body, &text)).await?;
        if number >= WARM_UPS {
            sample.add(request.at.duration_since(began));
        }
        stale += agent.stale(&mut conversation, &text).await?;
    }
    Ok((sample, stale))
}

async fn prefixes(agent: &impl Agent, models: &Models) -> anyhow::Result<(f64, usize)> {
    let mut conversation = agent.open().await?;
    let before = models.count();
    for round in 0..25 {
        agent.say(&conversation, &format!("TWO STEPS again, {round}")).await?;
        agent.idle(&mut conversation).await?;
    }
    let bodies: Vec<_> = models
        .last()
        .into_iter()
        .filter(|asked| asked.number > before)
        .map(|asked| asked.body)
        .collect();
    prefix::same(&bodies)
}

/// Belljar, through its API.
struct Belljar(Api);

impl Agent for Belljar {
    async fn open(&self) -> anyhow::Result<Conversation> {
        let session = self.0.session().await?;
        let events = self.0.watch(&session, "0").await?;
        Ok(Conversation { session, events })
    }

    async fn say(&self, conversation: &Conversation, text: &str) -> anyhow::Result<()> {
        self.0.prompt(&conversation.session, text).await.map(drop)
    }

    async fn say_instead(&self, conversation: &Conversation, text: &str) -> anyhow::Result<()> {
        self.say(conversation, text).await
    }

    async fn cancel(&self, conversation: &Conversation) -> anyhow::Result<()> {
        self.0.cancel(&conversation.session).await.map(drop)
    }

    async fn idle(&self, conversation: &mut Conversation) -> anyhow::Result<()> {
        while let Some(frame) = conversation.events.next().await? {
            let event = &frame.data;
            if event["type"] == "run" {
                match event["state"].as_str() {
                    Some("done" | "cancelled") => return Ok(()),
                    Some("failed") => bail!("a run failed: {event}"),
                    _ => {}
                }
            }
        }
        bail!("the events ended before the run")
    }

    async fn speaks(&self, conversation: &mut Conversation) -> anyhow::Result<()> {
        while let Some(frame) = conversation.events.next().await? {
            if frame.data["type"] == "text" {
                return Ok(());
            }
        }
        bail!("the events ended before the model spoke")
    }

    async fn stale(&self, conversation: &mut Conversation, text: &str) -> anyhow::Result<f64> {
        let (mut shown, mut stale) = (false, 0.0);
        let mut old = Vec::new();
        while let Some(frame) = conversation.events.next().await? {
            let event = &frame.data;
            match event["type"].as_str() {
                Some("message") if event["message"].to_string().contains(text) => shown = true,
                Some("message_opened") if !shown => old.push(event["message"].clone()),
                Some("text") if !shown => old.push(event["message"].clone()),
                Some("text") if old.contains(&event["message"]) => stale += 1.0,
                Some("run") if event["state"] == "done" => return Ok(stale),
                _ => {}
            }
        }
        bail!("the events ended before the run")
    }

    fn is_own(&self, command_line: &str) -> bool {
        command_line.ends_with("belljar-runtime hands") || command_line.ends_with("belljar-runtime pid1 listed")
    }
}

/// Resident memory of all processes of a sandbox after a run: what they share counted once, and counted for each.
async fn memory(agent: &Belljar) -> anyhow::Result<(f64, f64)> {
    let session = agent.0.session().await?;
    let mut events = agent.0.watch(&session, "0").await?;
    agent.0.prompt(&session, "TWO STEPS").await?;
    ended(&mut events, "done").await?;
    let sandboxes = agent.0.0.get("/api/v1/sandboxes").await?;
    let sandboxes = sandboxes["sandboxes"].as_array().cloned().unwrap_or_default();
    let sandbox = sandboxes.iter().find(|sandbox| sandbox["session"] == session.as_str());
    let sandbox = sandbox
        .and_then(|sandbox| sandbox["id"].as_str())
        .context("the session has a sandbox")?;
    let all = processes::of_idle_sandbox(sandbox).await?;
    let each: anyhow::Result<f64> = all.iter().copied().map(processes::resident).sum();
    Ok((processes::resident_together(&all)?, each?))
}
