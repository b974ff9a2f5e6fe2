//! Generations of the image: built in sandboxes, whole or not at all, by one of those who could.

mod bases;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use control::{Config, ControlError, GenerationEntry, ImageEntry, Outside, Refresh, WarmPool};
use domain::SessionId;
use knowledge::{Knowledge, Repository};
use link::client::ClientError;
use sandbox::{ImageDigest, SandboxProvider};
use serde_json::json;
use store::{Asker, GenerationState, NewSnapshot, Target};
use testkit::{eventually_async, within};

use crate::world::{Differs, World};

const ADMIN: Asker = Asker::System;
/// What is built, usually.
const COPY: &str = "cp app/file built";

/// What is built of the repository, and how.
fn knowledge() -> Knowledge {
    Knowledge {
        refresh: Duration::from_secs(3_600),
        time: Duration::from_secs(60),
        repositories: vec![Repository {
            name: "app".to_owned(),
            url: "https://git.example.com/app".to_owned(),
            branch: None,
            host: ("git.example.com".to_owned(), 443),
        }],
        build: vec!["sh app/build".to_owned()],
        ready: Some("test ! -e app/broken".to_owned()),
        egress: Vec::new(),
    }
}

fn refreshed(config: &mut Config) {
    config.lease = Duration::from_secs(1);
    config.base.refresh = Some(Refresh {
        image: "simulated".to_owned(),
        knowledge: knowledge(),
    });
}

/// A world whose repository has a commit, before anything is begun.
fn differs_with(build: &'static str, config: fn(&mut Config)) -> Differs {
    Differs {
        config,
        outside: Arc::new(move |folder, _| {
            let app = folder.join("git/app");
            if !app.exists() {
                std::fs::create_dir_all(&app).unwrap();
                git(&app, &["init", "--quiet", "--initial-branch=trunk"]);
                commit(&app, &[("file", "one"), ("build", build)]);
            }
            Outside::default()
        }),
        ..Differs::default()
    }
}

fn differs() -> Differs {
    differs_with(COPY, refreshed)
}

fn git(folder: &Path, arguments: &[&str]) {
    let mut git = Command::new("git");
    git.arg("-C").arg(folder);
    git.args(["-c", "user.name=ada", "-c", "user.email=ada@example.com"]);
    let ran = git.args(arguments).env("HOME", folder).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
}

fn commit(folder: &Path, files: &[(&str, &str)]) {
    for (name, text) in files {
        std::fs::write(folder.join(name), text).unwrap();
    }
    git(folder, &["add", "--all"]);
    git(folder, &["commit", "--quiet", "--allow-empty", "--message", "more"]);
}

impl World {
    /// What it first builds is ready.
    async fn with_repository(differs: Differs) -> Self {
        let world = Self::new(differs).await;
        let built = world.built(1).await.remove(0);
        world.knows_newest(&built).await;
        world
    }

    /// Waits until new sessions get this one: its row says that it is ready a moment before.
    async fn knows_newest(&self, built: &GenerationEntry) {
        let digest = built.generation.digest.as_ref();
        eventually_async("it to be the newest", async || {
            (Some(&self.image().await.newest) == digest).then_some(())
        })
        .await;
    }

    fn git(&self) -> PathBuf {
        self.inside.git.get().unwrap().clone()
    }

    fn commit(&self, files: &[(&str, &str)]) {
        commit(&self.git().join("app"), files);
    }

    async fn image(&self) -> ImageEntry {
        self.control.images(ADMIN).await.unwrap().remove(0)
    }

    /// Waits until so many generations have ended; all of them, newest first.
    async fn built(&self, count: usize) -> Vec<GenerationEntry> {
        eventually_async("generations to have ended", async || {
            let all = self.image().await.generations;
            let is_over = |entry: &&GenerationEntry| entry.generation.ended.is_some();
            (all.iter().filter(is_over).count() == count && all.iter().all(|entry| is_over(&entry))).then_some(all)
        })
        .await
    }

    /// Has it built anew, and waits for what comes of it.
    async fn refresh(&self) -> GenerationEntry {
        let wanted = self.control.refresh_image(ADMIN, "simulated").await.unwrap();
        eventually_async("a generation to have ended", async || {
            let mut all = self.image().await.generations.into_iter();
            all.find(|entry| entry.generation.id == wanted.id && entry.generation.ended.is_some())
        })
        .await
    }

    /// A session that has worked, and its sandbox's image.
    async fn session(&self) -> (SessionId, ImageDigest) {
        self.will_say("Done.");
        let accepted = self.prompt("go").await;
        self.done(&accepted).await;
        self.control.files(self.asker, accepted.session, "").await.unwrap();
        (accepted.session, self.image_of(accepted.session).await)
    }

    async fn image_of(&self, session: SessionId) -> ImageDigest {
        let all = self.sandboxes.list().await.unwrap();
        let its = all.into_iter().find(|status| status.session == session);
        its.unwrap().image
    }

    fn knows(&self, session: SessionId, file: &str) -> String {
        std::fs::read_to_string(self.sandboxes.knowledge(session).join(file)).unwrap_or_default()
    }

    /// Nothing is left of what was built in.
    async fn assert_cleared(&self) {
        eventually_async("what was built in to be gone", async || {
            let (left, disks) = (
                self.sandboxes.list().await.unwrap(),
                self.sandboxes.disks().await.unwrap(),
            );
            (left.is_empty() && disks.is_empty()).then_some(())
        })
        .await;
    }

    async fn images_there(&self) -> usize {
        self.sandboxes.images().await.unwrap().len()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_session_gets_what_was_built_and_an_old_one_keeps_its_own() {
    let world = World::with_repository(differs()).await;
    world.assert_cleared().await;
    let (old, first) = world.session().await;
    assert_eq!(
        (world.knows(old, "app/file"), world.knows(old, "built")),
        ("one".into(), "one".into())
    );
    assert_eq!(world.image().await.newest, first);

    world.commit(&[("file", "two")]);
    let second = world.refresh().await;
    assert_eq!(second.generation.state, GenerationState::Ready, "{second:?}");
    let parent = second.generation.made_of.unwrap().parent;
    assert_eq!(parent, first, "a refresh begins with what is there");
    let (new, of_new) = world.session().await;
    assert_eq!(Some(&of_new), second.generation.digest.as_ref());
    assert_eq!(
        (world.knows(new, "app/file"), world.knows(new, "built")),
        ("two".into(), "two".into())
    );

    // The old one's files lie over what they began with, in its next sandbox too, and after a restart.
    let world = world.restarted().await;
    for _ in 0..2 {
        let sandboxes = world.control.sandboxes(ADMIN).await.unwrap();
        let its = sandboxes.iter().find(|entry| entry.status.session == old).unwrap();
        world.control.remove_sandbox(ADMIN, its.status.id).await.unwrap();
        world.control.files(world.asker, old, "").await.unwrap();
        assert_eq!(world.image_of(old).await, first);
    }
    assert_eq!(world.knows(old, "app/file"), "one");
    let audited = world.audited("image.refreshed").await;
    assert_eq!(
        (audited.len(), audited[1].entry.subject.as_str()),
        (2, "image:simulated")
    );
    let (_, newest) = world.session().await;
    assert_eq!(newest, of_new, "a restart forgot what is the newest");
}

#[tokio::test(flavor = "multi_thread")]
async fn those_that_were_made_ahead_are_replaced() {
    let world = World::with_repository(differs_with(COPY, |config| {
        refreshed(config);
        config.warm = WarmPool {
            least: 1,
            most: 1,
            remember: Duration::from_secs(600),
        };
    }))
    .await;
    for count in 1..=2 {
        let newest = world.built(count).await[0].generation.digest.clone().unwrap();
        eventually_async("one of the newest to be made ahead", async || {
            let all = world.control.sandboxes(ADMIN).await.unwrap();
            let mut warm = all.iter().filter(|entry| entry.warm);
            (warm.next()?.status.image == newest).then_some(())
        })
        .await;
        if count == 1 {
            world.refresh().await;
        }
    }
    let (session, image) = world.session().await;
    assert_eq!(world.store.image_of(ADMIN, session).await.unwrap(), Some(image));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_that_fails_leaves_the_old_in_place_and_says_why() {
    let world = World::with_repository(differs_with(COPY, |config| {
        refreshed(config);
        config.base.refresh.as_mut().unwrap().knowledge.time = Duration::from_secs(20);
    }))
    .await;
    let newest = world.image().await.newest;
    for (build, words) in [
        (
            "echo the disk is full >&2; exit 7",
            &["`sh app/build` of knowledge.build failed (7)", "the disk is full"][..],
        ),
        (
            "exec sleep 600",
            &["`sh app/build` of knowledge.build took longer than a refresh may: 20 s (knowledge.time)"],
        ),
        (
            "touch app/broken",
            &["`test ! -e app/broken` of knowledge.ready failed (1)"],
        ),
    ] {
        world.commit(&[("build", build)]);
        let failed = world.refresh().await.generation;
        assert_eq!(failed.state, GenerationState::Failed, "{build}");
        let error = failed.error.unwrap();
        assert!(words.iter().all(|words| error.contains(words)), "{build}: {error}");
        assert_eq!(world.image().await.newest, newest);
        assert_eq!(failed.digest, None);
    }
    let (session, image) = world.session().await;
    assert_eq!((image, world.knows(session, "built")), (newest, "one".to_owned()));
    assert_eq!(world.audited("image.refresh_failed").await.len(), 3);
    let figures = world.control.refresh_figures().unwrap();
    assert_eq!((figures.done, figures.failed), (1, 3));
    // What a failed one left is in nobody's way.
    world.commit(&[("build", "cp app/file built; echo two >> built")]);
    assert_eq!(world.refresh().await.generation.state, GenerationState::Ready);
    let (session, _) = world.session().await;
    assert_eq!(world.knows(session, "built"), "onetwo\n");
    // The repository itself may be gone, too.
    std::fs::rename(world.git().join("app"), world.git().join("elsewhere")).unwrap();
    let error = world.refresh().await.generation.error.unwrap();
    assert!(
        error.contains("fetching app (https://git.example.com/app) failed"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_dies_at_whichever_step_repeats_nothing_that_was_made() {
    for step in ["at once", "fetch", "build", "committed"] {
        let waits = "while [ ! -e $HOME/go ]; do sleep 0.02; done";
        let world = World::new(differs_with(waits, refreshed)).await;
        let go = world.git().join("go");
        match step {
            "at once" => {}
            "fetch" => world.inside.made_so_many(1).await,
            "build" => world.inside.made_so_many(2).await,
            _ => {
                world.host.hold_commits();
                let committed = world.host.begins("committed");
                let released = async { std::fs::write(&go, "").unwrap() };
                futures::join!(committed, released);
            }
        }
        let world = world.restarted_after(async || std::fs::write(&go, "").unwrap()).await;
        world.host.let_commits_go_on();
        let all = world.built(1).await;
        let generation = &all[0].generation;
        assert_eq!(generation.state, GenerationState::Ready, "{step}: {generation:?}");
        world.assert_cleared().await;
        assert_eq!(world.images_there().await, 2, "{step}: more was made than is known");
        let (session, _) = world.session().await;
        assert_eq!(world.knows(session, "app/file"), "one", "{step}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_agent_that_is_started_anew_ends_no_build() {
    let waits = "while [ ! -e $HOME/go ]; do sleep 0.02; done";
    let world = World::new(differs_with(waits, refreshed)).await;
    world.inside.made_so_many(2).await;
    let all = world.control.sandboxes(ADMIN).await.unwrap();
    let builders = all.iter().filter(|entry| entry.status.builder);
    assert_eq!((builders.count(), all.len()), (1, 1), "{all:?}");
    let image = all[0].image.as_ref().unwrap();
    assert_eq!(
        (image.name.as_str(), &image.digest),
        ("simulated", &all[0].status.image)
    );
    world.host.restart();
    // What is built asks for what it needs, as before.
    let (_, client) = world.inside.newest();
    eventually_async("the builder to have its way out again", async || {
        matches!(client.resolve("git.example.com").await, Err(ClientError::Refused(_))).then_some(())
    })
    .await;
    std::fs::write(world.git().join("go"), "").unwrap();
    let generation = world.built(1).await.remove(0).generation;
    assert_eq!(
        (generation.state, generation.attempts),
        (GenerationState::Ready, 1),
        "{generation:?}"
    );
    let (session, _) = world.session().await;
    let all = world.control.sandboxes(ADMIN).await.unwrap();
    let its = all.iter().find(|entry| entry.status.session == session).unwrap();
    assert!(!its.status.builder && its.last_used.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_control_planes_one_builds() {
    let world = World::new(differs_with(COPY, |config| {
        refreshed(config);
        // Nobody takes over what the other only does slowly.
        config.lease = Duration::from_secs(20);
    }))
    .await;
    let (other, _end) = world.beside().await;
    for control in [&world.control, &other, &other, &world.control] {
        let wanted = control.refresh_image(ADMIN, "simulated").await.unwrap();
        eventually_async("it to be built", async || {
            let all = world.image().await.generations;
            let its = all.into_iter().find(|entry| entry.generation.id == wanted.id)?;
            its.generation.ended.map(|_| assert_eq!(its.generation.attempts, 1))
        })
        .await;
    }
    let ready = |entry: &&GenerationEntry| entry.generation.state != GenerationState::Failed;
    let ready = world.image().await.generations.iter().filter(ready).count();
    let builds = world
        .inside
        .made()
        .iter()
        .filter(|command| *command == "sh app/build")
        .count();
    assert_eq!(builds, ready, "one was built twice");
    // What one built, the other gives to its sessions.
    let all = world.image().await.generations;
    let newest = all
        .iter()
        .find(|entry| entry.generation.state == GenerationState::Ready);
    let newest = newest.unwrap().generation.digest.clone().unwrap();
    eventually_async("both to know the newest", async || {
        let theirs = other.images(ADMIN).await.unwrap().remove(0).newest;
        (theirs == newest && world.image().await.newest == newest).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_goes_when_no_sandbox_disk_or_snapshot_uses_it() {
    let world = World::with_repository(differs()).await;
    let (session, first) = world.session().await;
    let new = NewSnapshot::Named(None);
    let kept = world.store.begin_snapshot(ADMIN, session, new).await.unwrap();
    assert!(kept.is_some());
    let second = world.refresh().await.generation.digest.unwrap();
    let (_, of_second) = world.session().await;
    assert_eq!(of_second, second);
    let third = world.refresh().await.generation.digest.unwrap();
    let fourth = world.refresh().await.generation.digest.unwrap();
    eventually_async("the third to be gone", async || {
        let states = world
            .image()
            .await
            .generations
            .into_iter()
            .map(|entry| entry.generation);
        let gone: Vec<_> = states.filter(|row| row.state == GenerationState::Gone).collect();
        (gone.len() == 1).then(|| assert_eq!(gone[0].digest, Some(third.clone())))
    })
    .await;
    let there = world.sandboxes.images().await.unwrap();
    for digest in [&first, &second, &fourth, &world.config.base.image] {
        assert!(there.iter().any(|image| image.digest == *digest), "{digest} is gone");
    }
    eventually_async("its files to be gone", async || {
        (world.images_there().await == 4).then_some(())
    })
    .await;
    let removed = world.audited("image.removed").await;
    assert_eq!(removed[0].entry.detail["image"], json!(third));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_image_is_gone_gets_another_rather_than_none() {
    let world = World::with_repository(differs()).await;
    let newest = world.image().await.newest;
    world.sandboxes.remove_image(&newest).await.unwrap();
    let (_, image) = world.session().await;
    assert_eq!(image, world.config.base.image);
    // The next is built from what is there.
    assert_eq!(world.refresh().await.generation.state, GenerationState::Failed);
    let next = world.refresh().await.generation;
    assert_eq!(next.state, GenerationState::Ready, "{next:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_came_since_is_brought_to_a_session_that_may_fetch_it() {
    for may in [false, true] {
        let allowing: fn(&mut Config) = |config| {
            refreshed(config);
            let scope = serde_json::from_value(json!({"egress": ["git.example.com"]})).unwrap();
            config.policies.roles.insert("everybody".to_owned(), scope);
        };
        let config = if may { allowing } else { refreshed };
        let world = World::with_repository(differs_with(COPY, config)).await;
        world.commit(&[("file", "two")]);
        let before = world.inside.made().len();
        let (session, _) = world.session().await;
        if may {
            eventually_async("what came since", async || {
                (world.knows(session, "app/file") == "two").then_some(())
            })
            .await;
            assert_eq!(world.knows(session, "built"), "one", "nothing is built in a session");
        } else {
            world.will_say("Done.");
            let again = within(
                "a run",
                world.prompt_to(Target::Session(session), "go", domain::Delivery::Restart),
            )
            .await;
            world.done(&again).await;
            assert_eq!(world.knows(session, "app/file"), "one");
            assert_eq!(world.inside.made().len(), before, "it was tried all the same");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn images_are_the_admins_matter() {
    let world = World::with_repository(differs()).await;
    let listed = world.control.images(world.asker).await;
    assert!(matches!(listed, Err(ControlError::Denied(_))), "{listed:?}");
    for (asker, image) in [(world.asker, "simulated"), (ADMIN, "other")] {
        let refreshed = world.control.refresh_image(asker, image).await;
        assert!(matches!(refreshed, Err(ControlError::NotFound { .. })), "{refreshed:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn when_all_sandboxes_are_removed_a_builder_goes_too_and_it_is_built_when_somebody_needs_it() {
    let waits = "while [ ! -e $HOME/go ]; do sleep 0.02; done";
    let world = World::new(differs_with(waits, refreshed)).await;
    world.inside.made_so_many(2).await;
    let removed = world.control.remove_sandboxes(ADMIN).await.unwrap();
    assert_eq!((removed.removed, removed.left), (1, 0));
    world.assert_cleared().await;
    let lost = world.built(1).await.remove(0).generation;
    assert_eq!(lost.state, GenerationState::Failed);
    assert!(lost.error.unwrap().contains("its sandbox was lost"));
    std::fs::write(world.git().join("go"), "").unwrap();
    assert_eq!(world.refresh().await.generation.state, GenerationState::Ready);
}
