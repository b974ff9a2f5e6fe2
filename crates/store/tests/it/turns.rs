//! Turns: claimed once, repeatable, fed with nothing but results.

use domain::{Author, Money, Role, ToolCallId, ToolResult};
use store::{Begun, Caps, End, StoreError, TurnOutcome};

use crate::parts::{Place, SYSTEM, begin, charge, message, reply, result, said, text, told};

#[tokio::test]
async fn a_turn_has_one_reply_however_often_it_is_asked_for() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    let (run, epoch) = (taken.run.id, taken.run.epoch);
    let (id, opens) = place.begin(begin(run, epoch, 1)).await;
    match place.store.begin_turn(SYSTEM, begin(run, epoch, 1)).await.unwrap() {
        Begun::Held { id: held, message } => assert_eq!((held, message), (id, opens)),
        other => panic!("{other:?}"),
    }
    let wanted = reply(id, opens, "so be it", &[], Some(End::done()));
    let expected = wanted.reply.get().to_owned();
    place.store.finish_turn(SYSTEM, wanted).await.unwrap();
    match place.store.begin_turn(SYSTEM, begin(run, epoch, 1)).await.unwrap() {
        Begun::Done { reply } => assert_eq!(reply.get(), expected, "also when the run has ended with it"),
        other => panic!("{other:?}"),
    }
    assert_eq!(said(&place.store, session).await.len(), 2);
    assert_eq!(place.run_spend(run).0, Money(700));
    let twice = place
        .store
        .finish_turn(SYSTEM, reply(id, opens, "again", &[], None))
        .await;
    assert!(matches!(twice, Err(StoreError::NotFound { .. })));
}

#[tokio::test]
async fn threat_126_of_parallel_claims_one_wins() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    let tries = (0..50).map(|_| place.store.begin_turn(SYSTEM, begin(taken.run.id, taken.run.epoch, 1)));
    let begun = futures::future::join_all(tries).await;
    let ours = begun.iter().filter(|begun| matches!(begun, Ok(Begun::Yours { .. })));
    let held = begun.iter().filter(|begun| matches!(begun, Ok(Begun::Held { .. })));
    assert_eq!((ours.count(), held.count()), (1, 49));
    assert_eq!(
        told(&place.store, session)
            .await
            .iter()
            .filter(|event| *event == "message_opened")
            .count(),
        1
    );
}

#[tokio::test]
async fn threat_124_only_results_of_calls_that_were_asked_for_are_taken() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    let (run, epoch) = (taken.run.id, taken.run.epoch);
    let refused = async |results: Vec<ToolResult>, number| {
        let mut turn = begin(run, epoch, number);
        turn.results = results;
        let error = place.store.begin_turn(SYSTEM, turn).await.unwrap_err();
        assert!(matches!(error, StoreError::Invalid { .. }), "{error:?}");
    };
    refused(vec![result("never asked")], 1).await;
    place.turn(begin(run, epoch, 1), &["a", "b"], None).await;
    refused(vec![result("a"), result("c")], 2).await;
    refused(vec![result("a"), result("a")], 2).await;
    refused(vec![result("a"), result("b")], 4).await;
    let before = said(&place.store, session).await;
    assert_eq!(before.len(), 2, "what is refused leaves no trace");
    let mut turn = begin(run, epoch, 2);
    turn.results = vec![result("b")];
    place.turn(turn, &[], None).await;
    assert_eq!(
        said(&place.store, session).await[2],
        "sandbox: error a, result b",
        "in the order of the calls"
    );

    let (id, opens) = place.begin(begin(run, epoch, 3)).await;
    let mut forged = reply(id, opens, "x", &[], None);
    forged.message = message(Role::User, Author::Sandbox, text("x"));
    let error = place.store.finish_turn(SYSTEM, forged).await.unwrap_err();
    assert!(matches!(error, StoreError::Invalid { .. }), "{error:?}");
}

#[tokio::test]
async fn every_result_is_told_before_its_message() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    let (run, epoch) = (taken.run.id, taken.run.epoch);
    place.turn(begin(run, epoch, 1), &["a"], None).await;
    let mut turn = begin(run, epoch, 2);
    turn.results = vec![ToolResult::text(ToolCallId("a".to_owned()), "\n  first line \nsecond")];
    place.begin(turn).await;
    let events = place.store.events(SYSTEM, session, 0, 100).await.unwrap().events;
    let ended = events.iter().position(|event| {
        matches!(&event.event, domain::Event::ToolEnded { summary, is_error: false, .. } if summary == "first line")
    });
    let next = &events[ended.unwrap() + 1].event;
    assert!(matches!(next, domain::Event::Message { message } if message.author == Author::Sandbox));
}

#[tokio::test]
async fn a_turn_that_failed_can_be_begun_anew() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    let (run, epoch) = (taken.run.id, taken.run.epoch);
    place.turn(begin(run, epoch, 1), &["a"], None).await;
    let mut turn = begin(run, epoch, 2);
    turn.results = vec![result("a")];
    let (id, _) = place.begin(turn.clone()).await;
    place.store.save_open(SYSTEM, id, "half a", "").await.unwrap();
    let failed = place.store.fail_turn(SYSTEM, id, vec![charge(50)], None).await.unwrap();
    assert_eq!(failed.outcome, TurnOutcome::Stored);
    assert_eq!(place.store.events(SYSTEM, session, 0, 100).await.unwrap().open, None);
    turn.opens = domain::MessageId::new();
    place.turn(turn, &[], Some(End::done())).await;
    assert_eq!(
        said(&place.store, session).await,
        [
            "user: count the words",
            "model: so be it, call a",
            "sandbox: result a",
            "model: so be it"
        ],
        "the results stand there once"
    );
    assert_eq!(place.run_spend(run).0, Money(1_450));
}

#[tokio::test]
async fn a_turn_that_failed_for_good_ends_its_run_and_keeps_what_was_said() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    let (id, _) = place.begin(begin(taken.run.id, taken.run.epoch, 1)).await;
    place.store.save_open(SYSTEM, id, "half an answer", "").await.unwrap();
    let end = End::failed("model_failed", "the stream was cut");
    place.store.fail_turn(SYSTEM, id, Vec::new(), Some(end)).await.unwrap();
    assert_eq!(said(&place.store, session).await[1], "model: half an answer…");
    assert_eq!(told(&place.store, session).await.last().unwrap(), "run failed");
}

/// A process dies between the claim and the reply: what it reserved is charged, and the turn is begun anew.
#[tokio::test]
async fn threat_140_a_claim_whose_process_died_is_charged_its_reservation() {
    let mut place = Place::new().await;
    let (session, taken) = place.running().await;
    let run = taken.run.id;
    let (lost, _) = place.begin(begin(run, taken.run.epoch, 1)).await;
    place.store.save_open(SYSTEM, lost, "half", "").await.unwrap();
    place.reopen().await;
    let spend = place.run_spend(run);
    assert_eq!(spend, (Money(1_000), Money::ZERO));
    place.reopen().await;
    assert_eq!(place.run_spend(run), spend, "once");
    let entry = &place
        .store
        .ledger(SYSTEM, store::UsageFilter::default(), 0, 10)
        .await
        .unwrap()[0];
    assert!(entry.estimated && entry.turn == lost);

    let again = place.take(run).await;
    place.turn(begin(run, again.run.epoch, 1), &[], Some(End::done())).await;
    assert_eq!(
        said(&place.store, session).await,
        ["user: count the words", "model: so be it"]
    );
    assert_eq!(place.run_spend(run).0, Money(1_700));
}

#[tokio::test]
async fn a_turn_over_a_cap_keeps_the_results_and_can_be_begun_when_there_is_room() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    let (run, epoch) = (taken.run.id, taken.run.epoch);
    place.turn(begin(run, epoch, 1), &["a"], None).await;
    let mut turn = begin(run, epoch, 2);
    turn.results = vec![result("a")];
    turn.caps = Caps {
        run: Some(Money(1_600)),
        ..Caps::default()
    };
    for _ in 0..2 {
        match place.store.begin_turn(SYSTEM, turn.clone()).await.unwrap() {
            Begun::OverCap { over, .. } => {
                assert_eq!(
                    (over.spent, over.reserved, over.wanted),
                    (Money(700), Money::ZERO, Money(1_000))
                );
            }
            other => panic!("{other:?}"),
        }
    }
    turn.reserve = Money(900);
    place.turn(turn, &[], None).await;
    assert_eq!(
        said(&place.store, session).await[2..],
        ["sandbox: result a", "model: so be it"]
    );
}
