//! Each step in the life of a session's sandbox is counted, with the time that it took.

use std::time::Duration;

use control::{TransitionFigures, WarmPool};
use domain::{Delivery, Door, Event, SessionId};
use sandbox::SandboxProvider;
use store::{Asker, Target};

use crate::files::{archive, both, hibernated};
use crate::world::World;

fn step(world: &World, name: &str) -> TransitionFigures {
    let steps = world.control.sandbox_figures().transitions.into_iter();
    let mut named = steps.filter(|step| step.transition == name);
    named.next().unwrap_or_else(|| panic!("nobody counts {name}"))
}

async fn told(world: &World, session: SessionId, wanted: &str) {
    let is = |event: &Event| matches!(event, Event::Sandbox { state, .. } if state == wanted);
    world.event(session, wanted, is).await;
}

async fn used(world: &World, target: Target) -> SessionId {
    world.will_say("Done.");
    let accepted = world.prompt_to(target, "go", Delivery::Restart).await;
    world.done(&accepted).await;
    accepted.session
}

#[tokio::test(flavor = "multi_thread")]
async fn each_step_is_counted_where_it_went_well_and_where_it_failed() {
    let falls_asleep = both(
        |config| {
            // Longer than it takes to use one that is gone, which cannot be frozen.
            config.freeze_after = Duration::from_secs(4);
            config.hibernate_after = Duration::from_secs(8);
        },
        |_| {},
    );
    let world = falls_asleep.await;
    let session = used(&world, world.target()).await;
    told(&world, session, "frozen").await;
    world.control.files(world.asker, session, "").await.unwrap();
    told(&world, session, "hibernated").await;
    used(&world, Target::Session(session)).await;
    let name = Some("kept".to_owned());
    world.control.save_snapshot(world.asker, session, name).await.unwrap();
    world.control.rewind(world.asker, session, "kept").await.unwrap();

    // A new one has no files to be kept.
    let opened = world
        .control
        .open_session(world.asker, world.target(), Door::Cli, "", None);
    let (new, _) = opened.await.unwrap();
    world
        .control
        .save_snapshot(world.asker, new.id, None)
        .await
        .unwrap_err();

    world.control.files(world.asker, session, "").await.unwrap();
    let all = world.sandboxes.list().await.unwrap();
    let its = all.iter().find(|status| status.session == session).unwrap();
    world.sandboxes.destroy(its.id).await.unwrap();
    used(&world, Target::Session(session)).await;
    archive(&world, session).await.unwrap();

    for (name, least) in [
        ("create", 4),
        ("claim_cold", 1),
        ("freeze", 2),
        ("thaw", 1),
        ("hibernate", 1),
        ("wake", 2),
        ("snapshot", 1),
        ("restore", 1),
        ("replace", 1),
        ("archive", 1),
        ("destroy", 3),
    ] {
        let step = step(&world, name);
        assert!(step.done >= least && !step.total.is_zero(), "{step:?}");
        let (_, within) = step.buckets.last().unwrap();
        assert_eq!(*within, step.done, "{step:?}");
        assert_eq!(step.failed, u64::from(name == "snapshot"), "{step:?}");
    }
}

/// The session's present state, as it was last told.
async fn is_now(world: &World, session: SessionId, wanted: &str) {
    testkit::eventually_async(wanted, async || {
        let session = world.store.session(Asker::System, session).await.unwrap();
        (session.sandbox?.1 == wanted).then_some(())
    })
    .await;
}

async fn failed_once(world: &World, name: &str) {
    testkit::eventually_async(name, async || (step(world, name).failed == 1).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_step_that_fails_is_counted_and_told_as_one_that_did() {
    let falls_asleep = both(
        |config| {
            config.freeze_after = Duration::from_millis(50);
            config.hibernate_after = Duration::from_secs(8);
        },
        |_| {},
    );
    let world = falls_asleep.await;
    let opened = world
        .control
        .open_session(world.asker, world.target(), Door::Cli, "", None);
    let (session, _) = opened.await.unwrap();
    let session = session.id;
    let looks = async || world.control.files(world.asker, session, "").await;
    world
        .control
        .save_snapshot(world.asker, session, None)
        .await
        .unwrap_err();
    world.host.fail("create", 1);
    looks().await.unwrap_err();
    failed_once(&world, "claim_cold").await;

    world.host.fail("freeze", 1);
    looks().await.unwrap();
    failed_once(&world, "freeze").await;
    is_now(&world, session, "frozen").await;
    world.host.fail("thaw", 1);
    looks().await.unwrap();
    failed_once(&world, "thaw").await;

    world.host.fail("destroy", 1);
    failed_once(&world, "hibernate").await;
    let says_so = |event: &Event| matches!(event, Event::Sandbox { state, reason: Some(reason) } if state == "hibernated" && reason.contains("could not end it"));
    world.event(session, "what became of it", says_so).await;
    world.host.fail("create", 1);
    looks().await.unwrap_err();
    failed_once(&world, "wake").await;

    used(&world, Target::Session(session)).await;
    let all = world.sandboxes.list().await.unwrap();
    let its = all.iter().find(|status| status.session == session).unwrap();
    world.sandboxes.destroy(its.id).await.unwrap();
    world.host.fail("create", 1);
    testkit::eventually_async("replace", async || {
        // That it is gone may not have been noticed yet.
        let _ = looks().await;
        (step(&world, "replace").failed == 1).then_some(())
    })
    .await;

    looks().await.unwrap();
    let name = Some("kept".to_owned());
    world.control.save_snapshot(world.asker, session, name).await.unwrap();
    world.host.fail("restore", 1);
    world.control.rewind(world.asker, session, "kept").await.unwrap_err();
    used(&world, Target::Session(session)).await;
    // One whose tokens are revoked is replaced before its files are looked at.
    hibernated(&world, session).await;
    world.host.fail("destroy", 1);
    archive(&world, session).await.unwrap_err();

    for figures in world.control.sandbox_figures().transitions {
        // None was made ahead.
        assert_eq!(figures.failed > 0, figures.transition != "claim_warm", "{figures:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_was_made_ahead_and_cannot_be_claimed_is_counted() {
    let world = both(
        |config| {
            config.warm = WarmPool {
                least: 1,
                most: 1,
                remember: Duration::from_secs(600),
            };
        },
        |_| {},
    )
    .await;
    testkit::eventually_async("one to be made ahead", async || {
        (world.control.sandbox_figures().warm == 1).then_some(())
    })
    .await;
    world.host.fail("assign", 1);
    used(&world, world.target()).await;
    assert_eq!(step(&world, "claim_warm").failed, 1);
    assert_eq!(step(&world, "claim_cold").done, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_frozen_is_tried_less_and_less_often_and_hibernated_in_its_time() {
    let falls_asleep = both(
        |config| {
            config.freeze_after = Duration::from_millis(50);
            config.hibernate_after = Duration::from_secs(4);
        },
        |_| {},
    );
    let world = falls_asleep.await;
    world.host.fail("freeze", 1_000);
    let session = used(&world, world.target()).await;
    told(&world, session, "hibernated").await;
    // Each time it was let be for twice as long.
    let tried = step(&world, "freeze").failed;
    assert!((1..=12).contains(&tried), "{tried} times");
}
