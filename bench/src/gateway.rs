//! G: the gateway, from a sandbox's turn to its reply, with budgets, audit and token checks on and a store that syncs every write.

mod caps;
mod histories;
mod services;
mod watchers;
mod way_out;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use futures::future::{join_all, try_join_all};
use hyper::Method;
use lifecycle::Stop;
use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::inside::{Seat, Seats, World};
use crate::installation::Programs;
use crate::models::Say;
use crate::peers::litellm;
use crate::processes::processor_time;
use crate::report::{Findings, Measure};
use crate::sample::{Sample, WARM_UPS, scaled, synced_write};
use crate::selection::Selection;

/// Turns of a run: its history has 1 to 39 messages then, 20 in the middle.
const TURNS: u32 = 20;

/// Runs at the same time: as many as a control plane works on.
const RUNS: usize = 64;

/// Where the generator and the model are, and where Belljar is.
const CORES: (usize, usize) = (0, 1);

/// Every cap there is, none of which is reached.
const CAPS: &str = "[budget]\nrun = 10000.00\nsession = 10000.00\nuser = 100000.00\nday = 100000.00\n";

/// Measures what of G is wanted.
pub(crate) async fn measure(programs: &Programs, wanted: &Selection, found: &mut Findings) {
    if wanted.any(&["G1", "G2"]) {
        let (programs, one, two) = (programs.clone(), wanted.has("G1"), wanted.has("G2"));
        let measured = on_its_core(move || async move { speed(&programs, one, two).await });
        found.take("G1, G2", measured.await);
    }
    if wanted.has("G4") {
        let programs = programs.clone();
        found.take(
            "G4",
            on_its_core(move || async move { services::measure(&programs).await }).await,
        );
    }
    if wanted.any(&["G5", "G6"]) {
        found.take("G5, G6", way_out::measure(programs, wanted).await);
    }
    if wanted.has("G3") {
        found.take("G3", histories::measure(programs).await);
    }
    if wanted.has("G7") {
        found.take("G7", caps::measure(programs).await);
    }
    if wanted.has("G8") {
        found.take("G8", watchers::measure(programs).await);
    }
}

/// Measures in a thread on the generator's core.
async fn on_its_core<F: Future<Output = anyhow::Result<Vec<Measure>>>>(
    work: impl FnOnce() -> F + Send + 'static,
) -> anyhow::Result<Vec<Measure>> {
    // Whoever gives up waiting ends what goes on in the thread.
    let stop = Stop::new();
    let _given_up = stop.clone().drop_guard();
    let measuring = std::thread::spawn(move || pinned(&stop, work));
    let measured = tokio::task::spawn_blocking(move || measuring.join()).await?;
    measured.unwrap_or_else(|_| bail!("the generator broke down"))
}

/// What the child does that talks with LiteLLM.
pub(crate) fn talk_with_litellm(program: &Path, body: &Path) -> anyhow::Result<()> {
    pinned(&Stop::new(), || litellm::talk(program, body, CORES.1, always_call))
}

/// Runs on the generator's core, and all that it starts with it.
fn pinned<T, F: Future<Output = anyhow::Result<T>>>(stop: &Stop, work: impl FnOnce() -> F) -> anyhow::Result<T> {
    let mut core = CpuSet::new();
    core.set(CORES.0);
    sched_setaffinity(None, &core).context("the generator could not be given a core of its own")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let measured = runtime.block_on(stop.run_until_cancelled(work()));
    measured.context("it was told to end")?
}

async fn speed(programs: &Programs, added: bool, rate: bool) -> anyhow::Result<Vec<Measure>> {
    let (mut found, mut asked) = (Vec::new(), None);
    let more = format!("[run]\nsteps = {TURNS}\n\n{CAPS}");
    let (world, mut seats) = World::start(programs, always_call, Some(CORES.1), &more).await?;
    // The first requests of a process are no measure.
    at_once(&world, &mut seats, 4, world.installation.serve_id()?).await?;
    if added {
        let write = synced_write(&world.installation.path("data"))?;
        let turns = at_a_rate(&world, &mut seats).await?;
        let body = middle_request(&world)?;
        let direct = directly(&world, &body).await?;
        let programs = by_programs(&world, &mut seats, &body).await?;
        let added = |through: &Sample| through.less(direct.at(0.5));
        found.extend([
            Measure::times(
                "G1",
                "added to a model call, 100 requests/s, history of 20",
                &added(&turns),
            )
            .at_most(1.0, Some(5.0)),
            Measure::times("G1", "  through Belljar", &turns),
            Measure::times(
                "G1",
                "  added to a program's own call, which brings its history",
                &added(&programs),
            ),
            Measure::times("G1", "  the same model asked directly", &direct),
            Measure::times("G1", "  a write synced to this disk; a turn needs two", &write),
        ]);
        asked = Some(body);
    }
    if rate {
        found.extend(held(&world, &mut seats).await?);
    }
    // LiteLLM takes its time, and the loops that have begun wait for no next turn so long.
    drop((world, seats));
    if let Some(body) = asked {
        match litellm::in_a_network_of_its_own(&body) {
            Ok(theirs) => beside_litellm(&mut found, &theirs),
            Err(error) => eprintln!("bench: no LiteLLM for G1: {error:#}"),
        }
    }
    Ok(found)
}

fn beside_litellm(found: &mut Vec<Measure>, theirs: &litellm::Found) {
    let times = theirs.through.less(theirs.direct.at(0.5));
    for (id, figure) in [("G1", times.at(0.5)), ("G2", theirs.rate)] {
        if let Some(at) = found.iter().position(|measure| measure.id() == id) {
            let ours = found.remove(at);
            found.insert(at, ours.beside("LiteLLM", figure));
        }
    }
    found.push(Measure::times("G1", "  added by LiteLLM, nothing stored", &times));
}

/// What many loops at once get through.
async fn held(world: &World, seats: &mut Seats) -> anyhow::Result<[Measure; 3]> {
    let (mut count, mut time, mut processor) = (0.0, Duration::ZERO, Duration::ZERO);
    let serve = world.installation.serve_id()?;
    let mut latencies = Sample::default();
    for _ in 0..scaled(80) / 10 + 1 {
        let Round { sample, took, used } = at_once(world, seats, RUNS, serve).await?;
        processor += used;
        #[allow(clippy::cast_precision_loss, reason = "a small number")]
        let answered = sample.len() as f64;
        count += answered;
        time += took;
        latencies.extend(sample);
    }
    let rate = count / time.as_secs_f64();
    let each = processor.as_secs_f64() * 1e6 / count;
    Ok([
        Measure::value("G2", "requests per second, Belljar on one core", "1/s", rate).at_least(1_500.0),
        Measure::value("G2", "  processor time of Belljar for one request", "µs", each),
        Measure::times("G2", format!("  time of one, {RUNS} at once"), &latencies),
    ])
}

fn always_call(_: &[u8]) -> Say {
    Say::Call("safebash", json!({"command": "ls -l /workspace"}))
}

/// Sessions with a loop each that has begun, and asked for nothing yet.
async fn begin(world: &World, seats: &mut Seats, count: usize) -> anyhow::Result<Vec<Seat>> {
    let mut begun = Vec::with_capacity(count);
    for _ in 0..count {
        begun.push(seats.begin(world).await?);
    }
    Ok(begun)
}

/// Turns of many loops at once.
struct Round {
    sample: Sample,
    took: Duration,
    /// Processor time of the control plane.
    used: Duration,
}

/// Every loop asks for its next turn as soon as it has the one before.
async fn at_once(world: &World, seats: &mut Seats, count: usize, serve: u32) -> anyhow::Result<Round> {
    let seats = begin(world, seats, count).await?;
    let (began, before) = (Instant::now(), processor_time(serve)?);
    let loops = seats.into_iter().map(|mut seat| async move {
        let mut sample = Sample::default();
        for _ in 0..TURNS {
            let began = Instant::now();
            seat.turn().await?;
            sample.add(began.elapsed());
        }
        Ok::<_, anyhow::Error>((seat, sample))
    });
    let done = try_join_all(loops).await?;
    let took = began.elapsed();
    let used = processor_time(serve)?.saturating_sub(before);
    let (seats, samples): (Vec<Seat>, Vec<Sample>) = done.into_iter().unzip();
    join_all(seats.into_iter().map(Seat::end)).await;
    let mut all = Sample::default();
    samples.into_iter().for_each(|sample| all.extend(sample));
    Ok(Round {
        sample: all,
        took,
        used,
    })
}

/// Turns of many loops in turn, one each ten milliseconds, whatever the ones before do.
async fn at_a_rate(world: &World, seats: &mut Seats) -> anyhow::Result<Sample> {
    let seats = begin(world, seats, scaled(RUNS)).await?;
    let (ticks, loops): (Vec<_>, Vec<_>) = seats
        .into_iter()
        .map(|mut seat| {
            let (tick, mut due) = mpsc::channel::<Instant>(TURNS as usize);
            let turns = async move {
                let mut sample = Sample::default();
                while let Some(due) = due.recv().await {
                    seat.turn().await?;
                    sample.add(due.elapsed());
                }
                seat.end().await;
                Ok::<_, anyhow::Error>(sample)
            };
            (tick, turns)
        })
        .unzip();
    let clock = async move {
        let mut clock = tokio::time::interval(Duration::from_millis(10));
        for _ in 0..TURNS {
            for tick in &ticks {
                clock.tick().await;
                tick.send(Instant::now()).await?;
            }
        }
        Ok::<_, anyhow::Error>(())
    };
    let (samples, ticked) = tokio::join!(try_join_all(loops), clock);
    ticked?;
    let mut all = Sample::default();
    samples?.into_iter().for_each(|sample| all.extend(sample));
    Ok(all)
}

/// The same request as programs inside make it by themselves, at the same rate.
async fn by_programs(world: &World, seats: &mut Seats, body: &Bytes) -> anyhow::Result<Sample> {
    let mut request: Value = serde_json::from_slice(body)?;
    request["model"] = "default".into();
    let request = Bytes::from(request.to_string());
    let seats = begin(world, seats, scaled(RUNS)).await?;
    let mut sample = Sample::default();
    let mut clock = tokio::time::interval(Duration::from_millis(10));
    for round in 0..=TURNS {
        for seat in &seats {
            clock.tick().await;
            let heard = seat.heard(request.clone()).await?;
            // The first call of a session looks up what it may do.
            if round > 0 {
                sample.add(heard);
            }
        }
    }
    join_all(seats.into_iter().map(Seat::end)).await;
    Ok(sample)
}

/// Of what the gateway asked the model, the one of middling length.
fn middle_request(world: &World) -> anyhow::Result<Bytes> {
    let mut bodies: Vec<Bytes> = world.models.last().into_iter().map(|asked| asked.body).collect();
    bodies.sort_by_key(Bytes::len);
    Ok(bodies.get(bodies.len() / 2).context("the model was not asked")?.clone())
}

/// The same model, asked with what the gateway asked it, at the same rate.
async fn directly(world: &World, body: &Bytes) -> anyhow::Result<Sample> {
    let client = world.direct();
    let mut sample = Sample::default();
    let mut clock = tokio::time::interval(Duration::from_millis(10));
    for number in 0..scaled(RUNS) * TURNS as usize + WARM_UPS {
        clock.tick().await;
        let began = Instant::now();
        client.bytes(Method::POST, "/v1/messages", body.clone()).await?;
        if number >= WARM_UPS {
            sample.add(began.elapsed());
        }
    }
    Ok(sample)
}
