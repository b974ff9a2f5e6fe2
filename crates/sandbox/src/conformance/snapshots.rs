//! Snapshots, and what comes back of them.

use domain::{SessionId, SnapshotId};

use super::{Subject, within};
use crate::{ProviderError, SandboxSpec, SandboxState, SandboxStatus, SnapshotStatus};

/// Makes a file of each kind, in one line.
const MAKE: &str = "umask 022 && mkdir -p tree/deep && echo words > tree/deep/file && chmod 750 tree/deep/file \
    && ln -s ../../outside tree/link && ln tree/deep/file tree/twin && truncate -s 48M tree/holes && echo end >> tree/holes \
    && python3 -c 'import os; os.setxattr(\"tree/deep/file\", \"user.color\", b\"green\")' \
    && touch -d @1000000000 tree/deep/file && touch -h -d @1000000001 tree/link && mkdir -m 700 tree/shut \
    && mkdir -p $KNOWLEDGE/learnt && echo words > $KNOWLEDGE/learnt/file && sync";

/// All that can be told of them.
const LOOK: &str = "find . -mindepth 1 -type d -printf '%P %m\\n' | sort \
    && find . ! -type d -printf '%P %y %m %n %s %l %T@\\n' | sort && find . -type f | sort | xargs sha256sum \
    && [ tree/twin -ef tree/deep/file ] \
    && python3 -c 'import os; print(os.getxattr(\"tree/twin\", \"user.color\"))' \
    && cd $KNOWLEDGE/learnt && find . -mindepth 1 -printf '%P %y %m %U\n' | sort && cat file";

/// More blocks of 512 bytes than `tree/holes` takes, and more than the disk that it is on. Without holes it had 98,304.
const OF_HOLES: u64 = 4_096;
const OF_THE_DISK: u64 = 49_152;

/// Removes, changes and adds.
const CHANGE: &str = "rm -r tree/deep tree/link && echo other > tree/twin && chmod 600 tree/holes && echo new > tree/new \
    && echo other > $KNOWLEDGE/learnt/file && echo new > $KNOWLEDGE/learnt/new && sync";

impl Subject {
    async fn keep(&self, session: SessionId) -> SnapshotStatus {
        let id = SnapshotId::new();
        let made = within("snapshot", self.provider.snapshot(session, id)).await;
        let made = made.expect("make a snapshot");
        assert_eq!(made.id, id);
        let listed = self.kept().await;
        assert!(listed.contains(&id), "{id} is not listed: {listed:?}");
        made
    }

    async fn kept(&self) -> Vec<SnapshotId> {
        let listed = within("list the snapshots", self.provider.snapshots()).await;
        let kept = listed.expect("list the snapshots").kept;
        kept.iter().map(|status| status.id).collect()
    }

    async fn bring_back(&self, snapshot: SnapshotId, session: SessionId) {
        within("restore", self.provider.restore(snapshot, session))
            .await
            .expect("restore a snapshot");
    }

    async fn drop_snapshot(&self, snapshot: SnapshotId) {
        within("remove a snapshot", self.provider.remove_snapshot(snapshot))
            .await
            .expect("remove a snapshot");
    }

    /// A session whose disk is made from a snapshot, and its sandbox.
    async fn fork(&self, snapshot: SnapshotId) -> (SandboxSpec, SandboxStatus) {
        let spec = self.spec();
        self.bring_back(snapshot, spec.session).await;
        let made = self.create(&spec).await;
        (spec, made)
    }

    /// The same session's next sandbox.
    async fn again(&self, session: SessionId) -> (SandboxSpec, SandboxStatus) {
        let spec = SandboxSpec { session, ..self.spec() };
        let made = self.create(&spec).await;
        (spec, made)
    }

    /// All that can be told of the files. A file with holes takes hardly anything: by what the kernel inside says of it, or,
    /// where that knows of no holes, by what the whole disk holds.
    async fn look(&self, made: &SandboxStatus) -> String {
        let blocks: u64 = self
            .sh(made, "stat -c %b tree/holes")
            .await
            .parse()
            .expect("a number of blocks");
        if blocks >= OF_HOLES {
            let usage = within("usage", self.provider.usage(made.id)).await;
            let held = usage.expect("ask for the usage").disk_bytes / 512;
            assert!(
                (1..OF_THE_DISK).contains(&held),
                "{held} blocks are held: the holes were filled"
            );
        }
        self.sh(made, LOOK).await
    }

    pub(super) async fn a_snapshot_brings_files_back(&self) {
        let first = self.spec();
        let made = self.create(&first).await;
        self.sh(&made, MAKE).await;
        let before = self.look(&made).await;
        let snapshot = self.keep(first.session).await.id;
        assert_eq!(
            self.state(first.id).await,
            SandboxState::Running,
            "a snapshot does not stop a sandbox"
        );
        self.sh(&made, CHANGE).await;
        let answer = self.provider.snapshot(first.session, snapshot).await;
        assert!(
            matches!(answer, Err(ProviderError::SnapshotExists(id)) if id == snapshot),
            "{answer:?}"
        );
        let answer = self.provider.restore(snapshot, first.session).await;
        assert!(
            matches!(answer, Err(ProviderError::DiskInUse { sandbox, .. }) if sandbox == first.id),
            "the disk of a living sandbox was replaced: {answer:?}"
        );

        self.provider.freeze(first.id).await.expect("freeze");
        let frozen = self.keep(first.session).await.id;
        assert_eq!(
            self.state(first.id).await,
            SandboxState::Frozen,
            "a snapshot does not wake a sandbox"
        );
        self.provider.destroy(first.id).await.expect("destroy a sandbox");
        let alone = self.keep(first.session).await.id;

        self.bring_back(snapshot, first.session).await;
        let (second, made) = self.again(first.session).await;
        assert_eq!(self.look(&made).await, before);
        self.remove(&second).await;
        for changed in [frozen, alone] {
            let (fork, made) = self.fork(changed).await;
            assert_eq!(
                self.sh(
                    &made,
                    "cat tree/twin tree/new && ls tree && cat $KNOWLEDGE/learnt/file && ls $KNOWLEDGE/learnt"
                )
                .await,
                "other\nnew\nholes\nnew\nshut\ntwin\nother\nfile\nnew"
            );
            self.remove(&fork).await;
        }
        for snapshot in [snapshot, frozen, alone] {
            self.drop_snapshot(snapshot).await;
        }
    }

    pub(super) async fn forks_are_strangers(&self) {
        let parent = self.spec();
        let made = self.create(&parent).await;
        self.sh(&made, "echo parent > file && sync").await;
        let snapshot = self.keep(parent.session).await.id;
        let ((one, first), (two, second)) = tokio::join!(self.fork(snapshot), self.fork(snapshot));
        self.sh(&first, "echo first > file && echo first > own && sync").await;
        self.sh(&second, "rm file && sync").await;
        assert_eq!(self.sh(&made, "cat file && ls").await, "parent\nfile");
        assert_eq!(self.sh(&first, "cat file && ls").await, "first\nfile\nown");
        assert_eq!(self.sh(&second, "ls").await, "");
        self.drop_snapshot(snapshot).await;
        self.remove(&parent).await;
        assert_eq!(
            self.sh(&first, "cat file").await,
            "first",
            "a fork needs neither its parent nor the snapshot"
        );
        let answer = self.provider.restore(snapshot, parent.session).await;
        assert!(
            matches!(answer, Err(ProviderError::NoSnapshot(id)) if id == snapshot),
            "{answer:?}"
        );
        self.remove(&one).await;
        self.remove(&two).await;
    }

    pub(super) async fn a_snapshot_that_is_not_there_is_not_found(&self) {
        let (session, snapshot) = (SessionId::new(), SnapshotId::new());
        let answer = self.provider.snapshot(session, snapshot).await;
        assert!(
            matches!(answer, Err(ProviderError::NoDisk(id)) if id == session),
            "{answer:?}"
        );
        let answer = self.provider.restore(snapshot, session).await;
        assert!(
            matches!(answer, Err(ProviderError::NoSnapshot(id)) if id == snapshot),
            "{answer:?}"
        );
        self.drop_snapshot(snapshot).await;
    }

    pub(super) async fn snapshots_outlive_their_provider(self) -> Self {
        let first = self.spec();
        let made = self.create(&first).await;
        self.sh(&made, MAKE).await;
        let before = self.look(&made).await;
        let snapshot = self.keep(first.session).await;
        self.remove(&first).await;

        let restarted = within("restart", (self.restart)(self.provider)).await;
        let subject = Self {
            provider: restarted,
            ..self
        };
        let kept = subject.provider.snapshots().await.expect("list the snapshots").kept;
        let times: Vec<_> = kept.iter().map(|status| (status.id, status.created)).collect();
        assert_eq!(times, [(snapshot.id, snapshot.created)]);
        let (fork, made) = subject.fork(snapshot.id).await;
        assert_eq!(subject.look(&made).await, before);
        subject.remove(&fork).await;
        subject.drop_snapshot(snapshot.id).await;
        subject
    }
}
