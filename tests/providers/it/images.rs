//! Images that are made of what builders know, by each kind of maker.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use containers::DiskChoice;
use sandbox::{ImageDigest, ProviderError, SandboxProvider, SandboxSpec};

use crate::world::{By, Living, ROOT, USER, World};

on_each!(
    twenty_commits_show_what_the_last_builder_saw,
    what_was_written_inside_reaches_nothing_outside,
    what_is_larger_than_its_disk_becomes_no_image,
);

impl World {
    async fn builder(&self, image: &ImageDigest) -> Living {
        let spec = SandboxSpec {
            image: image.clone(),
            builder: true,
            ..self.spec()
        };
        self.create_as(&spec).await
    }

    /// What a builder of this image becomes after a command.
    async fn built(&self, image: &ImageDigest, command: &str) -> ImageDigest {
        let builder = self.builder(image).await;
        builder.run(USER, &format!("cd /knowledge && {command} && sync")).await;
        let made = self.provider.commit(builder.spec.id).await.unwrap();
        let session = builder.spec.session;
        builder.destroy().await;
        self.provider.remove_disk(session).await.unwrap();
        made
    }

    fn layers(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.config.data.join("images/layers")).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    /// The files of the only layer that was committed.
    fn committed(&self) -> PathBuf {
        let base = &testkit::miniature().layer;
        let mut layers = self.layers();
        layers.retain(|layer| !layer.ends_with(base));
        let [layer] = &*layers else {
            panic!("{layers:?}");
        };
        layer.join("files/knowledge")
    }
}

async fn twenty_commits_show_what_the_last_builder_saw(by: By) {
    let world = World::by(by, DiskChoice::Auto);
    let mut image = world
        .built(
            &world.image,
            "mkdir -p app/anew && echo old > app/anew/old && echo > gone && echo 0 > number",
        )
        .await;
    for round in 1..=20 {
        let command = match round {
            7 => "rm -r app/anew gone && mkdir app/anew && echo new > app/anew/new".to_owned(),
            round => format!("echo {round} > number && echo {round} > only-{round}"),
        };
        let next = world.built(&image, &command).await;
        world.provider.remove_image(&image).await.unwrap();
        image = next;
    }
    // The base, what became one with the seventeenth, and four since.
    assert_eq!(world.layers().len(), 6);
    let spec = SandboxSpec {
        image: image.clone(),
        ..world.spec()
    };
    let user = world.create_as(&spec).await;
    let said = user
        .run(
            USER,
            "cd /knowledge && cat number only-1 app/anew/* && ls app/anew && ls | wc -l && [ ! -e gone ]",
        )
        .await;
    assert_eq!(said, "20\n1\nnew\nnew\n21");
    user.run(USER, "cd /knowledge && echo own > number && rm only-1 && echo > gone")
        .await;
    let other = SandboxSpec {
        session: domain::SessionId::new(),
        id: domain::SandboxId::new(),
        ..spec
    };
    let other = world.create_as(&other).await;
    assert_eq!(
        other.run(USER, "cat /knowledge/number /knowledge/only-1").await,
        "20\n1"
    );
    user.destroy().await;
    other.destroy().await;
}

async fn what_was_written_inside_reaches_nothing_outside(by: By) {
    let world = World::by(by, DiskChoice::Auto);
    let before = world.layers().len();
    world
        .built(
            &world.image,
            "ln -s /etc/shadow shadow && ln -s / root && ln -s ../../../.. up && cp /bin/true tool && chmod 6755 tool && mkfifo pipe \
             && python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")' && truncate -s 40M holes",
        )
        .await;
    assert_eq!(world.layers().len(), before + 1);
    let files = world.committed();
    let mut names: Vec<_> = fs::read_dir(&files)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["holes", "root", "shadow", "tool", "up"]);
    assert!(
        names[1..3]
            .iter()
            .all(|name| fs::symlink_metadata(files.join(name)).unwrap().is_symlink())
    );
    let tool = fs::metadata(files.join("tool")).unwrap();
    // Owners are those of inside, whatever range the builder had.
    assert_eq!((tool.mode() & 0o7777, tool.uid()), (0o755, USER));
    assert!(
        fs::metadata(files.join("holes")).unwrap().blocks() < 100,
        "a hole became zeros"
    );

    // Nor is anything found in the place of the folder itself.
    if matches!(by, By::Oci(_)) {
        let builder = world.builder(&world.image).await;
        builder.run(ROOT, "mv /knowledge /moved && ln -s /etc /knowledge").await;
        let refused = world.provider.commit(builder.spec.id).await;
        assert!(matches!(refused, Err(ProviderError::Limit(_))), "{refused:?}");
        builder.destroy().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_is_being_removed_is_no_sandboxs() {
    let world = World::new(DiskChoice::Auto);
    let image = world.built(&world.image, "echo > file").await;
    // Whoever removes an image waits for this, and makers of sandboxes do not.
    let lock = File::open(world.config.data.join("images/lock")).unwrap();
    lock.lock().unwrap();
    let inode = format!(":{} ", lock.metadata().unwrap().ino());
    let mut removing = world.provider.remove_image(&image);
    let waits = testkit::eventually_async("the removal to wait", async || {
        let locks = fs::read_to_string("/proc/locks").unwrap();
        let waits = |line: &str| line.contains("->") && line.contains(&inode);
        locks.lines().any(waits).then_some(())
    });
    tokio::select! {
        removed = &mut removing => panic!("it did not wait: {removed:?}"),
        () = waits => {}
    }
    let spec = SandboxSpec {
        image: image.clone(),
        ..world.spec()
    };
    let mut making = world.provider.create(&spec);
    // One that does not wait is made now, and loses its files below.
    let made = tokio::time::timeout(Duration::from_secs(2), &mut making).await;
    drop(lock);
    removing.await.unwrap();
    let made = match made {
        Ok(made) => made,
        Err(_) => making.await,
    };
    assert!(matches!(made, Err(ProviderError::ImageMissing { .. })), "{made:?}");
}

async fn what_is_larger_than_its_disk_becomes_no_image(by: By) {
    let world = World::by(by, DiskChoice::Auto);
    let (layers, images) = (world.layers().len(), world.provider.images().await.unwrap());
    for command in ["truncate -s 3G /knowledge/a", "echo > /knowledge/.wh.a"] {
        let builder = world.builder(&world.image).await;
        builder.run(USER, command).await;
        let refused = world.provider.commit(builder.spec.id).await;
        assert!(
            matches!(refused, Err(ProviderError::Limit(_))),
            "{command}: {refused:?}"
        );
        // It goes on, and may become one without it.
        builder.run(USER, "rm /knowledge/*a /knowledge/.wh.a -f").await;
        assert_eq!(world.provider.commit(builder.spec.id).await.unwrap(), world.image);
        builder.destroy().await;
    }
    assert_eq!(
        (world.layers().len(), world.provider.images().await.unwrap()),
        (layers, images)
    );
}
