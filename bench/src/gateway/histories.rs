//! G3: a history that nobody has in memory, read from the store, verified, and joined to a request: the whole body, as it is sent.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use domain::{SessionId, ToolDefinition};
use llm::{CacheMarks, Format, Head, Opening, request_body};
use protocol::ToolChoice;
use providers::{Model, ModelSettings, ProviderKind, Providers, RetryLimits, SettingsPrice, Timeouts};
use secret::Secret;
use serde::Deserialize;
use serde_json::Value;
use store::{Asker, Dialect, SessionFilter, Store};

use super::{CAPS, always_call};
use crate::inside::{Seat, World};
use crate::installation::Programs;
use crate::report::Measure;
use crate::sample::{Sample, scaled};

/// Turns of the three histories; each turn is two messages.
const TURNS: [u32; 3] = [250, 500, 1_000];

/// Messages that are rendered at each rebuild: a person's, which is stored before it is known which model is told of it.
const PROMPTS: usize = 1;

/// What the control plane writes before the bytes of a stored message: the most tokens that it can be, and whether it makes calls.
const FRAME: usize = 9;

pub(super) async fn measure(programs: &Programs) -> anyhow::Result<Vec<Measure>> {
    let more = format!("[run]\nsteps = {}\n\n{CAPS}", 2 * TURNS[2]);
    let (mut world, mut seats) = World::start(programs, always_call, None, &more).await?;
    let mut sent = Vec::new();
    for turns in TURNS {
        grow(seats.begin(&world).await?, turns).await?;
        let last = world.models.last().pop();
        sent.push(last.context("the model was not asked")?.body);
    }
    world.installation.stop_serve();
    let rebuild = Rebuild::new(world.installation.store())?;
    let (mut middles, mut found) = (Vec::new(), Vec::new());
    for (turns, sent) in TURNS.into_iter().zip(&sent) {
        let messages = 2 * turns as usize;
        let sample = rebuild.time(messages, sent).await?;
        middles.push(sample.at(0.5));
        let row = Measure::times(
            "G3",
            format!("rebuild of a request with {messages} messages, cold"),
            &sample,
        );
        found.push(if messages == 2_000 {
            row.at_most(10.0, None)
        } else {
            row
        });
    }
    let growth = middles[2] / middles[0] / 4.0;
    found.push(Measure::value("G3", "  from 500 to 2,000 messages, against linear", "×", growth).at_most(1.25, None));
    Ok(found)
}

/// Takes so many turns, and is left where it is.
async fn grow(mut seat: Seat, turns: u32) -> anyhow::Result<()> {
    for _ in 0..turns {
        seat.turn().await?;
    }
    Ok(())
}

/// What rebuilds histories as the control plane does.
struct Rebuild {
    store: PathBuf,
    dialect: Dialect,
    /// Messages that had to be rendered since this was looked at.
    rendered: Arc<AtomicUsize>,
}

impl Rebuild {
    fn new(store: PathBuf) -> anyhow::Result<Self> {
        let rendered = Arc::new(AtomicUsize::new(0));
        let dialect = dialect(Arc::clone(&rendered))?;
        Ok(Self {
            store,
            dialect,
            rendered,
        })
    }

    /// From the store to the body of a request, for the session with so many messages, whose last request was this one.
    async fn time(&self, messages: usize, sent: &Bytes) -> anyhow::Result<Sample> {
        let told: Told = serde_json::from_slice(sent).context("the model was asked in no JSON")?;
        ensure!(
            told.messages.len() == messages - 1,
            "the model was told {} messages last, and not {}",
            told.messages.len(),
            messages - 1
        );
        let mut sample = Sample::default();
        for _ in 0..scaled(100) {
            let store = Store::open(store::Config::new(&self.store)).await?;
            let session = session_with(&store, messages).await?;
            let began = Instant::now();
            let history = store.history(Asker::System, session, 0, &self.dialect).await?;
            let lines = history.entries.iter().map(|entry| entry.ready.get(FRAME..));
            let lines: Vec<&[u8]> = lines.collect::<Option<_>>().context("a stored message has no frame")?;
            let opening = told.opening();
            let head = told.head(&opening);
            let body = request_body(&head, lines.iter().copied());
            sample.add(began.elapsed());
            let before = request_body(&head, lines[..messages - 1].iter().copied());
            if before != *sent || body.len() <= sent.len() {
                bail!("what was rebuilt is not what was sent");
            }
            let rendered = self.rendered.swap(0, Ordering::SeqCst);
            ensure!(rendered <= PROMPTS, "{rendered} messages were rendered anew");
            store.close().await;
        }
        Ok(sample)
    }
}

/// A request, as far as it is needed to make it again.
#[derive(Deserialize)]
struct Told {
    model: String,
    system: Vec<Value>,
    tools: Vec<ToolDefinition>,
    max_tokens: u64,
    messages: Vec<Value>,
}

impl Told {
    fn opening(&self) -> Opening {
        let system = self.system.first().and_then(|block| block["text"].as_str());
        let (format, system) = (Format::AnthropicMessages, system.unwrap_or_default());
        Opening::new(format, &self.model, system, &self.tools, CacheMarks::default())
    }

    fn head<'a>(&self, opening: &'a Opening) -> Head<'a> {
        Head {
            opening,
            tool_choice: &ToolChoice::Auto,
            max_tokens: self.max_tokens,
            chat_limit: Default::default(),
            thinking: Default::default(),
        }
    }
}

/// The session whose history is so long.
async fn session_with(store: &Store, messages: usize) -> anyhow::Result<SessionId> {
    let page = store
        .sessions(Asker::System, SessionFilter::default(), None, 10)
        .await?;
    let mut all = page.sessions.iter();
    let session = all.find(|session| usize::try_from(session.messages) == Ok(messages));
    Ok(session
        .with_context(|| format!("no session has {messages} messages"))?
        .id)
}

/// The dialect in which the control plane stored it; what was stored in another is counted.
fn dialect(rendered: Arc<AtomicUsize>) -> anyhow::Result<Dialect> {
    let mut settings = ModelSettings::new(ProviderKind::Anthropic);
    settings.model = Some("fake".to_owned());
    settings.api_key = Some(Secret::new("none").into());
    settings.base_url = Some("http://127.0.0.1:9".to_owned());
    settings.window = Some(10_000_000);
    settings.max_output = Some(256);
    settings.price = Some(SettingsPrice {
        input: 3.0,
        output: 15.0,
        cache_read: None,
        cache_write: None,
        cache_write_hour: None,
    });
    let model = Model::new("m", settings).map_err(|wrong| anyhow::anyhow!("{wrong:?}"))?;
    let providers = Providers::new(vec![model], Timeouts::default(), RetryLimits::default())?;
    let model = Arc::clone(providers.model("m")?);
    Ok(Dialect {
        name: format!("{}/1", model.dialect()).into(),
        render: Arc::new(move |message| {
            rendered.fetch_add(1, Ordering::SeqCst);
            [&[0; FRAME], &*providers.encode(&model, message)].concat()
        }),
    })
}
