//! The store's disk is full when a model's reply is to be stored. Needs root, for a small file system of its own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use domain::RunState;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use store::Asker;

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

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_finds_no_room_is_kept_until_there_is_some() {
    let world = World::new(Differs::default()).await;
    let folder = world.folder().to_owned();
    let mut small = None;
    let world = world.restarted_after(async || small = Some(Small::over(&folder))).await;
    let small = small.unwrap();
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
