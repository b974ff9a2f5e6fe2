//! What it costs. Nothing here asserts a time: it prints, when it is asked to.
//!
//! `cargo test --release -p store -- --ignored --nocapture measure`

use std::time::{Duration, Instant};

use domain::{Delivery, Event, SessionId, UserId};
use store::{Config, SessionFilter, Store, Target};

use crate::parts::{SYSTEM, begin, dialect, prompt, reply, result, user};

async fn open(folder: &tempfile::TempDir) -> (Store, UserId) {
    let store = Store::open(Config::new(folder.path().join("belljar.db")))
        .await
        .unwrap();
    let user = store.create_user(SYSTEM, "ada", false).await.unwrap().id;
    (store, user)
}

/// Processor time of this process so far.
fn processor() -> Duration {
    let usage = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(usage.tv_sec as u64, usage.tv_nsec as u32)
}

async fn fill(store: &Store, user: UserId, sessions: usize) {
    for _ in 0..sessions.div_ceil(250) {
        let prompts = (0..250.min(sessions)).map(|_| {
            let prompt = prompt(user, Target::New { owner: user }, "fill it up", Delivery::Restart);
            store.accept_prompt(SYSTEM, prompt)
        });
        for accepted in futures::future::join_all(prompts).await {
            accepted.unwrap();
        }
    }
}

fn event() -> Event {
    Event::ModelRetry {
        model: "m".to_owned(),
        reason: "r".to_owned(),
    }
}

#[tokio::test]
#[ignore = "a measurement"]
async fn measure_transactions_and_turns() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let (store, user) = open(&folder).await;
    let session = store
        .accept_prompt(
            SYSTEM,
            prompt(user, Target::New { owner: user }, "x", Delivery::Restart),
        )
        .await
        .unwrap()
        .session;
    let begun = Instant::now();
    for _ in 0..2_000 {
        store.record(SYSTEM, session, vec![event()]).await.unwrap();
    }
    println!("alone: {:.0} transactions/s", 2_000.0 / begun.elapsed().as_secs_f64());
    let begun = Instant::now();
    for _ in 0..100 {
        let writes = (0..200).map(|_| store.record(SYSTEM, session, vec![event()]));
        for written in futures::future::join_all(writes).await {
            written.unwrap();
        }
    }
    println!(
        "in groups of 200: {:.0} transactions/s",
        20_000.0 / begun.elapsed().as_secs_f64()
    );

    for together in [1, 20] {
        let mut runs = Vec::new();
        for _ in 0..together {
            let prompt = prompt(user, Target::New { owner: user }, "x", Delivery::Restart);
            let accepted = store.accept_prompt(SYSTEM, prompt).await.unwrap();
            let taken = store
                .take_run(SYSTEM, accepted.run, "me", Duration::from_secs(600))
                .await
                .unwrap()
                .unwrap();
            runs.push(taken.run);
        }
        let turns = 200;
        let (begun, used) = (Instant::now(), processor());
        let work = runs.iter().map(|run| {
            let store = store.clone();
            async move {
                for number in 1..=turns {
                    let mut turn = begin(run.id, run.epoch, number);
                    turn.caps.run = Some(domain::Money::dollars(1));
                    turn.caps.day = Some(domain::Money::dollars(1));
                    if number > 1 {
                        turn.results = vec![result("a")];
                    }
                    let opens = turn.opens;
                    let store::Begun::Yours { id, .. } = store.begin_turn(SYSTEM, turn).await.unwrap() else {
                        panic!("it is ours");
                    };
                    store
                        .finish_turn(SYSTEM, reply(id, opens, "said", &["a"], None))
                        .await
                        .unwrap();
                }
            }
        });
        futures::future::join_all(work).await;
        let count = f64::from(turns) * f64::from(together);
        println!(
            "turns, {together} at once: {:.0} µs of processor, {:.0} µs of the clock each",
            (processor() - used).as_secs_f64() * 1e6 / count,
            begun.elapsed().as_secs_f64() * 1e6 / count
        );
    }
}

#[tokio::test]
#[ignore = "a measurement"]
async fn measure_many_sessions() {
    let mut stores = Vec::new();
    for sessions in [100, 100_000] {
        let folder = tempfile::tempdir_in(".").unwrap();
        let (store, user) = open(&folder).await;
        fill(&store, user, sessions).await;
        stores.push((folder, store, user, Vec::new()));
    }
    // In turns, so that a noisy machine is noisy for both.
    for _ in 0..10 {
        for (_, store, id, rates) in &mut stores {
            rates.push(rates_of(store, *id).await);
        }
    }
    for what in 0..4 {
        let median = |rates: &[[f64; 4]]| {
            let mut of: Vec<f64> = rates.iter().map(|rates| rates[what]).collect();
            of.sort_by(f64::total_cmp);
            of[of.len() / 2]
        };
        let (few, many) = (median(&stores[0].3), median(&stores[1].3));
        let name = ["list", "list all", "open", "prompt"][what];
        println!(
            "{name}: {few:.0}/s with 100, {many:.0}/s with 100,000 sessions: {:.2}",
            many / few
        );
    }
}

async fn rates_of(store: &Store, id: UserId) -> [f64; 4] {
    let rounds = 300;
    let rate = |begun: Instant| f64::from(rounds) / begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    let mut sessions: Vec<SessionId> = Vec::new();
    for _ in 0..rounds {
        let page = store
            .sessions(user(id), SessionFilter::default(), None, 50)
            .await
            .unwrap();
        sessions = page.sessions.iter().map(|session| session.id).collect();
    }
    let list = rate(begun);
    let begun = Instant::now();
    for _ in 0..rounds {
        store
            .sessions(SYSTEM, SessionFilter::default(), None, 50)
            .await
            .unwrap();
    }
    let list_all = rate(begun);
    let begun = Instant::now();
    for session in sessions.iter().cycle().take(rounds as usize) {
        store.session(user(id), *session).await.unwrap();
        store.events(user(id), *session, 0, 100).await.unwrap();
    }
    let opened = rate(begun);
    let begun = Instant::now();
    for session in sessions.iter().cycle().take(rounds as usize) {
        let prompt = prompt(id, Target::Session(*session), "x", Delivery::Steer);
        store.accept_prompt(user(id), prompt).await.unwrap();
    }
    [list, list_all, opened, rate(begun)]
}

#[tokio::test]
#[ignore = "a measurement"]
async fn measure_the_rebuild_of_a_history() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let (mut store, user) = open(&folder).await;
    let first = prompt(user, Target::New { owner: user }, "x", Delivery::Restart);
    let accepted = store.accept_prompt(SYSTEM, first).await.unwrap();
    let taken = store
        .take_run(SYSTEM, accepted.run, "me", Duration::from_secs(600))
        .await
        .unwrap()
        .unwrap();
    for number in 1..=1_000 {
        let mut turn = begin(accepted.run, taken.run.epoch, number);
        if number > 1 {
            turn.results = vec![domain::ToolResult::text(
                domain::ToolCallId("a".to_owned()),
                "y".repeat(1_000),
            )];
        }
        let opens = turn.opens;
        let store::Begun::Yours { id, .. } = store.begin_turn(SYSTEM, turn).await.unwrap() else {
            panic!("it is ours");
        };
        let reply = reply(id, opens, &"z".repeat(500), &["a"], None);
        store.finish_turn(SYSTEM, reply).await.unwrap();
    }
    let mut cold = Vec::new();
    for _ in 0..20 {
        store.close().await;
        drop(store);
        store = Store::open(Config::new(folder.path().join("belljar.db")))
            .await
            .unwrap();
        let begun = Instant::now();
        let history = store.history(SYSTEM, accepted.session, 0, &dialect()).await.unwrap();
        cold.push(begun.elapsed());
        assert_eq!(history.entries.len(), 2_000);
    }
    cold.sort();
    let mut warm = Vec::new();
    let used = processor();
    for _ in 0..50 {
        let begun = Instant::now();
        store.history(SYSTEM, accepted.session, 0, &dialect()).await.unwrap();
        warm.push(begun.elapsed());
    }
    let used = (processor() - used) / 50;
    warm.sort();
    println!(
        "2,000 messages: {:?} cold, {:?} warm (p50), {used:?} of processor warm",
        cold[10], warm[25]
    );
}
