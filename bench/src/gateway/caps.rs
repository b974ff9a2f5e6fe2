//! G7: many calls against a cap that does not hold them all, with the control plane killed in the middle of it. What the provider
//! bills is compared with the cap, also for calls whose answer nobody heard.
//!
//! As many runs as a control plane works on ask for their turns at once; then, in as many sandboxes, programs ask the model by
//! themselves, as many of each as a link carries: a thousand calls at once.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use futures::future::join_all;
use futures::stream::{self, StreamExt, TryStreamExt};
use link::client::ClientError;
use serde_json::Value;

use crate::inside::{Seat, World};
use crate::installation::{Api, Programs};
use crate::models::Say;
use crate::report::Measure;
use crate::sample::scaled;

/// Runs at the same time: as many as a control plane works on.
const RUNS: usize = 64;

/// Calls of models that programs of one sandbox make at once: as many as its link carries.
const OF_EACH: usize = 16;

/// How long the model thinks, so that all of them are under way together.
const THOUGHT: Duration = Duration::from_secs(3);

/// What a program asks.
const QUESTION: &[u8] =
    br#"{"model":"m","max_tokens":256,"stream":true,"messages":[{"role":"user","content":"Which number is next?"}]}"#;

/// About what is set aside for one such call, in dollars.
const SET_ASIDE: f64 = 0.0125;

pub(super) async fn measure(programs: &Programs) -> anyhow::Result<Vec<Measure>> {
    let (turns, calls) = (by_turns(programs).await?, by_programs(programs).await?);
    Ok(turns.into_iter().chain(calls).collect())
}

/// A cap and what came of it.
struct Spent {
    cap: f64,
    billed: f64,
    ledger: f64,
}

impl Spent {
    async fn of(world: &World, cap: f64) -> anyhow::Result<Self> {
        let usage = world.api.0.get("/api/v1/usage").await?;
        let sums = usage["sums"].as_array().context("usage has sums")?;
        let ledger = sums.iter().filter_map(|sum| sum["cost"].as_f64()).sum::<f64>() / 1e9;
        #[allow(clippy::cast_precision_loss, reason = "far below 2⁵³")]
        let billed = world.models.billed() as f64 / 1e9;
        if billed < cap / 4.0 {
            bail!("the cap was not put to the test: ${billed:.4} of ${cap:.2} were spent");
        }
        Ok(Self { cap, billed, ledger })
    }

    fn rows(&self, calls: &str) -> [Measure; 3] {
        let over = (self.billed.max(self.ledger) - self.cap).max(0.0);
        let what = format!("over a cap of ${:.2}: {calls}, 2 kills", self.cap);
        [
            Measure::value("G7", what, "$", over).at_most(0.0, None),
            Measure::value("G7", "  billed by the provider", "$", self.billed),
            Measure::value("G7", "  in the ledger", "$", self.ledger),
        ]
    }
}

async fn by_turns(programs: &Programs) -> anyhow::Result<[Measure; 3]> {
    let calls = scaled(1_000);
    // Half of what the calls would cost, which is about half a cent each.
    #[allow(clippy::cast_precision_loss, reason = "a small number")]
    let cap = (calls as f64 * 0.25).round() / 100.0;
    let more = format!("[budget]\nuser = {cap:.2}\n");
    let (mut world, seats) = World::start(programs, |_| Say::Words("Noted."), None, &more).await?;
    let _playing = seats.play(RUNS.min(calls));
    prompts(&world.api, calls).await?;
    for share in [0.1, 0.3] {
        #[allow(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a count"
        )]
        let at = (calls as f64 * share) as u64;
        until("the model to be asked often enough", || world.models.count() >= at).await?;
        world.installation.kill_serve();
        world.restart_serve()?;
    }
    all_ended(&world.api, calls).await?;
    let spent = Spent::of(&world, cap).await?;
    Ok(spent.rows(&format!("{calls} turns, {RUNS} at once")))
}

async fn by_programs(programs: &Programs) -> anyhow::Result<[Measure; 3]> {
    let runs = scaled(RUNS);
    // A kill costs what was set aside for all of them, and as much is to be left after two.
    #[allow(clippy::cast_precision_loss, reason = "a small number")]
    let cap = ((runs * OF_EACH) as f64 * SET_ASIDE * 300.0).round() / 100.0;
    let more = format!("[budget]\nuser = {cap:.2}\n");
    let at_length = |_: &[u8]| Say::AtLength { after: THOUGHT };
    let (mut world, seats) = World::start(programs, at_length, None, &more).await?;
    let _asking = seats.each(spend);
    prompts(&world.api, runs).await?;
    let together = runs as u64 * OF_EACH as u64 * 1_000 / 1_024;
    for _ in 0..2 {
        until("enough calls to be under way at once", || {
            world.models.under_way() >= together
        })
        .await?;
        world.installation.kill_serve();
        world.restart_serve()?;
        until("the calls of before to be over", || world.models.under_way() < together).await?;
    }
    all_ended(&world.api, runs).await?;
    let spent = Spent::of(&world, cap).await?;
    let calls = world.models.count();
    Ok(spent.rows(&format!("{calls} calls of programs, {together} at once")))
}

/// Programs of one sandbox ask until there is nothing left to be spent; then its run ends.
async fn spend(seat: Seat) {
    join_all((0..OF_EACH).map(|_| ask(&seat))).await;
    seat.end().await;
}

async fn ask(seat: &Seat) {
    loop {
        match seat.model(Bytes::from_static(QUESTION)).await {
            Ok(_) => {}
            // There is no money, or no run any more.
            Err(ClientError::Failed(failure)) if matches!(failure.status, 402 | 403) => return,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn prompts(api: &Api, count: usize) -> anyhow::Result<()> {
    let one = |number: usize| async move {
        let session = api.session().await?;
        api.prompt(&session, &format!("Note that {number} is a number."))
            .await
            .map(drop)
    };
    stream::iter(0..count).map(one).buffer_unordered(8).try_collect().await
}

async fn until(what: &str, is: impl Fn() -> bool) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !is() {
        if Instant::now() > deadline {
            bail!("waited in vain for {what}");
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

/// Waits until every session's run has ended.
async fn all_ended(api: &Api, count: usize) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(300);
    loop {
        let (mut ended, mut after) = (0, String::new());
        loop {
            let page = api.0.get(&format!("/api/v1/sessions?limit=200{after}")).await?;
            let sessions = page["sessions"].as_array().context("a page has sessions")?;
            let is_over =
                |session: &&Value| matches!(session["run"]["state"].as_str(), Some("done" | "failed" | "cancelled"));
            ended += sessions.iter().filter(is_over).count();
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => break,
            }
        }
        if ended >= count {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("only {ended} of {count} runs have ended within five minutes");
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}
