//! The checks, each of which leaves the provider as it found it.

use std::collections::BTreeSet;

use domain::{SandboxId, SessionId};
use futures::future::join_all;

use super::{SILENCE, Subject, accept, within};
use crate::{ImageDigest, Limits, ProviderError, SandboxSpec, SandboxState};

impl Subject {
    pub(super) async fn a_sandbox_lives_and_is_gone(&self) {
        let spec = self.spec();
        let made = self.create(&spec).await;
        let (link, _connection) = self.dialled(&made).await;

        let again = self.provider.link(spec.id).await.expect("ask for the link again");
        let path = again.local_addr().expect("the link's address");
        let same = link.local_addr().expect("the link's address");
        assert_eq!(
            path.as_pathname(),
            same.as_pathname(),
            "the link is another one each time"
        );

        let listed = within("list", self.provider.list()).await.expect("list the sandboxes");
        assert_eq!(listed, std::slice::from_ref(&made));
        let status = within("status", self.provider.status(spec.id))
            .await
            .expect("ask for the status");
        assert_eq!(status, made);
        let usage = within("usage", self.provider.usage(spec.id))
            .await
            .expect("ask for the usage");
        assert!(usage.pids >= 1, "a living sandbox has a process: {usage:?}");

        self.remove(&spec).await;
        assert!(self.provider.list().await.expect("list the sandboxes").is_empty());
        within("destroy again", self.provider.destroy(spec.id))
            .await
            .expect("destroy what is gone");
        within("remove the disk again", self.provider.remove_disk(spec.session))
            .await
            .expect("remove what is gone");
        let status = self.provider.status(spec.id).await;
        assert!(
            matches!(status, Err(ProviderError::NotFound(id)) if id == spec.id),
            "{status:?}"
        );
    }

    pub(super) async fn a_frozen_sandbox_stands_still(&self) {
        let spec = self.spec();
        let made = self.create(&spec).await;
        let (link, connection) = self.dialled(&made).await;

        for _ in 0..2 {
            within("freeze", self.provider.freeze(spec.id))
                .await
                .expect("freeze, and freeze again");
            assert_eq!(self.state(spec.id).await, SandboxState::Frozen);
        }
        drop(connection);
        // What was dialled before the freeze is let go; nothing more may come.
        let mut dialled_before = 0;
        while let Ok(_connection) = tokio::time::timeout(SILENCE, link.accept()).await {
            dialled_before += 1;
            assert!(dialled_before < 8, "a frozen sandbox dials on");
        }

        for _ in 0..2 {
            within("thaw", self.provider.thaw(spec.id))
                .await
                .expect("thaw, and thaw again");
            assert_eq!(self.state(spec.id).await, SandboxState::Running);
        }
        accept(&link, &made).await;

        within("freeze", self.provider.freeze(spec.id)).await.expect("freeze");
        self.remove(&spec).await;
    }

    pub(super) async fn what_is_unknown_is_not_found(&self) {
        let id = SandboxId::new();
        let provider = &self.provider;
        let answers = [
            ("status", provider.status(id).await.err()),
            ("usage", provider.usage(id).await.err()),
            ("freeze", provider.freeze(id).await.err()),
            ("thaw", provider.thaw(id).await.err()),
            ("link", provider.link(id).await.err()),
            ("words", provider.words(id).await.err()),
            ("assign", provider.assign(id, SessionId::new()).await.err()),
        ];
        for (what, answer) in answers {
            assert!(
                matches!(answer, Some(ProviderError::NotFound(found)) if found == id),
                "{what}: {answer:?}"
            );
        }
        provider.destroy(id).await.expect("destroy what never was");
        provider
            .remove_disk(SessionId::new())
            .await
            .expect("remove a disk that never was");
    }

    pub(super) async fn what_is_taken_is_refused(&self) {
        let spec = self.spec();
        let made = self.create(&spec).await;

        let mut same_id = self.spec();
        same_id.id = spec.id;
        let answer = self.provider.create(&same_id).await;
        assert!(
            matches!(answer, Err(ProviderError::Exists(id)) if id == spec.id),
            "{answer:?}"
        );

        let mut same_session = self.spec();
        same_session.session = spec.session;
        let answer = self.provider.create(&same_session).await;
        assert!(
            matches!(answer, Err(ProviderError::DiskInUse { session, sandbox }) if session == spec.session && sandbox == spec.id),
            "{answer:?}"
        );
        let answer = self.provider.remove_disk(spec.session).await;
        assert!(matches!(answer, Err(ProviderError::DiskInUse { .. })), "{answer:?}");

        assert_eq!(self.state(spec.id).await, SandboxState::Running);
        self.dialled(&made).await;
        self.remove(&spec).await;
    }

    pub(super) async fn what_cannot_be_made_leaves_nothing(&self) {
        let mut spec = self.spec();
        let good = spec.clone();
        for limits in [
            Limits {
                memory_bytes: 1,
                ..spec.limits
            },
            Limits { pids: 0, ..spec.limits },
            Limits {
                cpu_millis: 0,
                ..spec.limits
            },
            Limits {
                disk_bytes: u64::MAX,
                ..spec.limits
            },
        ] {
            spec.limits = limits;
            let answer = self.provider.create(&spec).await;
            assert!(matches!(answer, Err(ProviderError::Limit(_))), "{limits:?}: {answer:?}");
        }
        spec = good.clone();
        spec.image = ImageDigest::from_bytes([0xee; 32]);
        let answer = self.provider.create(&spec).await;
        assert!(
            matches!(&answer, Err(ProviderError::ImageMissing { image, .. }) if *image == spec.image),
            "{answer:?}"
        );

        assert!(self.provider.list().await.expect("list the sandboxes").is_empty());
        let disks = self.provider.disks().await.expect("list the disks");
        assert!(!disks.contains(&good.session), "a disk was left: {disks:?}");
        self.create(&good).await;
        self.remove(&good).await;
    }

    pub(super) async fn sandboxes_live_side_by_side(&self) {
        let (one, two) = (self.spec(), self.spec());
        let (first, second) = tokio::join!(self.create(&one), self.create(&two));
        let (_, _connections) = tokio::join!(self.dialled(&first), self.dialled(&second));

        self.provider.freeze(one.id).await.expect("freeze one of two");
        assert_eq!(self.state(one.id).await, SandboxState::Frozen);
        assert_eq!(self.state(two.id).await, SandboxState::Running);
        let listed: Vec<_> = self
            .provider
            .list()
            .await
            .expect("list two")
            .iter()
            .map(|status| status.id)
            .collect();
        let mut sorted = [one.id, two.id];
        sorted.sort();
        assert_eq!(listed, sorted);

        self.remove(&one).await;
        assert_eq!(self.state(two.id).await, SandboxState::Running);
        self.remove(&two).await;
    }

    pub(super) async fn many_at_once_all_live_and_go(&self) {
        let mut specs = Vec::new();
        specs.resize_with(self.at_once, || self.spec());
        let all = join_all(specs.iter().map(|spec| self.create(spec))).await;
        join_all(all.iter().map(|made| self.dialled(made))).await;
        let listed = self.provider.list().await.expect("list them all");
        assert_eq!(listed.len(), all.len());
        let uids: BTreeSet<_> = all.iter().map(|made| made.root_uid).collect();
        match self.own_uids {
            Ok(()) => assert_eq!(
                uids.len(),
                all.len(),
                "two sandboxes are the same to a socket's other end"
            ),
            Err(reason) => println!("uids are not compared: {reason}"),
        }
        join_all(specs.iter().map(|spec| self.remove(spec))).await;
        assert_eq!(self.provider.list().await.expect("list what is left"), []);
    }

    pub(super) async fn a_disk_outlives_its_sandbox(&self) {
        let first = self.spec();
        let made = self.create(&first).await;
        self.sh(&made, "echo kept > kept && sync").await;
        self.provider.destroy(first.id).await.expect("destroy the first");
        let mut second = self.spec();
        second.session = first.session;
        let made = self.create(&second).await;
        assert_eq!(self.sh(&made, "cat kept").await, "kept");
        self.remove(&second).await;
    }

    pub(super) async fn what_was_made_ahead_is_given_once(&self) {
        let provider = &self.provider;
        let (ahead, spare, session) = (self.spec(), self.spec(), SessionId::new());
        let made = self.create(&ahead).await;
        let (_link, connection) = self.dialled(&made).await;
        self.create(&spare).await;

        let given = within("assign", provider.assign(ahead.id, session))
            .await
            .expect("give what was made ahead");
        assert_eq!(given.session, session);
        assert_eq!(
            (given.id, given.root_uid, &given.state),
            (made.id, made.root_uid, &made.state)
        );
        assert_eq!(provider.status(ahead.id).await.expect("ask for the status"), given);
        let disks = within("disks", provider.disks()).await.expect("list the disks");
        assert!(disks.is_sorted(), "{disks:?}");
        assert!(disks.contains(&session) && !disks.contains(&ahead.session), "{disks:?}");
        // Whoever was connected does not notice.
        let mut nothing = [0; 1];
        let closed = connection.try_read(&mut nothing);
        assert!(
            !matches!(closed, Ok(0)),
            "the link was closed when the sandbox was given away"
        );

        let again = provider.assign(ahead.id, session).await;
        assert_eq!(again.expect("give it to the same session again"), given);
        for other in [SessionId::new(), ahead.session] {
            let answer = provider.assign(ahead.id, other).await;
            assert!(
                matches!(answer, Err(ProviderError::Assigned(id)) if id == ahead.id),
                "{answer:?}"
            );
        }
        let answer = provider.assign(spare.id, session).await;
        assert!(
            matches!(answer, Err(ProviderError::DiskInUse { session: whose, sandbox }) if whose == session && sandbox == ahead.id),
            "{answer:?}"
        );
        let mut second = self.spec();
        second.session = session;
        let answer = provider.create(&second).await;
        assert!(matches!(answer, Err(ProviderError::DiskInUse { .. })), "{answer:?}");

        provider.destroy(ahead.id).await.expect("destroy what was given");
        let disks = provider.disks().await.expect("list the disks");
        assert!(disks.contains(&session), "the disk went with its sandbox: {disks:?}");
        let answer = provider.assign(spare.id, session).await;
        assert!(
            matches!(answer, Err(ProviderError::DiskExists(whose)) if whose == session),
            "{answer:?}"
        );
        // What was refused for its sake can be given to another.
        let other = SessionId::new();
        provider
            .assign(spare.id, other)
            .await
            .expect("give the spare one to another");
        let made = self.create(&second).await;
        self.dialled(&made).await;
        self.remove(&second).await;

        provider.destroy(spare.id).await.expect("destroy the spare one");
        provider.remove_disk(other).await.expect("remove a disk");
        let disks = provider.disks().await.expect("list the disks");
        for session in [session, other, ahead.session, spare.session] {
            assert!(!disks.contains(&session), "the disk of {session} is left: {disks:?}");
        }
    }

    pub(super) async fn sandboxes_outlive_their_provider(self) -> Self {
        let (running, frozen) = (self.spec(), self.spec());
        let made = self.create(&running).await;
        self.dialled(&made).await;
        self.create(&frozen).await;
        // One of them was made ahead.
        let (ahead, whose) = (frozen, SessionId::new());
        self.provider
            .assign(ahead.id, whose)
            .await
            .expect("give what was made ahead");
        let frozen = SandboxSpec {
            session: whose,
            ..ahead.clone()
        };
        self.provider.freeze(frozen.id).await.expect("freeze one of two");
        let before = self.provider.list().await.expect("list before");

        // The old provider is handed over whole: nobody holds it any longer.
        let restarted = within("restart", (self.restart)(self.provider)).await;
        let subject = Self {
            provider: restarted,
            ..self
        };

        assert_eq!(subject.provider.list().await.expect("list after"), before);
        subject.dialled(&made).await;
        let mut taken = subject.spec();
        taken.session = frozen.session;
        let answer = subject.provider.create(&taken).await;
        assert!(matches!(answer, Err(ProviderError::DiskInUse { .. })), "{answer:?}");
        let answer = subject.provider.assign(frozen.id, SessionId::new()).await;
        assert!(
            matches!(answer, Err(ProviderError::Assigned(id)) if id == frozen.id),
            "{answer:?}"
        );
        let disks = subject.provider.disks().await.expect("list the disks after");
        assert!(disks.contains(&whose) && !disks.contains(&ahead.session), "{disks:?}");
        subject.provider.thaw(frozen.id).await.expect("thaw what was adopted");
        subject.remove(&frozen).await;
        subject.remove(&running).await;
        subject
    }
}
