//! Falling asleep and waking, and what is replaced because it does not answer.

use std::time::Duration;

use bytes::Bytes;
use domain::{Delivery, Door, Event, Placement, SandboxId, SessionId, Timestamp};
use futures::StreamExt;
use protocol::ToControl;
use sandbox::{SandboxProvider, SandboxSpec, SandboxState};
use store::{Asker, Target};
use testkit::eventually_async;

use crate::world::{Differs, World, in_both_placements, in_both_placements_with};

async fn state_is(world: &World, session: SessionId, wanted: &str) {
    let is = |event: &Event| matches!(event, Event::Sandbox { state, .. } if state == wanted);
    world.event(session, wanted, is).await;
    eventually_async(wanted, async || {
        let session = world.store.session(Asker::System, session).await.unwrap();
        (session.sandbox.unwrap().1 == wanted).then_some(())
    })
    .await;
}

/// A sandbox of a session that does not exist.
fn nobodys(world: &World) -> SandboxSpec {
    SandboxSpec {
        id: SandboxId::new(),
        session: SessionId::new(),
        image: world.config.base.image.clone(),
        limits: world.config.sandbox,
        builder: false,
    }
}

fn sleepy() -> Differs {
    Differs {
        config: |config| {
            config.freeze_after = Duration::from_millis(50);
            // Far enough away that each is frozen before it is hibernated, however busy the machine is.
            config.hibernate_after = Duration::from_secs(1);
        },
        ..Differs::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_while_it_falls_asleep_is_served() {
    in_both_placements_with(sleepy, async |world| {
        let opened = world
            .control
            .open_session(world.asker, world.target(), Door::Cli, "a report", None);
        let (session, _) = opened.await.unwrap();
        let bytes = || futures::stream::iter([Ok(Bytes::from_static(b"kept"))]).boxed();
        let upload = world.control.upload(world.asker, session.id, "notes", bytes());
        upload.await.unwrap();
        for (round, step) in ["freeze", "destroy"].iter().cycle().take(8).enumerate() {
            let call = format!("call{round}");
            let held = world.host.hold(step);
            // It may sleep already, and falls asleep once more when it was used.
            let used = world.control.files(world.asker, session.id, "");
            let download = async {
                held.begun().await;
                let file = world.control.download(world.asker, session.id, "notes").await.unwrap();
                let bytes: Vec<Bytes> = file.map(Result::unwrap).collect().await;
                assert_eq!(bytes.concat(), b"kept");
            };
            let prompt = async {
                held.begun().await;
                world.will_call(&[(&call, "one")]);
                world.will_say("Done.");
                let target = Target::Session(session.id);
                let accepted = world.prompt_to(target, "go", Delivery::Queue).await;
                world.done(&accepted).await;
            };
            let upload = async {
                held.begun().await;
                world.control.upload(world.asker, session.id, "more", bytes()).await
            };
            // The last in turn: the others have asked by then.
            let goes_on = async {
                held.begun().await;
                held.release();
            };
            let (used, (), (), uploaded, ()) = tokio::join!(used, download, prompt, upload, goes_on);
            used.unwrap();
            uploaded.unwrap();
        }
        assert_eq!(world.inside.made().len(), 8, "no call is made twice, and none is lost");
        world.assert_whole(session.id).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_state_is_told() {
    let world = World::new(sleepy()).await;
    world.will_call(&[("a", "one")]);
    let accepted = world.prompt("go").await;
    world.done(&accepted).await;
    state_is(&world, accepted.session, "hibernated").await;
    let states = world.events(accepted.session).await;
    let states: Vec<_> = states
        .iter()
        .filter_map(|event| match &event.event {
            Event::Sandbox { state, .. } => Some(state.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(states, ["starting", "running", "frozen", "hibernated"]);
    let hibernated = |event: &Event| matches!(event, Event::Sandbox { reason: Some(reason), .. } if reason.contains("its processes are gone, its files are kept"));
    world.event(accepted.session, "the reason", hibernated).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_asks_for_something_while_it_is_put_to_sleep_is_woken() {
    let world = World::new(Differs {
        config: |config| config.freeze_after = Duration::from_millis(20),
        ..Differs::default()
    })
    .await;
    world.will_call(&[("a", "one")]);
    let accepted = world.prompt("go").await;
    world.done(&accepted).await;
    state_is(&world, accepted.session, "frozen").await;
    let (_, way_out) = world.inside.newest();
    // What had been sent before it stood still arrives now.
    let thawed = world.host.begins("thaw");
    let (asked, ()) = tokio::join!(way_out.resolve("evil.example"), thawed);
    assert!(asked.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_under_way_keeps_its_sandbox_awake() {
    in_both_placements_with(sleepy, async |world| {
        world.will_call(&[("a", "wait")]);
        world.will_say("Done.");
        let accepted = world.prompt("go").await;
        world.inside.made_so_many(1).await;
        let (sandbox, _) = world.inside.newest();
        let other = world.prompt_to(world.target(), "go", Delivery::Restart).await;
        world.control.files(world.asker, other.session, "").await.unwrap();
        // Another falls asleep, and away, in the meantime.
        state_is(&world, other.session, "hibernated").await;
        let status = world.sandboxes.status(sandbox).await.unwrap();
        assert_eq!(status.state, SandboxState::Running);
        world.inside.release();
        world.done(&accepted).await;
        assert_eq!(world.inside.made(), ["wait"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_that_does_not_answer_is_replaced_and_the_run_goes_on() {
    in_both_placements_with(
        || Differs {
            config: |config| {
                config.freeze_after = Duration::from_secs(4);
                config.hung_after = Duration::from_secs(3);
            },
            ..Differs::default()
        },
        async |world| {
            world.will_call(&[("a", "hang")]);
            world.will_say("It was cut off, then.");
            let accepted = world.prompt("go").await;
            world.inside.made_so_many(1).await;
            let (hung, _) = world.inside.newest();
            world.inside.hang(hung);
            world.done(&accepted).await;
            let said = world.said(accepted.session).await;
            assert!(said[3].contains("interrupted"), "{said:?}");
            let lost = |event: &Event| {
                matches!(event, Event::Sandbox { state, reason: Some(reason) } if state == "lost" && reason.contains("did not answer"))
            };
            world.event(accepted.session, "the loss to be told", lost).await;
            assert!(world.sandboxes.status(hung).await.is_err());
            world.assert_whole(accepted.session).await;
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_that_is_not_understood_is_named_as_the_reason_why_it_is_replaced() {
    let world = World::new(Differs {
        config: |config| {
            config.freeze_after = Duration::from_secs(4);
            config.hung_after = Duration::from_secs(3);
        },
        ..Differs::default()
    })
    .await;
    world.will_call(&[("a", "hang")]);
    world.will_say("It was cut off, then.");
    let accepted = world.prompt("go").await;
    world.inside.made_so_many(1).await;
    let (older, _) = world.inside.newest();
    world.inside.hang(older);
    world.inside.greet_as_older(older).await;
    world.done(&accepted).await;
    let lost = |event: &Event| {
        matches!(event, Event::Sandbox { state, reason: Some(reason) }
            if state == "lost" && reason.contains("(build older)") && reason.contains("run the same release of Belljar"))
    };
    world.event(accepted.session, "the reason to be told", lost).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stands_still_while_its_files_are_kept_is_not_taken_for_hung() {
    let world = World::new(Differs {
        config: |config| {
            config.freeze_after = Duration::from_secs(4);
            config.hung_after = Duration::from_secs(3);
        },
        ..Differs::default()
    })
    .await;
    world.will_say("Here.");
    let accepted = world.prompt("go").await;
    world.done(&accepted).await;
    world.control.files(world.asker, accepted.session, "").await.unwrap();
    let (kept, _) = world.inside.newest();
    world.host.hold_snapshots();
    let saving = world.control.save_snapshot(world.asker, accepted.session, None);
    let meanwhile = async {
        // Two in turn that are asked later than it was, and are given up: it would have been by now.
        for round in 1..=2 {
            world.will_call(&[("a", "hang")]);
            world.will_say("It was cut off, then.");
            let other = world.prompt("go").await;
            world.inside.made_so_many(round).await;
            let (hung, _) = world.inside.newest();
            world.inside.hang(hung);
            world.done(&other).await;
            assert!(world.sandboxes.status(hung).await.is_err());
        }
        world.host.let_snapshots_go_on();
    };
    let ((), saved) = tokio::join!(
        async {
            world.host.begins("snapshot").await;
            meanwhile.await;
        },
        saving
    );
    saved.unwrap();
    let status = world.sandboxes.status(kept).await.unwrap();
    assert_eq!(status.state, SandboxState::Running);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_nobody_uses_and_no_session_knows_is_removed() {
    let world = World::new(sleepy()).await;
    let spec = nobodys(&world);
    world.sandboxes.create(&spec).await.unwrap();
    eventually_async("it to be removed", async || {
        world.sandboxes.list().await.unwrap().is_empty().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_of_no_session_is_removed_and_no_other() {
    let world = World::new(Differs {
        config: |config| {
            (sleepy().config)(config);
            config.disk_grace = Duration::from_secs(1);
        },
        ..Differs::default()
    })
    .await;
    world.will_call(&[("a", "one")]);
    let accepted = world.prompt("go").await;
    world.done(&accepted).await;
    state_is(&world, accepted.session, "hibernated").await;
    let spec = nobodys(&world);
    world.sandboxes.create(&spec).await.unwrap();
    eventually_async("the disk of nobody to be removed", async || {
        let disks = world.sandboxes.disks().await.unwrap();
        (!disks.contains(&spec.session)).then_some(())
    })
    .await;
    assert_eq!(world.sandboxes.disks().await.unwrap(), [accepted.session]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_frozen_owes_no_answer() {
    let world = World::new(Differs {
        config: |config| {
            config.freeze_after = Duration::from_millis(50);
            config.hung_after = Duration::from_secs(3);
            config.hibernate_after = Duration::from_secs(9);
        },
        ..Differs::default()
    })
    .await;
    world.will_call(&[("a", "one")]);
    let accepted = world.prompt("go").await;
    world.done(&accepted).await;
    state_is(&world, accepted.session, "frozen").await;
    let (frozen, _) = world.inside.newest();
    world.inside.hang(frozen);
    state_is(&world, accepted.session, "hibernated").await;
    let events = world.events(accepted.session).await;
    let lost = |event: &Event| matches!(event, Event::Sandbox { state, .. } if state == "lost");
    assert!(!events.iter().any(|event| lost(&event.event)), "{events:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_begins_with_a_store_that_knows_a_session_no_longer_leaves_its_files() {
    let world = World::new(Differs::default()).await;
    let spec = nobodys(&world);
    let sandboxes = std::sync::Arc::clone(&world.sandboxes);
    let world = world
        .restarted_after(async || {
            sandboxes.create(&spec).await.unwrap();
        })
        .await;
    eventually_async("its sandbox to be removed", async || {
        world.sandboxes.list().await.unwrap().is_empty().then_some(())
    })
    .await;
    // What was found is seen to before anything else begins.
    world.done(&world.prompt("go").await).await;
    assert!(world.sandboxes.disks().await.unwrap().contains(&spec.session));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ended_while_nobody_watched_is_told_by_the_next_process() {
    let world = World::new(Differs::default()).await;
    world.will_call(&[("a", "one")]);
    let accepted = world.prompt("go").await;
    world.done(&accepted).await;
    state_is(&world, accepted.session, "running").await;
    let sandbox = world.inside.newest().0;
    let sandboxes = std::sync::Arc::clone(&world.sandboxes);
    let world = world
        .restarted_after(async || sandboxes.destroy(sandbox).await.unwrap())
        .await;
    state_is(&world, accepted.session, "hibernated").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_looks_into_a_sandbox_and_it_is_written_down() {
    in_both_placements(async |world| {
        let accepted = world.prompt("go").await;
        world.done(&accepted).await;
        let denied = world
            .control
            .run_in_sandbox(world.asker, accepted.session, "ls /workspace")
            .await;
        assert!(matches!(denied, Err(control::ControlError::Denied(_))), "{denied:?}");
        assert!(world.audited("sandbox.exec").await.is_empty());
        let ran = world
            .control
            .run_in_sandbox(Asker::System, accepted.session, "ls /workspace")
            .await
            .unwrap();
        assert!(!ran.is_error);
        let audited = world.audited("sandbox.exec").await;
        assert_eq!(audited.len(), 1);
        assert_eq!(audited[0].entry.detail["command"], "ls /workspace");
        assert_eq!(audited[0].entry.facts.session, Some(accepted.session));

        let (sandbox, _) = world.inside.newest();
        let gone = world.control.sandbox_words(Asker::System, SandboxId::new()).await;
        assert!(matches!(gone, Err(control::ControlError::NotFound { .. })), "{gone:?}");
        world.control.sandbox_words(Asker::System, sandbox).await.unwrap();
        world.control.remove_sandbox(Asker::System, sandbox).await.unwrap();
        for action in ["sandbox.logs", "sandbox.remove"] {
            let audited = world.audited(action).await;
            assert_eq!(audited.len(), 1, "{action}");
            assert_eq!(audited[0].entry.detail["sandbox"], sandbox.to_string());
            assert_eq!(audited[0].entry.facts.session, Some(accepted.session));
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_in_the_background_keeps_its_sandbox_awake_and_not_for_ever() {
    in_both_placements_with(sleepy, async |world| {
        world.will_call(&[("a", "background 1000")]);
        let accepted = world.prompt("go").await;
        world.done(&accepted).await;
        let (sandbox, _) = world.inside.newest();
        let kept = async || {
            let listed = world.control.sandboxes(Asker::System).await.unwrap();
            listed.iter().find(|entry| entry.status.id == sandbox)?.kept_until
        };
        testkit::eventually_async("it to be kept", async || kept().await.map(drop)).await;
        // Another falls asleep, and away, in the meantime.
        let other = world.prompt_to(world.target(), "go", Delivery::Restart).await;
        world.control.files(world.asker, other.session, "").await.unwrap();
        state_is(&world, other.session, "hibernated").await;
        let status = world.sandboxes.status(sandbox).await.unwrap();
        assert_eq!(status.state, SandboxState::Running);
        // Between runs it can give up what it has, and have no more.
        for seconds in [2_000, 0, 1_000] {
            world.inside.say_of(sandbox, ToControl::Background { seconds }).await;
        }
        state_is(&world, accepted.session, "hibernated").await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_cancels_a_run_ends_its_programs_in_the_background() {
    in_both_placements(async |world| {
        world.will_call(&[("a", "background 1000"), ("b", "hang")]);
        let accepted = world.prompt("go").await;
        world.inside.made_so_many(2).await;
        let kept = async || {
            let listed = world.control.sandboxes(Asker::System).await.unwrap();
            listed[0].kept_until
        };
        eventually_async("it to be kept", async || kept().await.map(drop)).await;
        let cancelled = world.control.cancel(world.asker, accepted.session, "enough");
        cancelled.await.unwrap().unwrap();
        eventually_async("it to be kept no longer", async || kept().await.is_none().then_some(())).await;
        let workspace = world.sandboxes.workspace(accepted.session);
        assert!(workspace.join("last-words").exists());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_asks_to_be_kept_for_ever_is_kept_for_as_long_as_the_operator_says() {
    let world = World::new(Differs {
        config: |config| {
            (sleepy().config)(config);
            config.background_time = Duration::from_secs(1);
        },
        ..Differs::default()
    })
    .await;
    world.will_call(&[("a", "background 18446744073709551615")]);
    let accepted = world.prompt("go").await;
    world.done(&accepted).await;
    assert_eq!(world.inside.granted().background_seconds, 1);
    state_is(&world, accepted.session, "hibernated").await;
}

/// Until when programs in the background keep a sandbox, as an operator sees it.
async fn kept_until(world: &World, sandbox: SandboxId) -> Option<Timestamp> {
    let listed = world.control.sandboxes(Asker::System).await.unwrap();
    listed.iter().find(|entry| entry.status.id == sandbox)?.kept_until
}

/// A session with programs in the background for so long, as its runtime says, between two control planes.
async fn promised(differs: Differs, seconds: u64, meanwhile: impl AsyncFnOnce(&World)) -> (World, SessionId) {
    let world = World::new(differs).await;
    world.will_call(&[("a", &format!("background {seconds}"))]);
    let accepted = world.prompt("go").await;
    world.done(&accepted).await;
    let (sandbox, _) = world.inside.newest();
    eventually_async("it to be kept", async || kept_until(&world, sandbox).await.map(drop)).await;
    meanwhile(&world).await;
    (world.restarted().await, accepted.session)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_promise_to_the_background_is_kept_by_the_next_process() {
    for placement in [Placement::Sandbox, Placement::ControlPlane] {
        let differs = Differs { placement, ..sleepy() };
        let (world, session) = promised(differs, 1_000, async |_| ()).await;
        // Nobody asks for it: the next process hears of it by itself.
        let (sandbox, _) = world.inside.newest();
        eventually_async("it to be kept", async || kept_until(&world, sandbox).await.map(drop)).await;
        // Another falls asleep, and away, in the meantime, as do those that a dead process left for nothing.
        let other = world.prompt_to(world.target(), "go", Delivery::Restart).await;
        world.control.files(world.asker, other.session, "").await.unwrap();
        state_is(&world, other.session, "hibernated").await;
        let status = world.sandboxes.status(sandbox).await.unwrap();
        assert_eq!(status.state, SandboxState::Running);
        // It goes on through one more, and until it ends.
        let world = world.restarted().await;
        eventually_async("it to be kept", async || kept_until(&world, sandbox).await.map(drop)).await;
        world.inside.say_of(sandbox, ToControl::Background { seconds: 0 }).await;
        state_is(&world, session, "hibernated").await;
        world.assert_whole(session).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_process_left_idle_is_put_to_sleep_by_the_next() {
    let mut world = World::new(Differs::default()).await;
    world.will_call(&[("a", "one")]);
    let accepted = world.prompt("go").await;
    world.done(&accepted).await;
    // The run has ended in its sandbox too when this is done.
    world
        .control
        .save_snapshot(world.asker, accepted.session, None)
        .await
        .unwrap();
    let (sandbox, _) = world.inside.newest();
    world.config.freeze_after = Duration::from_millis(50);
    // Nothing was promised to what may go on in it.
    world.config.background_time = Duration::ZERO;
    let world = world.restarted().await;
    state_is(&world, accepted.session, "frozen").await;
    let status = world.sandboxes.status(sandbox).await.unwrap();
    assert_eq!(status.state, SandboxState::Frozen);
    assert_eq!(world.inside.sandboxes(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_lies_to_the_next_process_is_kept_for_what_is_left_of_the_time_since_its_run() {
    let hour = Duration::from_secs(3_600);
    let differs = Differs {
        config: |config| {
            (sleepy().config)(config);
            config.background_time = Duration::from_secs(3_600);
        },
        ..Differs::default()
    };
    let later = async |world: &World| world.set_clock_ahead(hour / 2);
    let (mut world, session) = promised(differs, u64::MAX, later).await;
    let (sandbox, _) = world.inside.newest();
    // However often it begins anew.
    for _ in 0..3 {
        let until = eventually_async("it to be kept", async || kept_until(&world, sandbox).await).await;
        let left = until.0 - Timestamp::now().0;
        assert!(left <= i64::try_from((hour / 2).as_millis()).unwrap(), "{left} ms");
        for seconds in [u64::MAX, 3_600] {
            world.inside.say_of(sandbox, ToControl::Background { seconds }).await;
        }
        // It has heard of them when it has served this.
        world.control.files(world.asker, session, "").await.unwrap();
        let still = kept_until(&world, sandbox).await.unwrap();
        assert!(still.0 - until.0 < 1_000, "{still:?}, and {until:?} before");
        world = world.restarted().await;
    }
    world.set_clock_ahead(hour + Duration::from_secs(1));
    let world = world.restarted().await;
    state_is(&world, session, "hibernated").await;
    assert!(world.sandboxes.status(sandbox).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_cancelled_run_began_is_ended_by_the_next_process_where_none_came_to_it() {
    let world = World::new(Differs::default()).await;
    world.will_call(&[("a", "background 1000"), ("b", "hang")]);
    let accepted = world.prompt("go").await;
    world.inside.made_so_many(2).await;
    let (sandbox, _) = world.inside.newest();
    eventually_async("it to be kept", async || kept_until(&world, sandbox).await.map(drop)).await;
    let world = world
        .restarted_when(async |store| {
            store.cancel_run(Asker::System, accepted.run, "enough").await.unwrap();
        })
        .await;
    world.control.files(world.asker, accepted.session, "").await.unwrap();
    assert_eq!(kept_until(&world, sandbox).await, None);
    let workspace = world.sandboxes.workspace(accepted.session);
    assert!(workspace.join("last-words").exists());
}
