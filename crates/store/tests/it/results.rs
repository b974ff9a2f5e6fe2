//! Results that are kept before the turn that brings the others.

use domain::{Epoch, RunId, RunState, ToolCallId, ToolResult};
use store::{EarlyResults, End, KeptResults, StoreError};

use crate::parts::{Place, SYSTEM, begin, result, said, told};

fn early(run: RunId, epoch: Epoch, turn: u32, results: Vec<ToolResult>) -> EarlyResults {
    EarlyResults {
        run,
        epoch,
        turn,
        results,
    }
}

impl Place {
    async fn keep_early(&self, early: EarlyResults) -> KeptResults {
        self.store.keep_results(SYSTEM, early).await.unwrap()
    }
}

fn calls(names: &[&str]) -> Vec<ToolCallId> {
    names.iter().map(|name| ToolCallId((*name).to_owned())).collect()
}

#[tokio::test]
async fn results_that_come_one_by_one_are_told_at_once_and_stand_in_one_message_in_the_order_of_the_calls() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    let (run, epoch) = (taken.run.id, taken.run.epoch);
    place.turn(begin(run, epoch, 1), &["a", "b", "c"], None).await;
    let before = told(&place.store, session).await;
    let kept = place.keep_early(early(run, epoch, 2, vec![result("c")])).await;
    assert_eq!((kept.new, kept.events.len()), (calls(&["c"]), 1));
    // A repeat, and one that brings more.
    let again = place.keep_early(early(run, epoch, 2, vec![result("c")])).await;
    assert_eq!((again.new.len(), again.different.len(), again.events.len()), (0, 0, 0));
    let more = place
        .keep_early(early(run, epoch, 2, vec![result("c"), result("a")]))
        .await;
    assert_eq!(more.new, calls(&["a"]));
    let mut now = told(&place.store, session).await;
    assert_eq!(now.split_off(before.len()), ["tool_ended c", "tool_ended a"]);
    assert_eq!(
        said(&place.store, session).await.len(),
        2,
        "the history waits for the turn"
    );

    // The turn brings one that is there, and the one that was missing.
    let mut turn = begin(run, epoch, 2);
    turn.results = vec![result("a"), result("b")];
    place.turn(turn, &["a"], None).await;
    assert_eq!(
        said(&place.store, session).await[2],
        "sandbox: result a, result b, result c"
    );
    let ended: Vec<_> = told(&place.store, session).await;
    let ended: Vec<_> = ended.iter().filter(|event| event.starts_with("tool_ended")).collect();
    assert_eq!(ended, ["tool_ended c", "tool_ended a", "tool_ended b"], "each once");

    // A call of the next reply that has the same id has no result yet.
    place.turn(begin(run, epoch, 3), &[], Some(End::done())).await;
    assert_eq!(said(&place.store, session).await[4], "belljar: error a");
}

#[tokio::test]
async fn of_two_results_of_one_call_the_first_counts() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    let (run, epoch) = (taken.run.id, taken.run.epoch);
    place.turn(begin(run, epoch, 1), &["a", "b"], None).await;
    place.keep_early(early(run, epoch, 2, vec![result("a")])).await;
    let other = ToolResult::error(ToolCallId("a".to_owned()), "something else");
    let kept = place.keep_early(early(run, epoch, 2, vec![other.clone()])).await;
    assert_eq!((kept.new.len(), kept.different), (0, calls(&["a"])));
    let mut turn = begin(run, epoch, 2);
    turn.results = vec![other, result("b")];
    place.turn(turn, &[], None).await;
    assert_eq!(said(&place.store, session).await[2], "sandbox: result a, result b");
}

#[tokio::test]
async fn threat_124_only_results_of_calls_that_were_asked_for_are_kept() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    let (run, epoch) = (taken.run.id, taken.run.epoch);
    let refused = async |turn, results: Vec<ToolResult>| {
        let wanted = early(run, epoch, turn, results);
        let error = place.store.keep_results(SYSTEM, wanted).await.unwrap_err();
        assert!(matches!(error, StoreError::Invalid { .. }), "{error:?}");
    };
    refused(1, vec![result("never asked")]).await;
    place.turn(begin(run, epoch, 1), &["a", "b"], None).await;
    refused(2, vec![result("a"), result("c")]).await;
    refused(2, vec![result("a"), result("a")]).await;
    refused(1, vec![result("a")]).await;
    refused(3, vec![result("a")]).await;
    let before = told(&place.store, session).await;
    let stale = early(run, Epoch(epoch.0 - 1), 2, vec![result("a")]);
    let error = place.store.keep_results(SYSTEM, stale).await.unwrap_err();
    assert!(matches!(error, StoreError::Stale { .. }), "{error:?}");
    let error = place
        .store
        .keep_results(place.asker(), early(run, epoch, 2, vec![result("a")]))
        .await;
    assert!(error.is_err(), "a person has no results");
    // When the turn has begun it is too late: what it did not bring is told as interrupted.
    place.begin(begin(run, epoch, 2)).await;
    refused(2, vec![result("a")]).await;
    assert_eq!(said(&place.store, session).await[2], "belljar: error a, error b");
    place.store.cancel_run(place.asker(), run, "enough").await.unwrap();
    let error = place
        .store
        .keep_results(SYSTEM, early(run, epoch, 2, vec![result("a")]))
        .await;
    assert!(matches!(error, Err(StoreError::Stale { .. })), "{error:?}");
    let now = told(&place.store, session).await;
    assert_eq!(now.iter().filter(|event| event.starts_with("tool_ended")).count(), 2);
    assert_eq!(before.iter().filter(|event| event.starts_with("tool_ended")).count(), 0);
}

#[tokio::test]
async fn what_was_kept_outlives_the_process_and_only_the_rest_is_told_as_interrupted() {
    let mut place = Place::new().await;
    let (session, taken) = place.running().await;
    let run = taken.run.id;
    place.turn(begin(run, taken.run.epoch, 1), &["a", "b", "c"], None).await;
    place
        .keep_early(early(run, taken.run.epoch, 2, vec![result("b")]))
        .await;
    place.reopen().await;
    let again = place.take(run).await;
    assert_eq!(again.early, [result("b")]);
    place
        .keep_early(early(run, again.run.epoch, 2, vec![result("c")]))
        .await;
    place.turn(begin(run, again.run.epoch, 2), &["d", "e"], None).await;
    assert_eq!(
        said(&place.store, session).await[2],
        "sandbox: error a, result b, result c"
    );
    // So it is with a run that ends.
    place
        .keep_early(early(run, again.run.epoch, 3, vec![result("e")]))
        .await;
    let ended = place.store.cancel_run(place.asker(), run, "enough").await.unwrap();
    assert_eq!(ended.state, RunState::Cancelled);
    assert_eq!(said(&place.store, session).await[4], "sandbox: error d, result e");
    let events = told(&place.store, session).await;
    assert_eq!(
        events[events.len() - 4..],
        ["tool_ended e", "tool_ended d", "message", "run cancelled"]
    );
    // Nothing is left for a run that comes after it.
    let next = place.prompt(store::Target::Session(session), "go on", domain::Delivery::Restart);
    assert_eq!(place.take(next.await.run).await.early, []);
}
