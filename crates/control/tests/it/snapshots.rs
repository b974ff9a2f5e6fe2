//! Sessions go back, and others begin where they stand.

use std::fs;

use control::{ControlError, NewFork};
use domain::{Delivery, Door, SessionId, SnapshotId};
use sandbox::SandboxProvider;
use store::{Accepted, Asker, SnapshotKind, Target};

use crate::world::{Differs, World};

const FORK: NewFork = NewFork {
    count: 1,
    snapshot: None,
    scope: None,
};

impl World {
    /// A run that is over, and a word in a file of the session's.
    async fn worked(&self, target: Target, words: &str) -> Accepted {
        self.will_say(words);
        let accepted = self.prompt_to(target, words, Delivery::Restart).await;
        self.done(&accepted).await;
        accepted
    }

    fn write(&self, session: SessionId, words: &str) {
        fs::write(self.sandboxes.workspace(session).join("file"), words).unwrap();
    }

    fn read(&self, session: SessionId) -> String {
        fs::read_to_string(self.sandboxes.workspace(session).join("file")).unwrap()
    }

    async fn kept(&self) -> Vec<SnapshotId> {
        let kept = self.sandboxes.snapshots().await.unwrap().kept;
        kept.iter().map(|status| status.id).collect()
    }

    /// Waits until as many snapshots of the session are whole.
    async fn after_runs(&self, session: SessionId, count: usize) -> Vec<store::Snapshot> {
        testkit::eventually_async("snapshots after runs", async || {
            let list = self.control.snapshots(self.asker, session).await.unwrap();
            (list.snapshots.len() == count && list.snapshots.iter().all(|snapshot| snapshot.kind == SnapshotKind::Run))
                .then_some(list.snapshots)
        })
        .await
    }
}

#[tokio::test]
async fn a_session_goes_back_with_its_files() {
    let world = World::new(Differs::default()).await;
    let session = world.worked(world.target(), "one").await.session;
    world.write(session, "first");
    let control = &world.control;
    let name = Some("early".to_owned());
    let saved = control.save_snapshot(world.asker, session, name).await.unwrap();
    world.worked(Target::Session(session), "two").await;
    world.write(session, "second");
    let before = control.session(world.asker, session).await.unwrap().sandbox.unwrap().0;

    control.rewind(world.asker, session, "early").await.unwrap();
    assert_eq!(world.read(session), "first");
    assert_eq!(world.said(session).await, ["ada: one", "m: one"]);
    world.worked(Target::Session(session), "three").await;
    assert_eq!(
        world.said(session).await,
        ["ada: one", "m: one", "ada: three", "m: three"]
    );
    let after = control.session(world.asker, session).await.unwrap().sandbox.unwrap().0;
    assert_ne!(before, after, "the sandbox of before has processes of before");
    let asked = world.models.received();
    let last = &asked.last().unwrap().body;
    assert!(
        !last.to_string().contains("two"),
        "the model is told what was taken back: {last}"
    );
    world.assert_whole(session).await;

    control
        .remove_snapshot(world.asker, session, &saved.id.to_string())
        .await
        .unwrap();
    assert!(world.kept().await.is_empty());
    let gone = control.rewind(world.asker, session, "early").await;
    assert!(matches!(gone, Err(ControlError::NotFound { .. })), "{gone:?}");
}

#[tokio::test]
async fn forks_go_their_own_ways() {
    let world = World::new(Differs::default()).await;
    let parent = world.worked(world.target(), "one").await.session;
    world.write(parent, "parent");
    let new = NewFork { count: 3, ..FORK };
    let forks = world.control.fork(world.asker, parent, new).await.unwrap();
    assert!(
        world.kept().await.is_empty(),
        "what was kept for forks goes when they have it"
    );
    for (number, fork) in forks.iter().enumerate() {
        assert_eq!((fork.parent, fork.owed), (Some(parent), None));
        assert_eq!(world.read(fork.id), "parent");
        world.worked(Target::Session(fork.id), &format!("own {number}")).await;
        world.write(fork.id, &number.to_string());
    }
    assert_eq!(world.read(parent), "parent");
    assert_eq!(world.said(parent).await, ["ada: one", "m: one"]);
    assert_eq!(world.said(forks[1].id).await[2..], ["ada: own 1", "m: own 1"]);
    let sandboxes: std::collections::BTreeSet<_> = world
        .sandboxes
        .list()
        .await
        .unwrap()
        .iter()
        .map(|status| status.id)
        .collect();
    assert_eq!(sandboxes.len(), 4, "each has a sandbox of its own");
}

#[tokio::test]
async fn of_runs_the_last_ones_are_kept() {
    let world = World::new(Differs {
        config: |config| config.run_snapshots = 2,
        ..Differs::default()
    })
    .await;
    let session = world.worked(world.target(), "one").await.session;
    let mut positions = Vec::new();
    for (words, expected) in [("two", vec![4, 2]), ("three", vec![6, 4])] {
        // One that is followed by the next run at once is left to that one.
        world.after_runs(session, positions.len().max(1)).await;
        world.worked(Target::Session(session), words).await;
        positions = testkit::eventually_async("the newest ones to be kept", async || {
            let list = world.after_runs(session, 2).await;
            let positions: Vec<_> = list.iter().map(|snapshot| snapshot.position).collect();
            (positions == expected).then_some(positions)
        })
        .await;
    }
    let kept = world.after_runs(session, 2).await;
    testkit::eventually_async("their files", async || (world.kept().await.len() == 2).then_some(())).await;
    let control = &world.control;
    control
        .rewind(world.asker, session, &kept[1].id.to_string())
        .await
        .unwrap();
    assert_eq!(world.said(session).await.len(), 4);
}

#[tokio::test]
async fn nobody_goes_back_under_a_run() {
    let world = World::new(Differs::default()).await;
    let session = world.worked(world.target(), "one").await.session;
    let control = &world.control;
    control
        .save_snapshot(world.asker, session, Some("s".to_owned()))
        .await
        .unwrap();
    world.will_call(&[("a", "hang")]);
    let accepted = world
        .prompt_to(Target::Session(session), "two", Delivery::Restart)
        .await;
    world
        .event(session, "the call", |event| {
            matches!(event, domain::Event::ToolStarted { .. })
        })
        .await;
    let refused = control.rewind(world.asker, session, "s").await;
    assert!(
        matches!(&refused, Err(ControlError::Conflict(words)) if words.contains("cancel")),
        "{refused:?}"
    );
    control
        .save_snapshot(world.asker, session, Some("under".to_owned()))
        .await
        .unwrap();
    control.cancel(world.asker, session, "enough").await.unwrap();
    world.ended(session, accepted.run).await;
    control.rewind(world.asker, session, "under").await.unwrap();
    assert_eq!(world.said(session).await, ["ada: one", "m: one", "ada: two"]);
    control.rewind(world.asker, session, "s").await.unwrap();
    assert_eq!(world.said(session).await, ["ada: one", "m: one"]);
}

#[tokio::test]
async fn what_died_half_way_is_mended() {
    let world = World::new(Differs::default()).await;
    let session = world.worked(world.target(), "one").await.session;
    world.write(session, "first");
    let control = &world.control;
    let saved = control
        .save_snapshot(world.asker, session, Some("s".to_owned()))
        .await
        .unwrap();
    let lost = control
        .save_snapshot(world.asker, session, Some("lost".to_owned()))
        .await
        .unwrap();
    world.write(session, "second");
    // Files without a row, a row without files, a session that has gone back and has not its files yet, a fork without any.
    let nobodys = SnapshotId::new();
    world.sandboxes.snapshot(session, nobodys).await.unwrap();
    world.sandboxes.remove_snapshot(lost.id).await.unwrap();
    let half = store::NewSnapshot::Fork;
    world.store.begin_snapshot(Asker::System, session, half).await.unwrap();
    world.store.rewind(world.asker, session, saved.id).await.unwrap();
    let fork = store::Fork {
        snapshot: Some(saved.id),
        count: 1,
        narrowing: None,
    };
    let fork = world.store.fork(world.asker, session, fork).await.unwrap()[0];
    let world = world.restarted().await;
    let rows = world.store.all_snapshots(Asker::System).await.unwrap();
    let rows: Vec<_> = rows.iter().map(|row| row.id).collect();
    assert_eq!(
        rows,
        [saved.id, lost.id],
        "what was never finished is forgotten at once"
    );
    for session in [session, fork] {
        world.worked(Target::Session(session), "on").await;
        assert_eq!(world.read(session), "first");
        assert_eq!(world.store.session(Asker::System, session).await.unwrap().owed, None);
    }
    assert_eq!(
        world.kept().await,
        [saved.id, nobodys],
        "what only one side knows has its grace"
    );
    // What is known to be gone is not gone back to, so that nothing that is kept is given up for it.
    let gone = world.control.rewind(world.asker, session, "lost").await;
    assert!(matches!(gone, Err(ControlError::NotFound { .. })), "{gone:?}");
    assert_eq!(world.store.session(Asker::System, session).await.unwrap().owed, None);
    // Files that go later, and will never come, hold up nobody.
    world.store.rewind(world.asker, session, lost.id).await.unwrap();
    let world = world.restarted().await;
    world.worked(Target::Session(session), "further").await;
    assert_eq!(world.read(session), "first");
    assert_eq!(world.audited("session.files_gone").await.len(), 1);
}

#[tokio::test]
async fn files_of_a_session_are_kept_one_at_a_time() {
    let world = World::new(Differs::default()).await;
    let session = world.worked(world.target(), "one").await.session;
    let save = |name: &str| world.control.save_snapshot(world.asker, session, Some(name.to_owned()));
    let (one, two) = tokio::join!(save("one"), save("two"));
    one.and(two).unwrap();
    assert_eq!(world.host.most_snapshots_at_once(), 1);
}

#[tokio::test]
async fn what_is_kept_right_after_a_run_waits_for_its_own_snapshot() {
    let world = World::new(Differs {
        config: |config| config.run_snapshots = 10,
        ..Differs::default()
    })
    .await;
    // From the second run on it is known that disks share what they hold.
    let session = world.worked(world.target(), "one").await.session;
    world.after_runs(session, 1).await;
    world.host.hold_snapshots();
    let (accepted, ()) = tokio::join!(
        world.worked(Target::Session(session), "two"),
        world.host.begins("snapshot")
    );
    let save = world.control.save_snapshot(world.asker, session, Some("s".to_owned()));
    let fork = world.control.fork(world.asker, session, FORK);
    let (saved, forked, ()) = tokio::join!(save, fork, async {
        // The others have asked by now, and wait.
        tokio::task::yield_now().await;
        world.host.let_snapshots_go_on();
    });
    saved.unwrap();
    forked.unwrap();
    assert_eq!(world.host.most_snapshots_at_once(), 1);
    let list = world.control.snapshots(world.asker, session).await.unwrap().snapshots;
    let of_run = |snapshot: &store::Snapshot| snapshot.kind == SnapshotKind::Run && snapshot.run == Some(accepted.run);
    assert!(list.iter().any(of_run), "the run has its own all the same: {list:?}");
}

#[tokio::test]
async fn files_that_are_archived_are_not_taken_for_none() {
    let world = World::new(Differs::default()).await;
    let session = world.worked(world.target(), "one").await.session;
    world.store.begin_files(Asker::System, session, "disk").await.unwrap();
    world.store.archive_files(Asker::System, session).await.unwrap();
    let forked = world.control.fork(world.asker, session, FORK).await.unwrap_err();
    let saved = world
        .control
        .save_snapshot(world.asker, session, None)
        .await
        .unwrap_err();
    for refused in [forked, saved] {
        assert!(
            matches!(&refused, ControlError::Conflict(words) if words.contains("archived")),
            "{refused:?}"
        );
    }
}

#[tokio::test]
async fn a_session_without_files_says_so_and_forks_without_them() {
    let world = World::new(Differs::default()).await;
    let opened = world
        .control
        .open_session(world.asker, world.target(), Door::Api, "", None);
    let session = opened.await.unwrap().0.id;
    let refused = world.control.save_snapshot(world.asker, session, None).await;
    assert!(
        matches!(&refused, Err(ControlError::Conflict(words)) if words.contains("no files")),
        "{refused:?}"
    );
    let forks = world.control.fork(world.asker, session, FORK).await.unwrap();
    assert_eq!((forks[0].parent, forks[0].owed), (Some(session), None));
    assert!(world.store.all_snapshots(Asker::System).await.unwrap().is_empty());
    world.worked(Target::Session(forks[0].id), "on").await;
}
