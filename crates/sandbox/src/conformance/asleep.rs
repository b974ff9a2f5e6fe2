//! Processes that are kept while nobody uses their sandbox.

use domain::{SessionId, SnapshotId};

use super::{Subject, within};
use crate::{Kept, Limits, ProviderError, SandboxSpec, SandboxState, SandboxStatus};

/// A program in the background that counts, in its memory, and holds a file open; it knows a number that nobody else knows.
const COUNT: &str = "nohup python3 -c 'import os, time
secret, count, log = os.urandom(8).hex(), 0, open(\"log\", \"a\", buffering=1)
while True:
    count += 1
    log.write(f\"{count}\\n\")
    with open(\"count.new\", \"w\") as file:
        file.write(f\"{os.getpid()} {secret} {count}\")
    os.replace(\"count.new\", \"count\")
    time.sleep(0.01)
' > /dev/null 2>&1 < /dev/null &";

/// Every number stands there once, in its place.
const WHOLE: &str = "n=$(wc -l < log) && [ $n -gt 0 ] && [ \"$(seq 1 $n)\" = \"$(head -n $n log)\" ]";

impl Subject {
    async fn hibernate(&self, spec: &SandboxSpec) -> Kept {
        within("hibernate", self.provider.hibernate(spec.id))
            .await
            .expect("hibernate a sandbox")
    }

    /// A session that has a sandbox, for a moment, and whose processes are kept then.
    async fn falls_asleep(&self, session: SessionId) {
        let spec = SandboxSpec { session, ..self.spec() };
        self.create(&spec).await;
        assert_eq!(self.hibernate(&spec).await, Kept::Processes);
    }

    /// The sandbox in which a session's processes go on, which are what they were.
    async fn wake(&self, session: SessionId) -> (SandboxSpec, SandboxStatus) {
        let spec = SandboxSpec { session, ..self.spec() };
        let status = within("wake", self.provider.wake(&spec)).await.expect("wake a sandbox");
        assert_eq!((status.id, status.session), (spec.id, session));
        assert_eq!((&status.image, &status.state), (&spec.image, &SandboxState::Running));
        (spec, status)
    }

    /// Nothing of a session's can go on, and nothing is there after it was tried.
    async fn nothing_goes_on(&self, session: SessionId, limits: Limits, why: &str) {
        let spec = SandboxSpec {
            session,
            limits,
            ..self.spec()
        };
        let answer = within("wake", self.provider.wake(&spec)).await;
        assert!(
            matches!(&answer, Err(ProviderError::NothingKept { session: whose, .. }) if *whose == session),
            "{why}: {answer:?}"
        );
        let listed = self.provider.list().await.expect("list the sandboxes");
        assert!(!listed.iter().any(|status| status.id == spec.id), "{why}: {listed:?}");
    }

    /// What the program in the background says of itself: who it is, and how far it has counted.
    async fn counted(&self, made: &SandboxStatus) -> (String, u64) {
        let counting = async {
            loop {
                let (said, code) = self.attempt(made, "cat count").await;
                if let Some((who, count)) = said.rsplit_once(' ').filter(|_| code == 0) {
                    return (who.to_owned(), count.parse().expect("a count"));
                }
            }
        };
        within("the program in the background to count", counting).await
    }

    /// It counts on from there, and is who it was.
    async fn counts_on(&self, made: &SandboxStatus, who: &str, from: u64) {
        let further = async {
            loop {
                let (now, count) = self.counted(made).await;
                assert_eq!(now, who, "another program counts");
                assert!(count >= from, "it counts from {count}, and had come to {from}");
                if count > from + 5 {
                    return;
                }
            }
        };
        within("the program in the background to count on", further).await;
        self.sh(made, WHOLE).await;
    }

    pub(super) async fn processes_that_are_kept_go_on(&self) {
        let first = self.spec();
        let mut made = self.create(&first).await;
        let confined = self.confined.is_ok();
        if confined {
            self.sh(&made, COUNT).await;
        }
        let (mut spec, session) = (first.clone(), first.session);
        for frozen in [false, true] {
            let counted = if confined {
                Some(self.counted(&made).await)
            } else {
                None
            };
            let far_end = self.dialled(&made).await;
            if frozen {
                self.provider.freeze(spec.id).await.expect("freeze");
            }
            assert_eq!(self.hibernate(&spec).await, Kept::Processes);
            drop(far_end);
            // Whoever did not hear of it asks again.
            assert_eq!(self.hibernate(&spec).await, Kept::Processes);
            assert_eq!(self.provider.list().await.expect("list the sandboxes"), []);
            let status = self.provider.status(spec.id).await;
            assert!(matches!(status, Err(ProviderError::NotFound(_))), "{status:?}");
            assert!(self.provider.disks().await.expect("list the disks").contains(&session));

            (spec, made) = self.wake(session).await;
            self.dialled(&made).await;
            if let Some((who, count)) = counted {
                self.counts_on(&made, &who, count).await;
            }
            let listed = self.provider.list().await.expect("list the sandboxes");
            assert_eq!(listed, std::slice::from_ref(&made));
        }
        // It is a sandbox like any other.
        within("freeze", self.provider.freeze(spec.id)).await.expect("freeze");
        within("thaw", self.provider.thaw(spec.id)).await.expect("thaw");
        self.dialled(&made).await;
        self.remove(&spec).await;
        self.nothing_goes_on(session, self.limits, "the disk is gone").await;
    }

    pub(super) async fn what_is_kept_goes_on_once(&self) {
        let first = self.spec();
        self.create(&first).await;
        assert_eq!(self.hibernate(&first).await, Kept::Processes);
        let (second, made) = self.wake(first.session).await;
        let third = SandboxSpec {
            session: first.session,
            ..self.spec()
        };
        let answer = self.provider.wake(&third).await;
        assert!(
            matches!(answer, Err(ProviderError::DiskInUse { sandbox, .. }) if sandbox == second.id),
            "{answer:?}"
        );
        self.dialled(&made).await;
        self.provider.destroy(second.id).await.expect("destroy what was woken");
        self.nothing_goes_on(first.session, self.limits, "it has gone on before")
            .await;
        let made = self.create(&third).await;
        self.dialled(&made).await;
        self.remove(&third).await;
    }

    pub(super) async fn what_is_kept_goes_when_anything_else_is_done_with_the_disk(&self) {
        let (limits, provider) = (self.limits, &self.provider);
        // One of those that are made ahead, which has found its session.
        let (ahead, session, snapshot) = (self.spec(), SessionId::new(), SnapshotId::new());
        self.create(&ahead).await;
        provider
            .assign(ahead.id, session)
            .await
            .expect("give what was made ahead");
        assert_eq!(self.hibernate(&ahead).await, Kept::Processes);
        self.nothing_goes_on(ahead.session, limits, "it is another's").await;
        let (mut spec, _) = self.wake(session).await;

        assert_eq!(self.hibernate(&spec).await, Kept::Processes);
        within("snapshot", provider.snapshot(session, snapshot))
            .await
            .expect("keep the disk of who sleeps");
        let fork = SessionId::new();
        provider.restore(snapshot, fork).await.expect("fork");
        self.nothing_goes_on(fork, limits, "a fork has files alone").await;
        provider.remove_disk(fork).await.expect("remove a disk");
        (spec, _) = self.wake(session).await;

        assert_eq!(self.hibernate(&spec).await, Kept::Processes);
        provider.restore(snapshot, session).await.expect("go back");
        self.nothing_goes_on(session, limits, "it has other files").await;
        provider.remove_snapshot(snapshot).await.expect("remove a snapshot");

        self.falls_asleep(session).await;
        // Another is made, and what is kept is not of its time any more.
        self.falls_asleep(session).await;
        provider.forget(session).await.expect("forget");
        provider.forget(session).await.expect("forget what is forgotten");
        self.nothing_goes_on(session, limits, "it was forgotten").await;
        self.falls_asleep(session).await;
        let more = Limits {
            memory_bytes: limits.memory_bytes * 2,
            ..limits
        };
        self.nothing_goes_on(session, more, "it had other limits").await;
        self.nothing_goes_on(session, limits, "it was refused before").await;
        self.falls_asleep(session).await;
        provider.remove_disk(session).await.expect("remove a disk");
        self.nothing_goes_on(session, limits, "its disk is gone").await;

        let builder = SandboxSpec {
            builder: true,
            ..self.spec()
        };
        self.create(&builder).await;
        assert_eq!(self.hibernate(&builder).await, Kept::Nothing { reason: None });
        self.remove(&builder).await;
    }

    pub(super) async fn what_is_kept_outlives_its_provider(self) -> Self {
        let spec = self.spec();
        let made = self.create(&spec).await;
        let confined = self.confined.is_ok();
        let mut counted = None;
        if confined {
            self.sh(&made, COUNT).await;
            counted = Some(self.counted(&made).await);
        }
        assert_eq!(self.hibernate(&spec).await, Kept::Processes);
        let restarted = within("restart", (self.restart)(self.provider)).await;
        let subject = Self {
            provider: restarted,
            ..self
        };
        assert_eq!(subject.provider.list().await.expect("list what lives"), []);
        let (again, made) = subject.wake(spec.session).await;
        subject.dialled(&made).await;
        if let Some((who, count)) = counted {
            subject.counts_on(&made, &who, count).await;
        }
        subject.remove(&again).await;
        subject
    }

    pub(super) async fn processes_that_are_not_kept_are_said_to_be_gone(&self) {
        let first = self.spec();
        let made = self.create(&first).await;
        self.sh(&made, "echo kept > kept && sync").await;
        for _ in 0..2 {
            let left = self.hibernate(&first).await;
            assert_eq!(left, Kept::Nothing { reason: None });
        }
        assert_eq!(self.provider.list().await.expect("list the sandboxes"), []);
        self.nothing_goes_on(first.session, self.limits, "nothing is kept")
            .await;
        self.provider
            .forget(first.session)
            .await
            .expect("forget what never was");
        let second = SandboxSpec {
            session: first.session,
            ..self.spec()
        };
        let made = self.create(&second).await;
        assert_eq!(self.sh(&made, "cat kept").await, "kept");
        self.remove(&second).await;
    }
}
