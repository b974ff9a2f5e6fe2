//! Sessions without disks.

use std::fs;

use control::NewFork;

use super::*;

const FORK: NewFork = NewFork {
    count: 1,
    snapshot: None,
    scope: None,
};

/// Archives a session as people do.
async fn put_away(world: &World, session: SessionId) {
    testkit::eventually_async("the session to be put away", async || {
        world.control.archive(world.asker, session).await.ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_is_archived_with_what_is_newer_than_its_snapshot() {
    let world = world().await;
    let (parent, workspace) = session(&world).await;
    fs::write(workspace.join("file"), "of the parent").unwrap();
    fs::hard_link(workspace.join("file"), workspace.join("again")).unwrap();
    let forks = world
        .control
        .fork(world.asker, parent, NewFork { count: 2, ..FORK })
        .await;
    let [used, unused] = forks
        .unwrap()
        .try_into()
        .map(|forks: [_; 2]| forks.map(|fork| fork.id))
        .unwrap();
    again(&world, used).await;
    let workspace = world.sandboxes.workspace(used);
    fs::write(workspace.join("new"), "of the fork").unwrap();
    fs::write(workspace.join("file"), "newer").unwrap();
    for fork in [used, unused] {
        let workspace = world.sandboxes.workspace(fork);
        let wanted = tree(&workspace);
        put_away(&world, fork).await;
        testkit::eventually_async("the disk to go", async || (!workspace.exists()).then_some(())).await;
        again(&world, fork).await;
        comes_back(&workspace, &wanted).await;
        let links = fs::metadata(workspace.join("file")).unwrap().nlink();
        assert_eq!(links, 1, "what is kept outside has no second name");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_prompt_brought_back_before_it_was_archived_keeps_its_disk() {
    let tasks = lifecycle::Tasks::new();
    let bucket = Bucket::start(&tasks).await;
    let world = in_bucket(&bucket, |_| {}).await;
    let (session, workspace) = session(&world).await;
    bucket.set(Mood::Refuses);
    fs::write(workspace.join("file"), "content").unwrap();
    put_away(&world, session).await;
    bucket.fails_again().await;
    again(&world, session).await;
    // What is kept nowhere else.
    fs::create_dir(workspace.join("node_modules")).unwrap();
    bucket.set(Mood::Works);
    // Who wants it next waits until the archiving has come to its end.
    world.control.save_snapshot(world.asker, session, None).await.unwrap();
    assert!(workspace.join("node_modules").exists(), "its disk was removed under it");
    assert_eq!(bucket.contents(), ["content"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_process_was_to_put_away_is_put_away_by_the_next() {
    let world = world().await;
    let (session, workspace) = session(&world).await;
    fs::write(workspace.join("file"), "content").unwrap();
    let wanted = tree(&workspace);
    // It was written down, and then the process was killed.
    let archive = async |store: &store::Store| {
        store.archive_session(Asker::System, session).await.unwrap();
    };
    let world = world.restarted_when(archive).await;
    let is_archived = |event: &Event| matches!(event, Event::Files { state, .. } if state == "archived");
    world.event(session, "the archiving to end", is_archived).await;
    assert!(!workspace.exists(), "its disk is gone");
    again(&world, session).await;
    comes_back(&workspace, &wanted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restore_the_names_are_those_of_the_restored_disk() {
    let tasks = lifecycle::Tasks::new();
    let bucket = Bucket::start(&tasks).await;
    let world = in_bucket(&bucket, |_| {}).await;
    let (session, workspace) = session(&world).await;
    let write = |name: &str, words: &str| fs::write(workspace.join(name), words).unwrap();
    fs::create_dir(workspace.join("folder")).unwrap();
    write("folder/inner", "inner");
    for name in ["renamed", "deleted", "changed", "same"] {
        write(name, name);
    }
    let snapshot = world.control.save_snapshot(world.asker, session, None).await.unwrap();
    let wanted = tree(&workspace);
    fs::rename(workspace.join("renamed"), workspace.join("other")).unwrap();
    fs::rename(workspace.join("folder"), workspace.join("made")).unwrap();
    fs::remove_file(workspace.join("deleted")).unwrap();
    write("changed", "anew");
    write("folder", "no folder");
    write("made/more", "more");
    testkit::eventually_async("all of it to be kept", async || {
        let contents = bucket.contents();
        ["anew", "no folder", "more"]
            .iter()
            .all(|words| contents.contains(&(*words).to_owned()))
            .then_some(())
    })
    .await;

    let id = snapshot.id.to_string();
    world.control.rewind(world.asker, session, &id).await.unwrap();
    assert_eq!(tree(&workspace), wanted);
    again(&world, session).await;
    archived(&world, session).await;
    again(&world, session).await;
    comes_back(&workspace, &wanted).await;
}

fn one_sandbox(config: &mut Config) {
    config.sandboxes_per_user = 1;
}

/// A session beside others of the same user.
async fn another(world: &World) -> SessionId {
    world.will_say("Hello.");
    let accepted = world.prompt_to(world.target(), "go", Delivery::Restart).await;
    world.done(&accepted).await;
    accepted.session
}

/// Whose sandboxes there are.
async fn housed(world: &World) -> Vec<SessionId> {
    let all = world.sandboxes.list().await.unwrap();
    all.iter().map(|status| status.session).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn putting_a_session_away_costs_no_other_its_sandbox() {
    let world = both(one_sandbox, |_| {}).await;
    let (session, workspace) = session(&world).await;
    fs::write(workspace.join("file"), "content").unwrap();
    let other = another(&world).await;
    assert_eq!(housed(&world).await, [other], "a prompt makes room for itself");
    for _ in 0..2 {
        let error = archive(&world, session).await.unwrap_err();
        assert!(
            matches!(&error, ControlError::Unavailable(words) if words.contains("sandbox.per_user")),
            "{error:?}"
        );
    }
    assert_eq!(housed(&world).await, [other]);
    assert!(workspace.join("file").exists());
    hibernated(&world, other).await;
    archived(&world, session).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_being_put_away_makes_room_for_one_that_is_used() {
    let tasks = lifecycle::Tasks::new();
    let bucket = Bucket::start(&tasks).await;
    let world = in_bucket_with(&bucket, one_sandbox, |_| {}).await;
    let (session, workspace) = session(&world).await;
    hibernated(&world, session).await;
    bucket.set(Mood::Refuses);
    fs::write(workspace.join("file"), "content").unwrap();
    let wanted = tree(&workspace);
    let failed = bucket.failed();
    let beside = async {
        testkit::eventually_async("the upload to be tried", async || {
            (bucket.failed() > failed).then_some(())
        })
        .await;
        another(&world).await
    };
    let (away, other) = tokio::join!(archive(&world, session), beside);
    assert!(matches!(away, Err(ControlError::Unavailable(_))), "{away:?}");
    assert_eq!(housed(&world).await, [other]);
    assert_eq!(tree(&workspace), wanted);
    bucket.set(Mood::Works);
    hibernated(&world, other).await;
    archived(&world, session).await;
    assert_eq!(bucket.contents(), ["content"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_archived_is_kept_and_forked_with_all_of_its_files() {
    let world = world().await;
    let (session, workspace) = session(&world).await;
    fs::create_dir(workspace.join("folder")).unwrap();
    for number in 0..20 {
        fs::write(workspace.join(format!("folder/{number}")), format!("content {number}")).unwrap();
    }
    let wanted = tree(&workspace);
    archived(&world, session).await;
    let forks = world.control.fork(world.asker, session, FORK).await.unwrap();
    assert_eq!(tree(&world.sandboxes.workspace(forks[0].id)), wanted);
    archived(&world, session).await;
    let saved = world.control.save_snapshot(world.asker, session, None).await.unwrap();
    again(&world, session).await;
    fs::remove_dir_all(workspace.join("folder")).unwrap();
    let id = saved.id.to_string();
    world.control.rewind(world.asker, session, &id).await.unwrap();
    assert_eq!(tree(&workspace), wanted);
}
