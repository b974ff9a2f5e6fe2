//! The store's disk is full when something is to be stored that was done or paid for already. Needs root, for a small file system of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use control::ControlError;
use domain::{Event, Money, RunState};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use store::Asker;
use testkit::within;

use crate::world::{Differs, World};

/// Room for all that is small, and for no long reply.
const ROOM: u64 = 700 << 10;
/// Longer than a reply is held on to where the store fails for another reason.
const FULL_FOR: Duration = Duration::from_secs(15);

/// A small file system in place of a folder, with what was in it.
struct Small(PathBuf);

impl Small {
    fn over(folder: &Path) -> Self {
        let kept = tempfile::tempdir().unwrap();
        let copy = |from: &Path, to: &Path| {
            let mut command = std::process::Command::new("cp");
            testkit::run(command.arg("-a").arg(from.join(".")).arg(to));
        };
        copy(folder, kept.path());
        mount("tmpfs", folder, "tmpfs", MountFlags::NOSUID, c"size=16m").expect("mounting needs root");
        copy(kept.path(), folder);
        Self(folder.to_owned())
    }

    /// Takes all but so many bytes, until the file that is named is removed.
    fn fill_but(&self, room: u64) -> PathBuf {
        let about = rustix::fs::statvfs(&self.0).unwrap();
        let free = about.f_bavail * about.f_frsize;
        let ballast = self.0.join("ballast");
        std::fs::write(&ballast, vec![0; usize::try_from(free - room).unwrap()]).unwrap();
        ballast
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// A world whose store lies on a small file system.
async fn on_a_small_disk(differs: Differs) -> (World, Small) {
    let world = World::new(differs).await;
    let folder = world.folder().to_owned();
    let mut small = None;
    let world = world.restarted_after(async || small = Some(Small::over(&folder))).await;
    (world, small.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_finds_no_room_is_kept_until_there_is_some() {
    let (world, small) = on_a_small_disk(Differs::default()).await;
    let ballast = small.fill_but(ROOM);

    let long = "All that was found. ".repeat(100_000);
    world.will_say(&long);
    let accepted = world.prompt("go").await;
    let ended = tokio::time::timeout(FULL_FOR, world.ended(accepted.session, accepted.run)).await;
    assert!(ended.is_err(), "the run ended without room for its reply: {ended:?}");
    let run = world.store.run(Asker::System, accepted.run).await.unwrap();
    assert_eq!(run.state, RunState::Running);
    assert_eq!(world.said(accepted.session).await, ["ada: go"]);

    std::fs::remove_file(ballast).unwrap();
    world.done(&accepted).await;
    assert_eq!(
        world.said(accepted.session).await,
        ["ada: go".to_owned(), format!("m: {long}")]
    );
    assert_eq!(world.models.count(), 1, "it was asked and paid once");
    assert_eq!(world.ledger().await.len(), 1);
    drop(small);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_waits_for_room_keeps_nobody_from_stopping_its_run() {
    let (world, small) = on_a_small_disk(Differs::default()).await;
    let ballast = small.fill_but(ROOM);
    // Nothing of it is shown before it is whole, so that little is to be kept of it when its run is stopped.
    world.will_call(&[("a", "x".repeat(2_000_000).as_str())]);
    let accepted = world.prompt("go").await;
    testkit::eventually_async("the reply to come", async || (world.models.count() == 1).then_some(())).await;
    let ended = tokio::time::timeout(Duration::from_secs(2), world.ended(accepted.session, accepted.run)).await;
    assert!(ended.is_err(), "{ended:?}");

    let cancelled = world.control.cancel(world.asker, accepted.session, "enough");
    within("the run to be stopped", cancelled).await.unwrap();
    let run = world.ended(accepted.session, accepted.run).await;
    assert_eq!(run.state, RunState::Cancelled);
    testkit::eventually_async("what it cost to be charged", async || {
        (world.ledger().await.len() == 1).then_some(())
    })
    .await;
    std::fs::remove_file(ballast).unwrap();
    drop(small);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_stops_a_run_while_there_is_no_room_for_that_is_answered_and_the_run_stops() {
    let (world, small) = on_a_small_disk(Differs::default()).await;
    world.will_call(&[("a", "hang")]);
    let accepted = world.prompt("go").await;
    world.inside.made_so_many(1).await;
    let (sandbox, link) = world.inside.newest();
    let ballast = small.fill_but(0);
    let cancelled = world.control.cancel(world.asker, accepted.session, "enough");
    let refused = within("an answer", cancelled).await.unwrap_err();
    assert!(
        matches!(&refused, ControlError::Unavailable(words) if words.starts_with("the run was stopped")),
        "{refused:?}"
    );
    let stale = crate::tokens::turn(&world, &accepted).await;
    assert_eq!(
        crate::tokens::refused(&link, &stale).await,
        protocol::RefusalCode::Stale,
        "{sandbox}"
    );
    assert_eq!(
        world.store.run(Asker::System, accepted.run).await.unwrap().state,
        RunState::Running
    );

    std::fs::remove_file(ballast).unwrap();
    let run = world.ended(accepted.session, accepted.run).await;
    assert_eq!(
        (run.state, run.reason.as_deref(), run.attempts),
        (RunState::Cancelled, Some("enough"), 1)
    );
    world.assert_whole(accepted.session).await;
    drop(small);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_run_waits_for_room() {
    let differs = Differs {
        config: |config| {
            config.limits.wall_seconds = 20;
            config.lease = Duration::from_secs(2);
        },
        ..Differs::default()
    };
    let (world, small) = on_a_small_disk(differs).await;
    world.will_call(&[("a", "hang")]);
    let accepted = world.prompt("go").await;
    world.inside.made_so_many(1).await;
    let ballast = small.fill_but(0);
    let ended = tokio::time::timeout(Duration::from_secs(25), world.ended(accepted.session, accepted.run)).await;
    assert!(ended.is_err(), "{ended:?}");
    std::fs::remove_file(ballast).unwrap();
    let run = world.ended(accepted.session, accepted.run).await;
    assert_eq!((run.code.as_deref(), run.attempts), (Some("wall_limit"), 1));
    drop(small);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_finds_no_room_is_kept_while_the_others_are_still_made() {
    let (world, small) = on_a_small_disk(Differs::default()).await;
    world.will_call(&[("a", "wait"), ("slow", "hang")]);
    let accepted = world.prompt("go").await;
    world.inside.made_so_many(2).await;
    let ballast = small.fill_but(0);
    world.inside.release();
    let is_end = |event: &Event| matches!(event, Event::ToolEnded { call, .. } if call.0 == "a");
    let told = world.event(accepted.session, "the call to end", is_end);
    assert!(tokio::time::timeout(Duration::from_secs(2), told).await.is_err());
    std::fs::remove_file(ballast).unwrap();
    world.event(accepted.session, "the call to end", is_end).await;
    drop(small);
}

/// Breaks whoever says, for the first time, that what a model said could not be kept.
struct Breaks(Arc<AtomicBool>);

impl tracing::Subscriber for Breaks {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("control::turns::listen")
    }

    fn event(&self, _: &tracing::Event<'_>) {
        assert!(self.0.swap(true, Ordering::SeqCst), "a fault of our own");
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// On one thread, which is where the fault is made.
#[tokio::test]
async fn a_turn_that_breaks_down_is_charged_and_begun_anew() {
    let differs = Differs {
        config: |config| config.caps.run = Some(Money(1_000_000_000_000)),
        // What it says is not cut for its price.
        model: |model| (model.window, model.max_output) = (Some(2_000_000), Some(1_000_000)),
        ..Differs::default()
    };
    let (world, small) = on_a_small_disk(differs).await;
    let ballast = small.fill_but(ROOM);
    let broken = Arc::new(AtomicBool::new(false));
    // With one subscriber alone, what another thread came to first is switched off for this one too (tracing-core's callsites).
    let _another = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::new());
    let _breaks = tracing::subscriber::set_default(Breaks(Arc::clone(&broken)));
    world.will_say(&"All that was found. ".repeat(100_000));
    world.will_say("Done.");
    let accepted = world.prompt("go").await;
    testkit::eventually_async("the fault", async || broken.load(Ordering::SeqCst).then_some(())).await;
    std::fs::remove_file(ballast).unwrap();
    world.done(&accepted).await;
    let ledger = world.ledger().await;
    assert_eq!(ledger.len(), 2, "{ledger:?}");
    let spend = world
        .store
        .session_spend(Asker::System, accepted.session)
        .await
        .unwrap();
    assert_eq!(spend.reserved, Money::ZERO);
    drop(small);
}
