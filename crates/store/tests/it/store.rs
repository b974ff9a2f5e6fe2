//! Opening.

use std::os::unix::fs::PermissionsExt;

use store::{Config, Store, StoreError};

use crate::parts::Place;

#[tokio::test]
async fn a_second_store_on_the_same_file_is_refused_in_words() {
    let place = Place::new().await;
    let error = Store::open(Config::new(place.path())).await.unwrap_err();
    assert!(matches!(error, StoreError::InUse { .. }), "{error:?}");
    assert!(error.to_string().contains("stop that one first"), "{error}");
}

#[tokio::test]
async fn an_installation_keeps_its_name_and_gives_it_to_its_copies() {
    let mut place = Place::new().await;
    let (first, again) = tokio::join!(place.store.installation(), place.store.installation());
    let name = first.unwrap();
    assert_eq!(again.unwrap(), name);
    assert_ne!(Place::new().await.store.installation().await.unwrap(), name);
    place.reopen().await;
    assert_eq!(place.store.installation().await.unwrap(), name);
}

#[tokio::test]
async fn the_file_is_readable_by_its_owner_alone() {
    let place = Place::new().await;
    place.start("hello").await;
    for entry in std::fs::read_dir(place.folder.path()).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o077, 0, "{entry:?}");
    }
}

#[tokio::test]
async fn a_newer_schema_is_refused_in_words() {
    let mut place = Place::new().await;
    place.tamper("PRAGMA user_version = 99").await;
    place.store.close().await;
    let path = place.path();
    place.store = Place::new().await.store;
    let error = Store::open(Config::new(path)).await.unwrap_err();
    assert!(matches!(error, StoreError::NewerSchema { found: 99, .. }), "{error:?}");
    assert!(error.to_string().contains("run the newer release"), "{error}");
}

#[tokio::test]
async fn what_is_not_a_store_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("notes.txt");
    std::fs::write(&text, "these are my notes, and no database at all\n".repeat(100)).unwrap();
    let before = std::fs::read(&text).unwrap();
    let error = Store::open(Config::new(&text)).await.unwrap_err();
    assert!(matches!(error, StoreError::NotAStore { .. }), "{error:?}");
    assert_eq!(std::fs::read(&text).unwrap(), before);

    let foreign = Place::new().await;
    foreign.tamper("PRAGMA application_id = 7").await;
    let path = foreign.path();
    foreign.store.close().await;
    let folder = foreign.folder;
    drop(foreign.store);
    let error = Store::open(Config::new(path)).await.unwrap_err();
    assert!(error.to_string().contains("another program"), "{error}");
    drop(folder);
}

#[tokio::test]
async fn a_closed_store_says_so() {
    let place = Place::new().await;
    place.store.close().await;
    let error = place
        .store
        .create_user(crate::parts::SYSTEM, "eve", false)
        .await
        .unwrap_err();
    assert!(matches!(error, StoreError::Closed { .. }), "{error:?}");
    let error = place.store.user(crate::parts::SYSTEM, place.user).await.unwrap_err();
    assert!(matches!(error, StoreError::Closed { .. }), "{error:?}");
}

#[tokio::test]
async fn everything_is_there_after_a_restart() {
    let mut place = Place::new().await;
    let accepted = place.start("remember me").await;
    place.reopen().await;
    let session = place.store.session(place.asker(), accepted.session).await.unwrap();
    assert_eq!(session.title, "remember me");
    assert_eq!(
        crate::parts::said(&place.store, accepted.session).await,
        ["user: remember me"]
    );
}
