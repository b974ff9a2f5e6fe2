//! Images that are made of what a builder has at `/knowledge`.

use domain::{SandboxId, SessionId};

use super::{Subject, within};
use crate::{ImageDigest, ImageStatus, ProviderError, SandboxSpec, SandboxState, SandboxStatus};

/// Files of each kind.
const LEARN: &str = "cd $KNOWLEDGE && umask 022 && mkdir -p app/deep && echo one > app/file && chmod 750 app/file \
    && ln -s ../outside app/link && ln app/file app/twin && mkdir -m 700 app/shut && echo old > gone && echo old > app/deep/gone \
    && touch -d @1000000000 app/file && sync";

/// All that can be told of them.
const LOOK: &str = "cd $KNOWLEDGE && find . -mindepth 1 -type d -printf '%P %m %U\\n' | sort \
    && find . ! -type d -printf '%P %y %m %n %s %l %T@ %U\\n' | sort && find . -type f | sort | xargs sha256sum \
    && [ app/twin -ef app/file ]";

/// The next one: something goes, something changes, a folder is made anew. (An overlay parts a file from its other names when it
/// is first written to.)
const LEARN_MORE: &str = "cd $KNOWLEDGE && rm gone && echo two > app/file && ln -f app/file app/twin && rm -r app/deep && mkdir app/deep \
    && echo new > app/deep/new && sync";

impl Subject {
    /// A builder, of this image, and of nobody's session.
    async fn builder(&self, image: &ImageDigest) -> (SandboxSpec, SandboxStatus) {
        let spec = SandboxSpec {
            image: image.clone(),
            builder: true,
            ..self.spec()
        };
        let made = self.create(&spec).await;
        (spec, made)
    }

    async fn commit(&self, id: SandboxId) -> ImageDigest {
        let made = within("commit", self.provider.commit(id)).await;
        made.expect("make an image of what a builder has")
    }

    async fn image(&self, digest: &ImageDigest) -> Option<ImageStatus> {
        let images = within("images", self.provider.images()).await;
        let images = images.expect("list the images");
        assert!(images.is_sorted_by_key(|image| image.digest.clone()), "{images:?}");
        images.into_iter().find(|image| image.digest == *digest)
    }

    async fn drop_image(&self, image: &ImageDigest) {
        within("remove an image", self.provider.remove_image(image))
            .await
            .expect("remove an image");
    }

    pub(super) async fn what_a_builder_knows_becomes_an_image(&self) {
        let base = self.image(&self.image).await.expect("the image is listed");
        let (builder, made) = self.builder(&self.image).await;
        self.sh(&made, LEARN).await;
        let before = self.sh(&made, LOOK).await;
        let first = self.commit(builder.id).await;
        assert_ne!(first, self.image);
        assert_eq!(
            self.state(builder.id).await,
            SandboxState::Running,
            "a commit does not stop a sandbox"
        );
        let listed = self.image(&first).await.expect("what was committed is listed");
        assert_eq!((&listed.name, &listed.base), (&base.name, &Some(self.image.clone())));
        self.sh(&made, "echo later > $KNOWLEDGE/later").await;
        self.remove(&builder).await;

        // Whoever has it next finds what was there, and may change its own.
        let (again, made) = self.builder(&first).await;
        assert_eq!(self.sh(&made, LOOK).await, before);
        assert_eq!(self.sh(&made, "ls $KNOWLEDGE").await, "app\ngone");
        self.sh(&made, LEARN_MORE).await;
        let after = self.sh(&made, LOOK).await;
        self.provider.freeze(again.id).await.expect("freeze a builder");
        let second = self.commit(again.id).await;
        assert_eq!(
            self.state(again.id).await,
            SandboxState::Frozen,
            "a commit does not wake a sandbox"
        );
        let listed = self.image(&second).await.expect("what was committed is listed");
        assert_eq!(listed.base, Some(self.image.clone()), "its base is where it began");
        self.remove(&again).await;

        let user = SandboxSpec {
            image: second.clone(),
            ..self.spec()
        };
        let made = self.create(&user).await;
        assert_eq!(self.sh(&made, LOOK).await, after);
        assert_eq!(
            self.sh(
                &made,
                "cd $KNOWLEDGE && cat app/file && ls . app/deep && echo own > app/file"
            )
            .await,
            "two\n.:\napp\n\napp/deep:\nnew"
        );
        // What one writes is its own.
        let other = SandboxSpec {
            image: first.clone(),
            ..self.spec()
        };
        let made = self.create(&other).await;
        assert_eq!(
            self.sh(&made, "cat $KNOWLEDGE/app/file $KNOWLEDGE/gone").await,
            "one\nold"
        );
        for spec in [&user, &other] {
            self.remove(spec).await;
        }
        for image in [&first, &second] {
            self.drop_image(image).await;
            assert_eq!(self.image(image).await, None);
        }
    }

    pub(super) async fn only_a_builder_makes_images(&self) {
        let user = self.spec();
        self.create(&user).await;
        let answer = self.provider.commit(user.id).await;
        assert!(
            matches!(answer, Err(ProviderError::NotABuilder(id)) if id == user.id),
            "{answer:?}"
        );
        self.remove(&user).await;
        let (builder, _) = self.builder(&self.image).await;
        let answer = self.provider.assign(builder.id, SessionId::new()).await;
        assert!(
            matches!(answer, Err(ProviderError::Assigned(id)) if id == builder.id),
            "a builder was given to a session: {answer:?}"
        );
        self.remove(&builder).await;
        let id = SandboxId::new();
        let answer = self.provider.commit(id).await;
        assert!(
            matches!(answer, Err(ProviderError::NotFound(found)) if found == id),
            "{answer:?}"
        );
    }

    pub(super) async fn an_image_goes_when_nobody_uses_it(&self) {
        let (builder, made) = self.builder(&self.image).await;
        self.sh(&made, "echo words > $KNOWLEDGE/file && sync").await;
        let image = self.commit(builder.id).await;
        self.remove(&builder).await;
        let user = SandboxSpec {
            image: image.clone(),
            ..self.spec()
        };
        let made = self.create(&user).await;
        let answer = self.provider.remove_image(&image).await;
        assert!(
            matches!(&answer, Err(ProviderError::ImageInUse { sandbox, .. }) if *sandbox == user.id),
            "{answer:?}"
        );
        assert_eq!(self.sh(&made, "cat $KNOWLEDGE/file").await, "words");
        self.remove(&user).await;
        for _ in 0..2 {
            self.drop_image(&image).await;
        }
        let answer = self.provider.create(&user).await;
        assert!(matches!(&answer, Err(ProviderError::ImageMissing { .. })), "{answer:?}");
        // What it was made on is there as before.
        let base = self.spec();
        self.create(&base).await;
        self.remove(&base).await;
    }

    pub(super) async fn images_outlive_their_provider(self) -> Self {
        let (builder, made) = self.builder(&self.image).await;
        self.sh(&made, LEARN).await;
        let before = self.sh(&made, LOOK).await;
        let image = self.commit(builder.id).await;
        self.remove(&builder).await;
        let listed = self.image(&image).await;
        let subject = Self {
            provider: within("restart", (self.restart)(self.provider)).await,
            ..self
        };
        assert_eq!(subject.image(&image).await, listed);
        let (user, made) = subject.builder(&image).await;
        assert_eq!(subject.sh(&made, LOOK).await, before);
        subject.remove(&user).await;
        subject.drop_image(&image).await;
        subject
    }
}
