//! G7: many calls against a cap that does not hold them all, with the control plane killed in the middle of it. What the provider
//! bills is compared with the cap, also for calls whose answer nobody heard.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use futures::stream::{self, StreamExt, TryStreamExt};
use serde_json::Value;

use crate::inside::World;
use crate::installation::{Api, Programs};
use crate::models::Say;
use crate::report::Measure;
use crate::sample::scaled;

/// Of the calls, so many are under way at once: as many as a control plane works on.
const TOGETHER: usize = 64;

pub(super) async fn measure(programs: &Programs) -> anyhow::Result<Vec<Measure>> {
    let calls = scaled(1_000);
    // Half of what the calls would cost, which is about half a cent each.
    #[allow(clippy::cast_precision_loss, reason = "a small number")]
    let cap = (calls as f64 * 0.25).round() / 100.0;
    let more = format!("[budget]\nuser = {cap:.2}\n");
    let (mut world, seats) = World::start(programs, |_| Say::Words("Noted."), None, &more).await?;
    let _playing = seats.play(TOGETHER.min(calls));
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
    let ended = all_ended(&world.api, calls).await?;
    let ledger = spent(&world.api).await?;
    #[allow(clippy::cast_precision_loss, reason = "far below 2⁵³")]
    let billed = world.models.billed() as f64 / 1e9;
    if ended == 0 || billed < cap / 4.0 {
        bail!("the cap was not put to the test: ${billed:.4} of ${cap:.2} were spent, {ended} runs ended");
    }
    let over = (billed.max(ledger) - cap).max(0.0);
    let what = format!("over a cap of ${cap:.2}: {calls} calls, {TOGETHER} at once, 2 kills");
    Ok(vec![
        Measure::value("G7", what, "$", over).at_most(0.0, None),
        Measure::value("G7", "  billed by the provider", "$", billed),
        Measure::value("G7", "  in the ledger", "$", ledger),
    ])
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
async fn all_ended(api: &Api, count: usize) -> anyhow::Result<usize> {
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
            return Ok(ended);
        }
        if Instant::now() > deadline {
            bail!("only {ended} of {count} runs have ended within five minutes");
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

async fn spent(api: &Api) -> anyhow::Result<f64> {
    let usage = api.0.get("/api/v1/usage").await?;
    let sums = usage["sums"].as_array().context("usage has sums")?;
    Ok(sums.iter().filter_map(|sum| sum["cost"].as_f64()).sum::<f64>() / 1e9)
}
