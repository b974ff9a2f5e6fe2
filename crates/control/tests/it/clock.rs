//! The machine's clock is set while something is under way.

use std::fs;
use std::time::Duration;

use domain::{Door, Event};
use sandbox::SandboxProvider;
use store::Asker;

use crate::files::{self, both};
use crate::world::{Differs, World, in_both_placements_with};

const HOUR: Duration = Duration::from_secs(3_600);

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_jumps_ends_no_run_no_sandbox_and_no_token() {
    for (before, after) in [(Duration::ZERO, HOUR), (HOUR, Duration::ZERO)] {
        let differs = || Differs {
            config: |config| {
                config.token_life = Duration::from_secs(6);
                config.lease = Duration::from_secs(3);
                // Whoever looks after sandboxes looks that often, too.
                config.freeze_after = Duration::from_millis(80);
                config.hibernate_after = Duration::from_secs(60);
            },
            ..Differs::default()
        };
        in_both_placements_with(differs, async |world| {
            world.set_clock_ahead(before);
            world.will_call(&[("a", "wait")]);
            world.will_say("Done.");
            let accepted = world.prompt("go").await;
            world.inside.made_so_many(1).await;
            let (sandbox, _) = world.inside.newest();
            world.set_clock_ahead(after);
            // What was known of tokens is asked anew.
            let opened = world
                .control
                .open_session(world.asker, world.target(), Door::Cli, "", None);
            let (other, _) = opened.await.unwrap();
            let issued = world.store.issue_session_token(Asker::System, other.id, HOUR);
            issued.await.unwrap();
            let revoked = world.store.revoke_session_tokens(Asker::System, other.id, "a test");
            revoked.await.unwrap();
            // It gets new tokens, as before, and what it asks with them is answered.
            let tokens = world.inside.tokens(sandbox).len() + 2;
            testkit::eventually_async("new tokens", async || {
                (world.inside.tokens(sandbox).len() >= tokens).then_some(())
            })
            .await;
            world.inside.release();
            let run = world.done(&accepted).await;
            assert_eq!(run.attempts, 1, "nobody took it a second time");
            assert_eq!(world.inside.newest().0, sandbox);
            assert_eq!(world.inside.made(), ["wait"]);
            world.assert_whole(accepted.session).await;
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_set_ahead_archives_nothing_at_once() {
    let world = both(
        |config| {
            config.freeze_after = Duration::from_millis(50);
            config.hibernate_after = Duration::from_secs(8);
            // Sessions that are quiet are looked for four times as often, and are to be quiet for as long once more.
            config.archive_after = Duration::from_secs(24);
        },
        |_| {},
    )
    .await;
    let quiet = world.prompt("go").await;
    world.done(&quiet).await;
    world.control.files(world.asker, quiet.session, "").await.unwrap();
    let (sandbox, _) = world.inside.newest();
    world.control.remove_sandbox(Asker::System, sandbox).await.unwrap();
    world.set_clock_ahead(1_000 * HOUR);
    // Another falls asleep, and away, in the meantime: each quiet session was looked at.
    let other = world.prompt("go").await;
    world.done(&other).await;
    world.control.files(world.asker, other.session, "").await.unwrap();
    let is = |event: &Event| matches!(event, Event::Sandbox { state, .. } if state == "hibernated");
    world.event(other.session, "another to fall asleep", is).await;
    let disks = world.sandboxes.disks().await.unwrap();
    assert!(disks.contains(&quiet.session), "it was archived at once");
}

/// Does something while the clock jumps an hour ahead and back, without end.
async fn while_it_jumps<T>(world: &World, action: impl Future<Output = T>) -> T {
    let jumps = async {
        let mut moments = tokio::time::interval(Duration::from_millis(2));
        for ahead in [HOUR, Duration::ZERO].into_iter().cycle() {
            world.set_clock_ahead(ahead);
            moments.tick().await;
        }
    };
    tokio::select! {
        done = action => done,
        () = jumps => unreachable!("it never ends"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_kept_and_come_back_while_the_clock_jumps() {
    let world = files::world().await;
    let (session, workspace) = files::session(&world).await;
    for number in 0..100 {
        fs::write(workspace.join(number.to_string()), format!("file {number}")).unwrap();
    }
    let wanted = files::tree(&workspace);
    while_it_jumps(&world, async {
        let away = async || files::archive(&world, session).await.ok();
        testkit::eventually_async("the session to be put away", away).await;
        files::again(&world, session).await;
        files::comes_back(&workspace, &wanted).await;
    })
    .await;
    assert_eq!(wanted.len(), 100);
    world.assert_whole(session).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_jumps_keeps_no_sandbox_awake() {
    for (before, after) in [(Duration::ZERO, HOUR), (HOUR, Duration::ZERO)] {
        let world = World::new(Differs {
            config: |config| {
                config.freeze_after = Duration::from_millis(200);
                config.hibernate_after = Duration::from_secs(1);
            },
            ..Differs::default()
        })
        .await;
        world.set_clock_ahead(before);
        world.will_say("Done.");
        let accepted = world.prompt("go").await;
        world.done(&accepted).await;
        world.set_clock_ahead(after);
        for expected in ["frozen", "hibernated"] {
            let is = |event: &Event| matches!(event, Event::Sandbox { state, .. } if state == expected);
            world.event(accepted.session, expected, is).await;
        }
        world.assert_whole(accepted.session).await;
    }
}
