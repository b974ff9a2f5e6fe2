//! Files are kept before a sandbox falls asleep, and afterwards what could not be.

use sandbox::SandboxState;

use super::*;

fn sleepy(config: &mut Config) {
    config.freeze_after = Duration::from_millis(50);
    // What a test does in between comes before, however busy the machine is.
    config.hibernate_after = Duration::from_secs(8);
}

fn soon_caught_up(files: &mut Files) {
    files.catch_up_every = Duration::from_millis(50);
}

async fn hibernated(world: &World, session: SessionId, why: &str) {
    let is = |event: &Event| matches!(event, Event::Sandbox { state, reason: Some(reason) } if state == "hibernated" && reason.contains(why));
    world.event(session, why, is).await;
}

async fn has(bucket: &Bucket, content: &str) {
    testkit::eventually_async("the content to be kept", async || {
        bucket.contents().contains(&content.to_owned()).then_some(())
    })
    .await;
}

/// A file that is kept as it was first, and was changed by a name of which who watches the workspace does not hear.
async fn changed_unheard(world: &World, session: SessionId, workspace: &Path) {
    let elsewhere = workspace.with_file_name("elsewhere");
    fs::write(&elsewhere, "first").unwrap();
    fs::hard_link(&elsewhere, workspace.join("file")).unwrap();
    testkit::eventually_async("the file to be recorded", async || {
        // Those of all disks but one that nobody has.
        let files = world.store.missing_files(Asker::System, session, "", None, 1, 1);
        files.await.unwrap().pop()
    })
    .await;
    fs::write(elsewhere, "later").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_when_a_session_falls_asleep_is_kept_though_nobody_uses_it() {
    let tasks = lifecycle::Tasks::new();
    let bucket = Bucket::start(&tasks).await;
    let world = in_bucket_with(&bucket, sleepy, soon_caught_up).await;
    let (session, workspace) = session(&world).await;
    bucket.set(Mood::Refuses);
    let failing = bucket.fails_again();
    fs::write(workspace.join("file"), "content").unwrap();
    failing.await;
    hibernated(&world, session, "nobody used it").await;
    assert_eq!(world.control.sessions_behind().await.unwrap(), 1);
    let sandboxes = world.inside.sandboxes();

    // The next process knows it too, and wakes nobody in vain.
    let world = world.restarted().await;
    for _ in 0..3 {
        bucket.fails_again().await;
    }
    assert_eq!(world.inside.sandboxes(), sandboxes);
    assert_eq!(world.control.sessions_behind().await.unwrap(), 1);
    bucket.set(Mood::Works);
    has(&bucket, "content").await;
    hibernated(&world, session, "files that had waited").await;
    assert_eq!(world.control.sessions_behind().await.unwrap(), 0);
    assert_eq!(world.inside.sandboxes(), sandboxes + 1);
    assert_eq!(outages::told(&world, session).await, ["unkept", "kept"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_heard_of_is_kept_before_a_sandbox_is_hibernated() {
    let tasks = lifecycle::Tasks::new();
    let bucket = Bucket::start(&tasks).await;
    let world = in_bucket_with(&bucket, sleepy, |_| {}).await;
    let (session, workspace) = session(&world).await;
    changed_unheard(&world, session, &workspace).await;
    // Who comes meanwhile finds it there.
    bucket.set(Mood::Waits);
    bucket.fails_again().await;
    again(&world, session).await;
    let (sandbox, _) = world.inside.newest();
    assert_eq!(world.inside.sandboxes(), 1);
    bucket.set(Mood::Works);
    has(&bucket, "later").await;
    hibernated(&world, session, "nobody used it").await;
    assert!(world.sandboxes.status(sandbox).await.is_err());
    assert_eq!(world.control.sessions_behind().await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_heard_of_is_kept_before_a_sandbox_makes_room() {
    let tasks = lifecycle::Tasks::new();
    let bucket = Bucket::start(&tasks).await;
    let world = in_bucket_with(&bucket, |config| config.sandboxes_per_user = 1, |_| {}).await;
    let (first, workspace) = session(&world).await;
    changed_unheard(&world, first, &workspace).await;
    session(&world).await;
    has(&bucket, "later").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_keeps_a_sandbox_awake_however_slow_it_is() {
    let tasks = lifecycle::Tasks::new();
    let bucket = Bucket::start(&tasks).await;
    let sleepy = |config: &mut Config| {
        config.freeze_after = Duration::from_millis(50);
        // Longer than what was uploaded keeps one awake afterwards.
        config.hibernate_after = Duration::from_secs(7);
    };
    let world = in_bucket_with(&bucket, sleepy, |_| {}).await;
    let (first, workspace) = session(&world).await;
    bucket.set(Mood::Waits);
    let begins = bucket.fails_again();
    fs::write(workspace.join("file"), "content").unwrap();
    begins.await;
    // It may sleep by now.
    world.control.files(world.asker, first, "").await.unwrap();
    let (sandbox, _) = world.inside.newest();
    // Another falls asleep, and away, in the meantime.
    let (other, _) = session(&world).await;
    hibernated(&world, other, "nobody used it").await;
    let status = world.sandboxes.status(sandbox).await.unwrap();
    assert_eq!(status.state, SandboxState::Running);
    bucket.set(Mood::Works);
    has(&bucket, "content").await;
    hibernated(&world, first, "nobody used it").await;
}
