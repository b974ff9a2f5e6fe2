//! The life of sandboxes: made, lost, frozen, removed, found again; and files, which go through them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use control::ControlError;
use domain::{Delivery, Door, Event, RunState};
use futures::StreamExt;
use sandbox::{ProviderError, SandboxProvider, SandboxState};
use store::{Asker, Target};
use testkit::{eventually_async, within};

use crate::world::{Differs, World, in_both_placements, in_both_placements_with};

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_sandbox_is_replaced_and_the_run_goes_on() {
    in_both_placements(async |world| {
        world.will_call(&[("a", "hang"), ("b", "one")]);
        world.will_say("It was cut off, then.");
        let accepted = world.prompt("go").await;
        world.inside.made_so_many(2).await;
        assert!(world.sandboxes.kill(world.inside.newest().0));
        world.done(&accepted).await;
        let said = world.said(accepted.session).await;
        assert!(
            said[4].contains("interrupted") && said[4].ends_with("[error]"),
            "{said:?}"
        );
        assert_eq!(said.last().unwrap(), "m: It was cut off, then.");
        assert_eq!(world.inside.made().len(), 2, "no call is made twice");
        let lost = |event: &Event| matches!(event, Event::Sandbox { state, .. } if state == "lost");
        world.event(accepted.session, "the loss to be told", lost).await;
        world.assert_whole(accepted.session).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_removed_by_hand_is_replaced() {
    in_both_placements(async |world| {
        world.will_call(&[("a", "hang")]);
        world.will_say("On I go.");
        let accepted = world.prompt("go").await;
        world.inside.made_so_many(1).await;
        let (sandbox, _) = world.inside.newest();
        let denied = world.control.remove_sandbox(world.asker, sandbox).await;
        assert!(matches!(denied, Err(ControlError::Denied(_))));
        world.control.remove_sandbox(Asker::System, sandbox).await.unwrap();
        world.done(&accepted).await;
        let gone = world.control.remove_sandbox(Asker::System, sandbox).await;
        assert!(matches!(gone, Err(ControlError::NotFound { .. })));
        world.assert_whole(accepted.session).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_goes_before_its_link_is_there_is_just_made_anew() {
    in_both_placements(async |world| {
        world.inside.stillborn(2);
        world.will_call(&[("a", "one")]);
        world.will_say("Done.");
        let accepted = world.prompt("go").await;
        world.done(&accepted).await;
        assert_eq!(world.inside.made(), ["one"]);
        assert_eq!(world.sandboxes.list().await.unwrap().len(), 1);
        world.assert_whole(accepted.session).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_has_so_many_sandboxes_and_the_unused_ones_make_room() {
    let world = World::new(Differs {
        config: |config| {
            config.sandboxes_per_user = 2;
            config.attempts = 1;
        },
        ..Differs::default()
    })
    .await;
    let mut sessions = Vec::new();
    for _ in 0..3 {
        world.will_call(&[("a", "one")]);
        world.will_say("Done.");
        let accepted = world.prompt_to(world.target(), "go", Delivery::Restart).await;
        world.done(&accepted).await;
        sessions.push(accepted.session);
    }
    assert_eq!(world.sandboxes.list().await.unwrap().len(), 2);
    let removed = |event: &Event| matches!(event, Event::Sandbox { state, .. } if state == "hibernated");
    world.event(sessions[0], "the first to make room", removed).await;
    // Those in use stay, and one more is refused in words.
    for count in 1..=2 {
        world.will_call(&[("a", "hang")]);
        world.prompt_to(world.target(), "go", Delivery::Restart).await;
        world.inside.made_so_many(3 + count).await;
    }
    let refused = world.prompt_to(world.target(), "go", Delivery::Restart).await;
    let run = world.ended(refused.session, refused.run).await;
    assert_eq!(
        (run.state, run.code.as_deref()),
        (RunState::Failed, Some("sandbox_failed"))
    );
    let reason = run.reason.unwrap();
    assert!(
        reason.contains("2 sandboxes in use") && reason.contains("sandbox.per_user"),
        "{reason}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn no_sandbox_at_all_fails_the_run_in_words() {
    in_both_placements_with(
        || Differs {
            config: |config| config.attempts = 2,
            ..Differs::default()
        },
        async |world| {
            for _ in 0..2 {
                let fault = ProviderError::Unavailable("the host agent does not answer".to_owned());
                world.sandboxes.fail_next_create(fault);
            }
            let accepted = world.prompt("go").await;
            let run = world.ended(accepted.session, accepted.run).await;
            assert_eq!(
                (run.state, run.code.as_deref()),
                (RunState::Failed, Some("sandbox_failed"))
            );
            let reason = run.reason.unwrap();
            assert!(reason.contains("the host agent does not answer"), "{reason}");
            // What never helps is not tried again.
            let fault = ProviderError::Machine {
                lacks: "user namespaces".to_owned(),
            };
            world.sandboxes.fail_next_create(fault);
            let accepted = world
                .prompt_to(Target::Session(accepted.session), "go", Delivery::Restart)
                .await;
            let run = world.ended(accepted.session, accepted.run).await;
            assert!(run.reason.unwrap().contains("user namespaces"));
            world.assert_whole(accepted.session).await;
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_sandbox_is_frozen_woken_and_removed_and_its_files_stay() {
    in_both_placements_with(
        || Differs {
            config: |config| {
                config.freeze_after = Duration::from_millis(80);
                config.hibernate_after = Duration::from_secs(3);
            },
            ..Differs::default()
        },
        async |world| {
            world.will_call(&[("a", "one")]);
            let accepted = world.prompt("go").await;
            world.done(&accepted).await;
            let target = || Target::Session(accepted.session);
            let (sandbox, _) = world.inside.newest();
            let state = async || world.sandboxes.status(sandbox).await.ok().map(|status| status.state);
            eventually_async("the sandbox to freeze", async || {
                (state().await == Some(SandboxState::Frozen)).then_some(())
            })
            .await;
            world.will_call(&[("b", "two")]);
            let woken = world.prompt_to(target(), "wake", Delivery::Restart).await;
            world.done(&woken).await;
            assert_eq!(world.inside.newest().0, sandbox);
            let bytes = futures::stream::iter([Ok(Bytes::from_static(b"kept"))]).boxed();
            world
                .control
                .upload(world.asker, accepted.session, "notes", bytes)
                .await
                .unwrap();
            let removed = |event: &Event| matches!(event, Event::Sandbox { state, .. } if state == "hibernated");
            world
                .event(accepted.session, "the sandbox to be removed", removed)
                .await;
            assert_eq!(state().await, None);
            let notes = world
                .control
                .download(world.asker, accepted.session, "notes")
                .await
                .unwrap();
            let notes: Vec<Bytes> = notes.map(Result::unwrap).collect().await;
            assert_eq!(notes.concat(), b"kept");
            assert_ne!(world.inside.newest().0, sandbox);
            world.assert_whole(accepted.session).await;
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_go_in_before_the_first_prompt_and_come_out() {
    let world = World::new(Differs::default()).await;
    let (session, made) = world
        .control
        .open_session(world.asker, world.target(), Door::Cli, "a report", None)
        .await
        .unwrap();
    assert!(made);
    let data: Vec<u8> = (0..3_000_000_u32).map(|byte| byte as u8).collect();
    let chunks: Vec<_> = data
        .chunks(64 << 10)
        .map(|chunk| Ok(Bytes::copy_from_slice(chunk)))
        .collect();
    let upload = world.control.upload(
        world.asker,
        session.id,
        "data.bin",
        futures::stream::iter(chunks).boxed(),
    );
    within("the upload", upload).await.unwrap();
    let listed = world.control.files(world.asker, session.id, "").await.unwrap();
    assert_eq!((listed[0].path.as_str(), listed[0].bytes), ("data.bin", 3_000_000));
    let file = world
        .control
        .download(world.asker, session.id, "data.bin")
        .await
        .unwrap();
    let back: Vec<Bytes> = within("the download", file.map(Result::unwrap).collect()).await;
    assert!(back.concat() == data);
    let missing = world
        .control
        .download(world.asker, session.id, "none")
        .await
        .unwrap_err();
    assert!(matches!(missing, ControlError::Invalid(_)), "{missing:?}");
    assert_eq!(world.inside.sandboxes(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_control_plane_is_followed_by_one_that_goes_on() {
    for placement in [domain::Placement::Sandbox, domain::Placement::ControlPlane] {
        let mut world = World::new(Differs {
            placement,
            ..Differs::default()
        })
        .await;
        world.will_call(&[("a", "hang"), ("b", "one")]);
        world.will_say("Where was I?");
        let accepted = world.prompt("go").await;
        world.inside.made_so_many(2).await;
        world = world.restarted().await;
        world.done(&accepted).await;
        let said = world.said(accepted.session).await;
        assert_eq!(said.last().unwrap(), "m: Where was I?", "{said:?}");
        assert_eq!(world.inside.made().len(), 2, "no call is made twice");
        // The sandbox lives on, and is used again.
        assert_eq!(world.inside.sandboxes(), 1);
        assert_eq!(world.store.run(Asker::System, accepted.run).await.unwrap().attempts, 2);
        world.assert_whole(accepted.session).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn more_runs_than_places_wait_in_the_store() {
    let world = World::new(Differs {
        config: |config| config.parallel_runs = 2,
        ..Differs::default()
    })
    .await;
    static MOST: AtomicUsize = AtomicUsize::new(0);
    let mut accepted = Vec::new();
    for _ in 0..10 {
        accepted.push(world.prompt("go").await);
        MOST.fetch_max(world.control.health().await.runs, Ordering::SeqCst);
    }
    for accepted in &accepted {
        world.done(accepted).await;
    }
    assert!(MOST.load(Ordering::SeqCst) <= 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_gets_out_and_each_attempt_is_told_and_audited() {
    in_both_placements(async |world| {
        world.will_call(&[
            ("a", "connect evil.example 443"),
            ("b", "resolve evil.example"),
            ("c", "connect evil.example 443"),
        ]);
        world.will_say("There is no way out.");
        let accepted = world.prompt("go").await;
        world.done(&accepted).await;
        let said = world.said(accepted.session).await.join("\n");
        assert!(said.contains("no connection to evil"), "{said}");
        let events = world.events(accepted.session).await;
        let denied: Vec<_> = events
            .iter()
            .filter_map(|event| match &event.event {
                Event::EgressDenied {
                    host, port, protocol, ..
                } => Some((host.as_str(), *port, protocol.as_str())),
                _ => None,
            })
            .collect();
        assert_eq!(denied.len(), 2, "{denied:?}");
        assert!(denied.contains(&("evil.example", 443, "tcp")) && denied.contains(&("evil.example", 53, "dns")));
        let audited = world.audited("egress.denied").await;
        assert_eq!(audited.len(), 2, "{audited:#?}");
        for record in &audited {
            let facts = &record.entry.facts;
            assert_eq!(facts.user, Some(world.user.id));
            assert_eq!((facts.session, facts.run), (Some(accepted.session), Some(accepted.run)));
            assert_eq!(facts.host.as_deref(), Some("evil.example"));
            assert_eq!(
                (facts.decision.as_deref(), facts.rule.as_deref()),
                (Some("deny"), Some("no_egress"))
            );
        }
        world.assert_whole(accepted.session).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_agent_that_is_started_anew_ends_no_run() {
    in_both_placements(async |world| {
        world.will_call(&[("a", "wait")]);
        world.will_call(&[("b", "two")]);
        world.will_say("Nothing happened.");
        let accepted = world.prompt("go").await;
        world.inside.made_so_many(1).await;
        world.host.restart();
        world.inside.release();
        world.done(&accepted).await;
        let said = world.said(accepted.session).await;
        assert_eq!(said[3], "sandbox: waited", "{said:?}");
        assert_eq!(world.inside.sandboxes(), 1, "{said:?}");
        world.assert_whole(accepted.session).await;
    })
    .await;
}
