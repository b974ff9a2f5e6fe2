//! What generations begin with: it may be another one day, and stays as long as somebody's files may lie on it.

use std::time::Duration;

use control::{Base, WarmPool};
use domain::{Door, SandboxId};
use sandbox::{SandboxProvider, SandboxSpec};
use store::NewSnapshot;

use super::{ADMIN, COPY, differs, differs_with, refreshed};
use crate::world::World;

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
