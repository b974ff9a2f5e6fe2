//! What generations begin with: it may be another one day, and stays as long as somebody's files may lie on it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use control::{Base, Outside, WarmPool};
use domain::{Delivery, Door, Placement, SandboxId};
use sandbox::{ImageDigest, SandboxProvider, SandboxSpec};
use skills::{Frontmatter, Skill};
use store::{NewSnapshot, Target};

use super::{ADMIN, COPY, differs, differs_with, refreshed};
use crate::world::{Differs, World};

#[tokio::test(flavor = "multi_thread")]
async fn a_new_base_counts_at_once() {
    let world = World::with_repository(differs_with(COPY, |config| {
        refreshed(config);
        config.warm = WarmPool {
            least: 1,
            most: 1,
            remember: Duration::from_secs(600),
        };
    }))
    .await;
    let (old, first) = world.session().await;
    let newer = Base {
        image: first.clone(),
        ..world.config.base.clone()
    };
    world.control.set_base(newer.clone()).await.unwrap();
    // Nobody asks for it.
    let built = world.built(2).await.remove(0);
    world.knows_newest(&built).await;
    let built = built.generation;
    assert_eq!(built.made_of.unwrap().base, first);
    assert_eq!(world.image().await.base, first);
    let (_, second) = world.session().await;
    assert_eq!(Some(&second), built.digest.as_ref());
    // The same again is nothing new.
    world.control.set_base(newer).await.unwrap();
    assert_eq!(world.refresh().await.generation.number, built.number + 1);

    // One of which nothing is built anew is what it is.
    let plain = Base::new(world.config.base.image.clone());
    world.control.set_base(plain).await.unwrap();
    assert_eq!(world.control.images(ADMIN).await.unwrap(), []);
    assert_eq!(world.session().await.1, world.config.base.image);
    assert_eq!(world.image_of(old).await, first);
}

#[tokio::test(flavor = "multi_thread")]
async fn as_long_as_it_is_not_known_what_files_lie_on_every_base_is_in_use() {
    let world = World::with_repository(differs()).await;
    let (_, image) = world.session().await;
    world.control.set_base(Base::new(image.clone())).await.unwrap();
    let base = &world.config.base.image;
    let used = async || world.control.used_images(ADMIN).await.unwrap();
    assert!(!used().await.contains(base), "nothing lies on it");

    // Files of which nothing is written, as sessions of earlier releases have them.
    let opened = world
        .control
        .open_session(world.asker, world.target(), Door::Api, "", None);
    let spec = SandboxSpec {
        id: SandboxId::new(),
        session: opened.await.unwrap().0.id,
        image,
        limits: world.config.sandbox,
        builder: false,
    };
    assert!(!used().await.contains(base), "it has no files yet");
    world.sandboxes.create(&spec).await.unwrap();
    assert!(used().await.contains(base));
    world.sandboxes.destroy(spec.id).await.unwrap();
    assert!(used().await.contains(base));
    world.sandboxes.remove_disk(spec.session).await.unwrap();
    assert!(!used().await.contains(base));
    world
        .store
        .begin_snapshot(ADMIN, spec.session, NewSnapshot::Named(None))
        .await
        .unwrap();
    assert!(used().await.contains(base));
}

fn simulated() -> ImageDigest {
    "ab".repeat(32).parse().unwrap()
}

/// The first image brings a skill, and every other one another.
fn with_skills(placement: Placement) -> Differs {
    let repository = differs_with(COPY, |config| {
        refreshed(config);
        config.system = None;
        config.sandboxes_per_user = 1;
    });
    let makes = Arc::clone(&repository.outside);
    Differs {
        placement,
        outside: Arc::new(move |folder, tasks| Outside {
            skills: Some(Box::new(|image: &ImageDigest| {
                let name = if *image == simulated() {
                    "brew-tea"
                } else {
                    "bake-bread"
                };
                vec![skill(name)]
            })),
            ..makes(folder, tasks)
        }),
        ..repository
    }
}

fn skill(name: &str) -> Skill {
    Skill {
        name: name.to_owned(),
        description: "To be used when it is wanted.".to_owned(),
        body: String::new(),
        front: Frontmatter::default(),
        folder: PathBuf::from("/skills").join(name),
    }
}

impl World {
    /// Two images: sandboxes are made of the first, and nothing is built anew.
    async fn with_two_images(placement: Placement) -> (Self, Base, Base) {
        let world = Self::with_repository(with_skills(placement)).await;
        let newer = Base::new(world.image().await.newest);
        let older = Base::new(simulated());
        world.control.set_base(older.clone()).await.unwrap();
        (world, older, newer)
    }

    /// What the model was last told before the history, as bytes.
    fn prefix(&self) -> String {
        let request = self.models.received().pop().unwrap().body;
        format!("{}{}", request["tools"], request["system"])
    }

    /// Whether the last run was told of this skill alone.
    fn was_told_of(&self, skill: &str) -> bool {
        let prefix = self.prefix();
        let told = ["brew-tea", "bake-bread"]
            .into_iter()
            .filter(|name| prefix.contains(name));
        let is_granted = || self.inside.granted().skills == Some([skill.to_owned()].into());
        // Elsewhere it is granted when a tool is used.
        let loops_there = self.config.placement == Placement::Sandbox;
        told.eq([skill]) && (!loops_there || is_granted())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_told_of_the_skills_of_its_own_image_and_not_of_a_newer_one() {
    for placement in [Placement::Sandbox, Placement::ControlPlane] {
        let (mut world, older, newer) = World::with_two_images(placement).await;
        let (old, image) = world.session().await;
        let before = world.prefix();
        assert_eq!(
            (&image, world.was_told_of("brew-tea")),
            (&older.image, true),
            "{before}"
        );

        world.control.set_base(newer.clone()).await.unwrap();
        let (_, image) = world.session().await;
        assert_eq!(
            (&image, world.was_told_of("bake-bread")),
            (&newer.image, true),
            "{}",
            world.prefix()
        );
        for restarted in [false, true] {
            if restarted {
                world.config.base = newer.clone();
                world = world.restarted().await;
            }
            world.will_say("Again.");
            let again = world.prompt_to(Target::Session(old), "again", Delivery::Restart).await;
            world.done(&again).await;
            assert_eq!(world.prefix(), before, "{placement:?}, restarted: {restarted}");
            assert!(world.was_told_of("brew-tea"), "{placement:?}, restarted: {restarted}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_gets_a_sandbox_of_the_image_that_it_was_told_of() {
    let (world, older, newer) = World::with_two_images(Placement::Sandbox).await;
    world.session().await;
    // Its user may have one sandbox: there is none for the next session before the first one's is removed.
    let held = world.host.hold("destroy");
    world.will_say("Done.");
    let accepted = world.prompt("go").await;
    held.begun().await;
    world.control.set_base(newer).await.unwrap();
    held.release();
    world.done(&accepted).await;
    assert_eq!(world.image_of(accepted.session).await, older.image);
    assert!(world.was_told_of("brew-tea"), "{}", world.prefix());
}
