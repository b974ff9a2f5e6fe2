//! A provider whose process is killed at any step of any order, and when the order is carried out and nobody was told.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use domain::{SandboxId, SessionId, SnapshotId};
use serde::{Deserialize, Serialize};

use super::{Subject, within};
use crate::{ImageDigest, Limits, ProviderError, SandboxProvider, SandboxSpec, SandboxState, SandboxStatus};

/// Ends a provider; has a process of its own [give](Orders::give) these orders to one over the same sandboxes and kills that
/// process, without a word, at this moment; opens the provider anew.
pub type Kill = Box<
    dyn Fn(Arc<dyn SandboxProvider>, Orders, Moment) -> Pin<Box<dyn Future<Output = Arc<dyn SandboxProvider>> + Send>>
        + Send
        + Sync,
>;

/// A moment of one who gives orders, which are counted from nought.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Moment {
    /// While this one is carried out: at any step of it.
    During(usize),
    /// This one is carried out, and the next was not begun: nobody was told of it.
    After(usize),
}

impl Moment {
    /// Moments as they come are numbers that rise.
    #[must_use]
    pub const fn number(self) -> usize {
        match self {
            Self::During(order) => 2 * order,
            Self::After(order) => 2 * order + 1,
        }
    }
}

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
    pub const COUNT: usize = 17;

    /// Gives the orders again and again. Each is announced before it is given, and when it is carried out.
    ///
    /// # Errors
    /// The first that is not carried out.
    pub async fn give(
        self,
        provider: &dyn SandboxProvider,
        mut announce: impl FnMut(Moment),
    ) -> Result<(), ProviderError> {
        let spec = |session| SandboxSpec {
            id: SandboxId::new(),
            session,
            image: self.image.clone(),
            limits: self.limits,
            builder: false,
        };
        let mut given: usize = 0;
        let mut next = || {
            if let Some(last) = given.checked_sub(1) {
                announce(Moment::After(last));
            }
            announce(Moment::During(given));
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
            provider.hibernate(ahead.id).await?;
            let again = spec(self.other);
            next();
            match provider.wake(&again).await {
                Err(ProviderError::NothingKept { .. }) => provider.create(&again).await?,
                woken => woken?,
            };
            next();
            provider.destroy(again.id).await?;
            let all = next();
            provider.remove_disk(self.other).await?;
            assert_eq!(all % Self::COUNT, 0, "how many orders there are");
        }
    }
}

/// How many sandboxes, snapshots, images that a builder made, and disks there are after each order.
const AFTER: [[usize; 4]; Orders::COUNT] = [
    [1, 0, 0, 1],
    [1, 0, 0, 1],
    [1, 0, 0, 1],
    [1, 1, 0, 1],
    [1, 1, 1, 1],
    [0, 1, 1, 1],
    [0, 1, 0, 1],
    [0, 1, 0, 1],
    [0, 1, 0, 2],
    [0, 0, 0, 2],
    [0, 0, 0, 1],
    [1, 0, 0, 2],
    [1, 0, 0, 2],
    [0, 0, 0, 2],
    [1, 0, 0, 2],
    [0, 0, 0, 2],
    [0, 0, 0, 1],
];

/// The order after which a sandbox is frozen.
const FREEZE: usize = 1;

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
        // In the second time round, so that there are things of the first.
        let steps = Orders::COUNT..2 * Orders::COUNT;
        for moment in steps.flat_map(|step| [Moment::During(step), Moment::After(step)]) {
            let orders = Orders {
                image: self.image.clone(),
                limits: self.limits,
                session: spec.session,
                other: SessionId::new(),
            };
            let killed = kill(self.provider, orders, moment);
            self.provider = within("kill a provider", killed).await;
            println!("killed at {moment:?}");
            if let Moment::After(order) = moment {
                self.what_was_done_is_done(order % Orders::COUNT).await;
            }
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

    /// There is what there is after this order.
    async fn what_was_done_is_done(&self, order: usize) {
        let sandboxes = self.provider.list().await.expect("list what lives");
        let images = self.provider.images().await.expect("list the images");
        let there = [
            sandboxes.len(),
            self.provider.snapshots().await.expect("list the snapshots").kept.len(),
            images.iter().filter(|image| image.base.is_some()).count(),
            self.provider.disks().await.expect("list the disks").len(),
        ];
        assert_eq!(
            there, AFTER[order],
            "sandboxes, snapshots, images and disks after order {order}"
        );
        for sandbox in sandboxes {
            let state = if order == FREEZE {
                SandboxState::Frozen
            } else {
                SandboxState::Running
            };
            assert_eq!(sandbox.state, state);
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
