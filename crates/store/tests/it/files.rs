//! Files of workspaces.

use std::time::Duration;

use domain::{ContentHash, Event, SessionId};
use store::{ContentState, FilePiece, KeptFile, RecordedFiles, Room, WorkspaceFile};

use crate::parts::{Place, SYSTEM};

const DISK: &str = "abababababababababababababababab";
const ROOM: Room = Room {
    bytes: 1_000,
    spare: 1_000,
};

async fn session(place: &Place) -> SessionId {
    let session = place.start("hello").await.session;
    assert_eq!(place.store.begin_files(SYSTEM, session, DISK).await.unwrap(), 0);
    session
}

fn hash(number: u8) -> ContentHash {
    ContentHash([number; 32])
}

fn file(path: &str, content: u8) -> WorkspaceFile {
    let piece = FilePiece {
        at: 0,
        sha256: hash(content),
        bytes: 10,
    };
    WorkspaceFile {
        path: path.as_bytes().to_vec(),
        kept: KeptFile::File {
            bytes: 10,
            pieces: vec![piece],
        },
        mode: 0o644,
        changed: 0,
        stamp: 0,
    }
}

async fn offer(place: &Place, session: SessionId, content: u8) -> ContentState {
    let offered = place
        .store
        .offer_contents(SYSTEM, session, vec![(hash(content), 10)], ROOM);
    offered.await.unwrap().0[0]
}

async fn record(place: &Place, session: SessionId, gone: &[&str], files: Vec<WorkspaceFile>) -> RecordedFiles {
    let gone = gone.iter().map(|path| path.as_bytes().to_vec()).collect();
    place
        .store
        .record_files(SYSTEM, session, DISK, gone, files)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_file_is_recorded_when_all_of_it_is_there_and_its_content_goes_when_no_file_has_it() {
    let place = Place::new().await;
    let session = session(&place).await;
    let store = &place.store;
    assert_eq!(offer(&place, session, 1).await, ContentState::Wanted);
    assert_eq!(record(&place, session, &[], vec![file("a/b", 1)]).await.refused, [0]);
    assert!(store.content_stored(SYSTEM, session, hash(1)).await.unwrap());
    assert_eq!(offer(&place, session, 1).await, ContentState::Stored);
    let recorded = record(&place, session, &[], vec![file("a/b", 1), file("a-b", 1)]).await;
    assert_eq!(recorded, RecordedFiles::default());

    // Of two that have it one goes, then its folder.
    record(&place, session, &["a"], Vec::new()).await;
    place.pass(Duration::from_secs(100));
    assert_eq!(store.take_unused_contents(SYSTEM, place.now(), 10).await.unwrap(), []);
    record(&place, session, &["a-b"], Vec::new()).await;
    place.pass(Duration::from_secs(100));
    let taken = store.take_unused_contents(SYSTEM, place.now(), 10).await.unwrap();
    assert_eq!(taken, [(session, hash(1))]);
    // Nobody is told that it is there while it goes, and nobody can use it.
    assert_eq!(offer(&place, session, 1).await, ContentState::Going);
    assert!(!store.content_stored(SYSTEM, session, hash(1)).await.unwrap());
    assert_eq!(record(&place, session, &[], vec![file("c", 1)]).await.refused, [0]);
    store.forget_content(SYSTEM, session, hash(1)).await.unwrap();
    assert_eq!(store.workspace(SYSTEM, session).await.unwrap().unwrap().bytes, 0);
    assert_eq!(offer(&place, session, 1).await, ContentState::Wanted);
    // It never came: it is collected all the same.
    place.pass(Duration::from_secs(100));
    assert_eq!(
        store.take_unused_contents(SYSTEM, place.now(), 10).await.unwrap().len(),
        1
    );
}

fn deep(number: usize) -> Vec<u8> {
    format!("{}{number}", "p/".repeat(1_900)).into_bytes()
}

fn long_link(number: usize) -> WorkspaceFile {
    WorkspaceFile {
        path: deep(number),
        kept: KeptFile::Link {
            target: vec![b't'; 4_000],
        },
        ..file("", 0)
    }
}

/// How many long links a session may have.
async fn links_until_full(place: &Place, session: SessionId) -> usize {
    let mut number = 0;
    loop {
        let files = (number..number + 1_000).map(long_link).collect();
        let recorded = record(place, session, &[], files).await;
        if !recorded.full.is_empty() {
            return number + recorded.full[0];
        }
        number += 1_000;
        assert!(number < 100_000, "there is no end");
    }
}

#[tokio::test]
async fn files_without_content_cannot_fill_the_store() {
    let place = Place::new().await;
    let session = session(&place).await;
    let full = links_until_full(&place, session).await;
    // What is there already may change, and what goes makes room.
    record(&place, session, &["p"], Vec::new()).await;
    assert_eq!(
        record(&place, session, &[], vec![long_link(full)]).await,
        RecordedFiles::default()
    );
}

#[tokio::test]
async fn what_changes_its_kind_weighs_what_it_is() {
    let place = Place::new().await;
    let honest = session(&place).await;
    let honest = links_until_full(&place, honest).await;
    let session = session(&place).await;
    for _ in 0..3 {
        let folder = |number| WorkspaceFile {
            kept: KeptFile::Folder,
            ..long_link(number)
        };
        record(&place, session, &[], (0..1_000).map(folder).collect()).await;
        record(&place, session, &[], (0..1_000).map(long_link).collect()).await;
    }
    assert_eq!(links_until_full(&place, session).await, honest);
}

#[tokio::test]
async fn what_another_disk_recorded_is_missing_until_it_is_placed() {
    let place = Place::new().await;
    let session = session(&place).await;
    let store = &place.store;
    offer(&place, session, 1).await;
    store.content_stored(SYSTEM, session, hash(1)).await.unwrap();
    record(&place, session, &[], vec![file("old", 1)]).await;
    record(&place, session, &[], vec![file("new", 1)]).await;
    let other = "cd".repeat(16);
    assert_eq!(store.begin_files(SYSTEM, session, &other).await.unwrap(), 2);
    let missing = store
        .missing_files(SYSTEM, session, &other, None, 10, 10)
        .await
        .unwrap();
    let paths: Vec<_> = missing.iter().map(|(_, file)| file.path.as_slice()).collect();
    assert_eq!(paths, [&b"new"[..], b"old"]);
    assert_eq!(missing[1].1, file("old", 1));
    let placed = store::FileStamp {
        path: b"new".to_vec(),
        stamp: 7,
        folder: false,
    };
    store
        .place_files(SYSTEM, session, &other, vec![placed.clone()])
        .await
        .unwrap();
    let known = store
        .recorded_files(SYSTEM, session, &other, Vec::new(), 10)
        .await
        .unwrap();
    assert_eq!(known, [placed]);
    assert_eq!(store.begin_files(SYSTEM, session, &other).await.unwrap(), 1);
    assert_eq!(store.begin_files(SYSTEM, session, DISK).await.unwrap(), 1);
}

#[tokio::test]
async fn what_a_disk_never_had_is_not_deleted_with_its_folder() {
    let place = Place::new().await;
    let session = session(&place).await;
    let store = &place.store;
    offer(&place, session, 1).await;
    store.content_stored(SYSTEM, session, hash(1)).await.unwrap();
    let folder = WorkspaceFile {
        kept: KeptFile::Folder,
        ..file("a", 1)
    };
    record(
        &place,
        session,
        &[],
        vec![folder, file("a/large", 1), file("a/small", 1)],
    )
    .await;
    // Another disk has room for one of them, and its folder is removed there.
    let other = "cd".repeat(16);
    store.begin_files(SYSTEM, session, &other).await.unwrap();
    let stamp = |path: &str, folder| store::FileStamp {
        path: path.as_bytes().to_vec(),
        stamp: 7,
        folder,
    };
    let placed = vec![stamp("a", true), stamp("a/small", false)];
    store.place_files(SYSTEM, session, &other, placed).await.unwrap();
    let gone = store.record_files(SYSTEM, session, &other, vec![b"a".to_vec()], Vec::new());
    gone.await.unwrap();
    let left = store
        .missing_files(SYSTEM, session, &other, None, 10, 10)
        .await
        .unwrap();
    assert_eq!(
        left.into_iter().map(|(_, file)| file).collect::<Vec<_>>(),
        [file("a/large", 1)]
    );
    assert_eq!(
        store
            .recorded_files(SYSTEM, session, &other, Vec::new(), 10)
            .await
            .unwrap(),
        []
    );
}

#[tokio::test]
async fn a_content_that_is_named_twice_counts_once() {
    let place = Place::new().await;
    let session = session(&place).await;
    let store = &place.store;
    let twice = vec![(hash(1), 10), (hash(2), 10), (hash(1), 10)];
    let (states, _) = store.offer_contents(SYSTEM, session, twice, ROOM).await.unwrap();
    assert_eq!(states, [ContentState::Wanted; 3]);
    assert_eq!(store.workspace(SYSTEM, session).await.unwrap().unwrap().bytes, 20);
    place.pass(Duration::from_secs(100));
    for (session, sha256) in store.take_unused_contents(SYSTEM, place.now(), 10).await.unwrap() {
        store.forget_content(SYSTEM, session, sha256).await.unwrap();
    }
    assert_eq!(store.workspace(SYSTEM, session).await.unwrap().unwrap().bytes, 0);
}

#[tokio::test]
async fn what_is_offered_once_more_does_not_say_that_there_is_room() {
    let place = Place::new().await;
    let session = session(&place).await;
    let offer = async |content: u8, bytes: u64| {
        let offered = vec![(hash(content), bytes)];
        let (states, events) = place
            .store
            .offer_contents(SYSTEM, session, offered, ROOM)
            .await
            .unwrap();
        (states[0], events.len())
    };
    assert_eq!(offer(1, 900).await, (ContentState::Wanted, 0));
    assert_eq!(offer(2, 900).await, (ContentState::Wanted, 0));
    assert_eq!(offer(3, 900).await, (ContentState::Full, 1));
    assert_eq!(offer(1, 900).await, (ContentState::Wanted, 0));
    assert_eq!(offer(3, 900).await, (ContentState::Full, 0));
}

#[tokio::test]
async fn what_cannot_be_removed_comes_after_what_can() {
    let place = Place::new().await;
    let session = session(&place).await;
    let store = &place.store;
    for content in [1, 2] {
        assert_eq!(offer(&place, session, content).await, ContentState::Wanted);
        place.pass(Duration::from_secs(1));
    }
    place.pass(Duration::from_secs(100));
    let take = async || store.take_unused_contents(SYSTEM, place.now(), 1).await.unwrap();
    assert_eq!(take().await, [(session, hash(1))]);
    store.put_off_content(SYSTEM, session, hash(1)).await.unwrap();
    // It is not there for anybody all the same.
    assert_eq!(offer(&place, session, 1).await, ContentState::Going);
    assert_eq!(take().await, [(session, hash(2))]);
}

#[tokio::test]
async fn what_was_refused_to_be_removed_can_be_kept_again() {
    let place = Place::new().await;
    let session = session(&place).await;
    let store = &place.store;
    assert_eq!(offer(&place, session, 1).await, ContentState::Wanted);
    assert!(store.content_stored(SYSTEM, session, hash(1)).await.unwrap());
    place.pass(Duration::from_secs(100));
    let take = async || store.take_unused_contents(SYSTEM, place.now(), 10).await.unwrap();
    assert_eq!(take().await, [(session, hash(1))]);
    store.release_contents(SYSTEM, vec![(session, hash(1))]).await.unwrap();
    // What became of the object nobody knows: it is uploaded, and then it is there.
    assert_eq!(record(&place, session, &[], vec![file("a", 1)]).await.refused, [0]);
    assert_eq!(offer(&place, session, 1).await, ContentState::Wanted);
    assert!(store.content_stored(SYSTEM, session, hash(1)).await.unwrap());
    assert_eq!(
        record(&place, session, &[], vec![file("a", 1)]).await,
        RecordedFiles::default()
    );
    // A word that comes late takes it from nobody.
    store.forget_content(SYSTEM, session, hash(1)).await.unwrap();
    place.pass(Duration::from_secs(100));
    assert_eq!(take().await, []);
    assert_eq!(offer(&place, session, 1).await, ContentState::Stored);
    assert_eq!(store.workspace(SYSTEM, session).await.unwrap().unwrap().bytes, 10);
}

#[tokio::test]
async fn what_may_be_removed_at_any_moment_can_be_kept_again_when_that_is_over() {
    let place = Place::new().await;
    let session = session(&place).await;
    let store = &place.store;
    assert_eq!(offer(&place, session, 1).await, ContentState::Wanted);
    place.pass(Duration::from_secs(100));
    let take = async |before| store.take_unused_contents(SYSTEM, before, 10).await.unwrap();
    assert_eq!(take(place.now()).await, [(session, hash(1))]);
    store.put_off_content(SYSTEM, session, hash(1)).await.unwrap();
    let put_off = place.now();
    place.pass(Duration::from_secs(50));
    assert_eq!(take(put_off).await, []);
    assert_eq!(offer(&place, session, 1).await, ContentState::Going);
    assert_eq!(take(place.now()).await, []);
    assert_eq!(offer(&place, session, 1).await, ContentState::Wanted);
    // It never came, and is tried once more.
    place.pass(Duration::from_secs(100));
    assert_eq!(take(place.now()).await, [(session, hash(1))]);
}

#[tokio::test]
async fn what_waits_is_known_until_it_is_kept_and_is_told_once() {
    let place = Place::new().await;
    let (first, second) = (session(&place).await, session(&place).await);
    let store = &place.store;
    let behind = async || {
        let listed = store.sessions_behind(SYSTEM).await.unwrap();
        assert_eq!(store.count_behind(SYSTEM).await.unwrap(), listed.len() as u64);
        listed
    };
    let states = async |session| {
        let events = store.events(SYSTEM, session, 0, 100).await.unwrap().events.into_iter();
        let states = events.filter_map(|event| match event.event {
            Event::Files { state, .. } => Some(state),
            _ => None,
        });
        states.collect::<Vec<_>>()
    };
    for session in [second, first, second] {
        store.fall_behind(SYSTEM, session).await.unwrap();
        place.pass(Duration::from_secs(1));
    }
    assert_eq!(behind().await, [second, first], "the longest behind comes first");
    for _ in 0..2 {
        store.tell_unkept(SYSTEM, first, "away").await.unwrap();
    }
    // What failed got through; other things may wait.
    for _ in 0..2 {
        store.tell_kept(SYSTEM, first, "back").await.unwrap();
    }
    assert_eq!(behind().await, [second, first]);
    store.tell_unkept(SYSTEM, first, "away").await.unwrap();
    for session in [first, first, second] {
        store.caught_up(SYSTEM, session, "back").await.unwrap();
    }
    assert_eq!(behind().await, []);
    assert_eq!(states(first).await, ["unkept", "kept", "unkept", "kept"]);
    assert_eq!(states(second).await, Vec::<String>::new());

    // Without a disk nothing waits.
    store.fall_behind(SYSTEM, first).await.unwrap();
    store.archive_files(SYSTEM, first).await.unwrap();
    store.fall_behind(SYSTEM, first).await.unwrap();
    assert_eq!(behind().await, []);
    store.begin_files(SYSTEM, first, DISK).await.unwrap();
    store.fall_behind(SYSTEM, first).await.unwrap();
    assert_eq!(behind().await, [first]);
    // Who is being put away is seen to by others, and counts as long as it has not come to its end.
    let (run, _) = store.session(SYSTEM, first).await.unwrap().run.unwrap();
    store.cancel_run(SYSTEM, run, "enough").await.unwrap();
    store.archive_session(SYSTEM, first).await.unwrap();
    assert_eq!(store.sessions_behind(SYSTEM).await.unwrap(), []);
    assert_eq!(store.count_behind(SYSTEM).await.unwrap(), 1);
}
