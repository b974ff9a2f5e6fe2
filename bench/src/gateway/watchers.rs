//! G8: many watchers of one session who hang up after every event and come back with its id.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use futures::future::try_join_all;
use serde_json::Value;

use super::CAPS;
use crate::inside::World;
use crate::installation::{Programs, is_end};
use crate::models::Say;
use crate::report::Measure;
use crate::sample::{Sample, scaled};

/// Runs that are watched, one after the other, in the same session.
const RUNS: usize = 3;

pub(super) async fn measure(programs: &Programs) -> anyhow::Result<Vec<Measure>> {
    let slowly = |_: &[u8]| Say::Slowly {
        pieces: 40,
        every: Duration::from_millis(50),
    };
    let (world, seats) = World::start(programs, slowly, None, CAPS).await?;
    let _playing = seats.play(1);
    let world = Arc::new(world);
    let session = world.api.session().await?;
    let count = scaled(1_000);
    let watchers = (0..count).map(|_| watch(&world, &session));
    let prompts = async {
        for number in 0..RUNS {
            let after = world
                .api
                .prompt(&session, &format!("Say something long, {number}."))
                .await?;
            let mut events = world.api.watch(&session, &after).await?;
            crate::installation::ended(&mut events, "done").await?;
        }
        Ok(())
    };
    let (watched, ()) = tokio::try_join!(try_join_all(watchers), prompts)?;
    let stored = stored(&world, &session).await?;
    let mut wrong = Wrong::default();
    let mut reconnects = 0;
    let mut waits = Sample::default();
    for watcher in watched {
        wrong.look(&watcher.seen, &stored)?;
        reconnects += watcher.seen.len();
        waits.extend(watcher.waits);
    }
    #[allow(clippy::cast_precision_loss, reason = "small numbers")]
    let (lost, doubled, reconnects) = (wrong.lost as f64, wrong.doubled as f64, reconnects as f64);
    let what = format!("events lost: {count} watchers, back after each event");
    Ok(vec![
        Measure::value("G8", what, "events", lost).at_most(0.0, None),
        Measure::value("G8", "events doubled", "events", doubled).at_most(0.0, None),
        Measure::value("G8", "  reconnections", "times", reconnects),
        Measure::times("G8", "  from coming back to the next event", &waits),
    ])
}

/// What a watcher saw.
struct Watcher {
    seen: Vec<Value>,
    /// Times until the next event was there, also where it had yet to happen.
    waits: Sample,
}

async fn watch(world: &World, session: &str) -> anyhow::Result<Watcher> {
    let mut watcher = Watcher {
        seen: Vec::new(),
        waits: Sample::default(),
    };
    let (mut after, mut ends) = ("0".to_owned(), 0);
    while ends < RUNS {
        let began = Instant::now();
        let mut events = world.api.watch(session, &after).await?;
        let frame = events.next().await?.context("the events ended before the runs")?;
        watcher.waits.add(began.elapsed());
        after = frame.id.context("an event has an id")?;
        ends += usize::from(is_end(&frame.data));
        watcher.seen.push(frame.data);
    }
    Ok(watcher)
}

async fn stored(world: &World, session: &str) -> anyhow::Result<Vec<Value>> {
    let mut events = world
        .api
        .0
        .events(&format!("/api/v1/sessions/{session}/events?follow=false"), None)
        .await?;
    let mut all = Vec::new();
    while let Some(frame) = events.next().await? {
        all.push(frame.data);
    }
    if all.is_empty() {
        bail!("the session has no events");
    }
    Ok(all)
}

#[derive(Default)]
struct Wrong {
    lost: usize,
    doubled: usize,
}

impl Wrong {
    /// Compares what a watcher saw with what is stored, up to the last event that it saw; and of each text the pieces.
    fn look(&mut self, seen: &[Value], stored: &[Value]) -> anyhow::Result<()> {
        let number = |event: &Value| event["number"].as_i64();
        let durable: Vec<i64> = seen.iter().filter_map(number).collect();
        let last = durable.last().copied().context("a watcher saw no event")?;
        let known: HashMap<i64, &Value> = stored
            .iter()
            .filter_map(|event| Some((number(event)?, event)))
            .collect();
        let wanted = known.keys().filter(|number| **number <= last).count();
        let mut distinct = durable.clone();
        distinct.sort_unstable();
        distinct.dedup();
        self.lost += wanted.saturating_sub(distinct.len());
        self.doubled += durable.len() - distinct.len();
        for event in seen.iter().filter(|event| number(event).is_some()) {
            if number(event).and_then(|number| known.get(&number)) != Some(&event) {
                bail!("a watcher saw another event than was stored: {event}");
            }
        }
        let mut ends: HashMap<&str, u64> = HashMap::new();
        for piece in seen.iter().filter(|event| event["type"] == "text") {
            let (message, text) = (
                piece["message"].as_str().unwrap_or_default(),
                piece["text"].as_str().unwrap_or_default(),
            );
            let end = ends.entry(message).or_default();
            let offset = piece["offset"].as_u64().context("a piece of text has an offset")?;
            self.lost += usize::from(offset > *end);
            self.doubled += usize::from(offset < *end);
            *end = offset + text.len() as u64;
        }
        Ok(())
    }
}
