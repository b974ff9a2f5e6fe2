//! What a loop may ask, and what comes of asking twice, late, or for more than it may.

use domain::{Delivery, Delta, Epoch, Event, Image, ResultPart, RunId, RunState, ToolCallId, ToolResult};
use futures::StreamExt;
use link::client::{Client, ClientError};
use protocol::{Refusal, RefusalCode, StopReason, ToolChoice, TurnReply, TurnRequest};
use store::{Accepted, Asker, Target};
use testkit::model_server::{Answer, Speech};
use testkit::within;

use crate::world::{Differs, World, at_length};

/// A run whose loop waits in a call of a tool: the test asks for turns in its place.
async fn waiting(world: &World, calls: &[(&str, &str)]) -> (Accepted, Client, Epoch) {
    world.will_call(calls);
    let accepted = world.prompt("go").await;
    world.inside.made_so_many(calls.len()).await;
    let run = world.store.run(Asker::System, accepted.run).await.unwrap();
    (accepted, world.inside.newest().1, run.epoch)
}

fn turn(run: RunId, epoch: Epoch, turn: u32, results: &[(&str, &str)]) -> TurnRequest {
    let result = |(id, text): &(&str, &str)| ToolResult::text(ToolCallId((*id).to_owned()), *text);
    TurnRequest {
        run,
        epoch,
        turn,
        results: results.iter().map(result).collect(),
        times: Vec::new(),
        tool_choice: ToolChoice::Auto,
    }
}

async fn ask(client: &Client, turn: TurnRequest) -> Result<TurnReply, Refusal> {
    match within("the turn", client.invoke_llm(&turn)).await {
        Ok(reply) => Ok(reply),
        Err(ClientError::Refused(refusal)) => Err(refusal),
        Err(error) => panic!("{error:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_124_only_results_of_calls_that_were_made_are_accepted() {
    let world = World::new(Differs::default()).await;
    let (accepted, client, epoch) = waiting(&world, &[("a", "hang")]).await;
    let run = accepted.run;
    for results in [
        &[("forged", "x")][..],
        &[("a", "x"), ("b", "y")],
        &[("a", "x"), ("a", "y")],
    ] {
        let refusal = ask(&client, turn(run, epoch, 2, results)).await.unwrap_err();
        assert_eq!(refusal.code, RefusalCode::Invalid, "{refusal}");
    }
    // Out of order: the past is done, the future is not there yet.
    let refusal = ask(&client, turn(run, epoch, 3, &[])).await.unwrap_err();
    assert_eq!(refusal.code, RefusalCode::Invalid, "{refusal}");
    let before = world.said(accepted.session).await;
    assert_eq!(before, ["ada: go", "m: Let me see. ", "m: exec(hang)"]);
    // A repeat of the turn before cannot put other words into the history.
    let repeated = ask(&client, turn(run, epoch, 1, &[("a", "altered")])).await.unwrap();
    assert_eq!(repeated.calls.len(), 1);
    assert_eq!(world.said(accepted.session).await, before);
    world.will_say("Done.");
    ask(&client, turn(run, epoch, 2, &[("a", "the truth")])).await.unwrap();
    assert_eq!(
        world.said(accepted.session).await[3..],
        ["sandbox: the truth", "m: Done."]
    );
    let sent = world.models.received().last().unwrap().body.to_string();
    assert!(!sent.contains("altered") && !sent.contains("forged"), "{sent}");
    world.assert_whole(accepted.session).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_126_two_turns_at_once_are_one_after_the_other() {
    let world = World::new(Differs::default()).await;
    let (accepted, client, epoch) = waiting(&world, &[("a", "hang")]).await;
    world.will_say("Done.");
    let asks = (0..20).map(|_| ask(&client, turn(accepted.run, epoch, 2, &[("a", "x")])));
    let replies = futures::future::join_all(asks).await;
    // Who joined the turn gets its reply; who came after it hears that the run is over.
    assert!(replies.iter().any(Result::is_ok));
    for reply in &replies {
        match reply {
            Ok(reply) => assert!(reply.calls.is_empty()),
            Err(refusal) => assert_eq!(refusal.code, RefusalCode::Stale),
        }
    }
    assert_eq!(world.models.count(), 2);
    assert_eq!(world.said(accepted.session).await[3..], ["sandbox: x", "m: Done."]);
    world.assert_whole(accepted.session).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_has_the_same_reply() {
    let world = World::new(Differs::default()).await;
    let (accepted, client, epoch) = waiting(&world, &[("a", "hang")]).await;
    world.will_call(&[("b", "hang")]);
    let ask = |number| ask(&client, turn(accepted.run, epoch, number, &[]));
    let first = ask(2).await.unwrap();
    assert_eq!(first.stop, StopReason::ToolUse);
    assert_eq!(ask(2).await.unwrap(), first);
    assert_eq!(world.models.count(), 2);
    // The call that had no result got one that says so.
    let said = world.said(accepted.session).await;
    assert!(said[3].starts_with("belljar: This call was interrupted"), "{said:?}");
    assert_eq!(said.len(), 6, "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_hold_is_refused() {
    let world = World::new(Differs::default()).await;
    let (accepted, client, epoch) = waiting(&world, &[("a", "hang")]).await;
    let refusal = ask(&client, turn(accepted.run, Epoch(epoch.0 - 1), 2, &[]))
        .await
        .unwrap_err();
    assert_eq!(refusal.code, RefusalCode::Stale);
    world.models.next(Answer::Stall(at_length("On and on. "), 4));
    let asked = ask(&client, turn(accepted.run, epoch, 2, &[]));
    let interrupt = async {
        let events = world.control.watch(world.asker, accepted.session, 0.into());
        let mut events = Box::pin(events.await.unwrap());
        let says_on = |watched: &control::Watched| match watched {
            control::Watched::Delta(delta) => matches!(delta.as_ref(), Delta::Text { text, .. } if text.contains("On")),
            control::Watched::Event(_) => false,
        };
        within("the second turn to speak", async {
            while !says_on(&events.next().await.unwrap().unwrap().1) {}
        })
        .await;
        world
            .prompt_to(Target::Session(accepted.session), "stop", Delivery::Restart)
            .await
    };
    let (asked, next) = tokio::join!(asked, interrupt);
    // A newer prompt cuts the model's words, and whoever waited for them hears that they are stale.
    assert_eq!(asked.unwrap_err().code, RefusalCode::Stale);
    world.done(&next).await;
    world.assert_whole(accepted.session).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_129_a_client_that_goes_away_leaves_the_turn_to_its_end() {
    let world = World::new(Differs::default()).await;
    let (accepted, client, epoch) = waiting(&world, &[("a", "hang")]).await;
    world.models.next(Answer::Say(Speech::text(&"word ".repeat(2_000))));
    let request = turn(accepted.run, epoch, 2, &[]);
    let gone = tokio::time::timeout(std::time::Duration::from_millis(1), client.invoke_llm(&request)).await;
    drop(gone);
    // Asked again where it was not even heard; joined, or told of the end, otherwise.
    let _ = ask(&client, request).await;
    world.done(&accepted).await;
    assert_eq!(world.models.count(), 2);
    let usage = |event: &Event| matches!(event, Event::Usage { estimated: false, .. });
    let paid = world.events(accepted.session).await;
    assert_eq!(paid.iter().filter(|event| usage(&event.event)).count(), 2);
    world.assert_whole(accepted.session).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_129_what_a_model_breaks_off_is_kept_and_charged_by_our_count() {
    for fault in [
        Answer::Break(Speech::text("Half of it is"), 4),
        Answer::End(Speech::text("Half of it is"), 4),
        Answer::Malformed(Speech::text("Half of it is"), 4),
    ] {
        let world = World::new(Differs::default()).await;
        world.models.next(fault);
        let accepted = world.prompt("go").await;
        let run = world.ended(accepted.session, accepted.run).await;
        assert_eq!(
            (run.state, run.code.as_deref()),
            (RunState::Failed, Some("model_failed"))
        );
        let said = world.said(accepted.session).await;
        assert!(said[1].starts_with("m: Half") && said[1].ends_with("[cut]"), "{said:?}");
        let estimated = |event: &Event| matches!(event, Event::Usage { estimated: true, .. });
        world
            .event(accepted.session, "what was said to be charged", estimated)
            .await;
        world.will_say("Again, then.");
        let next = world
            .prompt_to(Target::Session(accepted.session), "go on", Delivery::Restart)
            .await;
        world.done(&next).await;
        world.assert_whole(accepted.session).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_asks_for_what_is_not_there_hears_so() {
    crate::world::in_both_placements(async |world| {
        let mut speech = Speech::text("").call("a", "rm", &serde_json::json!({}));
        speech
            .calls
            .push(("b".to_owned(), "exec".to_owned(), "{\"code\": ".to_owned()));
        world.models.next(Answer::Say(speech));
        world.will_say("I see.");
        let accepted = world.prompt("go").await;
        world.done(&accepted).await;
        let said = world.said(accepted.session).await.join("\n");
        assert!(said.contains("There is no tool \"rm\" here"), "{said}");
        assert!(said.contains("are not a JSON object"), "{said}");
        assert!(world.inside.made().is_empty());
        world.assert_whole(accepted.session).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn long_output_is_cut_here_too() {
    let world = World::new(Differs::default()).await;
    let (accepted, client, epoch) = waiting(&world, &[("a", "hang")]).await;
    world.will_say("Done.");
    ask(&client, turn(accepted.run, epoch, 2, &[("a", &"x".repeat(1 << 20))]))
        .await
        .unwrap();
    let sent = world.models.received().last().unwrap().bytes.len();
    assert!(sent < 45_000, "{sent}");
}

/// Whatever a sandbox says of it: a picture that no provider reads would end the session.
#[tokio::test(flavor = "multi_thread")]
async fn a_picture_in_a_result_that_no_provider_could_read_is_left_out() {
    let world = World::new(Differs::default()).await;
    let (accepted, client, epoch) = waiting(&world, &[("a", "hang")]).await;
    world.will_say("Done.");
    let mut turn = turn(accepted.run, epoch, 2, &[("a", "a chart")]);
    turn.results[0].content.push(ResultPart::Image(Image {
        media_type: "image/png".to_owned(),
        data: "iVBORw0KGgo=".to_owned(),
    }));
    ask(&client, turn).await.unwrap();
    let sent = String::from_utf8(world.models.received().last().unwrap().bytes.to_vec()).unwrap();
    assert!(
        sent.contains("[A picture was left out: it is a broken image/png") && !sent.contains("iVBORw0KGgo="),
        "{sent}"
    );
    assert!(sent.contains("a chart"), "{sent}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_sent_once_is_sent_again_byte_for_byte() {
    crate::world::in_both_placements(async |world| {
        for number in 0..49 {
            world.will_call(&[(&format!("c{number}"), "one")]);
        }
        world.will_say("Done.");
        let accepted = world.prompt("fifty steps").await;
        world.done(&accepted).await;
        let mark = ",\"cache_control\":{\"type\":\"ephemeral\"}";
        let prefix = |bytes: &[u8]| {
            let body = String::from_utf8(bytes.to_vec()).unwrap().replace(mark, "");
            let end = body.rfind("],\"max_tokens\"").unwrap();
            body[..end].to_owned()
        };
        let sent: Vec<String> = world.models.received().iter().map(|sent| prefix(&sent.bytes)).collect();
        assert_eq!(sent.len(), 50);
        for pair in sent.windows(2) {
            assert!(pair[1].starts_with(&pair[0]), "{}\n{}", pair[0], pair[1]);
        }
    })
    .await;
}
