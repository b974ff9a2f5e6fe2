//! A provider whose process is killed at any step of any order.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use domain::{SandboxId, SessionId, SnapshotId};
use serde::{Deserialize, Serialize};

use super::{Subject, within};
use crate::{ImageDigest, Limits, ProviderError, SandboxProvider, SandboxSpec, SandboxState, SandboxStatus};

/// Ends a provider; has a process of its own [give](Orders::give) these orders to one over the same sandboxes and kills that
/// process, without a word, while it carries out this one; opens the provider anew.
pub type Kill = Box<
    dyn Fn(Arc<dyn SandboxProvider>, Orders, usize) -> Pin<Box<dyn Future<Output = Arc<dyn SandboxProvider>> + Send>>
        + Send
        + Sync,
>;

/// What a provider that is to be killed is asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Orders {
    image: ImageDigest,
    limits: Limits,
    /// Has files, which nothing of this changes.
    session: SessionId,
    /// Is made and removed each time round.
    other: SessionId,
}

impl Orders {
    /// How many there are until they begin anew.
    pub const COUNT: usize = 15;

    /// Gives the orders again and again. Each is announced to `begin` before it is given, by how many there were before it.
    ///
    /// # Errors
    /// The first that is not carried out.
    pub async fn give(self, provider: &dyn SandboxProvider, mut begin: impl FnMut(usize)) -> Result<(), ProviderError> {
        let spec = |session| SandboxSpec {
            id: SandboxId::new(),
            session,
            image: self.image.clone(),
            limits: self.limits,
            builder: false,
        };
        let mut given = 0;
        let mut next = || {
            begin(given);
            given += 1;
            given
        };
        loop {
            let one = SandboxSpec {
                builder: true,
                ..spec(self.session)
            };
            let ahead = spec(SessionId::new());
            let snapshot = SnapshotId::new();
            next();
            provider.create(&one).await?;
            next();
            provider.freeze(one.id).await?;
            next();
            provider.thaw(one.id).await?;
            next();
            provider.snapshot(self.session, snapshot).await?;
            next();
            let image = provider.commit(one.id).await?;
            next();
            provider.destroy(one.id).await?;
            next();
            provider.remove_image(&image).await?;
            next();
            provider.restore(snapshot, self.session).await?;
            next();
            provider.restore(snapshot, self.other).await?;
            next();
            provider.remove_snapshot(snapshot).await?;
            next();
            provider.remove_disk(self.other).await?;
            next();
            provider.create(&ahead).await?;
            next();
            provider.assign(ahead.id, self.other).await?;
            next();
            provider.destroy(ahead.id).await?;
            let all = next();
            provider.remove_disk(self.other).await?;
            assert_eq!(all % Self::COUNT, 0, "how many orders there are");
        }
    }
}

/// How long to rest between two looks at a sandbox that may be dying.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Files that must be what they were.
const MAKE: &str = "head -c 3000000 /dev/urandom > kept && cp kept $KNOWLEDGE/kept && sync && sha256sum kept";
const LOOK: &str = "sha256sum kept";
/// The same of what an image brings.
const LOOK_AT_KNOWLEDGE: &str = "cd $KNOWLEDGE && sha256sum kept";

impl Subject {
    pub(super) async fn whoever_is_killed_at_any_step_leaves_all_whole(mut self) -> Self {
        let kill = match &self.kill {
            Ok(kill) => kill,
            Err(reason) => {
                println!("killing the provider is not tried: {reason}");
                return self;
            }
        };
        let spec = self.spec();
        let made = self.create(&spec).await;
        let files = self.sh(&made, MAKE).await;
        self.provider.destroy(spec.id).await.expect("destroy a sandbox");
        for step in 0..Orders::COUNT {
            let orders = Orders {
                image: self.image.clone(),
                limits: self.limits,
                session: spec.session,
                other: SessionId::new(),
            };
            // In the second time round, so that there are things of the first.
            let killed = kill(self.provider, orders, Orders::COUNT + step);
            self.provider = within("kill a provider", killed).await;
            println!("killed at step {step}");
            self.all_is_whole(spec.session, &files).await;
        }
        self.provider.remove_disk(spec.session).await.expect("remove a disk");
        self
    }

    /// A sandbox that was found again can be used, or is dead: its end may have been ordered, and come a moment later.
    async fn answers_or_dies(&self, found: &SandboxStatus) {
        let dies = async {
            while !matches!(self.state(found.id).await, SandboxState::Dead { .. }) {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        tokio::select! {
            _ = self.dialled(found) => {}
            () = dies => {}
        }
    }

    /// What is listed works, what was kept is whole, and all of it can be removed.
    async fn all_is_whole(&self, session: SessionId, files: &str) {
        for found in self.provider.list().await.expect("list what lives") {
            if found.state == SandboxState::Frozen {
                self.provider.thaw(found.id).await.expect("thaw what was adopted");
            }
            self.answers_or_dies(&found).await;
            within("destroy", self.provider.destroy(found.id))
                .await
                .expect("destroy what was adopted");
        }
        assert_eq!(self.provider.list().await.expect("list what is left"), []);
        for snapshot in self.provider.snapshots().await.expect("list the snapshots").kept {
            let fork = self.spec();
            within("restore", self.provider.restore(snapshot.id, fork.session))
                .await
                .expect("restore a snapshot");
            let made = self.create(&fork).await;
            assert_eq!(
                self.sh(&made, LOOK).await,
                files,
                "a snapshot that is listed is not whole"
            );
            self.remove(&fork).await;
            self.provider
                .remove_snapshot(snapshot.id)
                .await
                .expect("remove a snapshot");
        }
        for image in self.provider.images().await.expect("list the images") {
            if image.base.is_none() {
                continue;
            }
            let user = SandboxSpec {
                image: image.digest.clone(),
                ..self.spec()
            };
            let made = self.create(&user).await;
            assert_eq!(
                self.sh(&made, LOOK_AT_KNOWLEDGE).await,
                files,
                "an image that is listed is not whole"
            );
            self.remove(&user).await;
            self.provider
                .remove_image(&image.digest)
                .await
                .expect("remove an image");
        }
        let again = SandboxSpec { session, ..self.spec() };
        let made = self.create(&again).await;
        assert_eq!(self.sh(&made, LOOK).await, files, "the session's files are not whole");
        self.provider.destroy(again.id).await.expect("destroy a sandbox");
        for disk in self.provider.disks().await.expect("list the disks") {
            if disk != session {
                self.provider.remove_disk(disk).await.expect("remove a disk");
            }
        }
        assert_eq!(self.provider.disks().await.expect("list the disks"), [session]);
    }
}
