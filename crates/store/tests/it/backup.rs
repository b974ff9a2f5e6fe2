//! Copies, and bringing them back.

use std::os::unix::fs::PermissionsExt;

use domain::Delivery;
use store::{Config, Store, StoreError, Target, restore};

use crate::parts::{Place, SYSTEM, said, told, until_free};

#[tokio::test]
async fn a_copy_made_while_writing_is_whole_and_comes_back() {
    let place = Place::new().await;
    let session = place.start("0").await.session;
    let copy = place.folder.path().join("copy.db");
    let write = async {
        for number in 1..60 {
            place
                .prompt(Target::Session(session), &number.to_string(), Delivery::Restart)
                .await;
        }
    };
    let (made, ()) = tokio::join!(place.store.backup(SYSTEM, &copy), write);
    made.unwrap();
    assert_eq!(std::fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);
    let whole = said(&place.store, session).await;
    assert_eq!(whole.len(), 60);

    let elsewhere = tempfile::tempdir().unwrap();
    let path = elsewhere.path().join("belljar.db");
    assert_eq!(restore(&copy, &path).await.unwrap().replaced, None);
    let store = Store::open(Config::new(&path)).await.unwrap();
    let then = said(&store, session).await;
    assert_eq!(then, whole[..then.len()], "a moment of the past, whole");
    told(&store, session).await;
    assert_eq!(store.verify_audit(SYSTEM, None).await.unwrap().broken, None);
}

#[tokio::test]
async fn a_copy_never_takes_the_place_of_a_file() {
    let place = Place::new().await;
    let copy = place.folder.path().join("copy.db");
    std::fs::write(&copy, "precious").unwrap();
    let error = place.store.backup(SYSTEM, &copy).await.unwrap_err();
    assert!(matches!(error, StoreError::Exists { .. }), "{error:?}");
    assert_eq!(std::fs::read(&copy).unwrap(), b"precious");
    let nowhere = place.folder.path().join("no/such/folder/copy.db");
    let error = place.store.backup(SYSTEM, &nowhere).await.unwrap_err();
    assert!(matches!(error, StoreError::File { .. }), "{error:?}");
}

#[tokio::test]
async fn a_copy_that_cannot_be_audited_is_not_made() {
    let place = Place::new().await;
    let copy = place.folder.path().join("copy.db");
    place
        .tamper("CREATE TRIGGER no_audit BEFORE INSERT ON audit BEGIN SELECT RAISE(FAIL, 'no'); END")
        .await;
    place.store.backup(SYSTEM, &copy).await.unwrap_err();
    assert!(!copy.exists());
    place.tamper("DROP TRIGGER no_audit").await;
    place.store.backup(SYSTEM, &copy).await.unwrap();
}

#[tokio::test]
async fn restoring_keeps_what_it_replaces() {
    let place = Place::new().await;
    let session = place.start("before").await.session;
    let copy = place.folder.path().join("copy.db");
    place.store.backup(SYSTEM, &copy).await.unwrap();
    place.prompt(Target::Session(session), "after", Delivery::Restart).await;
    let path = place.path();
    let refused = restore(&copy, &path).await.unwrap_err();
    assert!(matches!(refused, StoreError::InUse { .. }), "{refused:?}");
    place.store.close().await;
    let folder = place.folder;
    drop(place.store);
    until_free(&path).await;

    let replaced = restore(&copy, &path).await.unwrap().replaced.unwrap();
    let store = Store::open(Config::new(&path)).await.unwrap();
    assert_eq!(said(&store, session).await, ["user: before"]);
    let old = Store::open(Config::new(&replaced)).await.unwrap();
    assert_eq!(said(&old, session).await, ["user: before", "user: after"]);
    assert!(copy.exists());
    drop(folder);
}

#[tokio::test]
async fn what_is_no_whole_copy_is_refused_and_the_store_stays() {
    let place = Place::new().await;
    let session = place.start("mine").await.session;
    let copy = place.folder.path().join("copy.db");
    place.store.backup(SYSTEM, &copy).await.unwrap();
    let (path, folder) = (place.path(), place.folder);
    place.store.close().await;
    drop(place.store);
    until_free(&path).await;
    let bytes = std::fs::read(&copy).unwrap();
    let mut damaged = bytes.clone();
    for byte in &mut damaged[bytes.len() / 2..] {
        *byte ^= 0x5a;
    }
    let bad = [
        ("cut", bytes[..bytes.len() / 2].to_vec()),
        ("damaged", damaged),
        (
            "text",
            b"hello, I am a text and not a database, sorry about that".repeat(90),
        ),
        ("empty", Vec::new()),
    ];
    for (name, bytes) in bad {
        let file = folder.path().join(name);
        std::fs::write(&file, bytes).unwrap();
        let error = restore(&file, &path).await.unwrap_err();
        assert!(matches!(error, StoreError::NotAStore { .. }), "{name}: {error:?}");
    }
    let missing = restore(&folder.path().join("missing"), &path).await;
    assert!(missing.is_err());
    let store = Store::open(Config::new(&path)).await.unwrap();
    assert_eq!(said(&store, session).await, ["user: mine"]);
    let left: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains("replaced") || name.contains("unfinished"))
        .collect();
    assert_eq!(left, Vec::<String>::new());
}

/// A store whose process was killed has a log beside it: what stands there alone is kept too.
#[tokio::test]
async fn a_log_that_was_left_is_kept_with_what_is_replaced() {
    let place = Place::new().await;
    let session = place.start("in the log").await.session;
    let empty = Place::new().await;
    let copy = place.folder.path().join("copy.db");
    empty.store.backup(SYSTEM, &copy).await.unwrap();
    // As it stands on the disk while the store is in use.
    let crashed = tempfile::tempdir().unwrap();
    let path = crashed.path().join("belljar.db");
    for suffix in ["", "-wal"] {
        let name = format!("belljar.db{suffix}");
        std::fs::copy(place.folder.path().join(&name), crashed.path().join(&name)).unwrap();
    }
    let replaced = restore(&copy, &path).await.unwrap().replaced.unwrap();
    let new = Store::open(Config::new(&path)).await.unwrap();
    assert!(new.session(SYSTEM, session).await.is_err());
    let old = Store::open(Config::new(&replaced)).await.unwrap();
    assert_eq!(said(&old, session).await, ["user: in the log"]);
}
