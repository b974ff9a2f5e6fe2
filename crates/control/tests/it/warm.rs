//! Sandboxes that are made ahead: whose they become, and what becomes of those that nobody wants.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use control::{ControlError, RemovedSandboxes, SandboxFigures, WarmPool};
use domain::{Delivery, Event, SandboxId};
use futures::StreamExt;
use futures::future::join_all;
use sandbox::SandboxProvider;
use store::{Asker, Target};
use testkit::{eventually, eventually_async, within};

use crate::world::{Differs, World, in_both_placements_with};

fn warm_world() -> Differs {
    Differs {
        config: |config| {
            config.warm = WarmPool {
                least: 1,
                most: 4,
                remember: Duration::from_secs(600),
            };
        },
        ..Differs::default()
    }
}

fn done(figures: &SandboxFigures, name: &str) -> u64 {
    let step = figures.transitions.iter().find(|step| step.transition == name);
    step.unwrap().done
}

/// Waits until so many wait to be claimed; those that are there.
async fn warm(world: &World, count: usize) -> HashSet<SandboxId> {
    eventually("sandboxes to be made ahead", || {
        (world.control.sandbox_figures().warm == count).then_some(())
    });
    let entries = world.control.sandboxes(Asker::System).await.unwrap();
    let warm = entries.iter().filter(|entry| entry.warm);
    warm.map(|entry| entry.status.id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_session_gets_what_was_made_ahead_and_nobody_else_ever() {
    in_both_placements_with(warm_world, async |world| {
        let ahead = warm(&world, 1).await;
        let (first, way_out) = world.inside.newest();
        assert_eq!(ahead, HashSet::from([first]));
        assert!(
            world.inside.tokens(first).is_empty(),
            "it has a token before it has a session"
        );
        assert!(way_out.resolve("a.example").await.is_err());
        eventually("it to be told whom to trust", || {
            (world.inside.trusted(first).len() == 1).then_some(())
        });

        world.will_call(&[("a", "one")]);
        world.will_say("Done.");
        let accepted = world.prompt("go").await;
        world.done(&accepted).await;
        let session = world.store.session(Asker::System, accepted.session).await.unwrap();
        assert_eq!(session.sandbox, Some((first, "running".to_owned())));
        assert_eq!(world.sandboxes.status(first).await.unwrap().session, accepted.session);
        assert_eq!(world.inside.tokens(first).len(), 1);
        let trusted = world.inside.trusted(first);
        assert_eq!(trusted.len(), 2, "once ahead, once with the claim");
        assert_eq!(trusted[0], trusted[1], "what was prepared is what the claim brings");
        let figures = world.control.sandbox_figures();
        assert_eq!((done(&figures, "claim_warm"), done(&figures, "claim_cold")), (1, 0));
        // Another takes its place, and is another session's.
        let next = warm(&world, 1).await;
        assert!(!next.contains(&first));
        world.assert_whole(accepted.session).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_with_files_wakes_with_them_and_takes_none_that_was_made_ahead() {
    let mut world = World::new(warm_world()).await;
    warm(&world, 1).await;
    let accepted = world.prompt("go").await;
    world.done(&accepted).await;
    let upload = async |world: &World| {
        let bytes = futures::stream::iter([Ok(Bytes::from_static(b"kept"))]).boxed();
        let uploaded = world.control.upload(world.asker, accepted.session, "notes", bytes);
        uploaded.await.unwrap();
    };
    upload(&world).await;
    for restart in [false, true] {
        if restart {
            world = world.restarted().await;
            warm(&world, 1).await;
        }
        let sandboxes = world.control.sandboxes(Asker::System).await.unwrap();
        let theirs = sandboxes.iter().find(|entry| entry.status.session == accepted.session);
        let removed = world.control.remove_sandbox(Asker::System, theirs.unwrap().status.id);
        removed.await.unwrap();
        let file = world
            .control
            .download(world.asker, accepted.session, "notes")
            .await
            .unwrap();
        let bytes: Vec<Bytes> = within("the file", file.map(Result::unwrap).collect()).await;
        assert_eq!(bytes.concat(), b"kept");
        assert_eq!(done(&world.control.sandbox_figures(), "wake"), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_sessions_at_once_each_get_their_own() {
    let world = World::new(warm_world()).await;
    warm(&world, 1).await;
    for _ in 0..12 {
        world.will_say("Done.");
    }
    let prompts = (0..12).map(|_| world.prompt_to(world.target(), "go", Delivery::Restart));
    let accepted = join_all(prompts).await;
    let mut sandboxes = HashSet::new();
    for accepted in &accepted {
        world.control.files(world.asker, accepted.session, "").await.unwrap();
        let session = world.store.session(Asker::System, accepted.session).await.unwrap();
        let (sandbox, _) = session.sandbox.unwrap();
        sandboxes.insert(sandbox);
        assert_eq!(world.inside.tokens(sandbox).len(), 1);
    }
    assert_eq!(sandboxes.len(), accepted.len(), "two sessions have one sandbox");
    // Demand is remembered, as far as the operator allows.
    warm(&world, 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_needed_is_forgotten_after_a_while() {
    let world = World::new(Differs {
        config: |config| {
            (warm_world().config)(config);
            config.warm.remember = Duration::from_secs(15);
        },
        ..Differs::default()
    })
    .await;
    warm(&world, 1).await;
    let mut sessions = HashSet::new();
    for _ in 0..3 {
        world.will_say("Done.");
        let accepted = world.prompt_to(world.target(), "go", Delivery::Restart).await;
        world.control.files(world.asker, accepted.session, "").await.unwrap();
        sessions.insert(accepted.session);
    }
    eventually("more than the least to be made ahead", || {
        (world.control.sandbox_figures().warm > 1).then_some(())
    });
    let left = warm(&world, 1).await;
    eventually_async("the others to be gone with their disks", async || {
        let sandboxes = world.sandboxes.list().await.unwrap();
        let disks = world.sandboxes.disks().await.unwrap();
        (sandboxes.len() == sessions.len() + 1 && disks.len() == sandboxes.len()).then_some(())
    })
    .await;
    let last = world.sandboxes.status(*left.iter().next().unwrap()).await.unwrap();
    assert!(!sessions.contains(&last.session));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_dies_before_anybody_came_is_replaced_without_a_trace() {
    let world = World::new(warm_world()).await;
    let ahead = warm(&world, 1).await;
    let dead = *ahead.iter().next().unwrap();
    assert!(world.sandboxes.kill(dead));
    eventually("it to be counted", || {
        (world.control.sandbox_figures().warm_died == 1).then_some(())
    });
    let next = warm(&world, 1).await;
    assert!(!next.contains(&dead));
    let (sandboxes, disks) = (
        world.sandboxes.list().await.unwrap(),
        world.sandboxes.disks().await.unwrap(),
    );
    assert_eq!((sandboxes.len(), disks.len()), (1, 1), "{sandboxes:?} {disks:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_hangs_before_anybody_came_is_replaced_and_who_answers_is_not() {
    let world = World::new(Differs {
        config: |config| {
            (warm_world().config)(config);
            config.warm.least = 2;
            config.freeze_after = Duration::from_secs(4);
            config.hung_after = Duration::from_secs(3);
        },
        ..Differs::default()
    })
    .await;
    let ahead = warm(&world, 2).await;
    let (hung, _) = world.inside.newest();
    world.inside.hang(hung);
    eventually("it to be counted", || {
        (world.control.sandbox_figures().warm_died == 1).then_some(())
    });
    let gone = async || world.sandboxes.status(hung).await.is_err().then_some(());
    eventually_async("it to be gone", gone).await;
    let next = warm(&world, 2).await;
    assert_eq!(next.intersection(&ahead).count(), 1, "the other one answered");
    assert_eq!(world.control.sandbox_figures().warm_died, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_process_made_ahead_is_removed_and_what_is_a_sessions_is_not() {
    let world = World::new(warm_world()).await;
    let before = warm(&world, 1).await;
    let accepted = world.prompt("go").await;
    world.done(&accepted).await;
    world.control.files(world.asker, accepted.session, "").await.unwrap();
    let between = warm(&world, 1).await;
    let world = world.restarted().await;
    let after = warm(&world, 1).await;
    assert!(after.is_disjoint(&between) && after.is_disjoint(&before));
    let listed = world.sandboxes.list().await.unwrap();
    assert_eq!(listed.len(), 2, "{listed:?}");
    world.will_say("Still here.");
    let again = world
        .prompt_to(Target::Session(accepted.session), "go", Delivery::Restart)
        .await;
    world.done(&again).await;
    assert_eq!(world.sandboxes.list().await.unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn those_that_are_nobodys_count_for_no_user() {
    let world = World::new(Differs {
        config: |config| {
            (warm_world().config)(config);
            config.warm.least = 3;
            config.sandboxes_per_user = 1;
        },
        ..Differs::default()
    })
    .await;
    warm(&world, 3).await;
    let accepted = world.prompt("go").await;
    world.done(&accepted).await;
    world.control.files(world.asker, accepted.session, "").await.unwrap();
    assert_eq!(done(&world.control.sandbox_figures(), "claim_warm"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn when_all_were_removed_none_is_made_before_somebody_needs_one() {
    let world = World::new(warm_world()).await;
    warm(&world, 1).await;
    let accepted = world.prompt("go").await;
    world.done(&accepted).await;
    world.control.files(world.asker, accepted.session, "").await.unwrap();
    warm(&world, 1).await;
    let denied = world.control.remove_sandboxes(world.asker).await;
    assert!(matches!(denied, Err(ControlError::Denied(_))), "{denied:?}");
    let removed = world.control.remove_sandboxes(Asker::System).await.unwrap();
    let expected = RemovedSandboxes {
        removed: 2,
        ..RemovedSandboxes::default()
    };
    assert_eq!(removed, expected);
    assert_eq!(world.sandboxes.list().await.unwrap(), [], "the warm one too");
    assert_eq!(world.control.sandbox_figures().warm, 0, "none is wanted any more");
    let session = world.store.session(Asker::System, accepted.session).await.unwrap();
    assert_eq!(session.sandbox.unwrap().1, "hibernated");
    // The session has its files still, and with its need there is one for others again.
    world.control.files(world.asker, accepted.session, "").await.unwrap();
    warm(&world, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_all_are_removed_those_that_a_process_before_this_one_left_go_too() {
    let world = World::new(Differs::default()).await;
    let accepted = world.prompt("go").await;
    world.done(&accepted).await;
    world.control.files(world.asker, accepted.session, "").await.unwrap();
    let world = world.restarted().await;
    assert_eq!(world.sandboxes.list().await.unwrap().len(), 1);
    world.control.remove_sandboxes(Asker::System).await.unwrap();
    assert_eq!(world.sandboxes.list().await.unwrap(), []);
    let told = |event: &Event| matches!(event, Event::Sandbox { reason: Some(why), .. } if why.contains("by hand"));
    world.event(accepted.session, "its end to be told", told).await;
}
