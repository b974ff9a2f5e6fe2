//! A full disk: an error in words, nothing lost, and on again when there is space. Needs root, for a small file system of its own.

use std::path::{Path, PathBuf};

use domain::{Delivery, UserId};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use store::{Config, Store, StoreError, Target};

use crate::parts::{SYSTEM, prompt, said, told, until_free};

/// A file system of a few megabytes.
struct Small(PathBuf);

impl Small {
    fn new(folder: &Path) -> Self {
        let options = c"size=3m";
        mount("tmpfs", folder, "tmpfs", MountFlags::NOSUID, options).expect("mounting needs root");
        Self(folder.to_owned())
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

async fn write(store: &Store, user: UserId, target: Target, bytes: usize) -> Result<store::Accepted, StoreError> {
    let prompt = prompt(user, target, &"x".repeat(bytes), Delivery::Restart);
    store.accept_prompt(SYSTEM, prompt).await
}

#[tokio::test]
async fn a_full_disk_is_said_in_words_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let small = Small::new(folder.path());
    let path = folder.path().join("belljar.db");
    let store = Store::open(Config::new(&path)).await.unwrap();
    let user = store.create_user(SYSTEM, "ada", false).await.unwrap().id;
    let session = write(&store, user, Target::New { owner: user }, 10)
        .await
        .unwrap()
        .session;
    let ballast = folder.path().join("ballast");
    std::fs::write(&ballast, vec![0_u8; 1 << 20]).unwrap();

    let mut acknowledged = 1;
    let error = loop {
        match write(&store, user, Target::Session(session), 20_000).await {
            Ok(_) => acknowledged += 1,
            Err(error) => break error,
        }
        assert!(acknowledged < 1_000, "the disk never filled up");
    };
    assert!(matches!(error, StoreError::DiskFull { .. }), "{error:?}");
    assert!(
        error.to_string().contains("everything acknowledged before is kept"),
        "{error}"
    );

    let group = (0..20).map(|_| write(&store, user, Target::New { owner: user }, 20_000));
    let group = futures::future::join_all(group).await;
    let admitted = group
        .into_iter()
        .flatten()
        .map(|accepted| accepted.session)
        .collect::<Vec<_>>();
    assert_eq!(said(&store, session).await.len(), acknowledged, "reading goes on");

    std::fs::remove_file(&ballast).unwrap();
    write(&store, user, Target::Session(session), 20_000)
        .await
        .expect("there is space again");
    store.close().await;
    drop(store);
    until_free(&path).await;
    let store = Store::open(Config::new(&path)).await.unwrap();
    assert_eq!(said(&store, session).await.len(), acknowledged + 1);
    told(&store, session).await;
    for session in admitted {
        assert_eq!(said(&store, session).await.len(), 1);
    }
    store.close().await;
    drop(small);
}
