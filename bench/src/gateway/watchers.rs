//! G8: many watchers of one session who hang up after every event and come back with its id. What each saw is compared with the
//! store: every event, every piece of a text, and the whole of it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use domain::{Block, Message, Role};
use futures::future::try_join_all;
use serde_json::Value;
use store::{Asker, Store};

use super::CAPS;
use crate::inside::World;
use crate::installation::{Api, Programs, is_end};
use crate::models::Say;
use crate::report::Measure;
use crate::sample::{Sample, scaled};

/// Runs that are watched, one after the other, in the same session.
const RUNS: usize = 3;

/// Watchers who are the same person: half as many as one may have, as a stream that was hung up on may be there for a moment.
const OF_ONE_PERSON: usize = 64;

pub(super) async fn measure(programs: &Programs) -> anyhow::Result<Vec<Measure>> {
    let slowly = |_: &[u8]| Say::Slowly {
        pieces: 40,
        every: Duration::from_millis(50),
    };
    let (mut world, seats) = World::start(programs, slowly, None, CAPS).await?;
    let _playing = seats.play(1);
    let session = world.api.session().await?;
    let count = scaled(1_000);
    let mut people = Vec::new();
    for number in 0..count.div_ceil(OF_ONE_PERSON) {
        people.push(world.api.another_admin(&format!("watcher-{number}")).await?);
    }
    let watchers = (0..count).map(|number| watch(&people[number / OF_ONE_PERSON], &session));
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
    world.installation.stop_serve();
    let texts = texts(&world, &session).await?;
    let mut wrong = Wrong::default();
    let mut reconnects = 0;
    let mut waits = Sample::default();
    for watcher in watched {
        wrong.look(&watcher.seen, &stored, &texts)?;
        reconnects += watcher.seen.len();
        waits.extend(watcher.waits);
    }
    #[allow(clippy::cast_precision_loss, reason = "small numbers")]
    let (lost, doubled, reconnects) = (wrong.lost as f64, wrong.doubled as f64, reconnects as f64);
    let what = format!("events lost: {count} watchers, back after each event");
    let whole = count * texts.values().map(String::len).sum::<usize>();
    #[allow(clippy::cast_precision_loss, reason = "far below 2⁵³")]
    let live = wrong.pieces as f64 / whole as f64 * 100.0;
    Ok(vec![
        Measure::value("G8", what, "events", lost).at_most(0.0, None),
        Measure::value("G8", "events doubled", "events", doubled).at_most(0.0, None),
        Measure::value("G8", "  of the texts, seen while they were written", "%", live),
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

async fn watch(api: &Api, session: &str) -> anyhow::Result<Watcher> {
    let mut watcher = Watcher {
        seen: Vec::new(),
        waits: Sample::default(),
    };
    let (mut after, mut ends) = ("0".to_owned(), 0);
    while ends < RUNS {
        let began = Instant::now();
        let mut events = api.watch(session, &after).await?;
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

/// What the model said, message by message, as it is stored.
async fn texts(world: &World, session: &str) -> anyhow::Result<HashMap<String, String>> {
    let store = Store::open(store::Config::new(world.installation.store())).await?;
    let messages = store.messages(Asker::System, session.parse()?, 0, 200).await?;
    store.close().await;
    let said = messages.into_iter().map(|stored| stored.message);
    let said = said.filter(|message| message.role == Role::Assistant);
    let texts: HashMap<_, _> = said
        .map(|message| (message.id.to_string(), text_of(&message)))
        .collect();
    if texts.len() != RUNS {
        bail!("the model answered {} times, and not {RUNS}", texts.len());
    }
    Ok(texts)
}

fn text_of(message: &Message) -> String {
    let words = message.blocks.iter().map(|block| match block {
        Block::Text { text } => text.as_str(),
        _ => "",
    });
    words.collect()
}

#[derive(Default)]
struct Wrong {
    lost: usize,
    doubled: usize,
    /// Bytes of text that were seen in pieces.
    pieces: usize,
}

impl Wrong {
    /// Compares what a watcher saw with what is stored, up to the last event that it saw; and each text, in its pieces and
    /// whole.
    fn look(&mut self, seen: &[Value], stored: &[Value], texts: &HashMap<String, String>) -> anyhow::Result<()> {
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
        let mut ends: HashMap<&str, usize> = HashMap::new();
        for piece in seen.iter().filter(|event| event["type"] == "text") {
            let message = piece["message"].as_str().unwrap_or_default();
            let words = piece["text"].as_str().unwrap_or_default();
            let offset = piece["offset"].as_u64().context("a piece of text has an offset")?;
            let (offset, end) = (usize::try_from(offset)?, ends.entry(message).or_default());
            let text = texts.get(message).context("a watcher saw words of no message")?;
            if text.get(offset..offset + words.len()) != Some(words) {
                bail!("a watcher saw {words:?} at byte {offset} of {text:?}");
            }
            self.lost += usize::from(offset > *end);
            self.doubled += usize::from(offset < *end);
            self.pieces += words.len();
            *end = offset + words.len();
        }
        // What did not come in pieces comes with the message itself, which is an event.
        for (id, text) in texts {
            let whole = seen.iter().find(|event| event["message"]["id"] == id.as_str());
            let Some(event) = whole else {
                self.lost += 1;
                continue;
            };
            let shown = text_of(&serde_json::from_value(event["message"].clone())?);
            if shown != *text {
                bail!("a watcher was shown {shown:?} in the end, and what is stored is {text:?}");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use domain::{Author, MessageId, Timestamp};
    use serde_json::json;

    use super::*;

    /// What a watcher saw who was there all the time, and the text of the message.
    fn seen() -> (Vec<Value>, HashMap<String, String>) {
        let message = Message {
            id: MessageId::new(),
            role: Role::Assistant,
            author: Author::ControlPlane,
            blocks: vec![Block::Text {
                text: "one two".to_owned(),
            }],
            interrupted: false,
            at: Timestamp::now(),
        };
        let id = message.id.to_string();
        let seen = vec![
            json!({"number": 1, "type": "message_opened", "message": id}),
            json!({"type": "text", "message": id, "offset": 0, "text": "one "}),
            json!({"type": "text", "message": id, "offset": 4, "text": "two"}),
            json!({"number": 2, "type": "message", "message": message}),
            json!({"number": 3, "type": "run", "state": "done"}),
        ];
        (seen, HashMap::from([(id, "one two".to_owned())]))
    }

    #[test]
    fn what_is_lost_doubled_or_other_is_seen() {
        let (all, texts) = seen();
        let look = |seen: &[Value], stored: &[Value]| {
            let mut wrong = Wrong::default();
            wrong.look(seen, stored, &texts).map(|()| (wrong.lost, wrong.doubled))
        };
        assert_eq!(look(&all, &all).unwrap(), (0, 0));
        let without = |place: usize| {
            let mut seen = all.clone();
            seen.remove(place);
            look(&seen, &all).unwrap()
        };
        assert_eq!(without(0), (1, 0), "an event");
        assert_eq!(without(1), (1, 0), "the beginning of a text");
        assert_eq!(without(2), (0, 0), "its end comes with the message");
        assert_eq!(without(3), (2, 0), "the message, and so the rest of its text");
        let mut twice = all.clone();
        twice.insert(2, all[1].clone());
        assert_eq!(look(&twice, &all).unwrap(), (0, 1));
        let mut other = all.clone();
        other[2]["text"] = json!("too");
        assert!(look(&other, &all).is_err(), "a piece of another text");
        let mut other = all.clone();
        other[3]["message"]["blocks"][0]["text"] = json!("one");
        assert!(look(&other, &other).is_err(), "an end that the store does not know");
    }
}
