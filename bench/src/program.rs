//! P: the program itself: how soon it is ready, how large it is, and whether many sessions slow it down.

mod fresh;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use domain::Door;
use futures::stream::{self, StreamExt, TryStreamExt};
use store::{Asker, SessionFilter, Store, Target};

use crate::inside::World;
use crate::installation::{Programs, ended};
use crate::models::Say;
use crate::peers::opencode;
use crate::processes;
use crate::report::{Findings, Measure};
use crate::sample::{Sample, WARM_UPS, scaled};
use crate::selection::Selection;

/// Measures what of P is wanted.
pub(crate) async fn measure(programs: &Programs, wanted: &Selection, found: &mut Findings) {
    if wanted.has("P1") {
        found.take("P1", start(programs).await);
    }
    if wanted.has("P2") {
        found.take("P2", sizes(programs));
    }
    if wanted.has("P3") {
        found.take("P3", fresh::measure());
    }
    if wanted.has("P4") {
        found.take("P4", many(programs).await);
    }
}

async fn start(programs: &Programs) -> anyhow::Result<Vec<Measure>> {
    let (mut world, _seats) = World::start(programs, |_| Say::Words("Yes."), None, "").await?;
    let mut sample = Sample::default();
    for _ in 0..scaled(100) {
        world.installation.stop_serve();
        sample.add(world.restart_serve()?);
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let memory = processes::resident(world.installation.serve_id()?)?;
    Ok(vec![
        Measure::times("P1", "control plane: start → ready", &sample).at_most(300.0, None),
        Measure::value("P1", "control plane: resident memory, idle", "MiB", memory).at_most(60.0, None),
    ])
}

fn sizes(programs: &Programs) -> anyhow::Result<Vec<Measure>> {
    let mut found = Vec::new();
    let peer = opencode::program().ok().and_then(|program| megabytes(&program).ok());
    for (name, program, limit) in [
        ("belljar", &programs.belljar, 60.0),
        ("belljar-runtime", &programs.runtime, 8.0),
    ] {
        let measure = Measure::value("P2", format!("size of {name}"), "MB", megabytes(program)?).at_most(limit, None);
        found.push(measure.beside_any("OpenCode", peer));
    }
    Ok(found)
}

fn megabytes(program: &Path) -> anyhow::Result<f64> {
    let length = std::fs::metadata(program)
        .with_context(|| format!("cannot look at {}", program.display()))?
        .len();
    #[allow(clippy::cast_precision_loss, reason = "far below 2⁵³")]
    let length = length as f64;
    Ok(length / 1e6)
}

/// A control plane with so many sessions, and the ids of some of them.
struct Filled {
    world: World,
    _playing: lifecycle::DropGuard,
    sessions: Vec<String>,
    times: [Sample; 3],
}

async fn many(programs: &Programs) -> anyhow::Result<Vec<Measure>> {
    let mut found = Vec::new();
    let mut few = fill(programs, 100).await?;
    let mut more = fill(programs, scaled(100_000)).await?;
    // In turns, so that a noisy machine is noisy for both.
    for number in 0..scaled(200) + WARM_UPS {
        for filled in [&mut few, &mut more] {
            filled.look(number).await?;
        }
    }
    let sessions = scaled(100_000);
    for (place, what) in ["list", "open", "prompt"].into_iter().enumerate() {
        let (one, other) = (few.times[place].at(0.5), more.times[place].at(0.5));
        let row = format!(
            "{what}: {sessions} sessions against 100 ({} against {})",
            ms(other),
            ms(one)
        );
        found.push(Measure::value("P4", row, "×", other / one).at_most(1.2, None));
    }
    Ok(found)
}

fn ms(time: f64) -> String {
    format!("{time:.2} ms")
}

async fn fill(programs: &Programs, count: usize) -> anyhow::Result<Filled> {
    let (mut world, seats) = World::start(programs, |_| Say::Words("Yes."), None, "").await?;
    // The first start has made the admin, whose sessions they are.
    world.installation.stop_serve();
    let store = Store::open(store::Config::new(world.installation.store())).await?;
    let users = store.users(Asker::System, false).await?;
    let owner = users.first().context("there is an admin")?.id;
    let open = |_| {
        store.open_session(
            Asker::System,
            Target::New { owner },
            Door::Api,
            "a session among many",
            None,
        )
    };
    stream::iter(0..count)
        .map(open)
        .buffer_unordered(256)
        .try_for_each(|_| async { Ok(()) })
        .await?;
    let page = store
        .sessions(Asker::System, SessionFilter::default(), None, 100)
        .await?;
    let sessions = page.sessions.iter().map(|session| session.id.to_string()).collect();
    store.close().await;
    drop(store);
    world.restart_serve()?;
    Ok(Filled {
        world,
        _playing: seats.play(1),
        sessions,
        times: Default::default(),
    })
}

impl Filled {
    async fn look(&mut self, number: usize) -> anyhow::Result<()> {
        let session = &self.sessions[number % self.sessions.len()];
        let api = &self.world.api;
        let began = Instant::now();
        api.0.get("/api/v1/sessions?limit=50").await?;
        let listed = began.elapsed();
        let began = Instant::now();
        api.0.get(&format!("/api/v1/sessions/{session}")).await?;
        let opened = began.elapsed();
        let began = Instant::now();
        let after = api.prompt(session, "What now?").await?;
        let prompted = began.elapsed();
        let mut events = api.watch(session, &after).await?;
        ended(&mut events, "done").await?;
        if number >= WARM_UPS {
            for (sample, time) in self.times.iter_mut().zip([listed, opened, prompted]) {
                sample.add(time);
            }
        }
        Ok(())
    }
}
