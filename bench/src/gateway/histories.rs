//! G3: a history that nobody has in memory, read from the store, verified, and joined to the messages of a request.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, bail};
use futures::future::try_join_all;
use providers::{Model, ModelSettings, ProviderKind, Providers, RetryLimits, SettingsPrice, Timeouts};
use secret::Secret;
use store::{Asker, Dialect, SessionFilter, Store};

use super::{CAPS, always_call};
use crate::inside::{Seat, World};
use crate::installation::Programs;
use crate::report::Measure;
use crate::sample::{Sample, scaled};

/// Turns of the three histories; each turn is two messages.
const TURNS: [u32; 3] = [250, 500, 1_000];

pub(super) async fn measure(programs: &Programs) -> anyhow::Result<Vec<Measure>> {
    let more = format!("[run]\nsteps = {}\n\n{CAPS}", 2 * TURNS[2]);
    let (mut world, mut seats) = World::start(programs, always_call, None, &more).await?;
    let mut loops = Vec::new();
    for turns in TURNS {
        loops.push(grow(seats.begin(&world).await?, turns));
    }
    try_join_all(loops).await?;
    world.installation.stop_serve();
    let (mut middles, mut found) = (Vec::new(), Vec::new());
    for messages in TURNS.map(|turns| 2 * i64::from(turns)) {
        let sample = rebuild(&world, messages).await?;
        middles.push(sample.at(0.5));
        let row = Measure::times(
            "G3",
            format!("rebuild of a history of {messages} messages, cold"),
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

async fn rebuild(world: &World, messages: i64) -> anyhow::Result<Sample> {
    let dialect = dialect()?;
    let mut sample = Sample::default();
    for _ in 0..scaled(100) {
        let store = Store::open(store::Config::new(world.installation.store())).await?;
        let page = store
            .sessions(Asker::System, SessionFilter::default(), None, 10)
            .await?;
        let session = page
            .sessions
            .iter()
            .find(|session| (messages - 1..=messages).contains(&session.messages));
        let session = session
            .with_context(|| format!("no session has {messages} messages"))?
            .id;
        let began = Instant::now();
        let history = store.history(Asker::System, session, 0, &dialect).await?;
        let body: Vec<u8> = history
            .entries
            .iter()
            .flat_map(|entry| entry.ready.iter().copied())
            .collect();
        sample.add(began.elapsed());
        if body.is_empty() || history.entries.len() < 400 {
            bail!("the history is not whole");
        }
        store.close().await;
    }
    Ok(sample)
}

/// The dialect in which the control plane stored it, so that nothing is rendered anew.
fn dialect() -> anyhow::Result<Dialect> {
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
        render: Arc::new(move |message| providers.encode(&model, message).to_vec()),
    })
}
