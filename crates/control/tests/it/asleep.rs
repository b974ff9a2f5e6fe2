//! What becomes of the processes of sandboxes that nobody uses, where they can be kept.

use std::sync::atomic::Ordering;
use std::time::Duration;

use domain::{Delivery, Event, SessionId};
use link::client::{Client, ClientError};
use protocol::RefusalCode;
use sandbox::SandboxProvider;
use store::{Asker, Store, Target};
use testkit::{eventually_async, within};

use crate::world::{Differs, World, in_both_placements_with};

fn sleepy() -> Differs {
    Differs {
        config: |config| {
            config.freeze_after = Duration::from_millis(50);
            config.hibernate_after = Duration::from_secs(1);
        },
        ..Differs::default()
    }
}

/// Sandboxes are frozen soon, and put to sleep by nobody.
fn drowsy() -> Differs {
    Differs {
        config: |config| {
            config.freeze_after = Duration::from_millis(50);
            config.hibernate_after = Duration::from_secs(600);
        },
        ..Differs::default()
    }
}

/// A world whose provider keeps processes.
async fn keeping(differs: Differs) -> World {
    let world = World::new(differs).await;
    world.sandboxes.keep_processes(true);
    world
}

async fn told(world: &World, session: SessionId, wanted: &str, why: &str) {
    let is = |event: &Event| matches!(event, Event::Sandbox { state, reason: Some(reason) } if state == wanted && reason.contains(why));
    world.event(session, why, is).await;
}

/// The session's present state, as it was last told.
async fn is_now(world: &World, session: SessionId, wanted: &str) {
    eventually_async(wanted, async || {
        let session = world.store.session(Asker::System, session).await.unwrap();
        (session.sandbox?.1 == wanted).then_some(())
    })
    .await;
}

async fn used(world: &World, target: Target) -> SessionId {
    world.will_say("Done.");
    let accepted = world.prompt_to(target, "go", Delivery::Queue).await;
    world.done(&accepted).await;
    accepted.session
}

async fn refused(link: &Client) -> RefusalCode {
    match within("an answer", link.resolve("evil.example")).await {
        Err(ClientError::Refused(refusal)) => refusal.code,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_are_kept_go_on_with_a_token_of_their_own() {
    in_both_placements_with(sleepy, async |world| {
        world.sandboxes.keep_processes(true);
        world.will_call(&[("a", "one")]);
        world.will_say("Done.");
        let accepted = world.prompt("go").await;
        world.done(&accepted).await;
        let session = accepted.session;
        told(&world, session, "suspended", "its processes and its files are kept").await;
        assert_eq!(world.sandboxes.list().await.unwrap(), []);
        let (first, link) = world.inside.newest();
        let old = world.inside.tokens(first).pop().unwrap();
        let opens = world.store.check_session_token(old.expose()).await;
        assert!(opens.is_err(), "what is kept has a token that opens something");

        world.will_call(&[("b", "wait")]);
        world.will_say("Done.");
        let next = world
            .prompt_to(Target::Session(session), "go on", Delivery::Queue)
            .await;
        world.inside.made_so_many(2).await;
        assert_eq!(world.inside.sandboxes(), 1, "another runtime was started");
        assert_eq!(world.inside.woken(), 1);
        let new = world.inside.tokens(first).pop().unwrap();
        assert_ne!(new.expose(), old.expose());
        link.set_token(old);
        assert_eq!(refused(&link).await, RefusalCode::Unauthorized);
        link.set_token(new);
        assert_ne!(refused(&link).await, RefusalCode::Unauthorized);
        world.inside.release();
        world.done(&next).await;
        assert_eq!(world.inside.made(), ["one", "wait"]);
        let states = world.events(session).await;
        let states: Vec<_> = states
            .iter()
            .filter_map(|event| match &event.event {
                Event::Sandbox { state, .. } if state != "frozen" => Some(state.as_str()),
                _ => None,
            })
            .take(4)
            .collect();
        assert_eq!(states, ["starting", "running", "suspended", "running"]);
        world.assert_whole(session).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_go_on_is_said_to_be_gone_and_another_is_made() {
    let world = keeping(sleepy()).await;
    let session = used(&world, world.target()).await;
    is_now(&world, session, "suspended").await;
    world.host.fail("wake", 1);
    used(&world, Target::Session(session)).await;
    told(&world, session, "hibernated", "cannot go on").await;
    assert_eq!((world.inside.sandboxes(), world.inside.woken()), (2, 0));

    is_now(&world, session, "suspended").await;
    world.inside.strangers.store(true, Ordering::SeqCst);
    used(&world, Target::Session(session)).await;
    told(&world, session, "hibernated", "belongs to another session").await;
    assert_eq!((world.inside.sandboxes(), world.inside.woken()), (3, 1));
    let living = world.sandboxes.list().await.unwrap();
    assert!(living.len() <= 1, "who was refused lives: {living:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_to_a_wake_leaves_one_sandbox() {
    let world = keeping(sleepy()).await;
    let session = used(&world, world.target()).await;
    is_now(&world, session, "suspended").await;
    world.host.lose_answer("wake");
    used(&world, Target::Session(session)).await;
    assert!(world.host.answers());
    assert_eq!(world.inside.sandboxes(), 2);
    let living = world.sandboxes.list().await.unwrap();
    assert!(living.len() <= 1, "{living:?}");
    world.assert_whole(session).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_makes_room_takes_its_programs_in_the_background_along() {
    let differs = Differs {
        config: |config| config.sandboxes_per_user = 1,
        ..Differs::default()
    };
    let world = keeping(differs).await;
    world.will_call(&[("a", "background 600")]);
    world.will_say("Done.");
    let accepted = world.prompt("go").await;
    world.done(&accepted).await;
    let first = accepted.session;
    let second = used(&world, world.target()).await;
    told(&world, first, "suspended", "its user needs another").await;
    used(&world, Target::Session(first)).await;
    told(&world, second, "suspended", "its user needs another").await;
    assert_eq!((world.inside.sandboxes(), world.inside.woken()), (2, 1));
    // They go on, and keep it as they did.
    eventually_async("the programs to be heard of", async || {
        let entries = world.control.sandboxes(Asker::System).await.unwrap();
        let its = entries.into_iter().find(|entry| entry.status.session == first)?;
        its.kept_until
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_kept_goes_when_its_session_is_put_away_or_gets_other_files() {
    let world = keeping(sleepy()).await;
    let session = used(&world, world.target()).await;
    is_now(&world, session, "suspended").await;
    world.control.archive(world.asker, session).await.unwrap();
    told(&world, session, "hibernated", "archived").await;
    used(&world, Target::Session(session)).await;
    assert_eq!((world.inside.sandboxes(), world.inside.woken()), (2, 0));

    let name = Some("kept".to_owned());
    world.control.save_snapshot(world.asker, session, name).await.unwrap();
    is_now(&world, session, "suspended").await;
    world.control.rewind(world.asker, session, "kept").await.unwrap();
    told(&world, session, "hibernated", "other files").await;
    used(&world, Target::Session(session)).await;
    assert_eq!((world.inside.sandboxes(), world.inside.woken()), (3, 0));

    is_now(&world, session, "suspended").await;
    let admin = Asker::System;
    world.control.remove_user(admin, world.user.id).await.unwrap();
    told(&world, session, "hibernated", "its user was removed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_process_before_left_is_kept_too() {
    let world = keeping(sleepy()).await;
    let session = used(&world, world.target()).await;
    is_now(&world, session, "frozen").await;
    let world = world.restarted().await;
    is_now(&world, session, "suspended").await;
    let (first, _) = world.inside.newest();
    let old = world.inside.tokens(first).pop().unwrap();
    assert!(world.store.check_session_token(old.expose()).await.is_err());
    let world = world.restarted().await;
    used(&world, Target::Session(session)).await;
    assert_eq!((world.inside.sandboxes(), world.inside.woken()), (1, 1));
}

/// The process that is there was never asked for anything in its session.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_process_before_left_goes_with_its_user_or_where_its_session_is_archived() {
    for (differs, state, is_removed) in [
        (drowsy(), "frozen", true),
        (drowsy(), "frozen", false),
        (sleepy(), "suspended", true),
    ] {
        let world = keeping(differs).await;
        let session = used(&world, world.target()).await;
        is_now(&world, session, state).await;
        let world = world.restarted().await;
        if is_removed {
            world.store.create_user(Asker::System, "root", true).await.unwrap();
            world.control.remove_user(Asker::System, world.user.id).await.unwrap();
        } else {
            world.control.archive(world.asker, session).await.unwrap();
        }
        assert_eq!(world.sandboxes.list().await.unwrap(), []);
        let stored = world.store.session(Asker::System, session).await.unwrap();
        assert_eq!(stored.sandbox.unwrap().1, "hibernated");
    }
}

/// Whoever stole a token may have changed what runs where it was.
#[tokio::test(flavor = "multi_thread")]
async fn of_a_sandbox_whose_tokens_were_revoked_nothing_is_kept() {
    let revoke = async |store: &Store, session| {
        let revoked = store.revoke_session_tokens(Asker::System, session, "a test");
        revoked.await.unwrap();
    };
    let world = keeping(drowsy()).await;
    let session = used(&world, world.target()).await;
    is_now(&world, session, "frozen").await;
    revoke(&world.store, session).await;
    told(&world, session, "lost", "revoked").await;
    used(&world, Target::Session(session)).await;
    assert_eq!((world.inside.sandboxes(), world.inside.woken()), (2, 0));

    let world = keeping(drowsy()).await;
    let session = used(&world, world.target()).await;
    is_now(&world, session, "frozen").await;
    let world = world.restarted_when(async |store| revoke(store, session).await).await;
    told(&world, session, "hibernated", "its processes are gone").await;
    used(&world, Target::Session(session)).await;
    assert_eq!((world.inside.sandboxes(), world.inside.woken()), (2, 0));

    // It is asked for before anybody looks.
    let world = keeping(drowsy()).await;
    let session = used(&world, world.target()).await;
    is_now(&world, session, "frozen").await;
    let world = world.restarted().await;
    revoke(&world.store, session).await;
    used(&world, Target::Session(session)).await;
    assert_eq!((world.inside.sandboxes(), world.inside.woken()), (2, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_process_before_left_counts_and_makes_room() {
    let world = World::new(Differs {
        config: |config| {
            config.sandboxes_per_user = 2;
            config.freeze_after = Duration::from_millis(50);
        },
        ..Differs::default()
    })
    .await;
    let mut sessions = Vec::new();
    for _ in 0..2 {
        sessions.push(used(&world, world.target()).await);
    }
    for session in &sessions {
        is_now(&world, *session, "frozen").await;
    }
    let world = world.restarted().await;
    used(&world, world.target()).await;
    told(&world, sessions[0], "hibernated", "its user needs another").await;
    assert_eq!(world.sandboxes.list().await.unwrap().len(), 2);
    is_now(&world, sessions[1], "frozen").await;
}
