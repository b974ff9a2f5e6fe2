//! A prompt comes in, an answer goes out; prompts meet a run under way.

use control::{ControlError, NewPrompt};
use domain::{Block, Delivery, Door, Event, RunState};
use store::{Asker, Joined, Target};
use testkit::model_server::Answer;

use crate::world::{Differs, World, at_length, in_both_placements, in_both_placements_with};

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_is_answered_with_the_tools_work() {
    in_both_placements(async |world| {
        world.will_call(&[("a", "one"), ("b", "two")]);
        world.will_say("Both are done.");
        let accepted = world.prompt("go").await;
        assert!(accepted.created && accepted.joined == Joined::Started);
        world.done(&accepted).await;
        assert_eq!(
            world.said(accepted.session).await,
            [
                "ada: go",
                "m: Let me see. ",
                "m: exec(one)",
                "m: exec(two)",
                "sandbox: did one",
                "sandbox: did two",
                "m: Both are done.",
            ]
        );
        world.assert_whole(accepted.session).await;
        // What follows stands on what was said.
        world.will_say("Still here.");
        let next = world
            .prompt_to(Target::Session(accepted.session), "and now?", Delivery::Restart)
            .await;
        world.done(&next).await;
        assert_eq!(world.inside.sandboxes(), 1);
        assert_eq!(
            world.models.received().last().unwrap().body["messages"]
                .as_array()
                .unwrap()
                .len(),
            5
        );
        world.assert_whole(accepted.session).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_and_too_much_are_refused_in_words() {
    let world = World::new(Differs::default()).await;
    let refused = async |text: String| {
        let prompt = NewPrompt::words(world.target(), Door::Api, text);
        world.control.prompt(world.asker, prompt).await.unwrap_err()
    };
    let nothing = refused(String::new()).await;
    assert_eq!(nothing.to_string(), "the prompt is empty: say what is to be done");
    assert!(matches!(refused(" \n".to_owned()).await, ControlError::Invalid(_)));
    let too_much = refused("x".repeat(50 << 20)).await;
    assert_eq!(
        too_much.to_string(),
        "the prompt has 52428800 bytes; at most 1048576 are accepted"
    );
    let mut prompt = NewPrompt::words(world.target(), Door::Api, "go");
    prompt.model = Some("none".to_owned());
    let unknown = world.control.prompt(world.asker, prompt).await.unwrap_err();
    assert!(unknown.to_string().contains("\"none\""), "{unknown}");
    let mut prompt = NewPrompt::words(world.target(), Door::Api, "go");
    prompt.blocks.push(Block::Thinking {
        text: "mine".into(),
        signature: None,
        item: None,
    });
    assert!(matches!(
        world.control.prompt(world.asker, prompt).await,
        Err(ControlError::Invalid(_))
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_request_changes_nothing() {
    let world = World::new(Differs::default()).await;
    world.will_say("Once.");
    let mut prompt = NewPrompt::words(world.target(), Door::Api, "go");
    prompt.request_key = Some("delivery-1".to_owned());
    let first = world.control.prompt(world.asker, prompt.clone()).await.unwrap();
    world.done(&first).await;
    let again = world.control.prompt(world.asker, prompt).await.unwrap();
    assert!(again.repeated);
    assert_eq!((again.session, again.run), (first.session, first.run));
    assert_eq!(world.models.count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_ends_tools_and_is_answered_itself() {
    in_both_placements(async |world| {
        world.will_call(&[("a", "hang")]);
        world.will_say("Better so.");
        let first = world.prompt("go").await;
        world.inside.made_so_many(1).await;
        let second = world
            .prompt_to(Target::Session(first.session), "no, stop", Delivery::Restart)
            .await;
        assert_eq!(second.interrupted, [first.run]);
        world.done(&second).await;
        assert_eq!(world.ended(first.session, first.run).await.state, RunState::Interrupted);
        assert_eq!(
            world.said(first.session).await,
            [
                "ada: go",
                "m: Let me see. ",
                "m: exec(hang)",
                "belljar: This call was interrupted before its result arrived [error]",
                "ada: no, stop",
                "m: Better so.",
            ]
        );
        world.assert_whole(first.session).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_cuts_the_model_and_keeps_what_it_said() {
    in_both_placements(async |world| {
        world.models.next(Answer::Stall(at_length("Once upon a time. "), 4));
        world.will_say("In short: no.");
        let first = world.prompt("tell me").await;
        let mut watched = Box::pin(
            world
                .control
                .watch(world.asker, first.session, control::Position::default())
                .await
                .unwrap(),
        );
        testkit::within("words", async {
            use futures::StreamExt;
            while !matches!(watched.next().await.unwrap().unwrap().1, control::Watched::Delta(_)) {}
        })
        .await;
        let second = world
            .prompt_to(Target::Session(first.session), "shorter", Delivery::Restart)
            .await;
        world.done(&second).await;
        let said = world.said(first.session).await;
        assert!(
            said[1].starts_with("m: Once ") && said[1].ends_with("[cut]"),
            "{said:?}"
        );
        assert_eq!(said[2..], ["ada: shorter", "m: In short: no."]);
        world.assert_whole(first.session).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queued_prompt_waits_its_turn() {
    in_both_placements(async |world| {
        world.will_call(&[("a", "one")]);
        world.will_say("First.");
        world.will_say("Second.");
        let first = world.prompt("go").await;
        let second = world
            .prompt_to(Target::Session(first.session), "then this", Delivery::Queue)
            .await;
        world.done(&first).await;
        world.done(&second).await;
        let said = world.said(first.session).await;
        assert_eq!(said[4..], ["m: First.", "ada: then this", "m: Second."]);
        world.assert_whole(first.session).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_steering_prompt_joins_before_the_next_call() {
    in_both_placements(async |world| {
        world.will_call(&[("a", "wait")]);
        world.will_say("Seen.");
        let first = world.prompt("go").await;
        world.inside.made_so_many(1).await;
        let second = world
            .prompt_to(Target::Session(first.session), "mind this too", Delivery::Steer)
            .await;
        assert_eq!((second.joined, second.run), (Joined::Steered, first.run));
        world.inside.release();
        world.done(&second).await;
        let said = world.said(first.session).await;
        assert_eq!(said[3..], ["sandbox: waited", "ada: mind this too", "m: Seen."]);
        world.assert_whole(first.session).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_steering_prompt_is_answered_whenever_it_comes() {
    in_both_placements(async |world| {
        for pause in 0..20 {
            let first = world.prompt("go").await;
            for _ in 0..pause * 20 {
                tokio::task::yield_now().await;
            }
            let target = Target::Session(first.session);
            let second = world.prompt_to(target, "mind this too", Delivery::Steer).await;
            world.done(&second).await;
            let said = world.said(first.session).await;
            let steered = said.iter().position(|said| said == "ada: mind this too").unwrap();
            assert_eq!(said[steered + 1..], ["m: Hello."], "{said:?}");
            world.assert_whole(first.session).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelling_ends_a_run_at_once_and_only_once() {
    in_both_placements(async |world| {
        world.will_call(&[("a", "hang")]);
        let accepted = world.prompt("go").await;
        world.inside.made_so_many(1).await;
        let ended = world
            .control
            .cancel(world.asker, accepted.session, "enough")
            .await
            .unwrap()
            .unwrap();
        assert!(ended.now && ended.state == RunState::Cancelled);
        assert!(
            world
                .control
                .cancel(world.asker, accepted.session, "enough")
                .await
                .unwrap()
                .is_none()
        );
        world.assert_whole(accepted.session).await;
        // The session goes on.
        world.will_say("Here.");
        let next = world
            .prompt_to(Target::Session(accepted.session), "hello?", Delivery::Restart)
            .await;
        world.done(&next).await;
        world.assert_whole(accepted.session).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_strangers_session_does_not_exist() {
    let world = World::new(Differs::default()).await;
    let accepted = world.prompt("go").await;
    world.done(&accepted).await;
    let stranger = world.store.create_user(Asker::System, "eve", false).await.unwrap();
    let stranger = Asker::User {
        id: stranger.id,
        admin: false,
        until: None,
    };
    let target = Target::Session(accepted.session);
    let prompt = world
        .control
        .prompt(stranger, NewPrompt::words(target, Door::Api, "hi"))
        .await;
    assert!(matches!(prompt, Err(ControlError::NotFound { .. })), "{prompt:?}");
    let cancel = world.control.cancel(stranger, accepted.session, "x").await;
    assert!(matches!(cancel, Err(ControlError::NotFound { .. })));
    let files = world.control.files(stranger, accepted.session, "").await;
    assert!(matches!(files, Err(ControlError::NotFound { .. })));
    assert!(world.control.watch(stranger, accepted.session, 0.into()).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_and_time_are_limited() {
    let few = || Differs {
        config: |config| config.limits.steps = 2,
        ..Differs::default()
    };
    in_both_placements_with(few, async |world| {
        world.will_call(&[("a", "one")]);
        world.will_call(&[("b", "two")]);
        let accepted = world.prompt("go").await;
        let run = world.ended(accepted.session, accepted.run).await;
        assert_eq!((run.state, run.code.as_deref()), (RunState::Failed, Some("step_limit")));
        assert_eq!(world.inside.made(), ["one"]);
        world.assert_whole(accepted.session).await;
    })
    .await;
    let short = || Differs {
        config: |config| config.limits.wall_seconds = 1,
        ..Differs::default()
    };
    in_both_placements_with(short, async |world| {
        world.will_call(&[("a", "hang")]);
        let accepted = world.prompt("go").await;
        let run = world.ended(accepted.session, accepted.run).await;
        assert_eq!((run.state, run.code.as_deref()), (RunState::Failed, Some("wall_limit")));
        world.assert_whole(accepted.session).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_fails_fails_the_run_in_words() {
    in_both_placements(async |world| {
        world.models.always(Answer::status(500));
        let accepted = world.prompt("go").await;
        let run = world.ended(accepted.session, accepted.run).await;
        assert_eq!(
            (run.state, run.code.as_deref()),
            (RunState::Failed, Some("model_failed"))
        );
        assert!(run.reason.unwrap().contains("500"));
        let is_retry = |event: &Event| matches!(event, Event::ModelRetry { .. });
        world.event(accepted.session, "the retry to be told", is_retry).await;
    })
    .await;
}
