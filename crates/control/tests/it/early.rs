//! Results of calls are told and kept when they are there, not when the slowest is.

use domain::{Delta, Epoch, Event, Money, Placement, RunId, SessionId, ToolCallId, ToolResult};
use futures::StreamExt;
use link::client::{Client, ClientError};
use protocol::{EarlyResults, RefusalCode, ToolChoice, TurnRequest};
use store::{Accepted, Asker};
use testkit::model_server::Answer;
use testkit::within;

use crate::world::{Differs, World, at_length, in_both_placements};

/// Three calls, of which one never ends, and the other two were told to have ended.
async fn two_of_three(world: &World) -> Accepted {
    world.will_call(&[("a", "one"), ("slow", "hang"), ("c", "three")]);
    world.will_say("Done.");
    let accepted = world.prompt("go").await;
    for call in ["a", "c"] {
        let is_end = |event: &Event| matches!(event, Event::ToolEnded { call: ended, .. } if ended.0 == call);
        world.event(accepted.session, "a call to end", is_end).await;
    }
    assert_eq!(
        world.said(accepted.session).await[1..],
        ["m: Let me see. ", "m: exec(one)", "m: exec(hang)", "m: exec(three)"],
        "their message waits for the third"
    );
    accepted
}

async fn only_the_third_was_interrupted(world: &World, accepted: &Accepted) {
    world.done(accepted).await;
    let said = world.said(accepted.session).await;
    assert_eq!(said[5], "sandbox: did one");
    assert!(said[6].starts_with("sandbox: This call was interrupted"), "{said:?}");
    assert_eq!(said[7..], ["sandbox: did three", "m: Done."]);
    world.assert_whole(accepted.session).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_was_told_outlives_its_sandbox() {
    in_both_placements(async |world| {
        let accepted = two_of_three(&world).await;
        world.sandboxes.kill(world.inside.newest().0);
        only_the_third_was_interrupted(&world, &accepted).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_was_told_outlives_the_control_plane() {
    in_both_placements(async |world| {
        let accepted = two_of_three(&world).await;
        let world = world.restarted().await;
        only_the_third_was_interrupted(&world, &accepted).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_was_told_stands_in_the_history_of_a_run_that_was_stopped() {
    in_both_placements(async |world| {
        let accepted = two_of_three(&world).await;
        world
            .control
            .cancel(world.asker, accepted.session, "enough")
            .await
            .unwrap();
        world.ended(accepted.session, accepted.run).await;
        let said = world.said(accepted.session).await;
        assert_eq!(
            (said[5].as_str(), said[7].as_str()),
            ("sandbox: did one", "sandbox: did three")
        );
        world.assert_whole(accepted.session).await;
    })
    .await;
}

/// A run whose loop waits in calls of tools: the test hands in results in its place.
async fn waiting(world: &World) -> (SessionId, RunId, Epoch, Client) {
    world.will_call(&[("a", "hang"), ("b", "hang")]);
    let accepted = world.prompt("go").await;
    world.inside.made_so_many(2).await;
    let run = world.store.run(Asker::System, accepted.run).await.unwrap();
    (accepted.session, run.id, run.epoch, world.inside.newest().1)
}

fn results(results: &[(&str, &str)]) -> Vec<ToolResult> {
    let results = results.iter();
    results
        .map(|(call, text)| ToolResult::text(ToolCallId((*call).to_owned()), *text))
        .collect()
}

fn early(run: RunId, epoch: Epoch, turn: u32, brought: &[(&str, &str)]) -> EarlyResults {
    EarlyResults {
        run,
        epoch,
        turn,
        results: results(brought),
        times: Vec::new(),
    }
}

fn turn(run: RunId, epoch: Epoch, brought: &[(&str, &str)]) -> TurnRequest {
    TurnRequest {
        run,
        epoch,
        turn: 2,
        results: results(brought),
        times: Vec::new(),
        tool_choice: ToolChoice::Auto,
    }
}

async fn refused(client: &Client, early: EarlyResults) -> RefusalCode {
    match within("an answer", client.hand_in(&early)).await {
        Err(ClientError::Refused(refusal)) => refusal.code,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_124_only_results_of_calls_that_were_made_are_kept_early() {
    let world = World::new(Differs::default()).await;
    let (session, run, epoch, client) = waiting(&world).await;
    for wrong in [
        early(run, epoch, 2, &[("forged", "x")]),
        early(run, epoch, 2, &[("a", "x"), ("forged", "y")]),
        early(run, epoch, 2, &[("a", "x"), ("a", "y")]),
        early(run, epoch, 1, &[("a", "x")]),
        early(run, epoch, 3, &[("a", "x")]),
    ] {
        assert_eq!(refused(&client, wrong).await, RefusalCode::Invalid);
    }
    for stale in [
        early(run, Epoch(epoch.0 - 1), 2, &[("a", "x")]),
        early(RunId::new(), epoch, 2, &[("a", "x")]),
    ] {
        assert_eq!(refused(&client, stale).await, RefusalCode::Stale);
    }
    // The first counts, however often and with whatever it comes again.
    let long = "the truth, ".repeat(100_000);
    for words in [&long, &long, "altered"] {
        within("an answer", client.hand_in(&early(run, epoch, 2, &[("a", words)])))
            .await
            .unwrap();
    }
    world.will_say("Done.");
    let last = turn(run, epoch, &[("b", "it too"), ("a", "altered")]);
    within("the turn", client.invoke_llm(&last)).await.unwrap();
    let said = world.said(session).await;
    assert!(said[4].starts_with("sandbox: the truth"), "{said:?}");
    assert_eq!(said[5..], ["sandbox: it too", "m: Done."]);
    let sent = world.models.received().last().unwrap().body.to_string();
    assert!(!sent.contains("altered") && !sent.contains("forged"), "{sent}");
    assert!(
        sent.len() < 50_000,
        "{} bytes: it is cut as every result is",
        sent.len()
    );
    assert_eq!(
        refused(&client, early(run, epoch, 3, &[("a", "late")])).await,
        RefusalCode::Stale
    );
    world.assert_whole(session).await;

    let world = World::new(Differs {
        placement: Placement::ControlPlane,
        ..Differs::default()
    })
    .await;
    let (_, run, epoch, client) = waiting(&world).await;
    let asked = early(run, epoch, 2, &[("a", "x")]);
    assert_eq!(
        refused(&client, asked).await,
        RefusalCode::Denied,
        "its loop is not inside"
    );
}

/// What the second turn of a run reserves, the model being in the middle of its answer.
async fn reserved(world: &World, session: SessionId) -> Money {
    let events = world.control.watch(world.asker, session, 0.into());
    let mut events = Box::pin(events.await.unwrap());
    let says_on = |watched: &control::Watched| match watched {
        control::Watched::Delta(delta) => matches!(delta.as_ref(), Delta::Text { text, .. } if text.contains("On")),
        control::Watched::Event(_) => false,
    };
    within("the second turn to speak", async {
        while !says_on(&events.next().await.unwrap().unwrap().1) {}
    })
    .await;
    let spend = world.store.session_spend(Asker::System, session).await.unwrap();
    spend.reserved
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_127_results_that_were_kept_early_are_reserved_for() {
    let differs = || Differs {
        config: |config| config.caps.run = Some(Money(10_000_000_000)),
        ..Differs::default()
    };
    let long = "word ".repeat(5_000);
    // Each of its bytes may be a token, at $3 for a million at least.
    let costs = Money(25_000 * 3_000);
    let mut short = Money::ZERO;
    for (words, restarts) in [("", false), (long.as_str(), false), (long.as_str(), true)] {
        let mut world = World::new(differs()).await;
        let (session, run, epoch, client) = waiting(&world).await;
        within("an answer", client.hand_in(&early(run, epoch, 2, &[("a", words)])))
            .await
            .unwrap();
        world.models.next(Answer::Stall(at_length("On and on. "), 4));
        let reserved = if restarts {
            world = world.restarted().await;
            reserved(&world, session).await
        } else {
            let last = turn(run, epoch, &[("b", "")]);
            tokio::select! {
                reply = client.invoke_llm(&last) => panic!("{reply:?}"),
                reserved = reserved(&world, session) => reserved,
            }
        };
        if words.is_empty() {
            short = reserved;
        } else {
            assert!(reserved >= short.plus(costs), "{reserved} after {short} for nothing");
        }
    }
}
