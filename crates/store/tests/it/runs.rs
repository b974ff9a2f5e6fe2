//! Runs: leases, takeovers, ends.

use std::time::Duration;

use domain::{Delivery, Epoch, RunState};
use store::{End, LastBegun, StoreError, Target};

use crate::parts::{LEASE, Place, SYSTEM, begin, prompt, said, told};

#[tokio::test]
async fn only_one_takes_a_run() {
    let place = Place::new().await;
    let accepted = place.start("go").await;
    let tries = (0..20).map(|number| {
        let holder = format!("holder {number}");
        let store = place.store.clone();
        async move { store.take_run(SYSTEM, accepted.run, &holder, LEASE).await.unwrap() }
    });
    let taken = futures::future::join_all(tries).await;
    assert_eq!(taken.iter().flatten().count(), 1);
}

/// One who asks for much does not keep the others from their turn.
#[tokio::test]
async fn places_go_first_to_whoever_has_the_fewest() {
    let place = Place::new().await;
    let (store, mut ada) = (&place.store, Vec::new());
    for _ in 0..5 {
        ada.push(place.start("go").await.run);
    }
    let bob = store.create_user(SYSTEM, "bob", false).await.unwrap().id;
    let mut bobs = Vec::new();
    for _ in 0..2 {
        let prompt = prompt(bob, Target::New { owner: bob }, "go", Delivery::Restart);
        bobs.push(store.accept_prompt(SYSTEM, prompt).await.unwrap().run);
    }
    let order = [ada[0], bobs[0], ada[1], bobs[1], ada[2], ada[3], ada[4]];
    assert_eq!(store.pending_runs(SYSTEM, 10).await.unwrap(), order);
    place.take(ada[0]).await;
    place.take(ada[1]).await;
    let order = [bobs[0], bobs[1], ada[2], ada[3], ada[4]];
    assert_eq!(store.pending_runs(SYSTEM, 10).await.unwrap(), order);
}

#[tokio::test]
async fn it_is_known_for_how_long_the_last_run_is_over() {
    let place = Place::new().await;
    let accepted = place.start("go").await;
    let last = async || place.store.last_begun(SYSTEM, accepted.session).await.unwrap();
    assert_eq!(last().await, None, "it waits");
    let taken = place.take(accepted.run).await;
    place.pass(Duration::from_secs(10));
    let under_way = LastBegun {
        state: RunState::Running,
        over_for: None,
    };
    assert_eq!(last().await, Some(under_way));
    let end = End::failed("no_reason", "as it is");
    let ended = place.store.end_run(SYSTEM, accepted.run, taken.run.epoch, end);
    ended.await.unwrap();
    place.pass(Duration::from_secs(20));
    // Another that waits has begun nothing.
    let next = prompt(place.user, Target::Session(accepted.session), "more", Delivery::Queue);
    place.store.accept_prompt(SYSTEM, next).await.unwrap();
    let over = |seconds| LastBegun {
        state: RunState::Failed,
        over_for: Some(Duration::from_secs(seconds)),
    };
    assert_eq!(last().await, Some(over(20)));
    place.set_back(Duration::from_secs(60));
    assert_eq!(last().await, Some(over(0)));
}

#[tokio::test]
async fn a_lease_that_is_over_is_taken_over_and_its_holder_refused() {
    let place = Place::new().await;
    let (_, first) = place.running().await;
    let run = first.run.id;
    assert!(
        place
            .store
            .take_run(SYSTEM, run, "other", LEASE)
            .await
            .unwrap()
            .is_none()
    );
    place.pass(Duration::from_secs(50));
    assert_eq!(place.store.renew_runs(SYSTEM, "me", &[run], LEASE).await.unwrap(), []);
    place.pass(Duration::from_secs(50));
    assert_eq!(
        place.store.pending_runs(SYSTEM, 10).await.unwrap(),
        [],
        "it was renewed"
    );
    place.pass(Duration::from_secs(11));
    assert_eq!(place.store.pending_runs(SYSTEM, 10).await.unwrap(), [run]);
    let second = place
        .store
        .take_run(SYSTEM, run, "other", LEASE)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(second.run.epoch, Epoch(first.run.epoch.0 + 1));
    assert_eq!(second.run.attempts, 2);
    assert_eq!(
        place.store.renew_runs(SYSTEM, "me", &[run], LEASE).await.unwrap(),
        [run]
    );
    let refused = place.store.begin_turn(SYSTEM, begin(run, first.run.epoch, 1)).await;
    assert!(matches!(refused, Err(StoreError::Stale { .. })));
    let refused = place.store.end_run(SYSTEM, run, first.run.epoch, End::done()).await;
    assert!(matches!(refused, Err(StoreError::Stale { .. })));
    place.begin(begin(run, second.run.epoch, 1)).await;
}

#[tokio::test]
async fn a_lease_that_is_given_up_is_free_at_once() {
    let place = Place::new().await;
    let (_, taken) = place.running().await;
    place.store.release_runs(SYSTEM, "me").await.unwrap();
    assert_eq!(place.store.pending_runs(SYSTEM, 10).await.unwrap(), [taken.run.id]);
    assert!(
        place
            .store
            .take_run(SYSTEM, taken.run.id, "other", LEASE)
            .await
            .unwrap()
            .is_some()
    );
}

#[tokio::test]
async fn a_run_that_was_taken_over_knows_its_last_turn() {
    let place = Place::new().await;
    let (_, taken) = place.running().await;
    let (run, epoch) = (taken.run.id, taken.run.epoch);
    assert_eq!(taken.last_turn, None);
    place.turn(begin(run, epoch, 1), &["a"], None).await;
    let again = place.take(run).await;
    let last = again.last_turn.unwrap();
    assert_eq!((last.turn, last.reply.is_some(), again.run.turn), (1, true, 1));
    place.begin(begin(run, again.run.epoch, 2)).await;
    let last = place.take(run).await.last_turn.unwrap();
    assert_eq!((last.turn, last.reply.is_some()), (2, false));
}

#[tokio::test]
async fn cancelling_answers_open_calls_and_can_be_repeated() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    let (run, epoch) = (taken.run.id, taken.run.epoch);
    place.turn(begin(run, epoch, 1), &["a"], None).await;
    let ended = place
        .store
        .cancel_run(place.asker(), run, "changed my mind")
        .await
        .unwrap();
    assert_eq!((ended.state, ended.now), (RunState::Cancelled, true));
    let again = place.store.cancel_run(place.asker(), run, "again").await.unwrap();
    assert_eq!(
        (again.state, again.now, again.events.len()),
        (RunState::Cancelled, false, 0)
    );
    assert_eq!(said(&place.store, session).await.last().unwrap(), "belljar: error a");
    let events = told(&place.store, session).await;
    assert_eq!(events[events.len() - 3..], ["tool_ended a", "message", "run cancelled"]);
    let stored = place.store.run(place.asker(), run).await.unwrap();
    assert_eq!(stored.reason.as_deref(), Some("changed my mind"));
    let last = place.audited().await;
    assert_eq!(last.entry.action, "run.cancelled");
    let facts = &last.entry.facts;
    assert_eq!(
        (facts.user, facts.session, facts.run),
        (Some(place.user), Some(session), Some(run))
    );
}

#[tokio::test]
async fn waiting_and_going_on() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    let (run, epoch) = (taken.run.id, taken.run.epoch);
    place.store.set_waiting(SYSTEM, run, epoch, true).await.unwrap();
    assert_eq!(place.store.set_waiting(SYSTEM, run, epoch, true).await.unwrap(), []);
    // A turn begins when nobody waits any more.
    place.begin(begin(run, epoch, 1)).await;
    assert_eq!(place.store.set_waiting(SYSTEM, run, epoch, false).await.unwrap(), []);
    let states: Vec<_> = told(&place.store, session).await;
    assert_eq!(
        states,
        [
            "message",
            "run queued",
            "run running",
            "run waiting",
            "run running",
            "message_opened"
        ]
    );
}

#[tokio::test]
async fn runs_are_listed_newest_first() {
    let place = Place::new().await;
    let (session, first) = place.running().await;
    let second = place
        .prompt(store::Target::Session(session), "x", domain::Delivery::Restart)
        .await
        .run;
    let ids = |runs: Vec<store::Run>| runs.into_iter().map(|run| run.id).collect::<Vec<_>>();
    let all = place.store.runs(place.asker(), session, None, 10).await.unwrap();
    assert_eq!(ids(all), [second, first.run.id]);
    let older = place
        .store
        .runs(place.asker(), session, Some(second), 10)
        .await
        .unwrap();
    assert_eq!(ids(older), [first.run.id]);
}
