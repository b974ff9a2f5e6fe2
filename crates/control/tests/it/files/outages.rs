//! The place where files are kept is of no use, and is again.

use super::*;

/// What was said of a session's files, in order.
pub(super) async fn told(world: &World, session: SessionId) -> Vec<String> {
    let events = world.events(session).await.into_iter();
    let states = events.filter_map(|event| match event.event {
        Event::Files { state, .. } => Some(state),
        _ => None,
    });
    states.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_object_store_is_away_work_goes_on_and_nothing_is_lost() {
    let tasks = lifecycle::Tasks::new();
    let bucket = Bucket::start(&tasks).await;
    let world = in_bucket(&bucket, |_| {}).await;
    let (session, workspace) = session(&world).await;
    for (mood, name) in [
        (Mood::Refuses, "one"),
        (Mood::Gone, "two"),
        (Mood::Slow, "three"),
        (Mood::Says(403, "InvalidAccessKeyId"), "four"),
        (Mood::Says(400, "BadDigest"), "five"),
    ] {
        bucket.set(mood);
        let failing = bucket.fails_again();
        fs::write(workspace.join(name), name).unwrap();
        failing.await;
        again(&world, session).await;
    }
    assert_eq!(bucket.contents(), Vec::<String>::new());
    bucket.set(Mood::Works);
    let wanted = tree(&workspace);
    archived(&world, session).await;
    assert_eq!(bucket.contents(), ["five", "four", "one", "three", "two"]);
    assert_eq!(told(&world, session).await, ["unkept", "kept", "archived"]);

    // The way back waits for the store too.
    bucket.set(Mood::Refuses);
    let failing = bucket.fails_again();
    again(&world, session).await;
    failing.await;
    assert_eq!(tree(&workspace), BTreeMap::new());
    bucket.set(Mood::Works);
    comes_back(&workspace, &wanted).await;
    let told = told(&world, session).await;
    // An answer of before may be heard after the first good one.
    let again = told[3..].chunks(2).all(|pair| pair == ["unkept", "kept"]);
    assert!(told.len() > 3 && again, "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_without_room_is_told_and_what_waits_is_kept_when_there_is_some() {
    let tasks = lifecycle::Tasks::new();
    let bucket = Bucket::start(&tasks).await;
    let world = in_bucket(&bucket, |_| {}).await;
    let (session, workspace) = session(&world).await;
    bucket.set(Mood::Says(507, "XMinioStorageFull"));
    fs::write(workspace.join("file"), "content").unwrap();
    let is_told = |event: &Event| matches!(event, Event::Files { state, reason: Some(reason) } if state == "unkept" && reason.contains("no room"));
    world.event(session, "the want of room to be told", is_told).await;
    again(&world, session).await;
    assert_eq!(bucket.contents(), Vec::<String>::new());
    bucket.set(Mood::Works);
    let is_back = |event: &Event| matches!(event, Event::Files { state, .. } if state == "kept");
    world.event(session, "it to work again", is_back).await;
    archived(&world, session).await;
    assert_eq!(bucket.contents(), ["content"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_is_not_removed_while_the_store_is_of_no_use_and_is_when_it_works() {
    let tasks = lifecycle::Tasks::new();
    let bucket = Bucket::start(&tasks).await;
    let world = in_bucket(&bucket, |_| {}).await;
    let (session, workspace) = session(&world).await;
    bucket.set(Mood::Says(403, "AccessDenied"));
    fs::write(workspace.join("file"), "content").unwrap();
    let wanted = tree(&workspace);
    testkit::eventually_async("the session to be put away", async || {
        world.control.archive(world.asker, session).await.ok()
    })
    .await;
    bucket.fails_again().await;
    assert_eq!(tree(&workspace), wanted);
    bucket.set(Mood::Works);
    let is_archived = |event: &Event| matches!(event, Event::Files { state, .. } if state == "archived");
    world.event(session, "the archiving to end", is_archived).await;
    assert!(!workspace.exists());
    again(&world, session).await;
    comes_back(&workspace, &wanted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_without_room_is_told_once_and_once_that_all_is_back() {
    let world = world().await;
    let (session, _) = session(&world).await;
    let (_, client) = world.inside.newest();
    let disk = DiskId::try_from("ab".repeat(16)).unwrap();
    for files in [0, 3, 2, 0, 5, 0] {
        let disk = disk.clone();
        let request = SyncRequest::NoRoom { files };
        client.sync(&SyncCall { disk, request }).await.unwrap();
    }
    assert_eq!(told(&world, session).await, ["no_room", "back"]);
    let says = |event: &Event| matches!(event, Event::Files { reason: Some(reason), .. } if reason.contains("3 files"));
    world.event(session, "how many they are", says).await;
}

/// A world in which one content cannot be uploaded, and people know of it.
async fn refusing(bucket: &Arc<Bucket>) -> (World, SessionId, PathBuf) {
    let world = in_bucket(bucket, |_| {}).await;
    let (session, workspace) = session(&world).await;
    bucket.refuse(Some(b"large"));
    fs::write(workspace.join("large"), "large").unwrap();
    let is_told = |event: &Event| matches!(event, Event::Files { state, .. } if state == "unkept");
    world.event(session, "the outage to be told", is_told).await;
    (world, session, workspace)
}

async fn kept_again(world: &World, session: SessionId) {
    let is_told = |event: &Event| matches!(event, Event::Files { state, .. } if state == "kept");
    world.event(session, "the end of the outage to be told", is_told).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_gets_through_beside_what_does_not_ends_no_outage() {
    let tasks = lifecycle::Tasks::new();
    let bucket = Bucket::start(&tasks).await;
    let (world, session, workspace) = refusing(&bucket).await;
    for number in 0..3 {
        let failed = bucket.failed();
        let content = format!("small {number}");
        fs::write(workspace.join(format!("{number}")), &content).unwrap();
        testkit::eventually_async("the small one to get through, and the other not", async || {
            (bucket.contents().contains(&content) && bucket.failed() > failed).then_some(())
        })
        .await;
    }
    assert_eq!(told(&world, session).await, ["unkept"]);
    bucket.refuse(None);
    kept_again(&world, session).await;
    archived(&world, session).await;
    assert_eq!(bucket.contents(), ["large", "small 0", "small 1", "small 2"]);
    assert_eq!(told(&world, session).await, ["unkept", "kept", "archived"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_ends_when_what_failed_is_not_wanted_any_more() {
    let tasks = lifecycle::Tasks::new();
    let bucket = Bucket::start(&tasks).await;
    let (world, session, workspace) = refusing(&bucket).await;
    fs::remove_file(workspace.join("large")).unwrap();
    fs::write(workspace.join("small"), "small").unwrap();
    kept_again(&world, session).await;
    archived(&world, session).await;
    assert_eq!(bucket.contents(), ["small"]);
    assert_eq!(told(&world, session).await, ["unkept", "kept", "archived"]);
}
