//! What a token opens, and on which link.

use std::time::Duration;

use control::{ControlError, NewPrompt};
use domain::{Delivery, Door, Epoch, Event, RunState};
use link::client::{Client, ClientError};
use protocol::{RefusalCode, ToolChoice, TurnRequest};
use sandbox::SandboxProvider;
use secret::Secret;
use store::{Accepted, Asker, Target};
use testkit::within;

use crate::world::{Differs, World};

async fn hanging(world: &World, calls: usize) -> (Accepted, Client, Secret) {
    world.will_call(&[("a", "hang")]);
    let accepted = world.prompt("go").await;
    world.inside.made_so_many(calls).await;
    let (sandbox, client) = world.inside.newest();
    let token = world.inside.tokens(sandbox).pop().unwrap();
    (accepted, client, token)
}

pub(crate) async fn turn(world: &World, accepted: &Accepted) -> TurnRequest {
    let run = world.store.run(Asker::System, accepted.run).await.unwrap();
    TurnRequest {
        run: run.id,
        epoch: run.epoch,
        turn: 2,
        results: vec![],
        times: Vec::new(),
        tool_choice: ToolChoice::Auto,
    }
}

pub(crate) async fn refused(client: &Client, turn: &TurnRequest) -> RefusalCode {
    match within("an answer", client.invoke_llm(turn)).await {
        Err(ClientError::Refused(refusal)) => refusal.code,
        other => panic!("{other:?}"),
    }
}

/// Waited for until it removes a sandbox, and no longer.
async fn hung_up_on<T>(world: &World, work: impl Future<Output = T>) {
    let removal = world.host.hold("destroy");
    tokio::select! {
        biased;
        () = removal.begun() => {}
        _ = work => panic!("it came to its end first"),
    }
    removal.release();
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_058_a_token_on_another_link_is_refused_and_revoked() {
    let world = World::new(Differs::default()).await;
    let (victim, _, stolen) = hanging(&world, 1).await;
    let (thief, link, own) = hanging(&world, 2).await;
    link.set_token(stolen);
    world.will_say("Never mind.");
    assert_eq!(
        refused(&link, &turn(&world, &victim).await).await,
        RefusalCode::Unauthorized
    );
    // Whose it was goes on in another sandbox, with another token.
    world.done(&victim).await;
    assert_eq!(world.inside.sandboxes(), 3);
    assert_eq!(world.audited("session_token.stolen").await.len(), 1);
    // The thief's own token is as good as before.
    link.set_token(own);
    world.will_say("Fine.");
    let request = turn(&world, &thief).await;
    assert!(within("its own turn", link.invoke_llm(&request)).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_059_a_stopped_sessions_token_opens_nothing_and_its_stream_is_cut() {
    use testkit::model_server::{Answer, Speech};
    let world = World::new(Differs::default()).await;
    let (accepted, link, _) = hanging(&world, 1).await;
    let request = turn(&world, &accepted).await;
    world.models.next(Answer::Stall(Speech::text("On and on"), 3));
    let stream = within("the stream to be cut", link.invoke_llm(&request));
    let stop = async {
        while world.models.count() < 2 {
            tokio::task::yield_now().await;
        }
        world.control.archive(world.asker, accepted.session).await.unwrap();
    };
    let (stream, ()) = tokio::join!(stream, within("the session to stop", stop));
    assert!(stream.is_err());
    let after = tokio::time::timeout(Duration::from_secs(1), link.invoke_llm(&request)).await;
    assert!(after.expect("an answer within a second").is_err());
    assert_eq!(
        world.ended(accepted.session, accepted.run).await.state,
        RunState::Cancelled
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_060_a_token_is_replaced_in_mid_run() {
    let world = World::new(Differs {
        config: |config| {
            config.token_life = Duration::from_secs(2);
            config.freeze_after = Duration::from_millis(80);
            config.hibernate_after = Duration::from_secs(60);
        },
        ..Differs::default()
    })
    .await;
    let (accepted, link, first) = hanging(&world, 1).await;
    let (sandbox, _) = world.inside.newest();
    let newest = within("a newer token", async {
        loop {
            let newest = world.inside.tokens(sandbox).pop().unwrap();
            if newest != first {
                return newest;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    world.will_say("Done.");
    link.set_token(newest);
    let request = turn(&world, &accepted).await;
    assert!(within("the turn", link.invoke_llm(&request)).await.is_ok());
    world.done(&accepted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_060_a_token_that_was_revoked_opens_nothing_at_its_own_link_and_its_session_goes_on_elsewhere() {
    let world = World::new(Differs::default()).await;
    let (accepted, link, _) = hanging(&world, 1).await;
    let request = turn(&world, &accepted).await;
    let revoke = async || {
        let revoked = world
            .store
            .revoke_session_tokens(Asker::System, accepted.session, "a test");
        revoked.await.unwrap();
    };
    world.will_say("Never mind.");
    revoke().await;
    // Its link is closed as soon as that is noticed.
    let answer = within("an answer", link.invoke_llm(&request)).await;
    assert!(
        match &answer {
            Err(ClientError::Refused(refusal)) => refusal.code == RefusalCode::Unauthorized,
            Err(_) => true,
            Ok(_) => false,
        },
        "{answer:?}"
    );
    world.done(&accepted).await;
    assert_eq!(world.inside.sandboxes(), 2);

    // Nothing is under way, and nobody asks.
    revoke().await;
    let is_lost = |event: &Event| matches!(event, Event::Sandbox { state, reason: Some(reason) } if state == "lost" && reason.contains("revoked"));
    let lost = async || {
        let events = world.events(accepted.session).await.into_iter();
        events.filter(|event| is_lost(&event.event)).count()
    };
    testkit::eventually_async("the sandbox to go", async || (lost().await == 2).then_some(())).await;
    world.will_say("Still there.");
    let again = world
        .prompt_to(Target::Session(accepted.session), "and now?", Delivery::Restart)
        .await;
    world.done(&again).await;
    assert_eq!(world.inside.sandboxes(), 3);
}

/// Its runtime may ask for the next turn before anybody notices that its sandbox has no token.
#[tokio::test(flavor = "multi_thread")]
async fn threat_060_a_run_whose_tokens_were_revoked_while_a_tool_was_at_work_goes_on_elsewhere() {
    let world = World::new(Differs::default()).await;
    world.will_call(&[("a", "wait")]);
    world.will_say("Never mind.");
    let accepted = world.prompt("go").await;
    world.inside.made_so_many(1).await;
    let revoked = world
        .store
        .revoke_session_tokens(Asker::System, accepted.session, "a test");
    revoked.await.unwrap();
    world.inside.release();
    world.done(&accepted).await;
    assert_eq!(world.inside.sandboxes(), 2);
    world.assert_whole(accepted.session).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_061_and_062_what_is_no_token_is_refused() {
    let world = World::new(Differs::default()).await;
    let (accepted, link, token) = hanging(&world, 1).await;
    let request = turn(&world, &accepted).await;
    for forged in [
        "x",
        "' OR '1'='1",
        "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiJ9.",
        "eyJhbGciOiJIUzI1NiIsImtpZCI6Ii4uLy4uL2V0Yy9wYXNzd2QifQ.e30.c2ln",
        &token.expose().to_uppercase(),
        &token.expose()[..token.expose().len() - 1],
    ] {
        link.set_token(Secret::new(forged));
        assert_eq!(refused(&link, &request).await, RefusalCode::Unauthorized, "{forged}");
    }
    assert_eq!(world.models.count(), 1);
    link.set_token(token);
    world.will_say("Done.");
    assert!(within("the turn", link.invoke_llm(&request)).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_066_a_run_of_another_session_does_not_exist() {
    let world = World::new(Differs::default()).await;
    let (victim, _, _) = hanging(&world, 1).await;
    let (thief, link, _) = hanging(&world, 2).await;
    let before = world.said(victim.session).await;
    // Its own token, somebody else's run: the session is the link's, whatever the request says.
    assert_eq!(refused(&link, &turn(&world, &victim).await).await, RefusalCode::Stale);
    let mut foreign = turn(&world, &thief).await;
    foreign.epoch = Epoch(foreign.epoch.0 + 1);
    assert_eq!(refused(&link, &foreign).await, RefusalCode::Stale);
    assert_eq!(world.said(victim.session).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_users_sessions_stop() {
    let world = World::new(Differs::default()).await;
    let (accepted, link, _) = hanging(&world, 1).await;
    let request = turn(&world, &accepted).await;
    world.store.create_user(Asker::System, "root", true).await.unwrap();
    world.control.remove_user(Asker::System, world.user.id).await.unwrap();
    assert!(within("an answer", link.invoke_llm(&request)).await.is_err());
    assert_eq!(
        world.ended(accepted.session, accepted.run).await.state,
        RunState::Cancelled
    );
    // What it made stays for admins.
    world.control.files(Asker::System, accepted.session, "").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_removed_or_archived_is_so_even_if_whoever_asked_hangs_up() {
    let goes = async |world: &World| {
        testkit::eventually_async("its sandbox to go", async || {
            world.sandboxes.list().await.unwrap().is_empty().then_some(())
        })
        .await;
    };
    let world = World::new(Differs::default()).await;
    let (accepted, _, _) = hanging(&world, 1).await;
    world.store.create_user(Asker::System, "root", true).await.unwrap();
    hung_up_on(&world, world.control.remove_user(Asker::System, world.user.id)).await;
    let user = world.store.user(Asker::System, world.user.id).await.unwrap();
    assert!(user.removed.is_some());
    let run = world.ended(accepted.session, accepted.run).await;
    assert_eq!(run.state, RunState::Cancelled);
    goes(&world).await;

    let world = World::new(Differs::default()).await;
    world.will_say("Done.");
    let accepted = world.prompt("go").await;
    world.done(&accepted).await;
    hung_up_on(&world, world.control.archive(world.asker, accepted.session)).await;
    let session = world.store.session(Asker::System, accepted.session).await.unwrap();
    assert!(session.archived.is_some());
    goes(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_removed_user_nothing_that_waits_is_done_and_nothing_more_is_taken_in() {
    let world = World::new(Differs {
        config: |config| config.parallel_runs = 1,
        ..Differs::default()
    })
    .await;
    let (accepted, _, _) = hanging(&world, 1).await;
    let here = Target::Session(accepted.session);
    let queued = world.prompt_to(here.clone(), "then this", Delivery::Queue).await;
    let elsewhere = world.prompt("and this").await;
    let asked = world.models.count();
    world.store.create_user(Asker::System, "root", true).await.unwrap();
    world.control.remove_user(Asker::System, world.user.id).await.unwrap();
    for accepted in [&accepted, &queued, &elsewhere] {
        let run = world.ended(accepted.session, accepted.run).await;
        assert_eq!(
            (run.state, run.reason.as_deref()),
            (RunState::Cancelled, Some("its user was removed"))
        );
    }
    assert_eq!(world.models.count(), asked);

    for target in [here, Target::Session(elsewhere.session)] {
        let prompt = NewPrompt::words(target, Door::Api, "go on");
        for refused in [
            world.control.check_prompt(Asker::System, &prompt).await.unwrap_err(),
            world.control.prompt(Asker::System, prompt).await.unwrap_err(),
        ] {
            assert!(
                matches!(&refused, ControlError::Conflict(words) if words.contains("removed")),
                "{refused:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_of_a_user_who_was_removed_while_there_was_no_process_is_not_taken_up() {
    let world = World::new(Differs::default()).await;
    let (accepted, _, _) = hanging(&world, 1).await;
    let user = world.user.id;
    let world = world
        .restarted_when(async |store| {
            store.create_user(Asker::System, "root", true).await.unwrap();
            store.remove_user(Asker::System, user).await.unwrap();
        })
        .await;
    let run = world.ended(accepted.session, accepted.run).await;
    assert_eq!(run.state, RunState::Cancelled);
    assert_eq!(world.models.count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archived_session_comes_back_with_a_prompt() {
    let world = World::new(Differs::default()).await;
    let accepted = world.prompt("go").await;
    world.done(&accepted).await;
    world.control.archive(world.asker, accepted.session).await.unwrap();
    let back = world
        .prompt_to(Target::Session(accepted.session), "again", Delivery::Restart)
        .await;
    world.done(&back).await;
    world.assert_whole(accepted.session).await;
}
